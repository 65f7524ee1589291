"""How one link's bandwidth is split among the transfers of several requests at once.

    equal   every transfer has the same share
    slack   a transfer that hides behind its request's compute gets no more than it needs for that;
            what it leaves goes to those that cannot hide, and anything left over to all

The idea is ObjectCache's (arXiv 2605.22850): under a cap, bandwidth goes by how much compute each
request can put over it. The rule here is max-min fair filling, with the rate that hides a transfer
(bytes of a layer over the compute time of a layer) as what it asks for.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

RULES = ("equal", "slack")


def split_mb_s(link_mb_s: float, hiding_mb_s: Sequence[float], rule: str) -> list[float]:
    """Rates of transfers that run at once; they add up to the link's.

    `hiding_mb_s`: the rate at which each would cost its request no time; `math.inf` for none.
    """
    if rule not in RULES:
        raise ValueError(f"rule={rule!r}: choose one of {', '.join(RULES)}")
    if not link_mb_s > 0:
        raise ValueError(f"link_mb_s={link_mb_s}: give a rate above 0")
    count = len(hiding_mb_s)
    if rule == "equal" or count == 0:
        return [link_mb_s / max(1, count)] * count
    rates, left = [0.0] * count, link_mb_s
    for at, place in enumerate(sorted(range(count), key=lambda place: hiding_mb_s[place])):
        rates[place] = min(max(0.0, hiding_mb_s[place]), left / (count - at))
        left -= rates[place]
    return [rate + left / count for rate in rates]


@dataclass
class _Flow:
    left_bytes: float
    hiding_mb_s: float


class LinkShare:
    """Transfers that share a link of `mb_s` (10^6 bytes per second) by one rule.

    It moves no bytes: `advance` says which transfers such a link would have finished by then, so
    that a throttle can hold back real ones until it does.
    """

    def __init__(self, mb_s: float, rule: str = "equal", now_s: float = 0.0) -> None:
        split_mb_s(mb_s, [], rule)  # refuses a rate or rule that makes no sense
        self.mb_s = mb_s
        self.rule = rule
        self._now_s = now_s
        self._flows: dict[int, _Flow] = {}
        self._last_flow = 0
        self._finished: list[tuple[int, float]] = []

    @property
    def num_active(self) -> int:
        """Transfers under way."""
        return len(self._flows)

    def start(self, num_bytes: float, hiding_mb_s: float, now_s: float) -> int:
        """Begin a transfer; returns its number. `hiding_mb_s` as in `split_mb_s`."""
        if not num_bytes > 0 or math.isnan(hiding_mb_s):
            raise ValueError(f"num_bytes={num_bytes}, hiding_mb_s={hiding_mb_s}: give numbers > 0")
        self._move_to(now_s)
        self._last_flow += 1
        self._flows[self._last_flow] = _Flow(num_bytes, hiding_mb_s)
        return self._last_flow

    def cancel(self, flow: int, now_s: float) -> None:
        """Stop a transfer; what it took is spent, the others share the rest of the link."""
        self._move_to(now_s)
        self._flows.pop(flow, None)

    def set_rate(self, mb_s: float, rule: str, now_s: float) -> None:
        """Change the link; what has moved so far has moved."""
        self._move_to(now_s)
        split_mb_s(mb_s, [], rule)
        self.mb_s, self.rule = mb_s, rule

    def rates_mb_s(self) -> dict[int, float]:
        """The rate of each transfer now."""
        hiding = [flow.hiding_mb_s for flow in self._flows.values()]
        return dict(zip(self._flows, split_mb_s(self.mb_s, hiding, self.rule), strict=True))

    def left_bytes(self) -> dict[int, float]:
        """What each transfer has still to move."""
        return {number: flow.left_bytes for number, flow in self._flows.items()}

    def next_finish_s(self) -> float | None:
        """When the next transfer ends if none begins before; None without any."""
        rates = self.rates_mb_s()
        times = [
            flow.left_bytes / (rates[number] * 1e6)
            for number, flow in self._flows.items()
            if rates[number] > 0
        ]
        return self._now_s + min(times) if times else None

    def advance(self, now_s: float) -> list[tuple[int, float]]:
        """Transfers that ended until `now_s`, each with when it did."""
        self._move_to(now_s)
        finished, self._finished = self._finished, []
        return finished

    def _move_to(self, now_s: float) -> None:
        while (end_s := self.next_finish_s()) is not None and end_s <= now_s:
            self._move(end_s)
        self._move(now_s)

    def _move(self, now_s: float) -> None:
        """Go on at the rates of now, up to the next end at most."""
        seconds = now_s - self._now_s
        if seconds < 0:
            return  # a clock that stood still for one caller is behind that of another
        rates = self.rates_mb_s()
        for number in list(self._flows):
            flow = self._flows[number]
            flow.left_bytes -= rates[number] * 1e6 * seconds
            if flow.left_bytes <= 1e-2 * rates[number]:  # 10 ns of it: a clock's own rounding
                del self._flows[number]
                self._finished.append((number, now_s))
        self._now_s = now_s


@dataclass(frozen=True)
class LayeredLoad:
    """A request that loads a prefix layer by layer and computes each layer once it is there."""

    start_s: float
    num_layers: int
    layer_bytes: float
    layer_compute_s: float

    @property
    def hiding_mb_s(self) -> float:
        """The rate at which a layer comes while one is computed."""
        if self.layer_compute_s <= 0:
            return math.inf
        return self.layer_bytes / self.layer_compute_s / 1e6


def added_ttft_s(loads: Sequence[LayeredLoad], link_mb_s: float, rule: str) -> list[float]:
    """Seconds that each request's first token comes later than if its prefix were there already.

    Modelled: a layer follows the one before as soon as that has come, and is computed once it is
    there and the one before is done.
    """
    link = LinkShare(link_mb_s, rule)
    waiting = sorted(range(len(loads)), key=lambda place: -loads[place].start_s)
    loading: dict[int, tuple[int, int]] = {}  # transfer to (request, layer)
    done_s = [load.start_s for load in loads]
    while waiting or loading:
        end_s = link.next_finish_s()
        if waiting and (end_s is None or loads[waiting[-1]].start_s <= end_s):
            place = waiting.pop()
            load = loads[place]
            flow = link.start(load.layer_bytes, load.hiding_mb_s, load.start_s)
            loading[flow] = (place, 0)
            continue
        assert end_s is not None  # transfers are under way
        for flow, at_s in link.advance(end_s):
            place, layer = loading.pop(flow)
            load = loads[place]
            done_s[place] = max(done_s[place], at_s) + load.layer_compute_s
            if layer + 1 < load.num_layers:
                flow = link.start(load.layer_bytes, load.hiding_mb_s, at_s)
                loading[flow] = (place, layer + 1)
    return [
        done - load.start_s - load.num_layers * load.layer_compute_s
        for done, load in zip(done_s, loads, strict=True)
    ]
