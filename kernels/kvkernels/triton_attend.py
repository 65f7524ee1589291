"""Launches of the Triton attention kernels (see `triton_attention` for the algorithm)."""

from dataclasses import dataclass

import torch
import triton
import triton.language as tl
from torch import Tensor

from kvkernels.api import AttentionResult, FormatState, Mass
from kvkernels.common import rotate
from kvkernels.formats.low_rank import LowRank
from kvkernels.layout import PageSpec
from kvkernels.triton_attention import attention_kernel, combine_kernel, mass_kernel
from kvkernels.triton_formats import page_of, plane_of, table_of
from kvkernels.triton_plan import SMALL_TILE, Plan, Tiles, cut_tiles
from kvkernels.turn import turn_output, turn_query, turns

# families that hold a scale or a level for each number, or fold two scales
HEAVY = ("channels", "nvfp4", "lloyd", "nuq_k", "nuq_v", "low_rank")
LOG2_E = 1.4426950408889634


def dot_type(query: torch.dtype, spec: PageSpec) -> tl.dtype:
    """Operand type of the products: fp32 for fp32 data and under the interpreter, else bf16."""
    wide = query == torch.float32 or torch.float32 in (spec.k.dtype, spec.v.dtype)
    # the interpreter multiplies bf16 wrongly
    return tl.float32 if wide or triton.knobs.runtime.interpret else tl.bfloat16


@dataclass(frozen=True)
class LaunchShape:
    """Query rows of a prefill tile, slots read at once and warps of the attention kernels."""

    large_tile: int
    block_slots: int
    num_warps: int


def launch_shape(dot: tl.dtype, spec: PageSpec) -> LaunchShape:
    """The largest shape that spills no registers on sm_90 (`tests/kernels/test_triton.py`).

    fp32 products keep their operands in registers, so their tiles are smaller. Keys grouped along
    tokens are read one group at a time, so that its scales fold into the queries.
    """
    key, value = plane_of(spec, "k"), plane_of(spec, "v")
    heavy = any(x.family in HEAVY for x in (key, value))
    if dot == tl.float32:
        if spec.head_dim > 64:
            shape = LaunchShape(16, 16, 8 if key.family == "nuq_k" else 4)
        else:
            shape = LaunchShape(32, 16 if value.packed or heavy else 32, 4)
    else:
        shape = LaunchShape(64, 32 if heavy else 64, 4 if spec.head_dim <= 64 else 8)
    if key.family != "tokens":
        return shape
    return LaunchShape(shape.large_tile, key.group, shape.num_warps)


def most_registers(tile: int, dot: tl.dtype, spec: PageSpec, rope: bool) -> int:
    """Registers of a thread that a kernel may use.

    Said aloud, because ptxas otherwise spills a few to reach a round number of resident blocks.
    """
    narrow = dot != tl.float32 and spec.head_dim <= 64 and not rope
    narrow = narrow and not any(isinstance(fmt, LowRank) for fmt in (spec.k, spec.v))
    narrow = narrow and plane_of(spec, "k").family != "nuq_k"  # its levels are looked up
    return 128 if tile == SMALL_TILE and narrow else 255


def attend(
    q: Tensor,
    arena: Tensor,
    plan: Plan,
    layer: int,
    *,
    softmax_scale: float,
    state: FormatState,
    mass: Mass = None,
    partial: bool = False,
    each_head: bool = False,
) -> AttentionResult:
    """Attend q [N, Hq, D] (bf16 or fp32) to the pages of `plan`; see `reference.attend`."""
    spec = plan.spec
    tokens, num_heads, dim = q.shape
    share = num_heads // (plan.num_head_groups * spec.num_kv_heads)
    if plan.query_pos is not None and plan.rope_table is not None:
        cos, sin = (table[plan.query_pos][:, None, :] for table in plan.rope_table)
        q = rotate(q.to(torch.float32), cos, sin).to(q.dtype)
    turned = turns(spec, plan.rope)
    dtype = q.dtype
    if turned[0]:
        q = turn_query(q, spec, layer, state, plan.rope).to(dtype)
    q = q.contiguous()
    # results that are turned back are rounded once, afterwards
    out = torch.zeros_like(q, dtype=torch.float32 if turned[1] else dtype)
    lse = torch.full((tokens, num_heads), float("-inf"), device=q.device)
    shape = launch_shape(dot_type(q.dtype, spec), spec)
    tiles = cut_tiles(plan, share, shape.large_tile)
    launch = _Launch(q, arena, plan, layer, state, share, softmax_scale * LOG2_E)
    if tiles.small.numel():
        launch.small(tiles, out, lse)
    if tiles.large.numel():
        launch.attention(tiles.large, out, lse, 1, tiles.longest, shape.large_tile)
    weights = launch.mass(lse, share if each_head else 1) if mass is not None else None
    if weights is not None and mass == "page":
        weights = weights.unflatten(-1, (plan.num_pages, spec.block_size)).sum(-1)
    if turned[1]:
        out = turn_output(out, spec, layer, state).to(dtype)
    return AttentionResult(out.view(tokens, -1), lse if partial else None, weights)


