"""Orders of eviction on traces: each one's idea shows, none beats the future."""

import itertools
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from workbench.cli import main
from workbench.engine.builtin import builtin_registry
from workbench.errors import RequestError
from workbench.lab.reuse_bench import belady, dense, measure, replay, synthetic
from workbench.lab.reuse_hits import Served, serve, trace_prompts, turn_prompts
from workbench.lab.traces import read_references
from workbench.model.random_launch import byte_tokenizer
from workbench.settings.cache import EVICTION_ORDERS, PREFIX_INDEXES


@settings(deadline=None, max_examples=60)
@given(st.lists(st.integers(0, 12), min_size=1, max_size=200), st.integers(1, 8))
def test_no_order_beats_the_future(references: list[int], capacity: int) -> None:
    trace = dense(references)
    bound = belady(trace, capacity)
    assert bound <= 1 - len(set(references)) / len(references) + 1e-9
    for name in EVICTION_ORDERS:
        assert replay(trace, capacity, name) <= bound + 1e-9, name


@given(st.lists(st.integers(0, 9), min_size=1, max_size=120))
def test_with_room_for_all_every_order_hits_what_was_seen(references: list[int]) -> None:
    trace = dense(references)
    best = 1 - len(set(references)) / len(references)
    for name in EVICTION_ORDERS:
        assert replay(trace, 10, name) == pytest.approx(best)


def rate(references: list[int], capacity: int, name: str) -> float:
    return replay(dense(references), capacity, name)


def test_lru_and_fifo_differ_by_the_hit() -> None:
    references = [0, 1, 2, 0, 3, 0]
    assert rate(references, 3, "lru") == 2 / 6
    assert rate(references, 3, "fifo") == 1 / 6


@pytest.mark.parametrize("name", ["slru", "arc", "lfu"])
def test_a_scan_does_not_flush_what_is_used_again(name: str) -> None:
    hot = [0, 1, 2, 3] * 3
    scan = list(range(100, 160))
    references = (hot + scan) * 3 + hot
    assert rate(references, 8, name) > rate(references, 8, "lru")


def test_cost_aware_keeps_what_is_dear_and_ages() -> None:
    order = builtin_registry().create("eviction", "cost-aware", 4)
    order.inserted(0, "a", 5.0)
    order.inserted(1, "b", 1.0)
    assert order.rank[1] < order.rank[0]
    order.removed(0)
    order.inserted(2, "c", 1.0)
    assert order.rank[2] > order.rank[1], "what enters later starts at the worth of what went"


def test_predictive_expects_a_regular_block_back() -> None:
    order = builtin_registry().create("eviction", "predictive", 3)
    order.inserted(0, "a", 1.0)
    order.inserted(1, "b", 1.0)
    for _ in range(5):
        order.hit(0)
    order.hit(1)
    assert order.rank[1] < order.rank[0], "its gap is longer"


def test_belady_on_a_known_string() -> None:
    """The textbook's string: 20 references, 3 frames, 9 faults."""
    text = [7, 0, 1, 2, 0, 3, 0, 4, 2, 3, 0, 3, 2, 1, 2, 0, 1, 7, 0, 1]
    assert belady(dense(text), 3) == 11 / 20
    assert rate(text, 3, "lru") == 8 / 20
    assert rate(text, 3, "fifo") == 5 / 20


def test_figures_name_order_and_capacity() -> None:
    figures = {figure.name: figure for figure in measure(lambda text: None, quick=True)}
    assert set(figures) == {
        f"hit_rate_{name.replace('-', '_')}_{size}"
        for name in (*EVICTION_ORDERS, "belady")
        for size in (1000, 3000)
    } | {
        f"hit_tokens_{name}_{index}_{how}_{size}"
        for name in ("chat", "turns")
        for index in PREFIX_INDEXES
        for how in ("full", "partial")
        for size in (16, 32)
    }
    rates = [figure for name, figure in figures.items() if name.startswith("hit_rate")]
    assert all(figure.provenance == "modelled" for figure in rates)
    for name, size in itertools.product(("chat", "turns"), (16, 32)):
        full, more = (
            {figures[f"hit_tokens_{name}_{index}_{how}_{size}"].value for index in PREFIX_INDEXES}
            for how in ("full", "partial")
        )
        assert len(full) == len(more) == 1 and max(full) < max(more), "radix finds what hash does"
    assert len(np.unique(synthetic(500))) > 1


