"""Settings, previews and reports as plain sentences; events are told by the picture itself."""

from typing import Any

from app.text import Texts
from workbench.config import all_settings
from workbench.views import ApplyReport, WeightNote

TIER_SIZES = ("tiers.dram_mib", "tiers.disk_mib", "tiers.shared_mib", "tiers.object_mib")


def setting_label(texts: Texts, path: str) -> str:
    """Name of a setting as its knob shows it."""
    return texts.get(f"knob.{path}.label", path.split(".")[-1].replace("_", " "))


def value_text(texts: Texts, path: str, value: Any) -> str:
    """A setting's value with its unit, as a person reads it."""
    choice = texts.get(f"choice.{path.rpartition('.')[2]}.{value}") or texts.get(f"choice.{value}")
    if choice:
        return choice
    if isinstance(value, bool):
        return texts("choice.on" if value else "choice.off")
    words = all_settings()[path].metadata["unit"].split(" ")
    unit = words[words[0] == "prefill"] if words[0] != "share" else ""
    if value == 0 and path in TIER_SIZES:
        return texts("choice.off")
    number = f"{value:g}" if isinstance(value, float) else str(value)
    return f"{number} {unit}".strip()


def change_text(texts: Texts, path: str, value: Any) -> str:
    """One change as `K format int8`."""
    return f"{setting_label(texts, path)} {value_text(texts, path, value)}"


def preview_sentence(texts: Texts, report: ApplyReport) -> str:
    """What an apply would do: "int8: 1.9 x blocks; 130 of 182 blocks re-encoded, about 40 ms"."""
    name = ", ".join(value_text(texts, path, value) for path, value in report.changes.items())
    parts = []
    if report.blocks_before and report.blocks_after != report.blocks_before:
        ratio = report.blocks_after / report.blocks_before
        parts.append(texts("report.ratio", ratio=f"{ratio:.1f}"))
    parts += _effects(texts, report)
    kinds = set(report.kinds.values())
    for kind in ("restart", "rebuild"):
        if kind in kinds:
            parts.append(texts(f"report.{kind}"))
    if report.milliseconds >= 0.5:
        parts.append(texts("report.about", ms=f"{report.milliseconds:.0f}"))
    return f"{name}: " + ("; ".join(parts) if parts else texts("report.at_once")) + "."


def report_sentence(texts: Texts, report: ApplyReport) -> str:
    """What an apply did, with its time."""
    name = ", ".join(change_text(texts, path, value) for path, value in report.changes.items())
    parts = [name or texts("report.nothing")]
    if report.blocks_before and report.blocks_after != report.blocks_before:
        parts.append(texts("report.blocks", before=report.blocks_before, after=report.blocks_after))
    parts += _effects(texts, report)
    parts.append(texts("report.took", ms=f"{report.milliseconds:.0f}"))
    return "; ".join(parts) + "."


def _effects(texts: Texts, report: ApplyReport) -> list[str]:
    """Blocks re-encoded and dropped, requests sent back, and the engine's own notes."""
    parts = []
    if report.num_recoded_blocks:
        key = "report.recoded_of" if report.blocks_before else "report.recoded"
        parts.append(texts(key, n=report.num_recoded_blocks, of=report.blocks_before))
    if report.num_evicted_blocks:
        parts.append(texts("report.evicted", n=report.num_evicted_blocks))
    if report.num_preempted_requests:
        parts.append(texts("report.preempted", n=report.num_preempted_requests))
    return parts + [texts(f"note.{note}") for note in report.notes]


def weight_notes(texts: Texts, notes: list[WeightNote]) -> list[str]:
    """What to know of the loaded weights, a sentence each."""
    return [texts(f"weight_note.{note.kind}", **note.values) for note in notes]


def escape(text: str) -> str:
    """`text` without meaning to Markdown, so that names and errors show as they are."""
    for mark in ("\\", "`", "*", "_", "[", "]", "$", "<", "#", "~", ":"):
        text = text.replace(mark, "\\" + mark)
    return text
