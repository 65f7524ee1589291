"""Figures that say where they come from, and the machine they were measured on.

Every command that prints figures prints one object with `--json`:
`{"machine": {...}, "figures": [{"name", "value", "unit", "provenance", "note"}]}`.
"""

import os
import platform
import re
from importlib import metadata
from pathlib import Path
from typing import Literal

import msgspec
import psutil

Provenance = Literal["measured", "throttled", "modelled", "interpolated", "refused"]
_NAME = re.compile(r"[a-z][a-z0-9_]*")


class Figure(msgspec.Struct, frozen=True, kw_only=True):
    """One figure under the name docs/benchmarks.md knows it by.

    `value` None means not available, for the reason in `note`. `unit` is empty for ratios and
    counts. Raises ValueError on a name that is not lower case with underscores, or on a missing
    value without a reason.
    """

    name: str
    value: float | int | None
    unit: str = ""
    provenance: Provenance = "measured"
    note: str = ""

    def __post_init__(self) -> None:
        if not _NAME.fullmatch(self.name):
            raise ValueError(f"figure name {self.name!r}: use lower case, digits and underscores")
        if self.value is None and not self.note:
            raise ValueError(f"figure {self.name} has no value: say why in its note")


class Machine(msgspec.Struct, frozen=True, kw_only=True):
    """What a figure depends on besides the code; no host or user name."""

    cpu: str
    cores: int  # cores this process may use
    ram_gib: float
    gpu: str  # empty: none
    kernel: str
    python: str
    torch: str
    triton: str
    threads: int  # torch's threads in this process
    date: str  # ISO, UTC


class Report(msgspec.Struct, frozen=True, kw_only=True):
    """Figures of one command with their machine."""

    machine: Machine
    figures: list[Figure]


def describe_machine() -> Machine:
    """The machine this process runs on; imports torch."""
    import torch

    gpu = torch.cuda.get_device_name(0) if torch.cuda.is_available() else ""
    return Machine(
        cpu=cpu_model(Path("/proc/cpuinfo")),
        cores=len(os.sched_getaffinity(0)),
        ram_gib=round(psutil.virtual_memory().total / 2**30, 1),
        gpu=gpu,
        kernel=f"{platform.system()} {platform.release().split('-')[0]}",
        python=platform.python_version(),
        torch=str(torch.__version__),
        triton=_version("triton"),
        threads=torch.get_num_threads(),
        date=_today(),
    )


def cpu_model(cpuinfo: Path) -> str:
    """The processor's own name, or the architecture where /proc does not tell."""
    try:
        lines = cpuinfo.read_text(encoding="utf-8").splitlines()
    except OSError:
        lines = []
    for line in lines:
        key, _, value = line.partition(":")
        if key.strip() == "model name" and value.strip():
            return value.strip()
    return platform.machine()


def report(figures: list[Figure]) -> Report:
    """Put the machine beside the figures; raises ValueError when a name comes twice."""
    names = [figure.name for figure in figures]
    twice = sorted({name for name in names if names.count(name) > 1})
    if twice:
        raise ValueError(f"figure {twice[0]} is given twice: one name, one value")
    return Report(machine=describe_machine(), figures=figures)


def to_json(result: Report) -> str:
    """The report as one indented JSON object."""
    return msgspec.json.format(msgspec.json.encode(result), indent=2).decode()


def print_report(result: Report, *, as_json: bool) -> None:
    """Print JSON on stdout, or a table for people."""
    if as_json:
        print(to_json(result))
        return
    from rich.console import Console
    from rich.table import Table

    table = Table("figure", "value", "unit", "provenance", "note")
    table.columns[0].no_wrap = True
    table.columns[1].justify = "right"
    for figure in result.figures:
        table.add_row(
            figure.name, format_value(figure.value), figure.unit, figure.provenance, figure.note
        )
    console = Console()
    console.print(table)
    machine = msgspec.structs.asdict(result.machine)
    console.print(", ".join(f"{key} {value}" for key, value in machine.items() if value != ""))


def format_value(value: float | int | None) -> str:
    """Three significant digits at least; whole numbers in full; `n/a` where there is none."""
    if value is None:
        return "n/a"
    if isinstance(value, int) or abs(value) >= 1000:
        return f"{value:,.0f}"
    return f"{value:.3g}" if value else "0"


def _version(package: str) -> str:
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return ""


def _today() -> str:
    from datetime import UTC, datetime

    from workbench.clock import RealClock

    return datetime.fromtimestamp(RealClock().wall_s(), UTC).date().isoformat()