@settings(deadline=None, max_examples=12, derandomize=True, database=None)
@given(st.lists(st.lists(st.integers(0, 1), min_size=1, max_size=30), max_size=14),
       st.sampled_from([24, 64, 400]))  # fmt: skip
def test_radix_hits_at_least_what_hash_hits(prompts: list[list[int]], room: int) -> None:
    """With room for all they are equal; whole blocks of both, and the beginnings of others."""
    served = [Served(prompt) for prompt in prompts]
    counts = {
        (index, partial): serve(served, index=index, partial=partial, block_size=4,
                                cache_tokens=room)
        for index in PREFIX_INDEXES for partial in (False, True)
    }  # fmt: skip
    assert len({hits.num_too_long for hits in counts.values()}) == 1
    if room == 400:
        assert counts["hash", False] == counts["radix", False]
        assert counts["hash", True] == counts["radix", True]
        assert counts["radix", True].num_hit_tokens >= counts["radix", False].num_hit_tokens


def test_a_later_turn_finds_the_answer_before_it() -> None:
    """An answer's last token was never computed; the rest is there for who takes up its text."""
    first = Served([1] * 6, [2] * 7)
    later = Served(first.prompt + first.answer + [3] * 4)
    whole = serve([first, later], index="radix", partial=False, block_size=4)
    assert (whole.num_hit_tokens, whole.num_tokens) == (12, 6 + 17)
    assert serve([Served(first.prompt), later], index="radix", partial=False,
                 block_size=4).num_hit_tokens == 4  # fmt: skip
    turns = turn_prompts(byte_tokenizer())
    for early, late in zip(turns, turns[30:], strict=False):
        said = early.prompt + early.answer
        assert late.prompt[: len(said)] == said, "one token a byte: a text is always the same"


def test_a_trace_is_served_by_its_blocks(tmp_path: Path) -> None:
    path = tmp_path / "trace.jsonl"
    line = '{{"timestamp": {}, "input_length": {}, "output_length": 1, "hash_ids": {}}}\n'
    path.write_text(line.format(1, 1536, [1, 2, 3]) + line.format(2, 1024, [1, 2])
                    + line.format(3, 1536, [1, 2, 4]))  # fmt: skip
    prompts = trace_prompts(path, 10)
    assert [len(served.prompt) for served in prompts] == [48, 32, 48]
    hits = serve(prompts, index="radix", partial=False, block_size=16)
    assert (hits.num_hit_tokens, hits.num_tokens) == (16 + 32, 128)
    assert serve(prompts, index="radix", partial=True, block_size=32).num_hit_tokens == 31 + 32


def test_a_prompt_that_does_not_fit_is_counted(tmp_path: Path) -> None:
    prompts = [Served([1] * 40), Served([1] * 8)]
    hits = serve(prompts, index="hash", partial=False, block_size=4, cache_tokens=16)
    assert hits.num_too_long == 1 and hits.num_tokens == 48


def test_mooncake_references(tmp_path: Path) -> None:
    path = tmp_path / "trace.jsonl"
    line = '{{"timestamp": {}, "input_length": 9, "output_length": 1, "hash_ids": {}}}\n'
    path.write_text(line.format(2000, [1, 3]) + line.format(1000, [1, 2]))
    assert read_references(path) == [1, 2, 1, 3]


@pytest.mark.parametrize(
    "text, message",
    [
        ("", "names no blocks: give a Mooncake file with hash_ids"),
        ('{"timestamp": 1}\n', "line 1: not a Mooncake request"),
    ],
)
def test_a_trace_without_blocks_is_refused(tmp_path: Path, text: str, message: str) -> None:
    path = tmp_path / "trace.jsonl"
    path.write_text(text)
    with pytest.raises(RequestError, match=message):
        read_references(path)


@pytest.mark.parametrize("given", ["", "many", "100,x", "-3", "0"])
def test_bad_capacities_are_one_sentence(given: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as stop:
        main(["bench", "reuse", "--quick", f"--capacities={given}"])
    assert stop.value.code not in (0, None)
    said = capsys.readouterr().err
    assert "capacities" in said and "Traceback" not in said
