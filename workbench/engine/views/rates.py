"""Bytes per second on the engine's clock: what pauses and slow motion stop does not dilute them."""

from workbench.clock import Clock

RATE_WINDOW_S = 2.0


class Rates:
    """Rates of totals over the last two seconds of the engine; a pause holds the last value."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._totals: dict[str, list[tuple[float, int]]] = {}  # (seconds, total), oldest first
        self._shown: dict[str, float] = {}

    def per_s(self, name: str, total: int) -> float:
        """The rate of `name`, whose total is `total` bytes now; 0 until time has passed."""
        now = self._clock.now_s()
        history = self._totals.setdefault(name, [(now, total)])
        if now <= history[-1][0]:  # the clock stands still
            return self._shown.get(name, 0.0)
        history.append((now, total))
        # The look before this one stays, so that a step longer than the window has a rate too.
        while len(history) > 2 and history[0][0] < now - RATE_WINDOW_S:
            history.pop(0)
        began, first = history[0]
        self._shown[name] = (total - first) / (now - began)
        return self._shown[name]
