"""What a viewer costs: CPU time per token of engine and dashboard with 0, 1 and 2 viewers."""

import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from statistics import fmean

from workbench.errors import WorkbenchError
from workbench.lab.figures import Figure
from workbench.lab.ui_server import DashboardServer, Viewer
from workbench.snapshot import decode_frame

ORDER = (0, 1, 2, 2, 1, 0)  # contexts grow meanwhile: there and back, so that no one gains


@dataclass
class Spent:
    """The windows with one number of viewers: tokens, CPU milliseconds a token of each process.

    Windows count alike. A token costs more from window to window, as contexts grow; sums over all
    tokens would weigh cheap windows more, and the first and last are those without viewers.
    """

    tokens: list[int] = field(default_factory=list)
    engine_ms: list[float] = field(default_factory=list)
    server_ms: list[float] = field(default_factory=list)

    def add(self, tokens: int, engine_s: float, server_s: float) -> None:
        """One more window."""
        self.tokens.append(tokens)
        self.engine_ms.append(1e3 * engine_s / tokens)
        self.server_ms.append(1e3 * server_s / tokens)

    @property
    def ms_per_token(self) -> float:
        """CPU milliseconds of both processes per token."""
        return fmean(self.engine_ms) + fmean(self.server_ms)


def viewer_figures(
    server: DashboardServer, *, window_s: float, num_cycles: int, progress: Callable[[str], None]
) -> list[Figure]:
    """`viewer_slowdown` and `viewer_slowdown_two`, in % more CPU time per token.

    Viewers are sockets that read every frame and draw nothing: a browser's own work is not the
    engine's. The engine decodes the same requests with the same thread count throughout.
    """
    spent = {count: Spent() for count in set(ORDER)}
    for _ in range(num_cycles):
        for count in ORDER:
            _window(server, count, window_s, spent[count])
    for count, sums in spent.items():
        progress(f"{count} viewers: {sums.ms_per_token:.2f} ms CPU a token")
    return [_figure("viewer_slowdown", spent, 1), _figure("viewer_slowdown_two", spent, 2)]


def _window(server: DashboardServer, count: int, window_s: float, spent: Spent) -> None:
    """Run `window_s` with so many viewers; tokens and CPU time are read as a frame arrives."""
    viewers = [server.viewer(f"bench-{index}") for index in range(count)]
    tokens, engine_s, server_s = _reading(server)
    threading.Event().wait(window_s)
    tokens_after, engine_after_s, server_after_s = _reading(server)
    for viewer in viewers:
        viewer.close()
    spent.add(tokens_after - tokens, engine_after_s - engine_s, server_after_s - server_s)


def _reading(server: DashboardServer) -> tuple[int, float, float]:
    """(output tokens, CPU seconds of the engine, of the dashboard), by a viewer that leaves again.

    A new viewer first gets the last frame there was, so the second one counts.
    """
    with server.viewer("bench-probe") as probe:
        frame = _second_frame(probe)
        engine_s, server_s = server.cpu_s()
    snapshot = decode_frame(frame)[0]
    requests = snapshot.requests
    if not snapshot.num_running:
        raise WorkbenchError("the requests ended before the windows did: let them decode longer")
    return sum(request.num_output_tokens for request in requests), engine_s, server_s


def _second_frame(probe: Viewer) -> bytes:
    while probe.num_frames < 2:
        probe.wait_frames(1)
    return probe.frames[-1]


def _figure(name: str, spent: dict[int, Spent], count: int) -> Figure:
    base, own = spent[0], spent[count]
    engine = fmean(own.engine_ms) / fmean(base.engine_ms) - 1
    return Figure(
        name=name,
        value=100.0 * (own.ms_per_token / base.ms_per_token - 1),
        unit="%",
        note=f"{own.ms_per_token:.2f} ms CPU a token with {count} reading, {base.ms_per_token:.2f} "
        f"with none (engine alone {100 * engine:+.1f} %), {sum(own.tokens)} and "
        f"{sum(base.tokens)} tokens, same thread count",
    )
