"""Everything that a rebuild replaces at once: arena, pool, index, tables, runner."""

import contextlib
import functools
import itertools
from collections.abc import Callable
from dataclasses import dataclass

from kvkernels.layout import FORMATS, PageSpec

from workbench.cache.block_pool import BlockPool
from workbench.cache.geometry import Geometry, build_geometry, choose_slab
from workbench.cache.keys import CacheIdentity
from workbench.cache.kv_cache_manager import KVCacheManager
from workbench.cache.lifetimes import Lifetimes
from workbench.cache.page_roles import PageRoles
from workbench.cache.page_store import Calibrated, PageStore
from workbench.cache.prefix_index import PrefixIndex, Row
from workbench.cache.rope_mode import kernel_rope, rope_mode
from workbench.clock import Clock
from workbench.config import EngineConfig
from workbench.engine.event_log import EventLog
from workbench.engine.group_specs import GroupSpecs, group_specs, sink_pages
from workbench.engine.runner import ModelRunner
from workbench.errors import CapacityError
from workbench.layer_plan import parse_plan, parse_ranks, write_plan, write_ranks
from workbench.model.load import LoadedModel
from workbench.request import Request
from workbench.settings.formats import GROUPED_FORMATS, KIVI_GROUPS, KV_FORMATS, LOW_RANK_FORMATS
from workbench.spatial.hierarchy.values import ValuesBelow


@dataclass
class CacheStack:
    """One arena with its owners."""

    geometry: Geometry
    specs: GroupSpecs  # in the current format
    pool: BlockPool
    manager: KVCacheManager
    store: PageStore
    runner: ModelRunner
    budget_bytes: int
    values: ValuesBelow | None = None  # V of full pages, where it lies below HBM


def make_geometry(config: EngineConfig, model: LoadedModel) -> Geometry:
    """Groups of the model's layers and heads."""
    arch = model.arch
    return build_geometry(
        config.cache.grouping,
        num_layers=arch.num_layers,
        num_kv_heads=arch.num_kv_heads,
        head_dim=arch.head_dim,
    )


def plan_slabs(geometry: Geometry, config: EngineConfig, model: LoadedModel) -> tuple[int, int]:
    """(slab_bytes, num_slabs) of a budget; CapacityError if not one block of each group fits."""
    specs = group_specs(geometry, config, model)
    base = [
        group.page_spec(geometry.head_dim, config.cache.block_size, "bf16", "bf16")
        for group in geometry.groups
    ]
    budget = int(config.cache.hbm_budget_mib * 2**20)
    unit = max(spec.page_bytes for spec in base)
    count = len(specs.distinct)
    slab_bytes, num_slabs = choose_slab(budget, unit, count)
    biggest = max(spec.page_bytes for spec in specs.distinct)
    if biggest > slab_bytes:
        slab_bytes, num_slabs = choose_slab(budget, biggest, count)
    if specs.most_values_pages(config) == 0:
        raise CapacityError(
            f"tiers.dram_mib = {config.tiers.dram_mib:g} MiB holds the V of no block, and "
            "cache.values = dram keeps it there: give DRAM more, or choose hbm"
        )
    if num_slabs < len(specs.distinct) or slab_bytes < biggest:
        need = sum(spec.page_bytes for spec in specs.full)
        raise CapacityError(
            f"cache.hbm_budget_mib = {config.cache.hbm_budget_mib:g} MiB is smaller than one block "
            f"({need / 2**20:.2f} MiB): raise the budget, or choose a smaller block or format"
        )
    return slab_bytes, num_slabs


def make_root_key(
    config: EngineConfig, model: LoadedModel, calibration: Calibrated | None = None
) -> Callable[[Request], bytes]:
    """Root key of a request's chain: identity without the KV format, plus the tenant's salt."""
    arch = model.arch
    identity = CacheIdentity(
        weights=model.decoder.fingerprint,
        tokenizer=model.tokenizer.fingerprint,
        rope=f"{arch.rope_theta}:{arch.rope_scaling}:{kernel_rope(rope_mode(config))}",
        numerics=f"compute={model.decoder.compute_dtype}"
        + calibration_tag(config, calibration, digits=64),
        block_size=config.cache.block_size,
    )
    return lambda request: identity.root(request.spec.salt)


def calibration_tag(
    config: EngineConfig, calibration: Calibrated | None, *, digits: int = 12
) -> str:
    """Fingerprint of the calibration, where any format in use depends on it."""
    if calibration is None:
        return ""
    methods = [FORMATS[name] for name in config.cache.used_formats]
    used = any(calibration.applies(fmt) for x in methods for fmt in (x.key, x.value))
    return f"~cal:{calibration.fingerprint[:digits]}" if used else ""


