"""Bytes of a page: where each layer, plane, head and slot lies (what they mean: `formats`).

One page holds `block_size` token slots of one group (layers x KV heads x planes K and V):

    page  | layer 0 | layer 1 | ... | layer L-1 |                         (+ pad to LAYER_ALIGN)
    layer | K data [H, S, row] | V data [H, S, row] | K meta [H, M, S] | V meta [H, M, S] | pad

`S` is the block size, `row` the bytes of one head vector, `M` the 16-bit numbers kept per token and
head (0 for plain formats, 1 = scale for int8, 2 = scale and minimum for int4; a format whose groups
lie otherwise uses the same M * S numbers of a head in its own order). A layer's bytes are
contiguous, so that a slice (page x layers) can be moved and verified on its own. A page of one
plane alone has the same order without the other's bytes.
"""

from dataclasses import dataclass, replace
from functools import cached_property

from kvkernels.formats import FORMATS, PageFormat

__all__ = ["FORMATS", "LAYER_ALIGN", "META_BYTES", "PageSpec", "fitting_formats"]

LAYER_ALIGN = 64  # a layer starts on a cache line, and every typed view stays aligned
META_BYTES = 2  # fp16


@dataclass(frozen=True)
class PageSpec:
    """A page class: group shape x format. Equal specs share slabs.

    `num_layers` and `num_kv_heads` are those of the group, not of the model. `share`: numbers that
    share a scale in formats that leave this open (KIVI: tokens of K, channels of V); 0: the
    format's own choice, and so in all other formats, whatever is given.
    `rank`: coordinates of low-rank formats, alike, of the vectors of `rank_heads` joined KV heads;
    0: half their width. `planes`: "kv", or the one that the page holds; the other lies elsewhere.
    """

    num_layers: int
    num_kv_heads: int
    head_dim: int
    block_size: int
    k_format: str
    v_format: str
    share: int = 0
    rank: int = 0
    planes: str = "kv"
    rank_heads: int = 1

    def __post_init__(self) -> None:
        if self.planes not in ("kv", "k", "v"):
            raise ValueError(f"planes = {self.planes!r} is unknown: choose kv, k or v")
        for plane, name in (("k_format", self.k_format), ("v_format", self.v_format)):
            if name not in FORMATS:
                raise ValueError(f"{plane} = {name!r} is unknown: choose one of {list(FORMATS)}")
        if min(self.num_layers, self.num_kv_heads, self.head_dim, self.block_size) < 1:
            raise ValueError(f"{self} has an empty dimension")
        # equal pages are of equal classes
        methods = FORMATS[self.k_format], FORMATS[self.v_format]
        if all(method.regrouped(self.share) == method for method in methods):
            object.__setattr__(self, "share", 0)
        ranked = [method.ranked(self.rank, self.rank_heads) for method in methods]
        if all(one == method for one, method in zip(ranked, methods, strict=True)):
            object.__setattr__(self, "rank", 0)
            object.__setattr__(self, "rank_heads", 1)
        if self.rank_heads < 1 or self.num_kv_heads % self.rank_heads:
            raise ValueError(
                f"{self.rank_heads} joined heads do not divide the {self.num_kv_heads} KV heads of "
                "a page"
            )
        for plane, name, fmt in (
            ("k_format", self.k_format, self.k),
            ("v_format", self.v_format, self.v),
        ):
            try:
                fmt.check(self.head_dim, self.block_size)
            except ValueError as error:
                raise ValueError(f"{plane} = {name}: {error}") from None

    @cached_property
    def k(self) -> PageFormat:
        """The format of the K plane."""
        method = FORMATS[self.k_format].regrouped(self.share)
        return method.ranked(self.rank, self.rank_heads).key

    @cached_property
    def v(self) -> PageFormat:
        """The format of the V plane."""
        method = FORMATS[self.v_format].regrouped(self.share)
        return method.ranked(self.rank, self.rank_heads).value

    @cached_property
    def k_row_bytes(self) -> int:
        """Bytes of one token's K vector of one head, without metadata."""
        return self.k.row_bytes(self.head_dim) if "k" in self.planes else 0

    @cached_property
    def v_row_bytes(self) -> int:
        """Bytes of one token's V vector of one head, without metadata."""
        return self.v.row_bytes(self.head_dim) if "v" in self.planes else 0

    @cached_property
    def k_num_meta(self) -> int:
        """16-bit numbers of K metadata per token and head."""
        return self.k.num_meta(self.head_dim, self.block_size) if "k" in self.planes else 0

    @cached_property
    def v_num_meta(self) -> int:
        """16-bit numbers of V metadata per token and head."""
        return self.v.num_meta(self.head_dim, self.block_size) if "v" in self.planes else 0

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
        return self.k_meta_offset + self._slots * self.k_num_meta * META_BYTES

    @cached_property
    def layer_bytes(self) -> int:
        """Bytes from one layer of a page to the next."""
        end = self.v_meta_offset + self._slots * self.v_num_meta * META_BYTES
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
        elements = len(self.planes) * self._slots * self.head_dim * self.num_layers
        return self.page_bytes * 8 / elements

    @property
    def label(self) -> str:
        """Short name: `int8`, `int8/int4` where K and V differ; then a group, a rank, one plane."""
        same = self.k_format == self.v_format
        both = self.k_format if same else f"{self.k_format}/{self.v_format}"
        if self.planes != "kv":
            both = self.k_format if self.planes == "k" else self.v_format
        both += f"/g{self.share}" if self.share else ""
        both += f"/r{self.rank}" if self.rank else ""
        both += f"/h{self.rank_heads}" if self.rank_heads > 1 else ""
        return both if self.planes == "kv" else f"{both} {self.planes.upper()} alone"

    def part(self, planes: str) -> "PageSpec":
        """The class of pages with these planes alone."""
        return replace(self, planes=planes)

    @property
    def one_layer(self) -> "PageSpec":
        """The class of pages with one of its layers."""
        return replace(self, num_layers=1)


def fitting_formats(head_dim: int, block_size: int) -> tuple[str, ...]:
    """Names of the formats that pages of this shape can hold, as K and as V."""

    def fits(name: str) -> bool:
        try:
            PageSpec(1, 1, head_dim, block_size, name, name)
        except ValueError:
            return False
        return True

    return tuple(name for name in FORMATS if fits(name))


def _align(value: int, unit: int) -> int:
    return -(-value // unit) * unit
