"""Bytes of a page: which format, where each layer, plane, head and slot lies. No torch here.

One page holds `block_size` token slots of one group (layers x KV heads x planes K and V):

    page  | layer 0 | layer 1 | ... | layer L-1 |                         (+ pad to PAGE_ALIGN)
    layer | K data [H, S, row] | V data [H, S, row] | K meta [H, M, S] | V meta [H, M, S] | pad

`S` is the block size, `row` the bytes of one head vector, `M` the fp16 numbers kept per token and
head (0 for plain formats, 1 = scale for int8, 2 = scale and minimum for int4). A layer's bytes are
contiguous, so that a slice (page x layers) can be moved and verified on its own.
"""

from dataclasses import dataclass
from functools import cached_property

LAYER_ALIGN = 64  # a layer starts on a cache line, and every typed view stays aligned
META_BYTES = 2  # fp16


@dataclass(frozen=True)
class FormatInfo:
    """How one K or V vector is stored.

    `bits` per element; `meta` fp16 numbers per token and head; `shared_scale`: one fp32 scale per
    layer and plane kept outside the page (a `FormatState`).
    """

    name: str
    bits: int
    meta: int = 0
    shared_scale: bool = False


FORMATS = {
    info.name: info
    for info in (
        FormatInfo("bf16", 16),
        FormatInfo("fp32", 32),
        # OCP e4m3fn, largest value 448; out of range saturates and is counted
        FormatInfo("fp8_e4m3", 8, shared_scale=True),
        # symmetric, scale = max|x| / 127 per token and head
        FormatInfo("int8", 8, meta=1),
        # asymmetric, x = code * scale + minimum, scale = (max - min) / 15 per token and head;
        # byte i holds dims i (low nibble) and i + D/2 (high nibble)
        FormatInfo("int4", 4, meta=2),
    )
}


@dataclass(frozen=True)
class PageSpec:
    """A page class: group shape x format. Equal specs share slabs.

    `num_layers` and `num_kv_heads` are those of the group, not of the model.
    """

    num_layers: int
    num_kv_heads: int
    head_dim: int
    block_size: int
    k_format: str
    v_format: str

    def __post_init__(self) -> None:
        for plane, name in (("k_format", self.k_format), ("v_format", self.v_format)):
            if name not in FORMATS:
                raise ValueError(f"{plane} = {name!r} is unknown: choose one of {list(FORMATS)}")
            if (self.head_dim * FORMATS[name].bits) % 16:
                raise ValueError(f"{plane} = {name}: head_dim {self.head_dim} does not pack")
        if min(self.num_layers, self.num_kv_heads, self.head_dim, self.block_size) < 1:
            raise ValueError(f"{self} has an empty dimension")

    @property
    def k_row_bytes(self) -> int:
        """Bytes of one token's K vector of one head, without metadata."""
        return self.head_dim * FORMATS[self.k_format].bits // 8

    @property
    def v_row_bytes(self) -> int:
        """Bytes of one token's V vector of one head, without metadata."""
        return self.head_dim * FORMATS[self.v_format].bits // 8

    @property
    def _slots(self) -> int:
        return self.num_kv_heads * self.block_size

    @cached_property
    def v_offset(self) -> int:
        """Byte offset of the V data inside a layer (K data starts at 0)."""
        return _align(self._slots * self.k_row_bytes, 16)

    @cached_property
    def k_meta_offset(self) -> int:
        """Byte offset of the K metadata inside a layer."""
        return _align(self.v_offset + self._slots * self.v_row_bytes, 16)

    @cached_property
    def v_meta_offset(self) -> int:
        """Byte offset of the V metadata inside a layer."""
        return self.k_meta_offset + self._slots * FORMATS[self.k_format].meta * META_BYTES

    @cached_property
    def layer_bytes(self) -> int:
        """Bytes from one layer of a page to the next."""
        end = self.v_meta_offset + self._slots * FORMATS[self.v_format].meta * META_BYTES
        return _align(end, LAYER_ALIGN)

    @property
    def page_bytes(self) -> int:
        """Bytes of one page."""
        return self.layer_bytes * self.num_layers

    @property
    def metadata_bytes(self) -> int:
        """Bytes of a page that are scales, minima and padding."""
        data = self._slots * (self.k_row_bytes + self.v_row_bytes)
        return self.page_bytes - data * self.num_layers

    @property
    def bits_per_element(self) -> float:
        """Effective bits per stored number, metadata and padding included."""
        elements = 2 * self._slots * self.head_dim * self.num_layers
        return self.page_bytes * 8 / elements

    @property
    def label(self) -> str:
        """Short name: `int8`, or `int8/int4` where K and V differ."""
        same = self.k_format == self.v_format
        return self.k_format if same else f"{self.k_format}/{self.v_format}"


def _align(value: int, unit: int) -> int:
    return -(-value // unit) * unit
