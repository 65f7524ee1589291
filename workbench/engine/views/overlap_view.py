"""What moved and what was computed during the newest step that loaded by layers."""

from workbench.temporal.overlap.layer_loads import LayerTimeline
from workbench.tier_views import OverlapView, SpanView

WAIT, COMPUTE = "wait", "compute"


def overlap_view(last: LayerTimeline | None) -> OverlapView | None:
    """The step's spans in ms; None where no step has loaded by layers."""
    if last is None:
        return None

    def span(row: str, first: int, start_s: float, end_s: float) -> SpanView:
        end = first + last.layers - 1
        return SpanView(row=row, first=first, last=end, start_ms=start_s * 1e3, end_ms=end_s * 1e3)

    loads = [
        span(load.tier, load.number * last.layers, load.start_s, load.end_s) for load in last.loads
    ]
    waits = [span(WAIT, *each) for each in last.waits]
    computes = [span(COMPUTE, *each) for each in last.computes]
    transfer_ms, wait_ms = _total_ms(loads), _total_ms(waits)
    return OverlapView(
        request_ids=list(last.request_ids),
        spans=[*loads, *waits, *computes],
        transfer_ms=transfer_ms,
        wait_ms=wait_ms,
        compute_ms=_total_ms(computes),
        hidden=max(0.0, 1.0 - wait_ms / transfer_ms) if transfer_ms else 0.0,
    )


def _total_ms(spans: list[SpanView]) -> float:
    """Milliseconds that some span covers; those of several tiers may run at once."""
    total = until = 0.0
    for each in sorted(spans, key=lambda each: each.start_ms):
        total += max(0.0, each.end_ms - max(until, each.start_ms))
        until = max(until, each.end_ms)
    return total
