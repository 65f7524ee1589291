"""The torch backend against float64."""

import itertools

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from kvkernels import backend, decode, prefill, reference
from kvkernels.api import AttentionResult, FormatState, Scratch, StepTables, Timers
from kvkernels.layout import FORMATS, PageSpec

from tests.kernels.cases import LAYER, SCALE, Case, build, errors, run, stored

PAIRS = [(fmt, fmt) for fmt in FORMATS] + [
    ("int8", "int4"),
    ("bf16", "int4"),
    ("fp8_e4m3", "bf16"),
    ("int8", "fp8_e4m3"),
    ("fp32", "int8"),
    ("int4", "fp32"),
    ("turbo4", "int2"),
    ("nvfp4", "int4_rotated"),
    ("bf16", "kivi2"),
    ("kivi4", "fp8_e4m3_token"),
]
STEPS = {
    "decode": dict(kv_lens=((32, 33, 47, 1),), q_lens=(1, 1, 1, 1)),
    "equal decode": dict(kv_lens=((32, 32),), q_lens=(1, 1)),
    "mixed": dict(kv_lens=((16, 33, 31, 47),), q_lens=(1, 5, 31, 1)),
    "two head groups": dict(kv_lens=((16, 33, 5), (31, 8, 48)), q_lens=(1, 5, 2)),
    "one prefill": dict(kv_lens=((40,),), q_lens=(40,)),
    "far apart": dict(kv_lens=((700, 20, 24, 300),), q_lens=(1, 1, 1, 1)),
}


def check(case: Case) -> None:
    found = errors(build(case), reference)
    coarse = {case.k, case.v} - {"fp32", "bf16", "fp8_e4m3", "int8"}
    limit = 0.03 if case.bf16 else 2e-5 if coarse else 1e-5
    assert found["out"] < limit and found["lse"] < limit, found
    assert found["mass"] < (0.05 if case.bf16 else 1e-5), found
    assert found["write"] <= 1.0, found


@pytest.mark.parametrize("step", STEPS)
@pytest.mark.parametrize(("k", "v"), PAIRS)
def test_equals_float64_with_poison_in_unwritten_slots(k: str, v: str, step: str) -> None:
    check(Case(k, v, **STEPS[step]))


@pytest.mark.parametrize("fmt", FORMATS)
@pytest.mark.parametrize("step", STEPS)
def test_bf16_queries_stay_close(fmt: str, step: str) -> None:
    check(Case(fmt, fmt, bf16=True, log=True, **STEPS[step]))


