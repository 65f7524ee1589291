"""Times of the Triton kernels on a GPU, as replays of CUDA graphs."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from bench.setup import SOFTMAX_SCALE, WRITTEN, Cache, figure, make_cache
from kvkernels import triton_backend as backend
from kvkernels import triton_planes
from kvkernels.api import FormatState, Mass, Scratch, StepTables
from kvkernels.layout import FORMATS, PageSpec


def graph_seconds(work: Callable[[], object], replays: int = 20) -> float:
    """Median seconds of one replay of `work`, captured as a CUDA graph."""
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        for _ in range(3):  # compiles the kernels and fills caches of tables
            work()
    torch.cuda.current_stream().wait_stream(stream)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        work()
    graph.replay()
    times = []
    for _ in range(replays):
        start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        start.record()
        graph.replay()
        end.record()
        torch.cuda.synchronize()
        times.append(start.elapsed_time(end) / 1e3)
    return sorted(times)[len(times) // 2]


def copy_bandwidth() -> float:
    """Bytes per second, read plus written, of a plain device copy of 1 GiB."""
    source = torch.empty(1 << 30, dtype=torch.uint8, device="cuda")
    target = torch.empty_like(source)
    return 2 * source.numel() / graph_seconds(lambda: target.copy_(source))


def attend_all(cache: Cache, scratch: Scratch, mass: Mass = None) -> Callable[[], None]:
    """Attention of every layer; together they exceed the GPU's cache."""
    plan = backend.make_plan(cache.spec, cache.tables, "cuda", scratch=scratch)

    def work() -> None:
        for layer in range(cache.spec.num_layers):
            backend.attend(
                cache.q,
                cache.arena,
                plan,
                layer,
                softmax_scale=SOFTMAX_SCALE,
                state=cache.state,
                mass=mass,
            )

    return work


def write_all(cache: Cache, scratch: Scratch) -> Callable[[], None]:
    """Write of every layer."""
    plan = backend.make_plan(cache.spec, cache.tables, "cuda", scratch=scratch)

    def work() -> None:
        for layer in range(cache.spec.num_layers):
            backend.write_kv(cache.arena, plan, layer, cache.k, cache.v, cache.state)

    return work


def attention_figures(bandwidth: float) -> list[dict[str, Any]]:
    """Decode at 64 x 1024 tokens, prefill of 4 x 512 and write, in every format."""
    out: list[dict[str, Any]] = []
    seconds: dict[tuple[str, str], float] = {}
    steps = {"decode": (64, 1024, 1), "prefill": (4, 1024, 512)}
    for fmt in FORMATS:
        for step, (requests, tokens, queries) in steps.items():
            cache = make_cache(fmt, requests, tokens, queries, "cuda", torch.bfloat16)
            took = seconds[step, fmt] = graph_seconds(attend_all(cache, Scratch("cuda")))
            shape = f"{requests} x {tokens} tokens, {queries} new each, 30 layers"
            note = f"{shape}; {cache.read_bytes} bytes read"
            out.append(figure(f"gpu_{step}_ms_{fmt}", took * 1e3, "ms", note))
            if step == "decode":
                share = cache.read_bytes / took / bandwidth
                note = "KV bytes per second over copied bytes per second of the same run"
                out.append(figure(f"gpu_decode_bandwidth_share_{fmt}", share, "ratio", note))
            if fmt in WRITTEN:
                took = graph_seconds(write_all(cache, Scratch("cuda")))
                out.append(figure(f"gpu_write_{step}_ms_{fmt}", took * 1e3, "ms", shape))
    for (step, fmt), took in seconds.items():
        ratio = took / seconds[step, "bf16"]
        out.append(figure(f"gpu_{step}_over_bf16_{fmt}", ratio, "ratio", "time over our bf16"))
    return out


def option_figures() -> list[dict[str, Any]]:
    """Decode at 64 x 1024 tokens with attention mass, and with a table for each KV head."""
    shape = "bf16, 64 x 1024 tokens, time over that without"
    cache = make_cache("bf16", 64, 1024, 1, "cuda", torch.bfloat16)
    plain = graph_seconds(attend_all(cache, Scratch("cuda")))
    out = []
    for mass in ("page", "token"):
        took = graph_seconds(attend_all(cache, Scratch("cuda"), mass))  # type: ignore[arg-type]
        out.append(figure(f"gpu_{mass}_mass_over_none", took / plain, "ratio", shape))
    for fmt in FORMATS:
        sets = [make_cache(fmt, 64, 1024, 1, "cuda", torch.bfloat16, groups=n) for n in (1, 3)]
        one, each = (graph_seconds(attend_all(cache, Scratch("cuda"))) for cache in sets)
        note = "64 x 1024 tokens, one table a KV head over one for all"
        out.append(figure(f"gpu_head_tables_over_one_{fmt}", each / one, "ratio", note))
    return out


