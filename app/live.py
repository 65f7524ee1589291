"""The read-only socket `/live`: frames of the engine to every open tab, ten a second at most."""

import asyncio
import json
import re
from typing import Any

import streamlit as st
from starlette.websockets import WebSocket, WebSocketDisconnect

from app.engine_owner import EngineOwner, get_owner
from app.origin import is_own_page

PATH = "/live"
MAX_SOCKETS = 64
HELLO_TIMEOUT_S = 10.0
_TAB = re.compile(r"[A-Za-z0-9_-]{1,64}")
_POLICY, _TRY_LATER = 1008, 1013  # RFC 6455 close codes
_GONE = (WebSocketDisconnect, RuntimeError)  # Starlette raises either for a send after the end


class Viewer:
    """What one socket has still to be sent: the newest frame and the newest news, no queue."""

    def __init__(self) -> None:
        self._frame: bytes | None = None
        self._news: dict[str, Any] = {}
        self._waiting = asyncio.Event()

    def put_frame(self, frame: bytes) -> None:
        """Replace the frame that waits: a slow viewer misses frames, it does not fall behind."""
        self._frame = frame
        self._waiting.set()

    def put_news(self, **news: Any) -> None:
        """Add to the news that wait."""
        self._news.update(news)
        self._waiting.set()

    async def send_to(self, socket: WebSocket) -> None:
        """Send what comes, until the socket closes."""
        while True:
            await self._waiting.wait()
            self._waiting.clear()
            frame, news = self._frame, self._news
            self._frame, self._news = None, {}
            if frame is not None:
                await socket.send_bytes(frame)
            if news:
                await socket.send_text(json.dumps(news))


class LiveHub:
    """One subscription at the engine for all sockets, only while there are any."""

    def __init__(self) -> None:
        self._viewers: set[Viewer] = set()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._unsubscribe: Any = None

    async def serve(self, socket: WebSocket) -> None:
        """The endpoint: refuses foreign pages (403) and takes no commands."""
        headers = socket.headers
        allowed = list(st.get_option("server.allowedHosts") or [])
        if not is_own_page(headers.get("origin"), headers.get("host"), allowed):
            await socket.close(_POLICY)  # before accept: answered with 403
            return
        await socket.accept()
        if len(self._viewers) >= MAX_SOCKETS:
            await socket.close(_TRY_LATER, f"more than {MAX_SOCKETS} tabs: close some")
            return
        owner = get_owner()
        tab = await _hello(socket)
        if tab is None:
            return
        viewer = self._add(owner)
        owner.driver.connected(tab)
        try:
            await self._show(owner, viewer)
            await _until_closed(socket, viewer)
        finally:
            self._viewers.discard(viewer)
            if not self._viewers and self._unsubscribe is not None:
                self._unsubscribe()
                self._unsubscribe = None
            owner.driver.disconnected(tab)

    def _add(self, owner: EngineOwner) -> Viewer:
        viewer = Viewer()
        self._viewers.add(viewer)
        if self._loop is None:
            self._loop = asyncio.get_running_loop()
            owner.client.on_death(lambda reason: self._from_thread(self._tell_dead, reason))
            owner.driver.on_change(lambda: self._from_thread(self._tell_driver, owner))
        if self._unsubscribe is None:
            self._unsubscribe = owner.client.subscribe(
                lambda frame: self._from_thread(self._put_frame, frame)
            )
        return viewer

    async def _show(self, owner: EngineOwner, viewer: Viewer) -> None:
        """What a new tab sees at once: the last picture, also of a dead engine."""
        frame = owner.client.last_frame
        if frame:
            viewer.put_frame(frame)
        if owner.client.state == "dead":
            viewer.put_news(dead=owner.client.death_reason)

    def _from_thread(self, call: Any, *args: Any) -> None:
        if self._loop is not None and not self._loop.is_closed():
            self._loop.call_soon_threadsafe(call, *args)

    def _put_frame(self, frame: bytes) -> None:
        for viewer in self._viewers:
            viewer.put_frame(frame)

    def _tell_dead(self, reason: str) -> None:
        for viewer in self._viewers:
            viewer.put_news(dead=reason)

    def _tell_driver(self, owner: EngineOwner) -> None:
        for viewer in self._viewers:
            viewer.put_news(viewers=owner.driver.num_viewers, driver=owner.driver.connected_driver)


async def _hello(socket: WebSocket) -> str | None:
    """The tab's id from its first message; anything else closes the socket."""
    try:
        message = json.loads(await asyncio.wait_for(socket.receive_text(), HELLO_TIMEOUT_S))
        tab = message["tab"]
        if isinstance(tab, str) and _TAB.fullmatch(tab):
            return tab
    except WebSocketDisconnect:
        return None  # the tab is gone: nobody reads a refusal
    except (KeyError, TypeError, ValueError, TimeoutError):
        pass  # no hello, whatever else it was: the sentence below is the answer
    await socket.close(_POLICY, 'the first message must be {"tab": "<id>"}')
    return None


async def _until_closed(socket: WebSocket, viewer: Viewer) -> None:
    sending = asyncio.create_task(viewer.send_to(socket))
    receiving = asyncio.create_task(socket.receive())
    try:
        await asyncio.wait({sending, receiving}, return_when=asyncio.FIRST_COMPLETED)
        if receiving.done() and receiving.result()["type"] == "websocket.receive":
            await socket.close(_POLICY, "this socket takes no commands")
    finally:
        for task in (sending, receiving):
            task.cancel()
        ends = await asyncio.gather(sending, receiving, return_exceptions=True)
    for end in ends:  # cancelled, or the tab went while a frame was sent; anything else is ours
        if isinstance(end, Exception) and not isinstance(end, _GONE):
            raise end
