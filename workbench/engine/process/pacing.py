"""When to send a frame, when to run the next step, and what state to call it."""

from collections import deque

from workbench.engine.process.protocol import FRAME_INTERVAL_S, IDLE_FRAME_INTERVAL_S, detail
from workbench.errors import SettingError
from workbench.events import Event

THRASH_PREEMPTIONS = 3
THRASH_WINDOW_S = 2.0
MIN_SPEED, MAX_SPEED = 0.001, 1.0


class FramePacer:
    """Ten frames a second while something changes, one a second otherwise.

    Works on wall seconds, because viewers need frames while the metrics' clock is paused.
    """

    def __init__(self) -> None:
        self._changed = True
        self._sent_s = float("-inf")

    def touch(self) -> None:
        """Something that a viewer can see has changed."""
        self._changed = True

    def hurry(self) -> None:
        """A viewer came, or somebody waits for what a control does: send a frame at once."""
        self._sent_s = float("-inf")

    def due_in_s(self, now_s: float) -> float:
        """Seconds until the next frame; 0 when it is due."""
        interval_s = FRAME_INTERVAL_S if self._changed else IDLE_FRAME_INTERVAL_S
        return max(0.0, self._sent_s + interval_s - now_s)

    def sent(self, now_s: float) -> None:
        """A frame went out."""
        # A late frame does not shift the ones after it, so that the average rate holds.
        late = now_s - self._sent_s - FRAME_INTERVAL_S
        self._sent_s = now_s - late if 0 < late < FRAME_INTERVAL_S else now_s
        self._changed = False


class SlowMotion:
    """Spaces steps out: at speed s a step is followed by (1/s - 1) times its own duration."""

    def __init__(self) -> None:
        self.speed = 1.0
        self._next_s = float("-inf")

    def set_speed(self, speed: float) -> None:
        """1 = as fast as it runs; raises SettingError outside 0.001 to 1."""
        if not MIN_SPEED <= speed <= MAX_SPEED:
            raise SettingError(f"speed = {speed:g} is out of range: {MIN_SPEED:g} to {MAX_SPEED:g}")
        self.speed = float(speed)
        self._next_s = float("-inf")

    def due_in_s(self, now_s: float) -> float:
        """Seconds until the next step may run."""
        return max(0.0, self._next_s - now_s)

    def stepped(self, started_s: float, ended_s: float) -> None:
        """A step ran."""
        self._next_s = ended_s + (ended_s - started_s) * (1.0 / self.speed - 1.0)


class StateJudge:
    """Names the state from the engine's own events and queues.

    `thrashing`: at least THRASH_PREEMPTIONS preemptions within THRASH_WINDOW_S on the engine's
    clock. `saturated`: requests wait, the first of them for more blocks than are free or cached.
    """

    def __init__(self) -> None:
        self.event_seq = 0
        self._preempted_s: deque[float] = deque(maxlen=1000)

    def saw(self, events: list[Event]) -> None:
        """Take in new events, oldest first."""
        for event in events:
            self.event_seq = max(self.event_seq, event.seq)
            if event.kind == "preempt":
                self._preempted_s.append(event.time_s)

    def state(
        self, now_s: float, *, paused: bool, has_work: bool, num_waiting: int, has_room: bool
    ) -> tuple[str, str]:
        """State and its detail, as `Snapshot` has them."""
        while self._preempted_s and self._preempted_s[0] < now_s - THRASH_WINDOW_S:
            self._preempted_s.popleft()
        if paused:
            return "paused", ""
        num_preemptions = len(self._preempted_s)
        if num_preemptions >= THRASH_PREEMPTIONS:
            return "thrashing", detail(
                "thrashing", num_preemptions=num_preemptions, seconds=THRASH_WINDOW_S
            )
        if not has_work:
            return "idle", ""
        if num_waiting and not has_room:
            return "saturated", detail("saturated", num_waiting=num_waiting)
        return "running", ""
