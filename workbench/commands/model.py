"""`workbench model fetch` and `workbench model info`."""

import json
from pathlib import Path
from typing import Annotated

import typer


def build_app() -> typer.Typer:
    """The `model` group."""
    app = typer.Typer(help="Get the default model, or describe one.", no_args_is_help=True)
    app.command("fetch")(fetch)
    app.command("info")(info)
    return app


def fetch() -> None:
    """Download the default model (98 MB) once, verify its checksum and cache it."""
    from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TimeRemainingColumn

    from workbench.model import fetch as source

    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        DownloadColumn(),
        TimeRemainingColumn(),
    )
    with Progress(*columns) as bar:
        task = bar.add_task("SmolLM2-135M-Instruct", total=source.TOTAL_BYTES)
        path = source.fetch(lambda done, total: bar.update(task, completed=done, total=total))
    print(f"{path} ({path.stat().st_size / 1e6:.0f} MB, checksum correct)")


def info(
    path: Annotated[
        Path | None,
        typer.Argument(help="GGUF file or Hugging Face folder; default: the cached model"),
    ] = None,
    weights: Annotated[
        str,
        typer.Option(metavar="FORMAT", help="Load them in this format too and say what they are."),
    ] = "",
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
) -> None:
    """Say what a model file holds: architecture, sizes, stored types."""
    from workbench.commands.model_info import describe

    facts = describe(path, weights)
    if as_json:
        print(json.dumps(facts, indent=2))
        return
    width = max(map(len, facts))
    for name, value in facts.items():
        print(f"{name:<{width}}  {value}")