def format_label(config: EngineConfig, calibration: Calibrated | None = None) -> str:
    """The numerics tag of pages computed under this config."""
    cache = config.cache
    both = (
        cache.k_format if cache.k_format == cache.v_format else f"{cache.k_format}/{cache.v_format}"
    )
    plan = write_plan(parse_plan(cache.layer_plan, KV_FORMATS))
    before = "" if rope_mode(config) == "stored" else "~pre-rope"
    label = f"{both}@{cache.grouping}" + (f"[{plan}]" if plan else "") + before + _options(config)
    return label + calibration_tag(config, calibration)


def _options(config: EngineConfig) -> str:
    """What else shaped the bytes: KIVI's group, a rank, and which tokens are read unencoded."""
    cache = config.cache
    group = cache.kivi_group if config.cache.used_formats & set(GROUPED_FORMATS) else 0
    residual = cache.residual_tokens
    rank = ""
    if config.cache.used_formats & set(LOW_RANK_FORMATS):
        plan = write_ranks(parse_ranks(cache.rank_plan))
        rank = (str(cache.rank) if cache.rank else "") + (f"[{plan}]" if plan else "")
        rank += f"x{cache.rank_heads}" if cache.rank_heads > 1 else ""
    chosen = (
        ("g", group), ("k", rank), ("r", residual), ("o", cache.outlier_pages),
        ("b", "own" if cache.own_basis else ""),
        ("s", sink_pages(config)),
    )  # fmt: skip
    return "".join(f"/{name}{value}" for name, value in chosen if value)


def build_stack(
    config: EngineConfig,
    model: LoadedModel,
    *,
    device: str,
    clock: Clock,
    log: EventLog,
    before_evict: Callable[[Row], None],
    make_index: Callable[..., PrefixIndex],
    lifetimes: Lifetimes,
    calibration: Calibrated | None = None,
) -> CacheStack:
    """Allocate the arena and wire its owners."""
    geometry = make_geometry(config, model)
    slab_bytes, num_slabs = plan_slabs(geometry, config, model)
    specs = group_specs(geometry, config, model)
    index = make_index(log.on_stored, log.on_removed)
    pool = BlockPool(
        num_slabs=num_slabs,
        slab_bytes=slab_bytes,
        index=index,
        before_evict=before_evict,
        smallest_page_bytes=smallest_page_bytes(geometry, config),
    )
    joined = specs.joined_classes(pool)  # first: classes are read in the order of their numbers
    store = PageStore(num_slabs * slab_bytes, device, geometry.groups, calibration)
    manager = KVCacheManager(
        pool=pool,
        geometry=geometry,
        roles=PageRoles(
            config.cache.block_size,
            full=[pool.class_of(spec) for spec in specs.full],
            open=[pool.class_of(spec) for spec in specs.open],
            exact=specs.exact_classes(pool),
            joined=joined,
            own_basis=config.cache.own_basis,
        ),
        max_model_len=config.model.max_model_len,
        format_label=format_label(config, calibration),
        root_key=make_root_key(config, model, calibration),
        contiguous=config.cache.allocation == "contiguous",
        store=store,
        lifetimes=lifetimes,
    )
    runner = ModelRunner(model.decoder, geometry, manager, store, clock, rope_mode(config))
    budget = int(config.cache.hbm_budget_mib * 2**20)
    return CacheStack(geometry, specs, pool, manager, store, runner, budget)


def smallest_page_bytes(geometry: Geometry, config: EngineConfig) -> int:
    """Bytes of the smallest page any format makes: it fixes how many ids a slab has."""
    size, dim = config.cache.block_size, geometry.head_dim
    shapes = {(len(group.layers), len(group.kv_heads)) for group in geometry.groups}
    ranks = {config.cache.rank, *parse_ranks(config.cache.rank_plan).values()}
    planes = "k" if config.cache.values == "dram" else "kv"
    return min(
        _smallest(*shape, dim, size, rank, planes, config.cache.rank_heads)
        for shape, rank in itertools.product(shapes, ranks)
    )


@functools.lru_cache(maxsize=64)  # a constant of the shape
def _smallest(
    num_layers: int, num_kv_heads: int, head_dim: int, block_size: int, rank: int, planes: str,
    rank_heads: int,
) -> int:  # fmt: skip
    sizes = []
    for k_format, v_format in itertools.product(FORMATS, FORMATS):
        for share in KIVI_GROUPS if {k_format, v_format} & set(GROUPED_FORMATS) else (0,):
            with contextlib.suppress(ValueError):  # some do not fit this head or block size
                shape = (num_layers, num_kv_heads, head_dim, block_size)
                spec = PageSpec(*shape, k_format, v_format, share, rank, planes, rank_heads)
                sizes.append(spec.page_bytes)
    return min(sizes)
