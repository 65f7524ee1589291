"""Rows of settings in which each pair of values occurs, as far as it is possible at all."""

import itertools
import random
from collections import defaultdict
from collections.abc import Callable
from typing import Any

Row = dict[str, Any]
Values = dict[str, tuple[Any, ...]]
Pair = tuple[str, Any, str, Any]
NUM_TRIES = 360  # completions of a pair that are tried before it counts as impossible


def pairwise(
    values: Values, accepts: Callable[[Row], bool], *, without: tuple[str, str] | None = None
) -> list[Row]:
    """Rows that contain each possible pair of values of two settings at least once.

    `accepts(row)` says whether a whole row is allowed; a pair that is in no allowed row is left
    out. The two settings `without` need not meet in all their values. Greedy: each row starts from
    a missing pair, and every other setting takes the value that covers most missing pairs (after
    Cohen et al., the AETG system). Deterministic.
    """
    rng = random.Random(0)
    found: dict[Pair, Row | None] = {}
    allowed: dict[tuple[str, Any], list[Row]] = defaultdict(list)
    first = {name: choices[0] for name, choices in values.items()}
    for half in first.items() if accepts(first) else ():  # what goes with few others starts here
        allowed[half].append(first)
    for pair in (*_pairs(values), *_pairs(values)):  # later ones know more rows than early ones
        if found.get(pair) is None:
            found[pair] = row = _completion(pair, values, accepts, allowed, rng)
            for half in (row or {}).items():
                allowed[half].append(row or {})
    impossible = {pair for pair, row in found.items() if row is None}
    missing = {pair: None for pair in found if pair not in impossible}  # in a fixed order
    for pair in list(missing):
        if without is not None and {pair[0], pair[2]} == set(without):
            del missing[pair]
    rows: list[Row] = []
    while missing:
        pair = next(iter(missing))
        row = _greedy(pair, values, missing, impossible, rng)
        if not accepts(row):
            row = found[pair] or row
        for covered in _pairs({name: (row[name],) for name in values}):
            missing.pop(covered, None)
        rows.append(row)
    return rows


def _pairs(values: Values) -> list[Pair]:
    return [
        (one, a, two, b)
        for one, two in itertools.combinations(values, 2)
        for a in values[one] for b in values[two]
    ]  # fmt: skip


def _completion(
    pair: Pair,
    values: Values,
    accepts: Callable[[Row], bool],
    allowed: dict[tuple[str, Any], list[Row]],
    rng: random.Random,
) -> Row | None:
    """An allowed row with the pair, by chance: of rows known to be allowed that have one half.

    They are more often allowed with the other half too than any row; where nothing else is known
    to hold a half, and every third time, it is any row.
    """
    chosen = {pair[0]: pair[1], pair[2]: pair[3]}
    for number in range(NUM_TRIES):
        known = (*(allowed[half] for half in chosen.items()), ())[number % 3]
        row = rng.choice(known) if known else {}
        if not row:
            row = {name: rng.choice(choices) for name, choices in values.items()}
        if accepts(row | chosen):
            return row | chosen
    return None


def _greedy(
    pair: Pair, values: Values, missing: dict[Pair, None], impossible: set[Pair], rng: random.Random
) -> Row:
    at = {name: index for index, name in enumerate(values)}
    row = {pair[0]: pair[1], pair[2]: pair[3]}

    def pairs_with(name: str, value: Any) -> list[Pair]:
        return [
            (name, value, other, row[other]) if at[name] < at[other]
            else (other, row[other], name, value)
            for other in row
        ]  # fmt: skip

    for name in rng.sample(list(values), len(values)):
        if name in row:
            continue
        scores = {}
        for value in rng.sample(values[name], len(values[name])):
            new = pairs_with(name, value)
            if impossible.isdisjoint(new):
                scores[value] = sum(each in missing for each in new)
        row[name] = max(scores, key=lambda value: scores[value]) if scores else values[name][0]
    return {name: row[name] for name in values}
