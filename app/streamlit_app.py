"""Entry of `streamlit run app`: the dashboard, its live socket, and the engine's life."""

import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

# `streamlit run app` puts `app/` on the path, not the folder above it.
ROOT = str(Path(__file__).resolve().parents[1])
if ROOT not in sys.path:
    sys.path.insert(0, ROOT)

import pandas  # noqa: E402, F401 - two sessions that import it at once can crash
import plotly.graph_objects  # noqa: E402, F401 - likewise
import streamlit as st  # noqa: E402
from starlette.routing import WebSocketRoute  # noqa: E402
from streamlit import config  # noqa: E402

from app.engine_owner import close_owner, get_owner  # noqa: E402
from app.live import PATH, LiveHub  # noqa: E402

DEFAULT_PORT = 8501


@asynccontextmanager
async def engine_lifespan(_: st.App) -> AsyncIterator[dict[str, Any]]:
    """Start the engine with the server and end it with the server."""
    owner = get_owner()
    port = int(st.get_option("server.port"))
    chosen = config.is_manually_set("server.port")
    if owner.notice:
        print(owner.notice, file=sys.stderr, flush=True)
    if port != DEFAULT_PORT and not chosen:
        text = f"Port {DEFAULT_PORT} is in use: this dashboard is at http://localhost:{port}."
        print(text, file=sys.stderr, flush=True)
    try:
        yield {"owner": owner}
    finally:
        close_owner()


app = st.App("main.py", lifespan=engine_lifespan, routes=[WebSocketRoute(PATH, LiveHub().serve)])