class _Launch:
    """The kernel arguments that all launches of one `attend` share."""

    def __init__(
        self,
        q: Tensor,
        arena: Tensor,
        plan: Plan,
        layer: int,
        state: FormatState,
        share: int,
        scale: float,
    ) -> None:
        spec = plan.spec
        self.q, self.plan, self.layer, self.state, self.scale = q, plan, layer, state, scale
        self.dot = dot_type(q.dtype, spec)
        self.shape = launch_shape(self.dot, spec)
        self.k_arena, self.v_arena = arena.view(spec.k.dtype), arena.view(spec.v.dtype)
        self.meta = arena.view(torch.float16)
        # absent tables are replaced by any pointer: the constants keep them from being read
        cos, sin = plan.rope_table or (self.meta, self.meta)
        log_count = plan.rows if plan.log_count is None else plan.log_count
        self.extra = (log_count, plan.rows if plan.pos is None else plan.pos, cos, sin)
        self.tables = [table_of(spec, plane, state, plan.num_head_groups) for plane in ("k", "v")]
        self.constants: dict[str, object] = {
            "K": plane_of(spec, "k"),
            "PAGE": page_of(spec),
            "G": share,
            "DOT": self.dot,
            "HAS_LOG": plan.log_count is not None,
            "ROPE": plan.rope == "at_read",
        }

    def most_registers(self, tile: int) -> int:
        """Registers of a thread for tiles of this size."""
        return most_registers(tile, self.dot, self.plan.spec, self.plan.rope == "at_read")

    def attention(
        self, tiles: Tensor, out: Tensor, lse: Tensor, splits: int, split_slots: int, tile: int
    ) -> None:
        """Launch one tile list over its splits."""
        plan = self.plan
        grid = (tiles.shape[0], plan.spec.num_kv_heads, splits)
        attention_kernel[grid](
            self.q,
            out,
            lse,
            self.k_arena,
            self.v_arena,
            self.meta,
            *self.tables,
            plan.pages,
            plan.rows,
            tiles,
            *self.extra,
            self.state.k_scale,
            self.state.v_scale,
            self.layer,
            self.scale,
            plan.num_pages,
            plan.num_head_groups,
            split_slots,
            self.q.shape[0] * self.q.shape[1],
            **self.constants,
            V=plane_of(plan.spec, "v"),
            BLOCK_M=tile,
            BLOCK_N=self.shape.block_slots,
            num_warps=self.shape.num_warps,
            num_stages=2,
            maxnreg=self.most_registers(tile),
        )

    def small(self, tiles: Tiles, out: Tensor, lse: Tensor) -> None:
        """Decode tiles, merged over their splits."""
        if tiles.num_splits == 1:
            self.attention(tiles.small, out, lse, 1, tiles.split_slots, SMALL_TILE)
            return
        tokens, heads, dim = self.q.shape
        shape = (tiles.num_splits, tokens, heads)
        parts = self.plan.scratch.get("split.out", (*shape, dim), torch.float32)
        lses = self.plan.scratch.get("split.lse", shape, torch.float32)
        self.attention(tiles.small, parts, lses, shape[0], tiles.split_slots, SMALL_TILE)
        per_row = heads // self.plan.num_head_groups
        combine_kernel[(tiles.small_queries.numel(), per_row)](
            parts,
            lses,
            out,
            lse,
            tiles.small_queries,
            shape[0],
            tokens * heads,
            per_row,
            D=dim,
            BLOCK_S=triton.next_power_of_2(shape[0]),
            num_warps=2,
        )

    def mass(self, lse: Tensor, parts: int) -> Tensor:
        """Attention summed over queries and query heads, [R, Hkv * parts, P * S].

        `parts`: 1, or all query heads of a KV head, which then stay apart.
        """
        plan, spec = self.plan, self.plan.spec
        rows, slots = plan.pages.shape[0], plan.num_pages * spec.block_size
        total = torch.empty(rows, spec.num_kv_heads * parts, slots, device=self.q.device)
        block = self.shape.block_slots
        mass_kernel[(rows, spec.num_kv_heads * parts, triton.cdiv(slots, block))](
            self.q,
            lse,
            total,
            self.k_arena,
            self.meta,
            self.tables[0],
            plan.pages,
            plan.rows,
            *self.extra,
            self.state.k_scale,
            self.layer,
            self.scale,
            plan.num_pages,
            plan.num_head_groups,
            **self.constants,
            BLOCK_M=SMALL_TILE,
            BLOCK_N=block,
            PARTS=parts,
            num_warps=self.shape.num_warps,
            num_stages=1,  # a pipelined loop would hold two tiles of queries in registers
            maxnreg=self.most_registers(SMALL_TILE),
        )
        return total.view(plan.num_requests, -1, slots)
