"""The engine as the page sees it: one client, one shared history and one driver a process."""

from dataclasses import dataclass

import streamlit as st

from app.driver import Driver
from app.engine_owner import EngineOwner, get_owner
from app.panels.history import History
from workbench.client import EngineClient
from workbench.clock import RealClock
from workbench.errors import EngineDied, WorkbenchError
from workbench.events import Event
from workbench.snapshot import Snapshot, decode_frame

FOLLOW_AFTER_S = 2.0


@dataclass
class Engine:
    """What all tabs of this process share."""

    owner: EngineOwner
    history: History
    clock: RealClock

    @property
    def client(self) -> EngineClient:
        """The engine's client."""
        return self.owner.client

    @property
    def driver(self) -> Driver:
        """Who may change settings."""
        return self.owner.driver

    @property
    def state(self) -> str:
        """`loading`, `running` or `dead`."""
        return self.client.state

    @property
    def death_reason(self) -> str:
        """Why the process ended, in one sentence."""
        return self.client.death_reason

    @property
    def num_viewers(self) -> int:
        """Open tabs."""
        return self.driver.num_viewers

    @property
    def notice(self) -> str:
        """One sentence if another engine runs on this machine, else empty."""
        return self.owner.notice

    def is_driver(self, tab: str) -> bool:
        """True if this tab may change settings."""
        return self.driver.may_drive(tab)

    def take_over(self, tab: str) -> None:
        """Let this tab drive."""
        self.driver.take_over(tab)

    def snapshot(self) -> Snapshot:
        """The newest picture; raises EngineDied while there is none.

        It is the last frame that was sent, at most a moment old: a question to the engine would
        wait for its running step.
        """
        frame = self.client.latest_frame()
        if self.state == "loading" or not frame:
            raise EngineDied("the model is still being loaded")
        return decode_frame(frame)[0]

    def follow(self) -> None:
        """Take over settings that something else than this history changed."""
        last = self.history.last
        recent = last is not None and self.clock.now_s() - last.at_s < FOLLOW_AFTER_S
        if self.state == "running" and not recent:
            self.history.follow(self.snapshot().settings)

    def events(self) -> list[Event]:
        """All events kept; after the engine's death those of the last picture."""
        try:
            return self.client.events_since(0)
        except WorkbenchError:
            return list(self.snapshot().events)

    def answer(self, request_id: str) -> str:
        """Text a request has written so far, empty if it is forgotten."""
        try:
            return self.client.outputs(request_id).text
        except WorkbenchError:
            return ""  # forgotten, or the engine has ended, which the page's own face tells

    def restart(self) -> None:
        """Start a new process that goes on where each answer was."""
        self.client.restart()


def get_engine() -> Engine:
    """The one engine of this process, started if it does not run yet."""
    owner = get_owner()
    return _engine_of(id(owner), owner)


@st.cache_resource(show_spinner=False)
def _engine_of(number: int, _owner: EngineOwner) -> Engine:
    clock = RealClock()
    return Engine(_owner, History(_owner.client, _owner.client.config, clock), clock)
