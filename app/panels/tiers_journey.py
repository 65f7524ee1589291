"""Where one block has been: chosen from those that moved most, or by the beginning of its hash."""

import pandas as pd
import streamlit as st

from app.panels.act import attempt
from app.panels.page import Page, current_page
from app.panels.tiers_worth import PLOT_CONFIG
from app.text import Texts
from app.text.sentences import escape
from app.tiers.figures import journey_figure
from workbench.errors import WorkbenchError
from workbench.tier_views import BlockMove, HoldView

SHORT = 12  # hex digits shown of a hash
# Seconds, where a hold has an end: Mooncake Store's lease and soft pin.
HOLDS = {"lease": 10.0, "soft": 1800.0, "hard": 0.0, "none": 0.0}


def show_journey(page: Page) -> None:
    """Choice, time line and table of one block's moves."""
    texts = page.texts
    travelled = _moves(page, "")
    if not travelled:
        st.caption(texts("tiers.no_journey"))
        return
    keys = [move.key for move in travelled]
    with st.container(horizontal=True, gap="medium", vertical_alignment="bottom"):
        chosen = st.selectbox(
            texts("tiers.block"), keys, key="tiers_block", format_func=lambda key: key[:SHORT],
            help=texts("tiers.block_help"),
        )  # fmt: skip
        typed = st.text_input(
            texts("tiers.hash"),
            key="tiers_hash",
            max_chars=80,
            placeholder=texts("tiers.hash_hint"),
        ).strip()
    moves = _moves(page, typed or chosen)
    if not moves:
        st.caption(escape(texts("tiers.unknown_block", block=typed)))
        return
    if len({move.key for move in moves}) > 1:
        st.caption(escape(texts("tiers.several_blocks", block=typed)))
        moves = [move for move in moves if move.key == moves[0].key]
    _hold_buttons(page, moves[0].key)
    names = [tier.name for tier in page.snapshot.tiers] if page.snapshot else []
    st.plotly_chart(
        journey_figure(texts, moves, names), key="tiers_journey", config=PLOT_CONFIG,
        alt=texts("tiers.journey_alt", n=len(moves)),
    )  # fmt: skip
    rows = [
        {
            texts("tiers.column.step"): move.step,
            texts("tiers.column.what"): texts(f"tiers.move.{move.what}"),
            texts("tiers.column.tier"): move.tier,
            texts("tiers.column.request"): move.request_id,
            texts("tiers.column.detail"): move.detail,
        }
        for move in reversed(moves)
    ]
    st.dataframe(pd.DataFrame(rows), hide_index=True, row_height=28, height=180)


def _hold_buttons(page: Page, key: str) -> None:
    with st.container(key="tiers_holds", horizontal=True, gap="xsmall"):
        for kind in HOLDS:
            st.button(
                page.texts(f"tiers.hold.{kind}"), key=f"hold_{kind}", on_click=hold,
                args=(key, kind), disabled=page.locked, help=page.texts(f"tiers.hold_help.{kind}"),
            )  # fmt: skip


def hold(key: str, kind: str) -> None:
    """Callback: lease or pin a block, or let it go, and say what to look at."""
    page = current_page()

    def run() -> str:
        held = page.engine.client.hold_block(key, kind, HOLDS[kind])
        return told_of_hold(page.texts, held, kind, key[:SHORT])

    attempt(page, run)


def told_of_hold(texts: Texts, held: HoldView, kind: str, block: str) -> str:
    """What a hold does, and in which tiers it can do nothing."""
    if not held.key:
        return texts("tiers.hold_absent", block=block)
    if kind == "none":
        return texts("tiers.hold_done.none", block=block)
    told = [texts(f"tiers.hold_done.{kind}", block=block)] if held.tiers else []
    if held.loose:
        told.append(texts("tiers.hold_loose", tiers=", ".join(held.loose), block=block))
    if held.others:
        told.append(texts("tiers.hold_others", tiers=", ".join(held.others)))
    return " ".join(told)


def _moves(page: Page, key: str) -> list[BlockMove]:
    if not page.ready:
        return []
    try:
        return page.engine.client.journey(key)
    except WorkbenchError:
        return []  # the engine ended meanwhile, which the page's own face tells
