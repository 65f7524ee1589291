"""The same settings for other systems: Python of this project, vLLM flags, SGLang flags.

Flag names: vLLM 0.33 `vllm serve --help`, SGLang 0.5.23 `python -m sglang.launch_server --help`.
What one of them has no flag for says so; nothing is rounded to something that sounds alike.
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from app.panels.link import LOCAL_SETTINGS
from app.text import Texts
from app.text.sentences import change_text
from workbench.config import EngineConfig, difference, get_setting

MIB = 1024 * 1024
Rule = Callable[[EngineConfig, Any], str | None]  # a flag, "" for "its default", None for none


@dataclass(frozen=True)
class System:
    """How one system is started: `always` lists settings written whatever their value."""

    start: str
    note: str
    always: tuple[str, ...]
    rules: dict[str, Rule] = field(default_factory=dict)


def python_snippet(config: EngineConfig) -> str:
    """Python that builds an engine's config with these settings."""
    changes = difference(config, EngineConfig())
    lines = ["from workbench.config import EngineConfig, replace_settings", ""]
    if not changes:
        return "\n".join([*lines, "config = EngineConfig()"])
    lines += ["config = replace_settings(EngineConfig(), {"]
    lines += [f"    {path!r}: {value!r}," for path, value in changes.items()]
    return "\n".join([*lines, "})"])


def command(texts: Texts, config: EngineConfig, system: System) -> str:
    """The system's start command; settings without a counterpart follow as comments."""
    changes = difference(config, EngineConfig())
    flags, missing = [], []
    for path in dict.fromkeys([*system.always, *changes]):
        if path in LOCAL_SETTINGS:
            continue
        value = get_setting(config, path)
        flag = system.rules[path](config, value) if path in system.rules else None
        if flag is None:
            missing.append(f"# {change_text(texts, path, value)}: {texts('copy.no_counterpart')}")
        elif flag and flag not in flags:
            flags.append(flag)
    return "\n".join([f"# {texts(system.note)}", " \\\n  ".join([system.start, *flags]), *missing])


def export_all(texts: Texts, config: EngineConfig, link: str) -> dict[str, str]:
    """The four things *Copy* offers, by name."""
    return {
        "link": link,
        "python": python_snippet(config),
        "vllm": command(texts, config, VLLM),
        "sglang": command(texts, config, SGLANG),
    }


def _value(flag: str) -> Rule:
    return lambda config, value: (
        f"{flag} {value:g}" if value != int(value) else (f"{flag} {int(value)}")
    )


def _choice(flag: str, names: dict[Any, str]) -> Rule:
    """A flag for the values in `names`; "" there means that it is the system's own way."""

    def rule(config: EngineConfig, value: Any) -> str | None:
        name = names.get(value)
        return f"{flag} {name}".strip() if name else name

    return rule


def _kv_dtype(names: dict[str, str]) -> Rule:
    """One dtype for K and V: two different ones have no counterpart."""

    def rule(config: EngineConfig, value: Any) -> str | None:
        same = config.cache.k_format == config.cache.v_format
        return f"--kv-cache-dtype {names[value]}" if same and value in names else None

    return rule


def _switch(on: str, off: str) -> Rule:
    return lambda config, value: on if value else off


def _vllm_dram(config: EngineConfig, value: Any) -> str:
    size = f"--kv-offloading-size {value / 1024:.4g}"
    return f"--kv-offloading-backend native {size}" if value else ""


def _sglang_dram(config: EngineConfig, value: Any) -> str | None:
    if not value:
        return ""
    if value % 1024:
        return None  # whole GB only
    return f"--enable-hierarchical-cache --hicache-size {int(value / 1024)}"


_WEIGHTS = {"bf16": "bfloat16", "fp32": "float32", "as_stored": "auto"}

VLLM = System(
    start="vllm serve MODEL",
    note="copy.note_vllm",
    always=(
        "cache.hbm_budget_mib", "cache.block_size", "cache.prefix_caching", "model.max_model_len",
        "scheduling.token_budget", "scheduling.max_num_seqs", "scheduling.chunk_tokens",
    ),
    rules={
        "cache.hbm_budget_mib": lambda c, mib: f"--kv-cache-memory-bytes {int(mib * MIB)}",
        "cache.block_size": _value("--block-size"),
        "cache.prefix_caching": _switch("--enable-prefix-caching", "--no-enable-prefix-caching"),
        "cache.k_format": _kv_dtype(_VLLM_KV := {
            "bf16": "bfloat16", "fp8_e4m3": "fp8_e4m3",
            "int8": "int8_per_token_head", "int4": "int4_per_token_head",
        }),
        "cache.v_format": _kv_dtype(_VLLM_KV),
        "model.max_model_len": _value("--max-model-len"),
        "model.weight_format": _choice("--dtype", _WEIGHTS),
        "scheduling.token_budget": _value("--max-num-batched-tokens"),
        "scheduling.max_num_seqs": _value("--max-num-seqs"),
        "scheduling.chunk_tokens": _value("--long-prefill-token-threshold"),
        "scheduling.order": _choice(
            "--scheduling-policy", {"fcfs": "fcfs", "priority": "priority"}
        ),
        "scheduling.preemption": _choice("", {"recompute": ""}),
        "scheduling.watermark": _value("--watermark"),
        "scheduling.admit_whole_prompt": _switch(
            "--scheduler-reserve-full-isl", "--no-scheduler-reserve-full-isl"
        ),
        "tiers.dram_mib": _vllm_dram,
        "tiers.policy": _choice("", {"lru": ""}),
    },
)  # fmt: skip

SGLANG = System(
    start="python -m sglang.launch_server --model-path MODEL",
    note="copy.note_sglang",
    always=(
        "cache.hbm_budget_mib", "cache.block_size", "cache.prefix_caching", "model.max_model_len",
        "scheduling.token_budget", "scheduling.max_num_seqs", "scheduling.chunk_tokens",
    ),
    rules={
        "cache.block_size": _value("--page-size"),
        "cache.prefix_caching": _switch("", "--disable-radix-cache"),
        "cache.k_format": _kv_dtype({"bf16": "bf16", "fp8_e4m3": "fp8_e4m3"}),
        "cache.v_format": _kv_dtype({"bf16": "bf16", "fp8_e4m3": "fp8_e4m3"}),
        "model.max_model_len": _value("--context-length"),
        "model.weight_format": _choice("--dtype", _WEIGHTS),
        "scheduling.max_num_seqs": _value("--max-running-requests"),
        "scheduling.chunk_tokens": _value("--chunked-prefill-size"),
        "scheduling.order": _choice(
            "--schedule-policy", {"fcfs": "fcfs", "longest-prefix-first": "lpm"}
        ),
        "scheduling.preemption": _choice("", {"recompute": ""}),
        "tiers.dram_mib": _sglang_dram,
        "tiers.policy": _choice("--radix-eviction-policy", {"lru": "lru"}),
    },
)  # fmt: skip
