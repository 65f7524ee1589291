"""A page that mounts the component's parts, and a server that feeds them over a real WebSocket."""

import asyncio
import json
import socket
import threading
import time
from collections.abc import Callable

import uvicorn
from starlette.applications import Starlette
from starlette.responses import HTMLResponse, Response
from starlette.routing import Route, WebSocketRoute
from starlette.websockets import WebSocket, WebSocketDisconnect

from app.components.live_view.bundle import default_text, module_source

PAGE = """<!doctype html><html><head><meta charset="utf-8"><style>
body{margin:0;padding:8px 16px;font:14px sans-serif;background:%(background)s}
#row{display:grid;grid-template-columns:264px minmax(0,1fr) 300px;gap:16px;margin-top:8px}
%(variables)s
@media (max-width:640px){#row{grid-template-columns:minmax(0,1fr)} #knobs{display:none}}
</style></head><body><div id="strip"></div>
<div id="row"><div id="knobs"></div><div id="stage"></div><div id="side"></div></div>
<script type="module">
import render from "/module.js";
window.commands = [];
const text = %(text)s;
const base = {text, live_url: "/live", lang: "en", is_driver: true, num_viewers: 1, can_undo: true,
  can_redo: false, langs: [], marks: [], present: false,
  pages: [{url: "/", title: "Live", active: true}, {url: "/tiers", title: "Tiers"}]};
window.closers = {};
window.rerun = (change = {}) => {
  Object.assign(base, change);
  for (const part of ["strip", "stage", "side"]) {
    const host = document.getElementById(part);
    const root = host.shadowRoot ?? host.attachShadow({mode: "open"});
    window.closers[part] = render({parentElement: root, data: {...base, part},
      setTriggerValue: (name, value) => window.commands.push({trigger: name, ...value})});
  }
};
window.rerun();
window.moved = 0; // layout shift from the first painted frame of the page on
requestAnimationFrame(() => setTimeout(() => new PerformanceObserver((list) => {
  for (const entry of list.getEntries()) window.moved += entry.value;
}).observe({type: "layout-shift"})));
</script></body></html>"""

DARK = (
    ":root{--st-background-color:#0e1117;--st-text-color:#fafafa;"
    "--st-secondary-background-color:#262730;--st-primary-color:#6ea8fe;--st-font:sans-serif}"
)


def page_html(dark: bool = False) -> str:
    """The test page; `dark` sets Streamlit's variables as its dark theme does."""
    return PAGE % {
        "text": json.dumps(default_text()),
        "variables": DARK if dark else "",
        "background": "#0e1117" if dark else "#fff",
    }


class FrameServer:
    """Serves the page and, on `/live`, whatever `frames(tick)` returns at `hz`."""

    def __init__(self, frames: Callable[[int], bytes], hz: float = 10.0) -> None:
        self.frames = frames
        self.hz = hz
        self.tick = 0
        self.frozen = False
        self.hellos: list[str] = []
        self.notes: list[str] = []
        self.num_open = 0
        self.app = Starlette(
            routes=[
                Route("/", lambda request: HTMLResponse(page_html("dark" in request.query_params))),
                Route(
                    "/module.js",
                    lambda request: Response(module_source(), media_type="text/javascript"),
                ),
                Route(
                    "/widget.js",
                    lambda request: Response(module_source("widget"), media_type="text/javascript"),
                ),
                WebSocketRoute("/live", self._live),
            ]
        )

    async def _live(self, ws: WebSocket) -> None:
        await ws.accept()
        self.num_open += 1
        reader = asyncio.ensure_future(self._read(ws))
        num_notes, fresh = 0, True
        try:
            while not reader.done():
                if fresh or not self.frozen:
                    self.tick += not self.frozen
                    await ws.send_bytes(self.frames(self.tick))
                for note in self.notes[num_notes:]:
                    await ws.send_text(note)
                num_notes, fresh = len(self.notes), False
                await asyncio.sleep(1 / self.hz)
        except (WebSocketDisconnect, RuntimeError):
            pass  # the page is gone, or closes while a frame is sent: nothing is left to do
        finally:
            self.num_open -= 1
            reader.cancel()

    async def _read(self, ws: WebSocket) -> None:
        try:
            while True:
                self.hellos.append(await ws.receive_text())
        except (WebSocketDisconnect, RuntimeError):
            return  # as above

    def start(self) -> str:
        """Starts the server in a thread and returns its address."""
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            port = free.getsockname()[1]
        config = uvicorn.Config(self.app, host="127.0.0.1", port=port, log_level="error")
        self.server = uvicorn.Server(config)
        self.thread = threading.Thread(target=self.server.run, daemon=True)
        self.thread.start()
        while not self.server.started:
            time.sleep(0.01)
        return f"http://127.0.0.1:{port}/"

    def stop(self) -> None:
        """Stops the server and waits for its thread."""
        self.server.should_exit = True
        self.server.force_exit = True
        self.thread.join(timeout=5)
