"""The picture of flows: an edge for each pair of tiers between which bytes move now."""

import msgspec
import pytest

from app.text import load_texts
from app.tiers.figures import flow_figure
from tests.engine.harness import Runner, build, pages, tokens
from workbench.clock import ManualClock
from workbench.engine.views.tier_report import tiers_report


def test_edges_are_those_on_which_bytes_move_now() -> None:
    clock, texts = ManualClock(), load_texts()
    tiers = {"tiers.dram_mib": pages(20), "tiers.disk_mib": 1.0}
    runner = Runner(build({"cache.hbm_budget_mib": pages(32)} | tiers, clock=clock))
    assert flow_figure(texts, tiers_report(runner.engine)) is None
    for seed in (1, 2, 3, 1):
        runner.one(tokens(96, seed), 4)
        runner.engine.hierarchy.wait_io()
        clock.advance(1.0)
    report = tiers_report(runner.engine)
    edges = {(flow.source, flow.to) for flow in report.flows}
    assert {("G1", "G2"), ("G2", "G3"), ("G3", "G2"), ("G2", "G1")} <= edges
    figure = flow_figure(texts, report)
    assert figure is not None
    (sankey,) = figure.data
    drawn = {
        (sankey.node.label[source], sankey.node.label[target]): value
        for source, target, value in zip(
            sankey.link.source, sankey.link.target, sankey.link.value, strict=True
        )
    }
    assert drawn == {
        (f"from {flow.source}", f"to {flow.to}"): pytest.approx(flow.num_bytes / 4 / 2**20)
        for flow in report.flows
    }
    for flow, told in zip(report.flows, sankey.link.customdata, strict=True):
        assert told == f"{flow.source} to {flow.to}, {flow.num_bytes / 2**20:,.1f} MiB in all"
    left = sankey.node.y[:3]
    assert list(left) == sorted(left) and 0.0 < left[0] and left[-1] < 1.0
    clock.advance(20.0)
    idle = tiers_report(runner.engine)
    assert flow_figure(texts, idle) is None and len(idle.flows) == len(edges), "the totals stay"
    one = msgspec.structs.replace(report, flows=report.flows[:1])
    assert flow_figure(texts, one) is not None
    runner.engine.close()
