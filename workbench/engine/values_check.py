"""V below HBM: every page that needs it has it, and its bytes are those that DRAM counts."""

from typing import TYPE_CHECKING

from workbench.errors import IntegrityError

if TYPE_CHECKING:
    from workbench.engine.engine import Engine


def check_values(engine: "Engine") -> None:
    """Raise IntegrityError for a page whose V is nowhere, and for V that is counted wrongly."""
    stack = engine.stack
    pool, values = stack.pool, stack.values
    if values is None:
        return
    kept = engine.hierarchy.mover.kept.values()
    held = {block for row in pool.index.rows() for block in row.blocks}
    for blocks in stack.manager.requests.values():
        held.update(blocks.all_blocks().tolist())
    for block in held:
        if pool.page_class(block) in stack.manager.roles.joined and not values.has(block):
            raise IntegrityError(f"the values of block {block} are nowhere")
    if values.num_bytes != sum(entry.page_bytes for entry in kept):
        raise IntegrityError(f"values count {values.num_bytes} bytes, and DRAM keeps others")
