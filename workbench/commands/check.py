"""`workbench check`: a random workload with every invariant tested after each step."""

from typing import Annotated

import typer

from workbench.commands.bench import JsonOption, measure_and_print

PLANTED_FAULTS = 5


def check(
    steps: Annotated[int, typer.Option(min=1, help="Engine steps to run.")] = 5000,
    seed: Annotated[int, typer.Option(help="Seed of the random workload.")] = 0,
    as_json: JsonOption = False,
) -> None:
    """Run a random workload, test the invariants after each step, plant faults and catch them."""
    values = measure_and_print("workbench.lab.check", as_json=as_json, steps=steps, seed=seed)
    caught = values.get("planted_caught", PLANTED_FAULTS)
    if values.get("check_violations") or caught != PLANTED_FAULTS:
        raise typer.Exit(1)
