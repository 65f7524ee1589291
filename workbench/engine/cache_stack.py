"""Everything that a rebuild replaces at once: arena, pool, index, tables, runner."""

from collections.abc import Callable
from dataclasses import dataclass

from kvkernels.layout import FORMATS, PageSpec

from workbench.cache.block_pool import BlockPool
from workbench.cache.geometry import Geometry, build_geometry, choose_slab
from workbench.cache.keys import CacheIdentity
from workbench.cache.kv_cache_manager import KVCacheManager
from workbench.cache.page_store import PageStore
from workbench.cache.prefix_index import PrefixIndex, Row
from workbench.clock import Clock
from workbench.config import EngineConfig
from workbench.engine.event_log import EventLog
from workbench.engine.runner import ModelRunner
from workbench.errors import CapacityError
from workbench.model.load import LoadedModel
from workbench.request import Request


@dataclass
class CacheStack:
    """One arena with its owners."""

    geometry: Geometry
    specs: list[PageSpec]  # of each group, in the current format
    pool: BlockPool
    manager: KVCacheManager
    store: PageStore
    runner: ModelRunner
    budget_bytes: int


def group_specs(geometry: Geometry, config: EngineConfig) -> list[PageSpec]:
    """The page class of each group under the configured formats."""
    cache = config.cache
    return [
        group.page_spec(geometry.head_dim, cache.block_size, cache.k_format, cache.v_format)
        for group in geometry.groups
    ]


def make_geometry(config: EngineConfig, model: LoadedModel) -> Geometry:
    """Groups of the model's layers and heads."""
    arch = model.arch
    return build_geometry(
        config.cache.grouping,
        num_layers=arch.num_layers,
        num_kv_heads=arch.num_kv_heads,
        head_dim=arch.head_dim,
    )


def plan_slabs(geometry: Geometry, config: EngineConfig) -> tuple[int, int]:
    """(slab_bytes, num_slabs) of a budget; CapacityError if not one block of each group fits."""
    specs = group_specs(geometry, config)
    base = [
        group.page_spec(geometry.head_dim, config.cache.block_size, "bf16", "bf16")
        for group in geometry.groups
    ]
    budget = int(config.cache.hbm_budget_mib * 2**20)
    unit = max(spec.page_bytes for spec in base)
    slab_bytes, num_slabs = choose_slab(budget, unit)
    biggest = max(spec.page_bytes for spec in specs)
    if biggest > slab_bytes:
        slab_bytes, num_slabs = choose_slab(budget, biggest)
    if num_slabs < len(set(specs)) or slab_bytes < biggest:
        need = sum(spec.page_bytes for spec in specs)
        raise CapacityError(
            f"cache.hbm_budget_mib = {config.cache.hbm_budget_mib:g} MiB is smaller than one block "
            f"({need / 2**20:.2f} MiB): raise the budget, or choose a smaller block or format"
        )
    return slab_bytes, num_slabs


def make_root_key(config: EngineConfig, model: LoadedModel) -> Callable[[Request], bytes]:
    """Root key of a request's chain: identity without the KV format, plus the tenant's salt."""
    arch = model.arch
    identity = CacheIdentity(
        weights=model.decoder.fingerprint,
        tokenizer=model.tokenizer.fingerprint,
        rope=f"{arch.rope_theta}:{arch.rope_scaling}:stored",
        numerics=f"compute={model.decoder.compute_dtype}",
        block_size=config.cache.block_size,
    )
    return lambda request: identity.root(request.spec.salt)


def format_label(config: EngineConfig) -> str:
    """The numerics tag of pages computed under this config."""
    cache = config.cache
    if cache.k_format == cache.v_format:
        return f"{cache.k_format}@{cache.grouping}"
    return f"{cache.k_format}/{cache.v_format}@{cache.grouping}"


def build_stack(
    config: EngineConfig,
    model: LoadedModel,
    *,
    device: str,
    clock: Clock,
    log: EventLog,
    before_evict: Callable[[Row], None],
) -> CacheStack:
    """Allocate the arena and wire its owners."""
    geometry = make_geometry(config, model)
    slab_bytes, num_slabs = plan_slabs(geometry, config)
    specs = group_specs(geometry, config)
    index = PrefixIndex(log.on_stored, log.on_removed)
    pool = BlockPool(
        num_slabs=num_slabs,
        slab_bytes=slab_bytes,
        index=index,
        before_evict=before_evict,
        smallest_page_bytes=smallest_page_bytes(geometry, config),
    )
    manager = KVCacheManager(
        pool=pool,
        geometry=geometry,
        classes=[pool.class_of(spec) for spec in specs],
        block_size=config.cache.block_size,
        max_model_len=config.model.max_model_len,
        format_label=format_label(config),
        root_key=make_root_key(config, model),
        contiguous=config.cache.allocation == "contiguous",
    )
    store = PageStore(num_slabs * slab_bytes, device)
    runner = ModelRunner(model.decoder, geometry, manager, store, clock)
    budget = int(config.cache.hbm_budget_mib * 2**20)
    return CacheStack(geometry, specs, pool, manager, store, runner, budget)


def smallest_page_bytes(geometry: Geometry, config: EngineConfig) -> int:
    """Bytes of the smallest page any format makes: it fixes how many ids a slab has."""
    size, dim = config.cache.block_size, geometry.head_dim
    return min(
        group.page_spec(dim, size, k_format, v_format).page_bytes
        for group in geometry.groups
        for k_format in FORMATS
        for v_format in FORMATS
    )
