"""What came of sharing the work: bytes by kind, balance, and where each rank's time went.

No tensors here, so that a page can show it.
"""

from collections.abc import Sequence

import msgspec

from workbench.spatial.devices.placement import max_over_mean

Spans = Sequence[tuple[float, float]]


class Traffic(msgspec.Struct):
    """What one rank handed to one kind of collective: calls, bytes, and seconds until it was done.

    The seconds hold the wait for slower ranks. Bytes of an all-to-all are those for other ranks.
    """

    calls: int = 0
    num_bytes: int = 0
    seconds: float = 0.0


class RankReport(msgspec.Struct, kw_only=True):
    """One rank since the last reset.

    weight_bytes: resident. kv_bytes: most that its pages took. rows: tokens that it computed.
    expert_load: rows that each of its experts computed, over all layers. compute_s: time in its
    layers, without collectives. spans: begin and end of its newest computations (Linux: one clock
    for all processes).
    """

    rank: int
    process: int
    kv_heads: list[int]
    layers: list[int]
    experts: list[int]
    weight_bytes: int
    kv_bytes: int
    kv_bytes_per_token: float
    rows: int
    expert_load: list[int]
    traffic: dict[str, Traffic]
    compute_s: float
    comm_s: float
    spans: list[tuple[float, float]]


class DeviceReport(msgspec.Struct, kw_only=True):
    """All ranks since the last reset.

    tokens: that went in, prompts and decoded. moved_per_token: bytes that all ranks together handed
    to each kind of collective, a token (measured); formula_per_token: what they should be;
    wire_per_token: the same with an all-reduce as a ring's sends (modelled). delayed: some rank is
    slowed on purpose (throttled).
    """

    kind: str
    backend: str
    num_ranks: int
    steps: int
    tokens: int
    wall_s: float
    ranks: list[RankReport]
    moved_per_token: dict[str, float]
    formula_per_token: dict[str, float]
    wire_per_token: dict[str, float]
    delayed: bool

    @property
    def kv_balance(self) -> float:
        """KV bytes of the fullest rank over the mean."""
        return max_over_mean([rank.kv_bytes for rank in self.ranks])

    @property
    def token_balance(self) -> float:
        """Tokens computed by the busiest rank over the mean."""
        return max_over_mean([rank.rows for rank in self.ranks])

    @property
    def expert_balance(self) -> float:
        """Rows through the experts of the busiest rank over the mean; 1 without experts."""
        return max_over_mean([sum(rank.expert_load) for rank in self.ranks])

    @property
    def hottest_expert(self) -> float:
        """Rows through the busiest expert over the mean of all experts; 1 without experts."""
        return max_over_mean([load for rank in self.ranks for load in rank.expert_load] or [0])

    @property
    def overlap(self) -> float:
        """Share of the time in which any rank is in its layers that two or more are (spans kept).

        A rank that waits inside its layers, for an all-reduce or an all-to-all, counts as in them.
        """
        return overlap_of([rank.spans for rank in self.ranks])


def overlap_of(ranks: Sequence[Spans]) -> float:
    """Time covered by spans of two ranks or more, over that covered by any."""
    edges = sorted(edge for spans in ranks for a, b in spans for edge in ((a, 1), (b, -1)))
    some = many = 0.0
    running, since = 0, 0.0
    for at, change in edges:
        some += (at - since) * (running >= 1)
        many += (at - since) * (running >= 2)
        running, since = running + change, at
    return many / some if some else 0.0
