"""Unplug a tier's medium or make it full by button, and put it right again."""

import streamlit as st

from app.panels.act import attempt
from app.panels.page import Page, current_page
from app.text import Texts
from workbench.tier_views import OutageView, TierReport, TiersReport

REPAIRED = "none"
POOL = "G3.5"


def show_outages(page: Page, report: TiersReport | None) -> None:
    """One line of buttons for each tier whose medium is ours to take away."""
    texts, untouched = page.texts, []
    for tier in report.tiers if report is not None else []:
        if tier.outage is None:
            continue
        if tier.outage.can:
            _row(page, tier, tier.outage)
        if "unplugged" not in tier.outage.can:
            untouched.append(tier.name)
    if untouched:
        st.caption(texts("tiers.outage_not_ours", tiers=", ".join(untouched)))


def _row(page: Page, tier: TierReport, outage: OutageView) -> None:
    """What can be done to one tier; what was done can only be undone."""
    texts, name = page.texts, tier.name.replace(".", "_")
    kinds = [REPAIRED] if outage.kind else outage.can
    with st.container(
        key=f"tiers_outage_{name}", horizontal=True, gap="xsmall", vertical_alignment="center"
    ):
        st.markdown(tier.name, width=40)
        for kind in kinds:
            told = kind if kind != REPAIRED else f"repaired_{outage.kind}"
            st.button(
                texts(f"tiers.outage.{told}"), key=f"outage_{name}_{kind}", on_click=act,
                args=(tier.name, kind, outage.kind), disabled=page.locked,
                help=texts(f"tiers.outage_help.{_medium(tier)}.{told}"),
            )  # fmt: skip


def act(tier: str, kind: str, before: str) -> None:
    """Callback: take a medium away, fill it, or put it right, and say what to look at."""
    page = current_page()

    def run() -> str:
        page.engine.client.set_outage(tier, kind)
        if kind != REPAIRED:
            return page.texts(f"tiers.outage_done.{kind}", tier=tier)
        lost = "_empty" if tier == POOL and before == "unplugged" else ""
        return page.texts(f"tiers.outage_done.repaired{lost}", tier=tier)

    attempt(page, run)


def outage_lines(texts: Texts, report: TiersReport) -> list[str]:
    """What the engine does about each outage now."""
    lines = []
    for tier in report.tiers:
        outage = tier.outage
        if outage is None or not outage.kind:
            continue
        line = texts(f"tiers.outage_now.{outage.kind}", tier=tier.name, n=f"{outage.num_faults:,}")
        does = "left_alone" if outage.left_alone else "asked" if outage.num_faults else "not_yet"
        lines.append(f"{line} {texts(f'tiers.outage_does.{does}')}")
    return lines


def _medium(tier: TierReport) -> str:
    return {"G3": "disk", POOL: "pool", "G4": "objects"}[tier.name]
