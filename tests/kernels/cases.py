"""One attention case: pages filled with known numbers, poisoned where unwritten, and its answer.

Used in process for the torch backend and in a subprocess for Triton under the interpreter.
"""

from dataclasses import dataclass, field, replace
from types import ModuleType

import numpy as np
import torch
from kvkernels import pages as pages_module
from kvkernels.api import AttentionResult, FormatState, Scratch, StepTables
from kvkernels.formats.low_rank import LowRank
from kvkernels.layout import PageSpec
from torch import Tensor

SCALE = 0.125
LAYER = 1


@dataclass(frozen=True)
class Case:
    """Shape of a case; kv_lens [groups][R] after the step, q_lens [R]."""

    k: str = "fp32"
    v: str = "fp32"
    kv_lens: tuple[tuple[int, ...], ...] = ((16, 33, 31),)
    q_lens: tuple[int, ...] = (1, 1, 1)
    heads: int = 2
    share: int = 3
    dim: int = 64
    block: int = 16
    log: bool = False
    rope: bool = False
    bf16: bool = False
    seed: int = 0
    new_lens: tuple[int, ...] | None = None
    new_starts: tuple[int, ...] | None = None
    group: int = 0
    rank: int = 0
    joined: int = 1
    shift: float = 0.0
    options: dict = field(default_factory=dict)

    @property
    def spec(self) -> PageSpec:
        return PageSpec(
            2, self.heads, self.dim, self.block, self.k, self.v, self.group, self.rank,
            rank_heads=self.joined,
        )  # fmt: skip

    @property
    def writes(self) -> tuple[int, ...]:
        """How many tokens of the step each request receives: none where pages come whole."""
        if self.spec.k.grouped or self.spec.v.grouped:
            return (0,) * len(self.q_lens)
        return self.q_lens if self.new_lens is None else self.new_lens


@dataclass(frozen=True)
class World:
    """A filled arena and the step that reads it."""

    case: Case
    arena: Tensor
    state: FormatState  # of whole pages
    step_state: FormatState  # of the KV heads of all head groups
    tables: StepTables
    q: Tensor
    k: Tensor
    v: Tensor
    rope_table: tuple[Tensor, Tensor] | None


