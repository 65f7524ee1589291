"""`workbench quality`: what cache settings cost in output quality, beside the full cache."""

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from workbench.commands.bench import JsonOption
from workbench.commands.out_files import writable, write_file

if TYPE_CHECKING:
    from workbench.quality.plan import QualityPlan

ContextOption = Annotated[int, typer.Option(help="Tokens read before any is scored.")]
WindowsOption = Annotated[int, typer.Option(help="Windows of text.")]
ScoredOption = Annotated[int, typer.Option(help="Tokens scored in each window.")]
WeightsOption = Annotated[str, typer.Option(help="Weight format.")]
ModelOption = Annotated[str, typer.Option(help="GGUF file or Hugging Face folder.")]


def quality(
    settings: Annotated[
        Path | None,
        typer.Option("--set", metavar="FILE", help="JSON or TOML settings; default: all formats."),
    ] = None,
    context: ContextOption = 1024,
    windows: WindowsOption = 4,
    scored: ScoredOption = 512,
    text: Annotated[
        list[Path] | None,
        typer.Option(help="A text file (may be repeated); default: Python's help topics."),
    ] = None,
    needle: Annotated[bool, typer.Option(help="Also look for a number hidden in it.")] = True,
    exact_prefill: Annotated[
        bool, typer.Option("--exact-prefill", help="Compress only once the context was read.")
    ] = False,
    weights: WeightsOption = "bf16",
    model: ModelOption = "",
    seed: Annotated[int, typer.Option(help="Seed of texts, keys and intervals.")] = 0,
    full_report: Annotated[
        Path | None,
        typer.Option(
            "--report", metavar="FILE", callback=writable, help="Write everything as JSON."
        ),
    ] = None,
    as_json: JsonOption = False,
) -> None:
    """Read forced text in the real engine, with each setting and with the full cache, and compare.

    Both run the same steps on the same tokens. KL, agreement and perplexity are over the scored
    tokens that read compressed entries; bytes are those of the engine's pages.
    """
    from workbench.quality.plan import QualityPlan

    plan = QualityPlan(
        context=context,
        scored=scored,
        num_windows=windows,
        seed=seed,
        texts=tuple(str(path) for path in text or []),
        weight_format=weights,
        needle=needle,
        exact_prefill=exact_prefill,
    )
    measure_and_print(plan, settings, model, full_report, as_json=as_json)


def measure_and_print(
    plan: "QualityPlan",
    settings: Path | None,
    model: str,
    full_report: Path | None,
    *,
    as_json: bool,
) -> None:
    """Measure the settings of a file, or all formats, and print a table or one JSON object."""
    import msgspec
    from rich.console import Console

    from workbench.lab.figures import describe_machine, print_report, report
    from workbench.model.load import load_model
    from workbench.quality.run import measure
    from workbench.quality.settings_file import default_sweep, read_settings
    from workbench.quality.table import as_table, figures_of

    chosen = read_settings(settings) if settings else default_sweep()
    reports = measure(load_model(model, plan.weight_format), chosen, plan, tell)
    if full_report is not None:
        write_file(full_report, msgspec.json.format(msgspec.json.encode(reports), indent=1))
    if as_json:
        print_report(report(figures_of(reports)), as_json=True)
        return
    console = Console()
    console.print(as_table(reports))
    machine = msgspec.structs.asdict(describe_machine())
    console.print(", ".join(f"{key} {value}" for key, value in machine.items() if value != ""))


def tell(share: float, text: str) -> None:
    """One line of progress on stderr."""
    print(f"{100 * share:3.0f} %  {text}", file=sys.stderr, flush=True)