def long_figures(bandwidth: float) -> list[dict[str, Any]]:
    """Decode of long texts: one alone at 32k tokens, and an eighth of the pages of eight."""
    alone = make_cache("bf16", 1, 32768, 1, "cuda", torch.bfloat16)
    took = graph_seconds(attend_all(alone, Scratch("cuda")))
    share = alone.read_bytes / took / bandwidth
    note = "one request of 32,768 tokens in bf16"
    out = [figure("gpu_alone_32k_bandwidth_share", share, "ratio", note)]
    whole = make_cache("bf16", 8, 32768, 1, "cuda", torch.bfloat16)
    pages = whole.tables.page_offsets.shape[2] // 8
    few = StepTables(
        np.ascontiguousarray(whole.tables.page_offsets[:, :, -pages:]),
        np.full_like(whole.tables.kv_lens, pages * whole.spec.block_size),
        whole.tables.q_lens,
    )
    full = graph_seconds(attend_all(whole, Scratch("cuda")))
    part = graph_seconds(attend_all(replace(whole, tables=few), Scratch("cuda")))
    note = "bf16, 8 x 32,768 tokens, all pages over an eighth of them; selection not included"
    return [*out, figure("gpu_eighth_of_pages_speedup", full / part, "ratio", note)]


def plane_figures(bandwidth: float) -> list[dict[str, Any]]:
    """Byte planes of 1024 bf16 pages, and bit planes of five-bit codes."""
    rows = torch.randint(0, 32, (1024, 30 * 12288), dtype=torch.uint8, device="cuda")
    split, packed = triton_planes.split_planes(rows, 2), triton_planes.pack_bits(rows, 5)
    works: dict[str, tuple[Callable[[], object], int]] = {
        "split_planes": (lambda: triton_planes.split_planes(rows, 2), 2 * rows.numel()),
        "join_planes": (lambda: triton_planes.join_planes(split, 2), 2 * rows.numel()),
        "pack_bits": (lambda: triton_planes.pack_bits(rows, 5), rows.numel() + packed.numel()),
        "unpack_bits": (
            lambda: triton_planes.unpack_bits(packed, 5), rows.numel() + packed.numel(),
        ),
    }  # fmt: skip
    return [
        figure(f"gpu_{name}_bandwidth_share", moved / graph_seconds(work) / bandwidth, "ratio",
               f"{moved} bytes moved")
        for name, (work, moved) in works.items()
    ]  # fmt: skip


def page_figures(bandwidth: float) -> list[dict[str, Any]]:
    """Copy, gather and scatter of 1024 bf16 pages, and recode to each format."""
    count = 1024
    spec = PageSpec(30, 3, 64, 16, "bf16", "bf16")
    arena = torch.zeros(2 * count * spec.page_bytes, dtype=torch.uint8, device="cuda")
    order = torch.randperm(count, device="cuda")
    src, dst = order * spec.page_bytes, (order.flip(0) + count) * spec.page_bytes
    staged = torch.zeros(count, spec.page_bytes, dtype=torch.uint8, device="cuda")
    works: dict[str, Callable[[], object]] = {
        "copy": lambda: backend.copy_pages(arena, spec, src, dst),
        "gather": lambda: backend.gather_pages(arena, spec, src, staged),
        "scatter": lambda: backend.scatter_pages(arena, spec, dst, staged),
    }
    out = []
    for name, work in works.items():
        took, moved = graph_seconds(work), 2 * staged.numel()
        out.append(figure(f"gpu_{name}_pages_ms", took * 1e3, "ms", f"{moved} bytes moved"))
        share = moved / took / bandwidth
        out.append(figure(f"gpu_{name}_bandwidth_share", share, "ratio", "of a plain copy"))
    state = FormatState.from_spec(spec, "cuda")
    for fmt in FORMATS:
        target = PageSpec(30, 3, 64, 16, fmt, fmt)
        there = src // spec.page_bytes * target.page_bytes + count * spec.page_bytes
        if target.page_bytes > spec.page_bytes:
            continue  # the upper half of the arena holds no larger page
        moved = count * (spec.page_bytes + target.page_bytes)

        def recode(target: PageSpec = target, there: torch.Tensor = there) -> None:
            backend.recode_pages(arena, spec, src, state, target, there, state, Scratch("cuda"))

        took = graph_seconds(recode)
        note = f"from bf16; {moved} bytes moved"
        out.append(figure(f"gpu_recode_ms_{fmt}", took * 1e3, "ms", note))
        out.append(figure(f"gpu_recode_bandwidth_share_{fmt}", moved / took / bandwidth, "ratio"))
    return out


def figures() -> list[dict[str, Any]]:
    """All GPU figures, with the copy bandwidth they are shares of."""
    bandwidth = copy_bandwidth()
    first = figure("gpu_copy_gb_per_s", bandwidth / 1e9, "GB/s", "read plus written, 1 GiB")
    return [
        first,
        *attention_figures(bandwidth),
        *option_figures(),
        *long_figures(bandwidth),
        *page_figures(bandwidth),
        *plane_figures(bandwidth),
    ]