def rope_table(dim: int, length: int = 512) -> tuple[Tensor, Tensor]:
    rates = 10000.0 ** (-torch.arange(dim // 2) / (dim // 2))
    angles = torch.arange(length)[:, None] * rates
    return angles.cos().contiguous(), angles.sin().contiguous()


def build(case: Case) -> World:
    """Fill every page through the encoder, then poison all slots that nothing wrote."""
    spec, rng = case.spec, np.random.default_rng(case.seed)
    generator = torch.Generator().manual_seed(case.seed)
    kv = np.array(case.kv_lens, np.int32)
    q_lens = np.array(case.q_lens, np.int32)
    new = np.array(case.writes, np.int32)
    groups, requests = kv.shape
    width = int(-(-max(int(kv.max()), 1) // case.block)) + 1
    offsets = np.full((groups, requests, width), -1, np.int64)
    count = -(-kv // case.block)
    order = rng.permutation(int(count.sum()) + 3)
    nth = 0
    for g in range(groups):
        for r in range(requests):
            for p in range(count[g, r]):
                offsets[g, r, p] = int(order[nth]) * spec.page_bytes
                nth += 1
    state = FormatState.from_spec(spec)
    state.k_scale[LAYER], state.v_scale[LAYER] = 0.5, 0.25
    _set_head_scales(state, case.heads, groups)
    set_tables(state, spec, case.seed)
    pages = torch.zeros(order.size, spec.page_bytes, dtype=torch.uint8)
    for plane in ("k", "v"):
        shape = (order.size, spec.num_layers, spec.num_kv_heads, spec.block_size, spec.head_dim)
        values = torch.randn(shape, generator=generator)
        pages_module.encode_pages(pages, spec, plane, state, values)
    _poison(pages, spec, offsets, kv - new, case.block)
    tokens, kv_heads = int(q_lens.sum()), groups * case.heads
    dtype = torch.bfloat16 if case.bf16 else torch.float32

    def random(heads: int) -> Tensor:
        return torch.randn(tokens, heads, case.dim, generator=generator).to(dtype)

    slots = width * case.block
    tables = StepTables(
        offsets,
        kv,
        q_lens,
        pos=rng.integers(0, 500, (groups, requests, slots)).astype(np.int32) if case.rope else None,
        log_count=_log_counts(case, rng, (groups, requests, slots)),
        query_pos=rng.integers(0, 500, tokens).astype(np.int32) if case.rope else None,
        new_lens=None if case.writes == case.q_lens else new,
        new_starts=None if case.new_starts is None else np.array(case.new_starts, np.int32),
    )
    return World(
        case, pages.view(-1), state, _of_groups(state, groups), tables,
        random(kv_heads * case.share), random(kv_heads), random(kv_heads),
        rope_table(case.dim) if case.rope else None,
    )  # fmt: skip


def _log_counts(case: Case, rng: np.random.Generator, shape: tuple) -> np.ndarray | None:
    if not case.log:
        return None
    return (rng.random(shape) + case.shift).astype(np.float32)


def _set_head_scales(state: FormatState, heads: int, groups: int) -> None:
    """Head scales that differ; one for all where several groups would need more than a page's."""
    if groups == 1:
        state.k_head_scale[LAYER] = 0.25 + torch.arange(heads) / 4
        state.v_head_scale[LAYER] = 1.5 - torch.arange(heads) / 4
    else:
        state.k_head_scale, state.v_head_scale = torch.full((2, 2, 1), 0.75).unbind(0)


def set_tables(state: FormatState, spec: PageSpec, seed: int) -> None:
    """Calibration tables that differ by layer and head: ranges, rising levels, orthonormal rows."""
    generator = torch.Generator().manual_seed(seed + 1)
    for table, fmt in ((state.k_table, spec.k), (state.v_table, spec.v)):
        if fmt.shared != "table":
            continue
        noise = torch.randn(table.shape, generator=generator) * 0.1
        if isinstance(fmt, LowRank):
            rows = noise.unflatten(-1, (-1, spec.head_dim))  # [L, H, 1 + rank, D]
            wide = rows[..., 1:, :].unflatten(1, (-1, fmt.heads)).movedim(2, -2)
            basis = torch.linalg.qr(wide.flatten(-2).mT).Q.mT.unflatten(-1, (fmt.heads, -1))
            rows[..., 1:, :] = basis.movedim(-2, 2).flatten(1, 2)
            table.copy_(rows.flatten(-2))
        else:
            levels = table[..., -(2**fmt.bits) :]
            table += noise
            levels.copy_(levels.clamp(-1, 1).sort(-1).values)


def _of_groups(state: FormatState, groups: int) -> FormatState:
    """The same tables for the heads of each group."""
    tables = {
        name: getattr(state, name).repeat(1, groups, 1) if getattr(state, name).dim() > 1
        else getattr(state, name)
        for name in ("k_table", "v_table")
    }  # fmt: skip
    return replace(state, **tables)


def _poison(
    pages: Tensor, spec: PageSpec, offsets: np.ndarray, stored: np.ndarray, block: int
) -> None:
    used = np.zeros((pages.shape[0], block), bool)
    for g, r, p in np.argwhere(offsets >= 0):
        live = int(np.clip(stored[g, r] - p * block, 0, block))
        used[offsets[g, r, p] // spec.page_bytes, :live] = True
    empty = torch.from_numpy(~used)  # [n, S]
    for plane, fmt in (("k", spec.k), ("v", spec.v)):
        data, meta = pages_module.plane_view(pages, spec, plane)
        data.masked_fill_(empty[:, None, None, :, None], 0xFF)  # NaN in every float format
        if meta is not None:
            # what tokens share stays while one of them is there
            gone = empty.all(1, keepdim=True).expand_as(empty) if fmt.grouped else empty
            meta.masked_fill_(gone[:, None, None, None, :], float("nan"))


def run(
    world: World, backend: ModuleType, mass: str | None = "token", each_head: bool = False
) -> AttentionResult:
    """Write the step's K and V, then attend, on `backend`."""
    case = world.case
    plan = backend.make_plan(
        case.spec,
        world.tables,
        "cpu",
        rope="at_read" if case.rope else "stored",
        rope_table=world.rope_table,
        scratch=Scratch(),
        **case.options,
    )
    backend.write_kv(world.arena, plan, LAYER, world.k, world.v, world.step_state)
    return backend.attend(
        world.q, world.arena, plan, LAYER, softmax_scale=SCALE, state=world.step_state, mass=mass,
        partial=True, each_head=each_head,
    )  # fmt: skip


def write_difference(world: World, backends: tuple[ModuleType, ModuleType]) -> float:
    """How far what two backends write of a step lies apart, as a share of its norm."""
    held = []
    for backend in backends:
        twin = replace(world, arena=world.arena.clone())
        run(twin, backend, mass=None)
        rows = range(len(twin.case.q_lens))
        parts = [stored(twin, plane, 0, r)[-twin.case.writes[r] :] for plane in "kv" for r in rows]
        held.append(torch.cat(parts))
    return float((held[0] - held[1]).norm() / held[0].norm())


def _rotated(x: Tensor, world: World, pos: np.ndarray) -> Tensor:
    if world.rope_table is None:
        return x
    cos, sin = (t[torch.from_numpy(pos.astype(np.int64))].double() for t in world.rope_table)
    while cos.dim() < x.dim():
        cos, sin = cos[:, None], sin[:, None]
    one, two = x.chunk(2, -1)
    return torch.cat([one * cos - two * sin, two * cos + one * sin], -1)


def stored(world: World, plane: str, g: int, r: int) -> Tensor:
    """What the pages of (group, request) hold: float64 [T, h, D]."""
    case, spec = world.case, world.case.spec
    length = int(world.tables.kv_lens[g, r])
    at = world.tables.page_offsets[g, r, : -(-length // case.block)]
    if not length:
        return torch.zeros(0, case.heads, case.dim, dtype=torch.float64)
    pages = torch.stack([world.arena[o : o + spec.page_bytes] for o in at.tolist()])
    values = pages_module.decode_pages(pages, spec, plane, world.state)[:, LAYER]
    return values.permute(0, 2, 1, 3).reshape(-1, case.heads, case.dim)[:length].double()


def expected(world: World) -> tuple[Tensor, Tensor, Tensor]:
    """Float64 answer over what the pages hold: out [N, Hq, D], lse [N, Hq], mass [R, Hq, T]."""
    case, tables = world.case, world.tables
    q = world.q.double()
    if tables.query_pos is not None:
        q = _rotated(q, world, tables.query_pos)
    tokens, heads, dim = q.shape
    groups, requests, width = tables.page_offsets.shape
    out = torch.zeros(tokens, heads, dim, dtype=torch.float64)
    lse = torch.full((tokens, heads), -torch.inf, dtype=torch.float64)
    mass = torch.zeros(requests, heads, width * case.block, dtype=torch.float64)
    new = tables.q_lens if tables.new_lens is None else tables.new_lens
    first = np.zeros_like(new) if tables.new_starts is None else tables.new_starts
    start = 0
    for r in range(requests):
        for g in range(groups):
            k, v = stored(world, "k", g, r), stored(world, "v", g, r)
            length = k.shape[0]
            if tables.pos is not None:
                k = _rotated(k, world, tables.pos[g, r, :length])
            for i in range(int(tables.q_lens[r])):
                seen = length - int(new[r]) + int(np.clip(i + 1 - first[r], 0, new[r]))
                for h in range(case.heads * case.share):
                    kv_head, q_head = h // case.share, g * case.heads * case.share + h
                    if not seen:
                        continue
                    score = k[:seen, kv_head] @ q[start + i, q_head] * SCALE
                    if tables.log_count is not None:
                        score = score + torch.from_numpy(tables.log_count[g, r, :seen]).double()
                    p = score.softmax(0)
                    out[start + i, q_head] = p @ v[:seen, kv_head]
                    lse[start + i, q_head] = score.logsumexp(0)
                    mass[r, q_head, :seen] += p
        start += int(tables.q_lens[r])
    return out, lse, mass


def errors(world: World, backend: ModuleType) -> dict[str, float]:
    """Largest absolute differences to float64, of attention and of what was written."""
    each_head = world.case.log  # often enough: it takes as many products as there are heads
    result = run(world, backend, each_head=each_head)
    out, lse, mass = expected(world)
    if not each_head:
        mass = mass.unflatten(1, (-1, world.case.share)).sum(2)
    assert result.lse is not None and result.mass is not None
    finite = torch.isfinite(lse)
    assert torch.equal(finite, torch.isfinite(result.lse)), "wrong rows see nothing"
    return {
        "out": float((result.out.view(out.shape).double() - out).abs().max()),
        "lse": float((result.lse.double() - lse)[finite].abs().max()),
        "mass": float((result.mass.double() - mass).abs().max()),
        "write": write_error(world),
    }


def write_error(world: World) -> float:
    """Largest |stored - given| of the new vectors, in units of the format's largest step."""
    tables, case = world.tables, world.case
    new = tables.q_lens if tables.new_lens is None else tables.new_lens
    first = np.zeros_like(new) if tables.new_starts is None else tables.new_starts
    worst, start = 0.0, 0
    for r, count in enumerate(tables.q_lens.tolist()):
        for g in range(tables.page_offsets.shape[0]):
            heads = slice(g * case.heads, (g + 1) * case.heads)
            begin = start + int(first[r])
            for plane, values, fmt in (("k", world.k, case.k), ("v", world.v, case.v)):
                given = values[begin : begin + int(new[r]), heads].double()
                if given.numel():
                    held = stored(world, plane, g, r)[-int(new[r]) :]
                    step = step_of(fmt, given)
                    if case.joined > 1:  # what a head loses comes from all that are joined
                        step = step.square().sum(1, keepdim=True).sqrt()
                    worst = max(worst, float(((held - given).abs() / step).max()))
        start += count
    return worst


def step_of(fmt: str, x: Tensor) -> Tensor:
    """Half a step of the format at x, a little widened by fp16 metadata."""
    top = x.abs().amax(-1, keepdim=True)
    span = x.amax(-1, keepdim=True) - x.amin(-1, keepdim=True)
    norm = x.square().sum(-1, keepdim=True).sqrt()
    steps = {
        "fp32": x.abs() * 2.0**-24 + 1e-7,
        "bf16": x.abs() * 2.0**-8 + 1e-9,
        "fp8_e4m3": x.abs() * 2.0**-4 * 1.001 + 2.0**-10,
        "fp8_e4m3_head": x.abs() * 2.0**-4 * 1.001 + 2.0**-9,
        "fp8_e4m3_token": x.abs() * 2.0**-4 * 1.001 + top / 448 * 2.0**-10 + 1e-7,
        "fp8_e5m2": x.abs() * 2.0**-3 * 1.001 + 2.0**-17,
        "fp8_e5m2_head": x.abs() * 2.0**-3 * 1.001 + 2.0**-16,
        "fp8_e5m2_token": x.abs() * 2.0**-3 * 1.001 + top / 57344 * 2.0**-17 + 1e-7,
        "int8": top / 254 * 1.15 + 1e-7,
        "int4": span / 30 * 1.05 + 4e-3,
        "int3": span / 14 * 1.05 + 4e-3,
        "int2": span / 6 * 1.05 + 4e-3,
        "nvfp4": top / 6 * 1.07 + 2.0**-9,
        # errors of a rotated vector mix: no element is further off than the vector is
        "int4_rotated": norm / 8 + 4e-3,
        "turbo4": norm / 4 + 1e-9,
        "turbo3": norm / 2.5 + 1e-9,
    }
    everywhere = (x.max() - x.min()).expand(1)  # groups lie along tokens
    for bits in (4, 3, 2):
        steps[f"kivi{bits}"] = everywhere / (2**bits - 1) / 2 * 1.05 + 4e-3
        outside = (x.abs() - 4).clamp_min(0)  # of a channel's range
        steps[f"kvquant{bits}"] = outside + 4 / 2 ** (bits - 1) + 1.5  # levels are moved
    steps["lowrank"] = steps["lowrank_int4"] = norm  # what lies outside the basis is lost
    return steps[fmt].expand_as(x)
