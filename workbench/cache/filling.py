"""Fresh pages that new tokens need, where full pages and open ones may differ in class.

Formats that group the tokens of a page are written whole: tokens go into an open page of the
compute dtype, and a page that fills up is *sealed*, that is encoded into its final class. With a
residual, the newest full pages wait in full precision until as many others are full behind them.

    table | sealed | sealed | full, waiting | open (5 of 16 slots) |    spare: for the next sealed
"""

from dataclasses import dataclass


@dataclass(frozen=True)
class Filling:
    """Fresh pages of one group: loaded whole, opened for new tokens, and sealed after the step."""

    num_loaded: int
    num_open: int
    num_sealed: int

    @staticmethod
    def of(
        num_loaded_tokens: int,
        num_stored: int,
        num_new_tokens: int,
        size: int,
        *,
        residual: int = 0,
        num_waiting: int = 0,
    ) -> "Filling":
        """`num_new_tokens` behind `num_stored` slots; the first of them arrive as full pages.

        `residual`: full pages that stay open; `num_waiting`: how many do before.
        """
        first = num_stored // size
        loaded = num_loaded_tokens // size
        end = num_stored + num_new_tokens
        sealed = first + loaded - num_waiting
        due = max(0, end // size - residual - sealed)
        return Filling(loaded, -(-end // size) - first - loaded, due)

    def minus(self, num_open: int, num_spares: int) -> "Filling":
        """What is still missing."""
        return Filling(
            self.num_loaded,
            max(0, self.num_open - num_open),
            max(0, self.num_sealed - num_spares),
        )
