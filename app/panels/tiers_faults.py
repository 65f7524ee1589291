"""Faults by button: real damage to real bytes, and what the engine did about it."""

import streamlit as st

from app.panels.act import apply_changes, attempt
from app.panels.page import Page, current_page, open_page
from app.panels.tiers_outages import outage_lines, show_outages
from app.panels.tiers_worth import REFRESH_S, tiers_of
from app.text.sentences import escape
from workbench.tier_views import TiersReport

SLOW_MB_S = 20.0
COUNTED_PX = 144
THROTTLES = {
    "G2": "tiers.dram_throttle_mb_s",
    "G3": "tiers.disk_throttle_mb_s",
    "G3.5": "tiers.shared_throttle_mb_s",
    "G4": "tiers.object_throttle_mb_s",
}


def show_faults(page: Page, report: TiersReport | None) -> None:
    """One button a fault; below, what was counted."""
    texts = page.texts
    st.markdown(f"**{texts('tiers.faults')}**", help=texts("tiers.faults_help"))
    kinds = report.damages if report is not None else []
    on = report is not None and any(tier.enabled for tier in report.tiers)
    with st.container(key="tiers_fault_buttons", horizontal=True, gap="xsmall"):
        for kind in kinds:
            st.button(
                texts.get(f"tiers.fault.{kind}", kind), key=f"fault_{kind}", on_click=do_damage,
                args=(kind,), disabled=page.locked or not on,
                help=texts.get(f"tiers.fault_help.{kind}") or None,
            )  # fmt: skip
        st.button(texts("tiers.slow"), key="fault_slow", on_click=slow_down,
                  disabled=page.locked or not on, help=texts("tiers.slow_help"))  # fmt: skip
    show_outages(page, report)
    if not on:
        st.caption(texts("tiers.faults_off"))
    st.fragment(_counted, run_every=REFRESH_S, key="tiers_counted")()


def do_damage(kind: str) -> None:
    """Callback: damage something, and say what."""
    page = current_page()

    def run() -> str:
        key = page.engine.client.inject_fault(kind)
        name = page.texts.get(f"tiers.fault.{kind}", kind)
        if not key:
            return page.texts("tiers.nothing_to_damage", fault=name)
        return page.texts("tiers.damaged", fault=name, block=key[:12])

    attempt(page, run)


def slow_down() -> None:
    """Callback: throttle the tiers that are on; undo takes it back."""
    page = current_page()
    report = tiers_of(page)
    on = [tier.name for tier in report.tiers if tier.enabled] if report is not None else []
    changes = {THROTTLES[name]: SLOW_MB_S for name in on}
    apply_changes(page, changes, page.texts("tiers.slow_look"))


def _counted() -> None:
    page = open_page()
    with st.container(height=COUNTED_PX, border=False):  # what is below stays where it is
        _told(page)


def _told(page: Page) -> None:
    """Outages, and what was counted."""
    texts, report = page.texts, tiers_of(page)
    counted = [
        (tier.name, reason, count)
        for tier in (report.tiers if report is not None else [])
        for reason, count in tier.faults.items()
    ]
    for line in outage_lines(texts, report) if report is not None else []:
        st.caption(escape(line))
    st.markdown(f"**{texts('tiers.counted')}**")
    if not counted:
        st.caption(texts("tiers.none_counted"))
        return
    lines = [
        texts("tiers.count_line", tier=tier, reason=texts.get(f"reason.{reason}", reason), n=count)
        for tier, reason, count in counted
    ]
    st.markdown("\n".join(f"- {escape(line)}" for line in lines))
    st.caption(texts("tiers.counted_help"))
