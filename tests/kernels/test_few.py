"""A few queries of one request: against float64, beside other requests, and over several layers."""

import pytest
import torch
from kvkernels import few, prefill, reference
from kvkernels.api import Scratch

from tests.kernels.cases import LAYER, SCALE, Case, build, expected


@pytest.fixture(autouse=True)
def used(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """A CPU without tiles for bf16; counts how often the path was bound."""
    monkeypatch.setattr(prefill, "BF16_TILES", False)
    bound: list[int] = []
    begin = few.FewQueries.__init__

    def counted(self, plan, batch, share):  # type: ignore[no-untyped-def]
        bound.append(batch.num_queries)
        begin(self, plan, batch, share)

    monkeypatch.setattr(few.FewQueries, "__init__", counted)
    return bound


def difference(case: Case) -> float:
    """Largest difference of the outputs to float64, without mass and lse."""
    world = build(case)
    plan = reference.make_plan(case.spec, world.tables, "cpu", scratch=Scratch())
    reference.write_kv(world.arena, plan, LAYER, world.k, world.v, world.step_state)
    out, _, _ = expected(world)
    found = []
    for _ in range(2):  # what is bound is used again by the next layer
        result = reference.attend(
            world.q, world.arena, plan, LAYER, softmax_scale=SCALE, state=world.step_state
        )
        found.append(float((result.out.view(out.shape).double() - out).abs().max()))
    assert found[0] == found[1]
    return found[0]


@pytest.mark.parametrize(("share", "dim"), [(1, 64), (3, 64), (7, 128)])
@pytest.mark.parametrize(
    ("kv_len", "q_len"), [(16, 16), (33, 2), (40, 8), (47, 32), (48, 15), (1000, 16)]
)
def test_equals_float64(kv_len: int, q_len: int, share: int, dim: int, used: list[int]) -> None:
    case = Case("bf16", "bf16", ((kv_len,),), (q_len,), share=share, dim=dim, bf16=True)
    assert difference(case) < 0.03
    assert used == [q_len]


def test_beside_a_request_that_decodes(used: list[int]) -> None:
    case = Case("bf16", "bf16", ((600, 20),), (16, 1), bf16=True)
    assert difference(case) < 0.03
    assert used == [16]


@pytest.mark.parametrize(
    ("fmt", "q_len"), [("bf16", 33), ("bf16", 1), ("int8", 16), ("fp8_e4m3", 16)]
)
def test_everything_else_goes_another_way(fmt: str, q_len: int, used: list[int]) -> None:
    assert difference(Case(fmt, fmt, ((50,),), (q_len,), bf16=True)) < 0.03
    assert used == []


def test_a_scratch_that_grows_does_not_move_what_is_bound() -> None:
    """Two plans of one scratch, the second larger: each reads its own."""
    scratch = Scratch()
    found = []
    for kv_len in (40, 900):
        world = build(Case("bf16", "bf16", ((kv_len,),), (16,), bf16=True))
        plan = reference.make_plan(world.case.spec, world.tables, "cpu", scratch=scratch)
        reference.write_kv(world.arena, plan, LAYER, world.k, world.v, world.step_state)
        result = reference.attend(
            world.q, world.arena, plan, LAYER, softmax_scale=SCALE, state=world.step_state
        )
        out, _, _ = expected(world)
        found.append((result.out.view(out.shape).double() - out).abs().max())
    assert torch.stack(found).max() < 0.03
