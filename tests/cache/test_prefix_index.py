"""Both indexes under the same random texts: equal hits, whatever is evicted in between."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.engine.harness import Runner, assert_naive, build, model, pages, tokens
from workbench.cache.keys import chain_keys, tagged_key
from workbench.cache.prefix_index import HashIndex, PrefixIndex, Row, Text
from workbench.cache.radix_index import RadixIndex
from workbench.engine.builtin import builtin_registry
from workbench.settings.cache import PREFIX_INDEXES

SIZE = 4
ROOTS = (b"a" * 32, b"b" * 32)
texts = st.lists(st.integers(0, 1), max_size=26)  # two tokens: much is shared
changes = st.lists(
    st.tuples(st.sampled_from(["insert", "insert", "remove", "look"]), texts,
              st.sampled_from(ROOTS), st.integers(0, 7)), max_size=60,
)  # fmt: skip


def rows_of(text: list[int], root: bytes, lineage: str = "fp32") -> list[Row]:
    """Every full block of a text as a row of its own."""
    chain = chain_keys(root, text, SIZE)
    keys = [tagged_key(key, lineage) for key in chain]
    return [
        Row(key, keys[page - 1] if page else None, (0,),
            tuple(text[page * SIZE : (page + 1) * SIZE]), lineage, chain[page],
            b"" if page else root)
        for page, key in enumerate(keys)
    ]  # fmt: skip


def found(index: PrefixIndex, text: list[int], root: bytes) -> list[bytes]:
    wanted = Text(text, SIZE, lambda: root, lambda: chain_keys(root, text, SIZE))
    return [row.key for row in index.match(wanted, "fp32", 99)]


def pair() -> list[PrefixIndex]:
    return [kind(lambda row: None, lambda row: None) for kind in (HashIndex, RadixIndex)]


@given(changes)
@settings(max_examples=80, deadline=None, derandomize=True, database=None)
def test_both_find_the_same_rows(steps: list[tuple[str, list[int], bytes, int]]) -> None:
    """Rows go in any order here, from the middle too: what is out of reach comes back the same."""
    both = pair()
    for what, text, root, number in steps:
        for row in rows_of(text, root) if what == "insert" else []:
            for index in both:
                if index.get(row.key) is None:
                    index.insert(row)
        if what == "remove" and len(both[0]):
            gone = both[0].rows()[number % len(both[0])]
            for index in both:
                index.remove(index.get(gone.key) or gone, 1)
        hits = [found(index, text, root) for index in both]
        assert hits[0] == hits[1]
        assert [index.fault() for index in both] == ["", ""]
        lineup = [sorted(row.key for row in index.rows()) for index in both]
        assert lineup[0] == lineup[1]
        for row in both[0].rows():
            assert len({index.num_children(row) for index in both}) == 1
        after = hits[0][-1] if hits[0] else tagged_key(root, "fp32")
        rest = text[len(hits[0]) * SIZE :][:SIZE]
        nearest = [index.closest(after, rest) for index in both]
        assert len({near and (near[0].token_ids[: near[1]], near[1]) for near in nearest}) == 1


@given(st.lists(texts, max_size=12), texts)
@settings(max_examples=50, deadline=None, derandomize=True, database=None)
def test_the_closest_block_shares_most(cached: list[list[int]], text: list[int]) -> None:
    for index in pair():
        for each in cached:
            for row in rows_of(each, ROOTS[0]):
                if index.get(row.key) is None:
                    index.insert(row)
        hit = found(index, text, ROOTS[0])
        after = hit[-1] if hit else tagged_key(ROOTS[0], "fp32")
        rest = text[len(hit) * SIZE :][:SIZE]
        common = max(
            (next((at for at, one in enumerate(rest) if one != row.token_ids[at]), len(rest))
             for row in index.rows() if row.link_key == after), default=0,
        )  # fmt: skip
        near = index.closest(after, rest)
        assert (near[1] if near else 0) == common


def test_an_edge_is_split_where_texts_part_and_only_there() -> None:
    index = RadixIndex(lambda row: None, lambda row: None)
    for row in rows_of([1] * 16, ROOTS[0]):
        index.insert(row)
    assert index.num_nodes == 1
    for row in rows_of([1] * 8 + [2] * 8, ROOTS[0])[2:]:
        index.insert(row)
    assert index.num_nodes == 3
    middle = rows_of([1] * 16, ROOTS[0])[1]
    index.remove(index.get(middle.key) or middle, 1)
    assert len(found(index, [1] * 16, ROOTS[0])) == 1, "what lies behind is out of reach"
    index.insert(middle)
    assert len(found(index, [1] * 16, ROOTS[0])) == 4, "and is found again"


def test_a_row_that_is_there_or_not_is_said() -> None:
    for index in pair():
        (row,) = rows_of([1] * 4, ROOTS[0])
        index.insert(row)
        with pytest.raises(ValueError, match="is in the index already"):
            index.insert(row)
        index.remove(row, 1)
        assert index.evicted_at(row.key) == 1
        with pytest.raises(ValueError, match="is not the one in the index"):
            index.remove(row, 1)


def test_every_setting_has_an_implementation() -> None:
    assert tuple(builtin_registry().names("index")) == PREFIX_INDEXES


@pytest.mark.parametrize("name", PREFIX_INDEXES)
@pytest.mark.parametrize("eviction", ["lru", "lfu"])
def test_tokens_do_not_depend_on_the_index(name: str, eviction: str) -> None:
    """More prompts than fit, with beginnings in common, come back in turn."""
    runner = Runner(build({"cache.hbm_budget_mib": pages(34), "cache.index": name,
                           "cache.eviction": eviction}))  # fmt: skip
    shared = tokens(14)
    prompts = [shared[: 2 * seed] + tokens(20, seed) for seed in range(8)]
    for prompt in [*prompts, *prompts[:4]]:
        assert_naive(model(), prompt, runner.one(prompt, 4))
    assert runner.engine.stack.pool.num_evicted_rows > 0
    assert runner.engine.metrics.hit_tokens > 0


def test_radix_evicts_leaves_first_even_if_they_were_used_last() -> None:
    """A row that others continue stays, though it is the oldest of all (SGLang; ours is LRU)."""
    runner = Runner(build({"cache.index": "radix", "cache.hbm_budget_mib": pages(34)}))
    for seed in range(6):
        runner.one(tokens(40, seed), 2)
        index = runner.engine.stack.pool.index
        assert all(row.parent_key is None or index.get(row.parent_key) for row in index.rows())
    assert runner.engine.stack.pool.num_evicted_rows > 0


def test_the_index_changes_live_and_keeps_its_rows() -> None:
    runner = Runner(build())
    engine, prompt = runner.engine, tokens(30)
    first = runner.one(prompt, 6)
    for name in ("radix", "hash", "radix"):
        running = runner.add(tokens(30, 7), 30)
        runner.step(3)
        cached = {row.key for row in engine.stack.pool.index.rows()}
        report = engine.apply({"cache.index": name})
        assert report.kinds == {"cache.index": "hot"}
        assert {row.key for row in engine.stack.pool.index.rows()} == cached
        again = runner.add(prompt, 6)
        runner.step()
        assert engine.requests[again].num_cached_tokens == 28
        runner.drain()
        assert runner.outputs[again] == first
        assert_naive(model(), tokens(30, 7), runner.outputs[running])
    engine.apply({"cache.k_format": "int8", "cache.v_format": "int8"})
    runner.one(prompt, 6)
    assert engine.stack.pool.index.name == "radix"
