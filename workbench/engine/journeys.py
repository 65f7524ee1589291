"""Where each block has been: a bounded record of the moves of single blocks, by key."""

from collections import Counter, deque

from workbench.clock import Clock
from workbench.tier_views import BlockMove

MOST_MOVES = 20_000


class Journeys:
    """The newest moves of all blocks; the event log keeps only their sums."""

    def __init__(self, clock: Clock) -> None:
        self.step = 0
        self._clock = clock
        self._moves: deque[BlockMove] = deque(maxlen=MOST_MOVES)

    def note(
        self, key: str, what: str, tier: str, *, request_id: str = "", detail: str = ""
    ) -> None:
        """Record one move of the block whose key is `key` (hex)."""
        self._moves.append(
            BlockMove(
                key=key,
                time_s=self._clock.now_s(),
                step=self.step,
                what=what,
                tier=tier,
                request_id=request_id,
                detail=detail,
            )
        )

    def of(self, key: str) -> list[BlockMove]:
        """Moves of one block, oldest first; `key` may be the beginning of a key."""
        return [move for move in self._moves if move.key.startswith(key)] if key else []

    def travelled(self, most: int) -> list[str]:
        """Keys of the blocks that moved most often, of those below HBM at least once."""
        moved = Counter(move.key for move in self._moves)
        below = {move.key for move in self._moves if move.tier != "G1"}
        return [key for key, _ in moved.most_common() if key in below][:most]
