"""Page classes of every group under a config: of full pages, open ones, and a text's first."""

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass

import torch
from kvkernels.api import Rope
from kvkernels.layout import PageSpec

from workbench.cache.block_pool import BlockPool
from workbench.cache.geometry import Geometry, fitting_pages
from workbench.cache.rope_mode import kernel_rope, rope_mode
from workbench.config import EngineConfig
from workbench.errors import SettingError
from workbench.layer_plan import parse_plan, parse_ranks
from workbench.model.load import LoadedModel
from workbench.settings.formats import KV_FORMATS
from workbench.structural.compression.calibration import MAX_JOINED


@dataclass(frozen=True)
class GroupSpecs:
    """The page class of each group: of its full pages, and of those that are being filled.

    `exact`: of the first `num_sinks` pages of a text, full or not.
    """

    full: list[PageSpec]
    open: list[PageSpec]
    exact: list[PageSpec]
    num_sinks: int = 0
    own_basis: bool = False  # every full page may have to wait in the class of open ones

    @property
    def joined(self) -> list[PageSpec]:
        """Class of each group's full pages with both planes, wherever these lie."""
        return [spec.part("kv") for spec in self.full]

    @property
    def seals(self) -> bool:
        """Whether a page changes its class when it is full."""
        return self.full != self.open

    def fitting_pages(self, config: EngineConfig, slab_bytes: int, num_slabs: int) -> int:
        """Pages of each group that one request could have in an arena."""
        besides = Counter[PageSpec]()
        for full, unfilled in zip(self.full, self.open, strict=True):
            if full != unfilled and not self.own_basis:
                besides[unfilled] += max_open_pages(config)
        besides.update(self.sinks(self.num_sinks))
        held = self.open if self.own_basis else self.full
        most = fitting_pages(held, slab_bytes, num_slabs, besides)
        below = self.most_values_pages(config)
        return most if below is None else min(most, below)

    def most_values_pages(self, config: EngineConfig) -> int | None:
        """Pages of each group whose V finds room in DRAM; None where V stays in HBM."""
        sizes = [both.part("v").page_bytes for both in self.joined]
        if self.joined == self.full:
            return None
        return int(config.tiers.dram_mib * 2**20) // sum(sizes)

    @property
    def distinct(self) -> set[PageSpec]:
        """Every class once."""
        return {*self.full, *self.open, *(self.exact if self.num_sinks else ())}

    def exact_classes(self, pool: BlockPool) -> list[int]:
        """Class of the first pages of a text, of each group."""
        return [pool.class_of(spec) for spec in (self.exact if self.num_sinks else self.full)]

    def joined_classes(self, pool: BlockPool) -> dict[int, int]:
        """Class under which pages of one plane are read, of each class of such pages."""
        pairs = zip(self.full, self.joined, strict=True)
        return {pool.class_of(full): pool.class_of(both) for full, both in pairs if full != both}

    def sinks(self, count: int) -> Counter[PageSpec]:
        """`count` first pages of each group, where they are of a class of their own."""
        pairs = zip(self.full, self.exact, strict=True)
        own = Counter(exact for full, exact in pairs if self.num_sinks and full != exact)
        return Counter({spec: count * groups for spec, groups in own.items()})


def max_open_pages(config: EngineConfig) -> int:
    """Pages that one request fills at the same time: those of a chunk, and a started one."""
    chunk = min(config.scheduling.chunk_tokens, config.scheduling.token_budget)
    return (
        -(-chunk // config.cache.block_size)
        + 1
        + residual_pages(config)
        + config.cache.outlier_pages
    )


def residual_pages(config: EngineConfig) -> int:
    """Newest full pages of a request that stay in the compute dtype."""
    return -(-config.cache.residual_tokens // config.cache.block_size)


def sink_pages(config: EngineConfig) -> int:
    """First pages of a text that stay in the compute dtype (KVQuant's exact sinks)."""
    return -(-config.cache.num_sinks // config.cache.block_size)


def group_specs(geometry: Geometry, config: EngineConfig, model: LoadedModel) -> GroupSpecs:
    """The page classes under the configured formats; SettingError where one does not fit."""
    cache, dim = config.cache, geometry.head_dim
    plain = "fp32" if model.decoder.compute_dtype == torch.float32 else "bf16"
    plan = parse_plan(cache.layer_plan, KV_FORMATS)
    if plan and max(plan) >= geometry.num_layers:
        raise SettingError(
            f"cache.layer_plan names layer {max(plan)}, but the model has {geometry.num_layers}: "
            f"choose 0 to {geometry.num_layers - 1}"
        )
    ranks = parse_ranks(cache.rank_plan)
    if ranks and max(ranks) >= geometry.num_layers:
        raise SettingError(
            f"cache.rank_plan names layer {max(ranks)}, but the model has {geometry.num_layers}: "
            f"choose 0 to {geometry.num_layers - 1}"
        )
    full, unfilled, exact = [], [], []
    for group in geometry.groups:
        rank = ranks.get(group.layers[0], cache.rank)
        formats = plan.get(group.layers[0], (cache.k_format, cache.v_format))
        try:
            spec = group.page_spec(
                dim, cache.block_size, *formats, cache.kivi_group, rank, cache.rank_heads
            )
        except ValueError as error:
            if f"group of {cache.kivi_group} channels" in str(error):
                raise SettingError(f"cache.kivi_group = {cache.kivi_group}: {error}") from None
            if "joined heads" in str(error):
                raise SettingError(f"cache.rank_heads = {cache.rank_heads}: {error}") from None
            if f"rank {rank} " in str(error):
                told = "cache.rank_plan" if group.layers[0] in ranks else f"cache.rank = {rank}"
                raise SettingError(f"{told}: {error}") from None
            raise SettingError(f"{formats[0]} for K, {formats[1]} for V: {error}") from None
        _check_joined(spec)
        full.append(spec)
        waits = spec.k.grouped or spec.v.grouped
        waits = waits or cache.residual_tokens > 0 or cache.outlier_pages > 0 or cache.own_basis
        exact.append(group.page_spec(dim, cache.block_size, plain, plain))
        if cache.values == "dram":
            full[-1] = spec.part("k")
        unfilled.append(exact[-1] if waits else spec)
    specs = GroupSpecs(full, unfilled, exact, sink_pages(config), cache.own_basis)
    refuse_unreadable(specs.distinct, kernel_rope(rope_mode(config)), str(model.decoder.device))
    return specs


def _check_joined(spec: PageSpec) -> None:
    """Raise SettingError for more joined numbers than a basis is measured of."""
    if spec.rank_heads > 1 and spec.rank_heads * spec.head_dim > MAX_JOINED:
        raise SettingError(
            f"cache.rank_heads = {spec.rank_heads} joins {spec.rank_heads * spec.head_dim} numbers "
            f"of a token, and a basis is measured of up to {MAX_JOINED}: choose fewer heads"
        )


def refuse_unreadable(specs: Iterable[PageSpec], rope: Rope, device: str) -> None:
    """SettingError for a page class that a GPU's kernels cannot read; the CPU's read them all."""
    if torch.device(device).type != "cuda":
        return
    from kvkernels.triton_formats import check_twins  # Triton is there only on Linux

    for spec in specs:
        try:
            check_twins(spec, rope)
        except ValueError as error:
            raise SettingError(f"cache.{error} (or take another format)") from None
