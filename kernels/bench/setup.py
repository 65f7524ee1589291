"""What the benchmarks share: a filled cache, the machine's description, a figure's shape."""

import os
import platform
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from kvkernels.api import FormatState, StepTables
from kvkernels.layout import FORMATS, META_BYTES, PageSpec
from kvkernels.pages import encode_pages
from torch import Tensor

SHARE = 3  # query heads of a KV head: SmolLM2-135M has 9 and 3
SOFTMAX_SCALE = 0.125
# formats that take single tokens; KIVI's pages are only read, as keys of a class of their own
WRITTEN = tuple(name for name, fmt in FORMATS.items() if not fmt.key.grouped)


@dataclass(frozen=True)
class Cache:
    """A cache whose pages hold random numbers, and a decode step over it."""

    spec: PageSpec
    arena: Tensor
    state: FormatState
    tables: StepTables
    q: Tensor
    k: Tensor
    v: Tensor

    @property
    def read_bytes(self) -> int:
        """Bytes of K, V and metadata that attention over all layers has to read."""
        spec = self.spec
        kinds = spec.k_num_meta + spec.v_num_meta
        slot = spec.k_row_bytes + spec.v_row_bytes + kinds * META_BYTES
        return int(self.tables.kv_lens.sum()) * slot * spec.num_kv_heads * spec.num_layers


def make_cache(
    fmt: str, requests: int, tokens: int, queries: int, device: str, dtype: torch.dtype
) -> Cache:
    """Fill pages of SmolLM2-135M's shape in random order; `queries` new tokens a request."""
    spec = PageSpec(30, 3, 64, 16, fmt, fmt)
    pages = -(-tokens // spec.block_size)
    order = np.random.default_rng(0).permutation(requests * pages)
    offsets = order.reshape(1, requests, pages).astype(np.int64) * spec.page_bytes
    state = FormatState.from_spec(spec, device)
    arena = _filled(spec, requests * pages, state, device)
    tables = StepTables(
        offsets,
        np.full((1, requests), tokens, np.int32),
        np.full(requests, queries, np.int32),
        new_lens=None if fmt in WRITTEN else np.zeros(requests, np.int32),
    )

    def random(heads: int) -> Tensor:
        return torch.randn(requests * queries, heads, 64, device=device).to(dtype)

    return Cache(spec, arena, state, tables, random(3 * SHARE), random(3), random(3))


def _filled(spec: PageSpec, count: int, state: FormatState, device: str) -> Tensor:
    """An arena of `count` pages of normal numbers (raw random bytes hold slow denormal ones)."""
    batch = 32
    shape = (batch, spec.num_layers, spec.num_kv_heads, spec.block_size, spec.head_dim)
    pages = torch.zeros(batch, spec.page_bytes, dtype=torch.uint8, device=device)
    for plane in ("k", "v"):
        encode_pages(pages, spec, plane, state, torch.randn(shape, device=device))
    return pages.repeat(-(-count // batch), 1)[:count].contiguous().view(-1)


def figure(name: str, value: float, unit: str, note: str = "") -> dict[str, Any]:
    """One measured number."""
    rounded = float(f"{value:.4g}")
    return {"name": name, "value": rounded, "unit": unit, "provenance": "measured", "note": note}


def machine() -> dict[str, Any]:
    """Processor, threads, versions and GPU."""
    info: dict[str, Any] = {
        "platform": platform.platform(),
        "cpus": os.cpu_count(),
        "threads": torch.get_num_threads(),
        "python": platform.python_version(),
        "torch": torch.__version__,
        "gpu": None,
    }
    if torch.cuda.is_available():
        info["gpu"] = torch.cuda.get_device_name()
    return info
