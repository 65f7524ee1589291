"""Placements compared in a process of its own: `python -m workbench.lab.devices_job`.

Reads a `DevicesPlan` as one line on standard input; writes a line for each step and each result. It
ends when all ran, on SIGTERM, and when its standard input closes; its ranks end with it.
"""

import sys

from workbench.lab import devices_protocol as protocol
from workbench.lab.child_job import Cancel, end_with_starter, serve, write
from workbench.lab.devices_runs import (
    Contestant,
    dense,
    differences,
    entries,
    equal_tokens,
    mixture,
    options,
    run_round,
)
from workbench.spatial.devices.group import DeviceGroup

STEPS = ("starting", "decoding", "checking")


def run(plan: protocol.DevicesPlan, cancel: Cancel) -> None:
    """One placement after the other, so that each has the machine; stops between steps."""
    quick = plan.model == "random"
    whole, label = dense(quick)
    moe = mixture(quick)
    known = {entry[0]: entry for entry in entries(whole, moe)}
    ones: dict[str, Contestant] = {}
    for number, name in enumerate(plan.names):
        _, one, source, placement = known[name]

        def doing(step: int, name: str = name, number: int = number) -> bool:
            share = (number + step / len(STEPS)) / len(plan.names)
            write(protocol.ProgressLine(share=share, kind=STEPS[step], name=name))
            return not cancel()

        if not doing(0):
            return
        with DeviceGroup(source, placement, options()) as group:
            each = Contestant(name, one, group)
            if not doing(1):
                return
            run_round(each, plan.new_tokens)
            if name == one:
                ones[name] = each
                continue
            if not doing(2):
                return
            model = label if source is whole else "random Qwen3-MoE, 16 experts, 2 a token"
            write(_result(each, ones[one], differences(source, [each])[name], model))


def _result(
    each: Contestant, one: Contestant, difference: float, model: str
) -> protocol.ResultLine:
    assert each.report is not None
    same, total = equal_tokens(each, one)
    return protocol.ResultLine(
        name=each.name,
        model=model,
        report=each.report,
        tokens_per_s=max(each.rates),
        one_tokens_per_s=max(one.rates),
        num_equal=same,
        num_tokens=total,
        logit_difference=difference,
    )


def main() -> int:
    """Run the plan that standard input describes; returns the exit code."""

    def work(line: bytes, cancel: Cancel) -> None:
        plan = protocol.decode_plan(line)
        end_with_starter(cancel)
        run(plan, cancel)

    return serve(work, protocol.MAX_PLAN_BYTES)


if __name__ == "__main__":  # its ranks import this module again, under another name
    sys.exit(main())
