"""`workbench settings`: every setting with its range, default and the cost of changing it."""

import dataclasses
import json
from typing import Annotated, Any

import typer

COST = {
    "hot": "at the next step",
    "recode": "pages are re-encoded",
    "rebuild": "running requests are recomputed",
    "restart": "weights are loaded again",
}
DIMENSION = {"T": "temporal", "S": "spatial", "X": "structural", "-": ""}


def list_settings(
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
) -> None:
    """List every setting: path, default, range, dimension and the cost of changing it."""
    from workbench.config import all_settings

    rows = [describe(path, item) for path, item in all_settings().items()]
    if as_json:
        print(json.dumps({"settings": rows}, indent=2))
        return
    from rich.console import Console
    from rich.table import Table

    table = Table("setting", "default", "allowed", "dimension", "a change takes effect")
    for row in rows:
        table.add_row(
            row["path"], show(row["default"]), row["allowed"], row["dimension"], COST[row["change"]]
        )
    Console().print(table)


def describe(path: str, item: "dataclasses.Field[Any]") -> dict[str, Any]:
    """One setting as plain values; `allowed` is a sentence part such as `16 to 131072 tokens`."""
    meta = item.metadata
    return {
        "path": path,
        "default": item.default,
        "allowed": allowed(item),
        "choices": list(meta["choices"]),
        "low": meta["low"],
        "high": meta["high"],
        "unit": meta["unit"],
        "dimension": DIMENSION[meta["dim"]],
        "change": meta["change"],
    }


def allowed(item: "dataclasses.Field[Any]") -> str:
    """The values a setting takes, in words."""
    meta = item.metadata
    if meta["choices"]:
        return " | ".join(str(choice) for choice in meta["choices"])
    if isinstance(item.default, bool):
        return "true | false"
    if meta["low"] is None and meta["high"] is None:
        return "text"
    return f"{meta['low']:g} to {meta['high']:.12g} {meta['unit']}".rstrip()


def show(value: Any) -> str:
    """A default as one types it after `--set path=`."""
    if isinstance(value, bool):
        return str(value).lower()
    return f"{value:g}" if isinstance(value, float) else str(value) or "(empty)"
