"""Sparse reads and split pages on a GPU that is not there: torch's fake tensors on a device's name.

A fake tensor has a device and a shape and no bytes: an operation that mixes devices raises, and so
does whoever asks for a number of it. Run as a script, because a device's name is for a whole
process; prints what was checked.
"""

from dataclasses import replace
from typing import Any

import numpy as np
import torch
from kvkernels.api import Scratch, StepTables
from kvkernels.triton_plan import make_plan
from torch._subclasses import fake_tensor
from torch._subclasses.fake_tensor import DataDependentOutputException, FakeTensorMode
from torch.utils.backend_registration import _setup_privateuseone_for_python_backend

from tests.engine.harness import Runner, build, tokens
from workbench.cache.step_tables import class_tables
from workbench.engine.host_stage import HostStage
from workbench.engine.read_traffic import ReadTraffic
from workbench.engine.sparse_reads import SparseReads
from workbench.engine.sparse_tables import mass_by_slot, tables_of

GPU = "gpu:0"
QUEST: dict[str, Any] = {
    "retention.sparse": "quest", "retention.sparse_pages": 3, "retention.sparse_share": 0.0,
    "retention.sparse_dense_layers": 0, "retention.sink_tokens": 4, "cache.hbm_budget_mib": 1.0,
}  # fmt: skip
BELOW: dict[str, Any] = {
    "cache.v_format": "int8", "cache.block_size": 8, "cache.hbm_budget_mib": 0.5,
    "cache.values": "dram", "tiers.dram_mib": 1.0,
}  # fmt: skip
SPARSE: tuple[dict[str, Any], ...] = (
    {}, {"cache.grouping": "head"}, {"retention.sparse": "landmarks"},
    {"retention.sparse": "landmarks", "retention.sparse_outliers": 2},
    {"cache.k_format": "int8", "cache.residual_tokens": 8},
    {"cache.k_format": "int8", "cache.outlier_pages": 2, "retention.sparse": "landmarks"},
)  # fmt: skip


def on_gpu() -> FakeTensorMode:
    return FakeTensorMode(allow_non_fake_inputs=True)


def there(tensor: torch.Tensor) -> torch.Tensor:
    """A fake tensor of the same shape there."""
    return torch.empty(tensor.shape, dtype=tensor.dtype, device=GPU)


def running(changes: dict[str, Any]) -> tuple[Any, Any]:
    """An engine in the middle of a request, and the request."""
    runner = Runner(build(changes))
    request_id = runner.add(tokens(41), 8)
    runner.until(lambda: len(runner.outputs[request_id]) == 2)
    return runner.engine, runner.engine.requests[request_id]


def noticed() -> None:
    """What the checks below are for is seen at all."""
    with on_gpu():
        far, near = torch.ones(4, device=GPU), torch.arange(2)
        for mistake in (lambda: far.index_select(0, near), lambda: int(far.max()),
                        lambda: far.cpu().numpy()):  # fmt: skip
            try:
                mistake()
            except (DataDependentOutputException, RuntimeError):
                continue
            raise AssertionError("a mistake went unseen")


def split_pages(name: str) -> None:
    """Pages whose V lies below are put together on the device."""
    engine, request = running(BELOW | {"cache.k_format": name})
    stack, split = engine.stack, engine.stack.runner.split
    wanted = class_tables(stack.manager, [request], (0,), np.ones(1, np.int32), "original")
    tables = next(each for each in wanted if split.covers(each.cls))
    _, pages = split.one_layer(tables)
    assert 0 < len(pages.blocks) < len(pages.offsets)
    split.stage = HostStage(GPU)
    for _ in range(2):  # outside of what is faked
        split.stage.take(len(pages.blocks), pages.spec.layer_bytes)
    with on_gpu():
        stack.store.arena = there(stack.store.arena)
        split.scratch = Scratch(GPU)
        found = split.read(pages, 1, ReadTraffic())
    assert found.device == torch.device(GPU)
    assert found.shape == (len(pages.offsets) * pages.spec.layer_bytes,)


def chosen_pages(more: dict[str, Any]) -> None:
    """Pages are chosen, tabled and read without one of their numbers on the host."""
    engine, request = running(QUEST | more)
    stack, one = engine.stack, np.ones(1, np.int32)
    manager, bounds = stack.manager, stack.runner.bounds
    sparse = SparseReads(
        stack.geometry, manager, bounds, [request], one, engine.config.retention, None
    )
    layer_set, rows, arch = stack.geometry.layer_sets[0], sparse._sets[0], engine.model.arch
    with on_gpu():
        rows = replace(rows, bound_rows=there(rows.bound_rows), offsets=there(rows.offsets),
                       kind_of=there(rows.kind_of))  # fmt: skip
        bounds.tensor = there(bounds.tensor)
        bounds.cosines = None if bounds.cosines is None else there(bounds.cosines)
        q = torch.empty(1, arch.num_heads, arch.head_dim, device=GPU)
        picked = sparse._choose(rows, 0, q, np.array([41]))
        for tables in tables_of(rows, picked, manager.block_size):
            spec = replace(stack.pool.classes[tables.cls], head_dim=64)  # as the kernels need
            step = StepTables(tables.page_offsets, tables.kv_lens, one, new_lens=tables.new_lens)
            plan = make_plan(spec, step, GPU, scratch=Scratch(GPU))
            assert plan.pages.shape == (len(layer_set.groups), rows.most)
            assert tables.page_offsets.device == plan.pages.device == torch.device(GPU)
        mass = torch.empty(1, arch.num_kv_heads, rows.most * manager.block_size, device=GPU)
        by_slot = mass_by_slot(rows, picked, mass, np.zeros(1, np.int64), 1)
    assert by_slot.device == torch.device(GPU)
    assert len(rows.kinds) == 1 + ("cache.k_format" in more)


def main() -> None:
    """Raise where something is wrong."""
    _setup_privateuseone_for_python_backend("gpu")
    fake_tensor.CONSTANT_NUMEL_LIMIT = -1  # else a single number is kept, and moved for real
    noticed()
    for name in ("lowrank", "int8"):
        split_pages(name)
    for more in SPARSE:
        chosen_pages(more)
    print(f"checked {len(SPARSE)} ways to choose and 2 formats")


if __name__ == "__main__":
    main()
