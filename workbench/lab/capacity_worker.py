"""One format's capacity in a fresh process: `python -m workbench.lab.capacity_worker JSON`.

Prints one JSON object. A process of its own, so that its resident memory holds nothing else.
"""

import ctypes
import gc
import sys

import msgspec
import psutil

from workbench.config import EngineConfig, replace_settings
from workbench.engine.engine import Engine
from workbench.engine.views.ledger import ledger
from workbench.lab.bench_runs import bench_model, random_prompts, submit
from workbench.model.load import LoadedModel

_ARENA_LINES = ("kv:", "metadata", "slab_waste", "unassigned_slabs", "reserved:arena")


class CapacityTask(msgspec.Struct, frozen=True, kw_only=True):
    """What to admit, into which budget."""

    kv_format: str
    budget_mib: float
    prompt_tokens: int
    random_layers: int = 0


class CapacityResult(msgspec.Struct, frozen=True, kw_only=True):
    """What was admitted before the first refusal, and how the process grew.

    `written_bytes`: pages with tokens. `ledger_bytes`: growth that the ledger accounts for (those
    pages and scratch). `arena_bytes`: what the ledger says of the whole arena.
    """

    num_tokens: int
    num_refused: int  # requests still waiting when the pool was full
    num_pages: int
    page_bytes: int
    written_bytes: int
    ledger_bytes: int
    arena_bytes: int
    rss_growth_bytes: int


def run(task: CapacityTask) -> CapacityResult:
    """Fill a pool in one step with more requests than fit; twice, the first to warm up.

    The first engine leaves what any step of this size leaves behind (threads, kernels, buffers of
    the allocator), so that the growth measured around the second is that of its cache.
    """
    model = bench_model("bf16", task.random_layers)
    _fill(model, task)
    _release()
    return _fill(model, task)


def _fill(model: LoadedModel, task: CapacityTask) -> CapacityResult:
    settings = {
        "cache.hbm_budget_mib": task.budget_mib,
        "cache.k_format": task.kv_format, "cache.v_format": task.kv_format,
        "cache.prefix_caching": False, "scheduling.watermark": 0.0,
        "scheduling.max_num_seqs": 512, "scheduling.token_budget": 16384,
        "scheduling.chunk_tokens": 16384,
    }  # fmt: skip
    engine = Engine(replace_settings(EngineConfig(), settings), model)
    engine.retainer.for_display = False
    capacity = engine.stack.manager.capacity_pages * engine.config.cache.block_size
    count = capacity // task.prompt_tokens + 2  # at least one too many
    for prompt in random_prompts(model.arch.vocab_size, count, task.prompt_tokens, 0):
        submit(engine, prompt, 2)
    _release()
    rss = psutil.Process().memory_info().rss
    engine.step()
    _release()
    rss_growth = psutil.Process().memory_info().rss - rss
    result = _result(engine, rss_growth)
    engine.close()
    return result


def _result(engine: Engine, rss_growth: int) -> CapacityResult:
    (spec,) = set(engine.stack.specs.full)
    requests = engine.scheduler.running
    num_pages = sum(engine.stack.manager.blocks_held(request) for request in requests)
    lines = ledger(engine)[0]
    scratch = sum(line.num_bytes for line in lines if line.name.endswith("scratch"))
    return CapacityResult(
        num_tokens=sum(request.num_computed_tokens for request in requests),
        num_refused=len(engine.scheduler.waiting), num_pages=num_pages,
        page_bytes=spec.page_bytes, written_bytes=num_pages * spec.page_bytes,
        ledger_bytes=num_pages * spec.page_bytes + scratch,
        arena_bytes=sum(line.num_bytes for line in lines if line.name.startswith(_ARENA_LINES)),
        rss_growth_bytes=rss_growth,
    )  # fmt: skip


def _release() -> None:
    """Give freed memory back to the system, so that RSS counts what is in use."""
    gc.collect()
    libc = ctypes.CDLL(None)
    if hasattr(libc, "malloc_trim"):
        libc.malloc_trim(0)


if __name__ == "__main__":
    answer = run(msgspec.json.decode(sys.argv[1], type=CapacityTask))
    print(msgspec.json.encode(answer).decode())