@pytest.mark.parametrize("tiles", [False, True])
@pytest.mark.parametrize("fmt", ["bf16", "fp8_e4m3", "int8"])
@pytest.mark.parametrize("step", [*STEPS, "long prefill", "long chunk", "ragged prefill"])
def test_cpus_with_and_without_tiles_for_bf16(
    step: str, fmt: str, tiles: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(prefill, "BF16_TILES", tiles)
    monkeypatch.setattr(prefill, "TILE_BYTES", 1 << 16)
    monkeypatch.setattr(prefill, "TILE_QUERIES", 48)
    longer = {
        "long prefill": dict(kv_lens=((200,),), q_lens=(200,)),
        "long chunk": dict(kv_lens=((230, 150),), q_lens=(100, 100)),
        "ragged prefill": dict(kv_lens=((120, 100, 117),), q_lens=(120, 100, 117)),
    }
    check(Case(fmt, fmt, bf16=True, **(STEPS | longer)[step]))


@pytest.mark.parametrize("bf16", [False, True])
@pytest.mark.parametrize(("k", "v"), PAIRS)
def test_decode_rows_cut_into_tiles(
    k: str, v: str, bf16: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(decode, "FOLDED_TILE_BYTES", 1 << 13)
    monkeypatch.setattr(decode, "FUSED_TILE_BYTES", 1 << 13)
    check(Case(k, v, bf16=bf16, log=True, **STEPS["far apart"]))


@pytest.mark.parametrize(("share", "dim"), list(itertools.product((1, 3, 7), (64, 128))))
@pytest.mark.parametrize("fmt", FORMATS)
def test_group_sizes_and_head_sizes(fmt: str, share: int, dim: int) -> None:
    check(Case(fmt, fmt, ((33, 32),), (4, 1), share=share, dim=dim, log=True))


@pytest.mark.parametrize("fmt", FORMATS)
@pytest.mark.parametrize("step", ["decode", "mixed", "two head groups"])
def test_rotation_at_read(fmt: str, step: str) -> None:
    check(Case(fmt, fmt, rope=True, **STEPS[step]))


@pytest.mark.parametrize("fmt", FORMATS)
@pytest.mark.parametrize("q_lens", [(1, 1, 1), (4, 1, 3)])
def test_a_class_that_receives_only_part_of_the_step(fmt: str, q_lens: tuple[int, ...]) -> None:
    """Older slots are seen whole, an empty row yields nothing, a late start is respected."""
    starts = tuple(q - 1 for q in q_lens)
    check(Case(fmt, fmt, ((19, 0, 1),), q_lens, new_lens=(1, 0, 1), new_starts=starts))


@pytest.mark.parametrize("block", [8, 16, 32, 64])
def test_block_sizes(block: int) -> None:
    check(Case("int8", "int4", ((70, 64, 63),), (1, 3, 1), block=block))


@settings(max_examples=40, deadline=None)
@given(
    rows=st.lists(st.tuples(st.integers(1, 90), st.integers(1, 12)), min_size=1, max_size=9),
    fmt=st.sampled_from(list(FORMATS)),
    seed=st.integers(0, 99),
)
def test_any_ragged_step(rows: list[tuple[int, int]], fmt: str, seed: int) -> None:
    kv = tuple(max(length, q) for length, q in rows)
    check(Case(fmt, fmt, (kv,), tuple(q for _, q in rows), heads=1, share=2, seed=seed))


@pytest.mark.parametrize("fmt", FORMATS)
def test_mass_sums_to_the_query_rows(fmt: str) -> None:
    case = Case(fmt, fmt, **STEPS["mixed"])
    world = build(case)
    by_token = run(world, reference, "token").mass
    by_page = run(world, reference, "page").mass
    assert by_token is not None and by_page is not None
    rows = torch.tensor(case.q_lens, dtype=torch.float32) * case.share
    torch.testing.assert_close(by_token.sum(-1), rows[:, None].expand(-1, case.heads))
    torch.testing.assert_close(by_page, by_token.unflatten(-1, (-1, case.block)).sum(-1))
    assert by_page.shape[-1] == world.tables.page_offsets.shape[-1]


@pytest.mark.parametrize("fmt", ["bf16", "int8", "kivi2"])
@pytest.mark.parametrize("step", STEPS)
def test_mass_of_query_heads_sums_to_the_kv_heads(fmt: str, step: str) -> None:
    world = build(Case(fmt, fmt, **STEPS[step]))
    whole = run(world, reference).mass
    parts = run(world, reference, each_head=True).mass
    assert whole is not None and parts is not None
    torch.testing.assert_close(parts.unflatten(1, (-1, world.case.share)).sum(2), whole)


def test_asking_for_mass_does_not_move_the_output() -> None:
    for fmt in FORMATS:
        world = build(Case(fmt, fmt, bf16=True, **STEPS["mixed"]))
        assert torch.equal(run(world, reference, None).out, run(world, reference, "page").out)


@pytest.mark.parametrize("newer", FORMATS)
@pytest.mark.parametrize("older", ["fp32", "int8", "kivi2"])
def test_classes_merge_to_the_whole(older: str, newer: str) -> None:
    """Pages of two formats, attended apart and merged, equal float64 over both."""
    q_lens = (1, 4, 2)
    old = build(Case(older, older, ((32, 0, 16),), q_lens, new_lens=(0, 0, 0)))
    new = build(Case(newer, newer, ((7, 20, 16),), q_lens, seed=1))
    new.q.copy_(old.q)
    merged = reference.merge([run(old, reference), run(new, reference)]).view(old.q.shape)
    start = 0
    for r, count in enumerate(q_lens):
        k, v = (torch.cat([stored(w, p, 0, r) for w in (old, new)]) for p in ("k", "v"))
        for i in range(count):
            seen = k.shape[0] - new.case.writes[r] + min(i + 1, new.case.writes[r])
            for head in range(old.q.shape[1]):
                score = k[:seen, head // 3] @ old.q[start + i, head].double() * SCALE
                want = score.softmax(0) @ v[:seen, head // 3]
                assert (merged[start + i, head].double() - want).abs().max() < 2e-5
        start += count


def test_merge_needs_partial_results() -> None:
    part = AttentionResult(torch.zeros(1, 4))
    with pytest.raises(ValueError, match="merge needs results made with partial=True"):
        reference.merge([part, part])


def test_equal_keys_merge_exactly_with_a_log_count() -> None:
    """One slot with log_count = log 3 stands for three equal keys."""
    spec = PageSpec(2, 1, 64, 16, "fp32", "fp32")
    arena = torch.zeros(2 * spec.page_bytes, dtype=torch.uint8)
    state = FormatState.from_spec(spec)
    one, other, q = torch.randn(3, 1, 1, 64).unbind(0)
    outs = []
    for page, keys, counts in ((0, [one, one, one, other], None), (1, [one, other], [3.0, 1.0])):
        offsets = np.array([[[page * spec.page_bytes]]], np.int64)
        log_count = None
        if counts:
            log_count = np.zeros((1, 1, 16), np.float32)
            log_count[0, 0, : len(counts)] = np.log(counts)
        total = np.array([len(keys)], np.int32)
        tables = StepTables(offsets, total[None], total)
        plan = reference.make_plan(spec, tables, scratch=Scratch())
        x = torch.cat(keys)
        reference.write_kv(arena, plan, LAYER, x, x, state)
        step = StepTables(offsets, total[None], np.array([1], np.int32), log_count=log_count)
        plan = reference.make_plan(spec, step, scratch=Scratch())
        outs.append(reference.attend(q, arena, plan, LAYER, softmax_scale=SCALE, state=state).out)
    torch.testing.assert_close(outs[0], outs[1], rtol=1e-5, atol=1e-6)


def test_scratch_is_counted_reused_and_released() -> None:
    world = build(Case("int8", "int8", **STEPS["mixed"]))
    scratch = Scratch()
    sizes = []
    for _ in range(2):
        plan = reference.make_plan(world.case.spec, world.tables, scratch=scratch)
        reference.attend(world.q, world.arena, plan, LAYER, softmax_scale=SCALE, state=world.state)
        sizes.append(scratch.bytes)
    assert sizes[0] == sizes[1] > 0
    scratch.release()
    assert scratch.bytes == 0


def test_timers_add_up_the_parts() -> None:
    world = build(Case("int8", "int8", **STEPS["mixed"]))
    timers = Timers()
    plan = reference.make_plan(world.case.spec, world.tables, scratch=Scratch(), timers=timers)
    reference.attend(world.q, world.arena, plan, LAYER, softmax_scale=SCALE, state=world.state)
    assert min(timers.gather_s, timers.dequant_s, timers.attention_s) > 0
    timers.reset()
    assert timers.gather_s == timers.dequant_s == timers.attention_s == 0


def test_many_rows_need_few_batches() -> None:
    """Padding stays small with a constant number of batches, whatever the number of requests."""
    rng = np.random.default_rng(0)
    kv = rng.integers(1, 2000, (1, 64)).astype(np.int32)
    offsets = np.zeros((1, 64, 125), np.int64)
    spec = PageSpec(2, 1, 64, 16, "bf16", "bf16")
    tables = StepTables(offsets, kv, np.ones(64, np.int32))
    plan = reference.make_plan(spec, tables, scratch=Scratch())
    padded = sum(batch.num_rows * batch.num_slots for batch in plan.batches)
    assert len(plan.batches) <= 4
    assert padded < 1.35 * kv.sum()


def test_missing_tables_are_named() -> None:
    world = build(Case())
    spec, tables = world.case.spec, world.tables
    with pytest.raises(ValueError, match="needs tables.pos and rope_table"):
        reference.make_plan(spec, tables, rope="at_read", scratch=Scratch())
    wrong = StepTables(tables.page_offsets, tables.kv_lens[:, :1], tables.q_lens)
    with pytest.raises(ValueError, match=r"step tables disagree: page_offsets \(1, 3, 4\)"):
        reference.make_plan(spec, wrong, scratch=Scratch())
    beyond = StepTables(tables.page_offsets, tables.kv_lens + 100, tables.q_lens)
    with pytest.raises(ValueError, match="kv_lens reaches 133 slots, but a request has only 4"):
        reference.make_plan(spec, beyond, scratch=Scratch())


def test_cpu_selects_the_torch_backend() -> None:
    assert backend.select("cpu") is reference
