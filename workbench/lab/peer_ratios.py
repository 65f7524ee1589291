"""Ratios of `workbench bench peers`: ours over the best peer, whole requests and decoding alone."""

from collections.abc import Callable, Iterable

from workbench.lab.bench_runs import median
from workbench.lab.contender import Answer
from workbench.lab.figures import Figure

Case = tuple[int, int]  # batch, prompt tokens
Runs = dict[Case, dict[str, list[Answer]]]  # by case, then by contender (kind_dtype)
Rate = Callable[[Answer], float]
RATIOS: dict[str, Case] = {
    "decode_ratio_b1": (1, 32), "decode_ratio_b8": (8, 32), "decode_ratio_b32": (32, 32),
    "decode_ratio_b8_512": (8, 512),
}  # fmt: skip
PACKED = "decode_ratio_b1_packed"
RATIO_NAMES = (*RATIOS, PACKED)
DTYPES = ("bf16", "fp32")
OURS = "workbench_"


def figures_of(
    runs: Runs, versions: dict[str, str], failures: dict[str, str], num_new: int
) -> list[Figure]:
    """Rates of everybody, then the ratios; what failed is named in each ratio's note."""
    figures = [
        figure
        for case, by_name in sorted(runs.items())
        for name, answers in by_name.items()
        for figure in _rate_figures(name, case, answers, versions[name])
    ]
    left_out = "".join(f"; {text}" for text in failures.values())
    for name, case in RATIOS.items():
        figures += _ratio_figures(name, runs.get(case, {}), num_new, left_out)
    figures.append(_packed_figure(runs.get((1, 32), {}), left_out))
    figures += _agreement(runs)
    return figures


def _rate_figures(name: str, case: Case, answers: list[Answer], version: str) -> list[Figure]:
    cpu_ms = 1e3 * median(
        answer.whole_cpu_s / sum(map(len, answer.token_ids)) for answer in answers
    )
    place = f"{name}_b{case[0]}_p{case[1]}"
    note = f"{version}, median of {len(answers)}"
    return [
        Figure(
            name=f"request_tok_per_s_{place}", value=_median_rate(answers, _whole), unit="tok/s",
            note=f"whole request, {note}, {cpu_ms:.1f} ms CPU a token",
        ),
        Figure(
            name=f"decode_tok_per_s_{place}", value=_median_rate(answers, _decode), unit="tok/s",
            note=f"decode steps only, {note}",
        ),
    ]  # fmt: skip


def _ratio_figures(
    name: str, by_name: dict[str, list[Answer]], num_new: int, left_out: str
) -> list[Figure]:
    """The ratio over both formats, of decoding alone, and within each format.

    `name`: the faster of our bf16 and fp32 over the fastest peer in bf16 or fp32.
    """
    figures = [
        _ratio(name, by_name, DTYPES, _whole, f"whole requests of {num_new} new tokens", left_out),
        _ratio(f"{name}_decode_only", by_name, DTYPES, _decode, "decode steps only", left_out),
    ]
    for dtype in DTYPES:
        what = f"whole requests, {dtype} on both sides"
        figures.append(_ratio(f"{name}_{dtype}", by_name, (dtype,), _whole, what, left_out))
    return figures


def _packed_figure(by_name: dict[str, list[Answer]], left_out: str) -> Figure:
    peer = _best(by_name, DTYPES, _whole, ours=False)
    answers = by_name.get("workbench_as_stored")
    if peer is None or not answers:
        return _unknown(PACKED, left_out)
    own = _median_rate(answers, _whole)
    return Figure(
        name=PACKED,
        value=own / peer[1],
        note=f"the model's own 4-bit weights {own:.1f} tok/s, best peer {peer[0]} {peer[1]:.1f}"
        + left_out,
    )


def _ratio(
    name: str,
    by_name: dict[str, list[Answer]],
    dtypes: Iterable[str],
    rate: Rate,
    what: str,
    left_out: str,
) -> Figure:
    own = _best(by_name, dtypes, rate, ours=True)
    peer = _best(by_name, dtypes, rate, ours=False)
    if own is None or peer is None:
        return _unknown(name, left_out)
    return Figure(
        name=name,
        value=own[1] / peer[1],
        note=f"{what}: {own[0]} {own[1]:.1f} tok/s, best peer {peer[0]} {peer[1]:.1f}" + left_out,
    )


def _unknown(name: str, left_out: str) -> Figure:
    note = "this case was not run with a peer" + left_out
    return Figure(name=name, value=None, provenance="refused", note=note)


def _best(
    by_name: dict[str, list[Answer]], dtypes: Iterable[str], rate: Rate, *, ours: bool
) -> tuple[str, float] | None:
    """Name and median rate of the fastest contender on one side; None if nobody ran."""
    allowed = tuple(f"_{dtype}" for dtype in dtypes)
    rates = {
        name: _median_rate(answers, rate)
        for name, answers in by_name.items()
        if name.startswith(OURS) == ours and name.endswith(allowed)
    }
    if not rates or max(rates.values()) <= 0:
        return None
    name = max(rates, key=lambda key: rates[key])
    return name, rates[name]


def _agreement(runs: Runs) -> list[Figure]:
    """Share of greedy fp32 tokens that equal transformers': a check that all do the same work."""
    same = total = 0
    for by_name in runs.values():
        pairs = zip(
            by_name.get("workbench_fp32", []), by_name.get("transformers_fp32", []), strict=False
        )
        for own, other in pairs:
            for ours, theirs in zip(own.token_ids, other.token_ids, strict=True):
                same += sum(a == b for a, b in zip(ours, theirs, strict=True))
                total += len(ours)
    if not total:
        return []
    return [
        Figure(
            name="peer_token_agreement_fp32", value=100.0 * same / total, unit="%",
            note=f"{total} greedy tokens, ours and transformers'; after a near tie all differ",
        )
    ]  # fmt: skip


def _whole(answer: Answer) -> float:
    return answer.whole_rate


def _decode(answer: Answer) -> float:
    return answer.decode_rate


def _median_rate(answers: list[Answer], rate: Rate) -> float:
    return median(rate(answer) for answer in answers)
