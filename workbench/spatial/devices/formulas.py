"""What sharing a decoder must move, from its shape alone."""

from collections.abc import Sequence

from workbench.model.arch import ModelArch
from workbench.spatial.devices.moe_arch import MoeArch
from workbench.spatial.devices.placement import Placement
from workbench.spatial.devices.report import RankReport

FLOAT_BYTES, COUNT_BYTES = 4, 8

Rows = Sequence[tuple[int, int, int]]  # sequence, its tokens, those of them with logits


def expected_bytes(
    arch: ModelArch, moe: MoeArch | None, placement: Placement, rows: Rows
) -> dict[str, float]:
    """Bytes that all ranks together hand to each kind of collective in one step.

    An all-to-all is that of a router which gives every expert equally much. The last layer's MLP,
    and what follows its attention, see only the rows whose logits are wanted.
    """
    ranks, hidden = placement.num_ranks, arch.hidden_size * FLOAT_BYTES
    if ranks == 1:
        return {}
    tokens, wanted = sum(row[1] for row in rows), sum(row[2] for row in rows)
    if placement.kind == "tensor":
        passes = 2 * (arch.num_layers - 1) * tokens + 2 * wanted
        return {"all_reduce": float(ranks * passes * hidden)}
    if placement.kind == "pipeline":
        return {"send": float((ranks - 1) * tokens * hidden)}
    if moe is None:
        return {}
    pairs, counts = 0.0, 0
    for rank, part in enumerate(placement.experts):
        own = [row for row in rows if row[0] % ranks == rank]
        passes = sum((arch.num_layers - 1) * row[1] + row[2] for row in own)
        pairs += passes * moe.top_k * (1 - len(part) / moe.num_experts)
        counts += arch.num_layers * (moe.num_experts - len(part)) * COUNT_BYTES
    return {"all_to_all": 2 * pairs * hidden, "all_to_all_counts": float(counts)}


def wire_bytes(kind: str, handed: float, num_ranks: int) -> float:
    """Bytes sent for what all ranks handed over; an all-reduce as a ring (arXiv 1909.09756).

    In a ring each rank sends 2 (n - 1) / n times what it hands over.
    """
    return handed * 2 * (num_ranks - 1) / num_ranks if kind == "all_reduce" else handed


def moved(ranks: Sequence[RankReport]) -> dict[str, int]:
    """Bytes of all ranks by kind, of the kinds that were used."""
    sums: dict[str, int] = {}
    for rank in ranks:
        for kind, traffic in rank.traffic.items():
            if traffic.calls:
                sums[kind] = sums.get(kind, 0) + traffic.num_bytes
    return sums
