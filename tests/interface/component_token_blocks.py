"""A frame whose token blocks have pages of their own for each layer and head."""

import msgspec
import numpy as np

from workbench.snapshot import (
    FLAG_SHARED,
    NO_OWNER,
    STATE_CACHED,
    STATE_OWNED,
    GroupsView,
    TierGrid,
    TokenBlocks,
    encode_frame,
)

from .component_frames import Plan, snapshot_of

NUM_LAYERS, NUM_HEADS, NUM_PLACES = 5, 2, 24
NUM_GROUPS = NUM_LAYERS * NUM_HEADS
GONE = (3, 4, 9)  # groups whose page of request 1's third token block was evicted


def token_blocks_frame(tick: int) -> bytes:
    """Two requests of four token blocks that share one; one more is cached, the rest is free.

    Token block b has the pages 10 b to 10 b + 9; `GONE` of token block 2 are free again.
    """
    count = NUM_PLACES * NUM_GROUPS
    planes = {name: np.zeros(count, np.uint8) for name in ("state", "owner", "refs", "mass", "age")}
    planes["owner"][:] = NO_OWNER
    parts = np.full(count, -1, np.int32)
    for block in range(8):
        for group in range(NUM_GROUPS):
            cell = block * NUM_GROUPS + group
            if block == 2 and group in GONE:
                continue
            parts[cell] = block * NUM_GROUPS + group
            planes["state"][cell] = STATE_CACHED if block == 7 else STATE_OWNED
            planes["owner"][cell] = NO_OWNER if block == 7 else int(block > 3)
            planes["refs"][cell] = 0 if block == 7 else 1 + (block == 0)
            planes["mass"][cell] = 20 * group
    planes["state"][:NUM_GROUPS] |= FLAG_SHARED
    held = [[0, 1, 2, 3], [0, 4, 5, 6]]
    numbers = np.array([0, 1, 2, 3, 1, 2, 3, -1], np.int32)
    tables = [np.array(blocks, np.int32) * NUM_GROUPS for blocks in held]
    plain = snapshot_of(Plan(num_requests=2, tick=tick), tables)
    groups = GroupsView(
        rows=[str(layer) for layer in range(NUM_LAYERS)],
        num_columns=NUM_HEADS,
        num_token_blocks=8,
        counts=[*map(len, held), 0],
    )
    grid = TierGrid(name="G1", num_cells=count, slab_bytes=count * 4096, slabs=[[0, count]])
    snapshot = msgspec.structs.replace(plain, grid=[grid], groups=groups)
    blocks = TokenBlocks(parts, numbers, np.concatenate([np.array(b, np.int32) for b in held]))
    return encode_frame(snapshot, [planes], np.concatenate(tables), blocks)
