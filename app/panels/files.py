"""Downloads: events as Parquet, the snapshot as JSON."""

import io
import json
from collections.abc import Sequence

import msgspec
import pyarrow as pa
import pyarrow.parquet as pq
import streamlit as st

from app.panels.page import Page
from workbench.events import Event
from workbench.snapshot import Snapshot


def events_parquet(events: Sequence[Event]) -> bytes:
    """A Parquet file, one row an event: seq, step, time_s, kind, request_id, data (JSON)."""
    table = pa.table(
        {
            "seq": pa.array([event.seq for event in events], pa.int64()),
            "step": pa.array([event.step for event in events], pa.int64()),
            "time_s": pa.array([event.time_s for event in events], pa.float64()),
            "kind": pa.array([event.kind for event in events], pa.string()),
            "request_id": pa.array([event.request_id for event in events], pa.string()),
            "data": pa.array(
                [json.dumps(event.data, default=str) for event in events], pa.string()
            ),
        }
    )
    out = io.BytesIO()
    pq.write_table(table, out)
    return out.getvalue()


def snapshot_json(snapshot: Snapshot) -> bytes:
    """The snapshot as indented JSON."""
    return msgspec.json.format(msgspec.json.encode(snapshot), indent=1)


def show_files(page: Page) -> None:
    """The two downloads in one row, made when they are asked for."""
    texts, engine = page.texts, page.engine

    def events() -> bytes:
        return events_parquet(engine.events())

    def picture() -> bytes:
        return snapshot_json(engine.snapshot())

    have = page.snapshot is not None
    with st.container(horizontal=True):
        st.download_button(
            texts("files.events"),
            events,
            "events.parquet",
            key="download_events",
            mime="application/vnd.apache.parquet",
            on_click="ignore",
            disabled=not have,
        )
        st.download_button(
            texts("files.snapshot"),
            picture,
            "snapshot.json",
            key="download_snapshot",
            mime="application/json",
            on_click="ignore",
            disabled=not have,
        )
    st.caption(texts("files.help"))
