"""The knobs, made from the settings' metadata: three groups, four each, the rest under "more"."""

from typing import Any

import streamlit as st

from app.panels.act import apply_changes, attempt, sentence
from app.panels.page import Page, current_page, held
from app.quality.settings import FAMILIES, K_FORMAT, V_FORMAT, format_family
from app.text.sentences import (
    change_text,
    escape,
    preview_sentence,
    setting_label,
    value_text,
    weight_notes,
)
from workbench.config import all_settings, get_setting
from workbench.errors import WorkbenchError

GROUPS = ("T", "S", "X")
MAX_MAIN = 4
Field = "dataclasses.Field[Any]"


def knob_key(path: str, epoch: int = 0) -> str:
    """Widget key of a setting; each time the page sets the value itself, the epoch counts up."""
    return f"knob_{path.replace('.', '_')}__{epoch}"


def group_paths(dim: str) -> tuple[list[str], list[str]]:
    """Paths of one dimension: those always shown, and those under "more"."""
    paths = [path for path, item in all_settings().items() if item.metadata["dim"] == dim]
    main = [path for path in paths if all_settings()[path].metadata["main"]][:MAX_MAIN]
    return main, [path for path in paths if path not in main]


# Under "more", in this order; a setting that is named nowhere stands under the first heading whose
# beginning its path has.
SECTIONS: dict[str, dict[str, tuple[str, ...]]] = {
    "S": {
        "disk": (  # its codec is every slower tier's, and stands under the moves
            "tiers.disk_path", "tiers.disk_transport", "tiers.disk_layout", "tiers.disk_coalesce",
            "tiers.disk_throttle", "tiers.disk_keep",
        ),
        "pool": ("tiers.shared",), "objects": ("tiers.object",), "moves": ("",),
    },
    "X": {
        "formats": (
            "cache.layer_plan", "cache.kivi", "cache.residual", "cache.rank", "cache.outlier",
            "cache.calibration",
        ),
        "sparse": ("retention.sparse",),
        "kept": ("retention.",),
        "reuse": (
            "cache.prefix", "cache.partial", "cache.index", "cache.prompt", "cache.min_cacheable",
            "cache.eviction", "cache.reuse",
        ),
        "pages": ("cache.",),
    },
}  # fmt: skip


def sections(dim: str) -> dict[str, list[str]]:
    """Settings under "more" by heading, each once, in the order of the headings."""
    _, left = group_paths(dim)
    found: dict[str, list[str]] = {}
    for name, beginnings in SECTIONS.get(dim, {"": ("",)}).items():
        found[name] = [path for path in left if path.startswith(beginnings)]
        left = [path for path in left if path not in found[name]]
    return {name: paths for name, paths in found.items() if paths}


def show_knobs(page: Page) -> None:
    """The whole column of knobs with the answer below."""
    _seed(page)
    for dim in GROUPS:
        _group(page, dim)
    _, rest = group_paths("-")
    with st.container(key="group_M", gap=None), st.expander(page.texts("group.-"), key="more_M"):
        for path in rest:
            _knob(page, path)
        _show_weight_notes(page)


def _show_weight_notes(page: Page) -> None:
    """Below the knobs of the model, open or not: what its weights do to what is shown."""
    try:
        notes = page.engine.snapshot().weight_notes
    except WorkbenchError:
        return  # there is no picture yet, which the page's own face tells
    for told in weight_notes(page.texts, [note for note in notes if note.kind != "kept"]):
        st.caption(f":material/info: {escape(told[:1].upper() + told[1:])}.")


def show_group(page: Page, dim: str) -> None:
    """The knobs of one dimension, all of them open."""
    _seed(page)
    _group(page, dim, expanded=True)


def _group(page: Page, dim: str, *, expanded: bool = False) -> None:
    main, _ = group_paths(dim)
    with st.container(key=f"group_{dim}", gap=None):
        st.markdown(
            f":{_COLOURS[dim]}-badge[{dim}] **{page.texts('group.' + dim)}**",
            help=page.texts(f"group.{dim}_help"),
        )
        for path in main:
            _knob(page, path)
        with st.expander(page.texts("group.more"), key=f"more_{dim}", expanded=expanded):
            _show_sections(page, dim)


def _show_sections(page: Page, dim: str) -> None:
    """The settings under "more", under headings where there are several kinds."""
    found = sections(dim)
    for name, paths in found.items():
        if len(found) > 1:
            st.caption(page.texts(f"group.section.{name}"))
        for path in paths:
            _knob(page, path)


_COLOURS = {"T": "red", "S": "violet", "X": "green"}


def show_answer(page: Page) -> None:
    """One place, of constant height: what Apply would do, what a change did, or what went wrong."""
    state, texts = page.state, page.texts
    with st.container(key="answer", gap="xsmall"):
        if state.problem:  # also of an Apply that could not be done and still waits
            st.caption(f":orange[:material/warning: {escape(state.problem)}]")
        elif state.pending:
            st.caption(_preview(page))
        else:
            st.caption(escape(state.answer or page.engine.notice or texts("report.start")))
        with st.container(horizontal=True, gap="xsmall", key="answer_buttons"):
            st.button(
                texts("button.apply"),
                key="apply",
                type="primary",
                on_click=apply_pending,
                disabled=page.locked or not state.pending,
            )
            st.button(
                texts("button.discard"),
                key="discard",
                on_click=discard_pending,
                disabled=not state.pending,
            )


def apply_pending() -> None:
    """Callback of *Apply*: all waiting changes as one."""
    page = current_page()
    if page.state.pending and apply_changes(page, dict(page.state.pending)):
        page.state.pending.clear()


def discard_pending() -> None:
    """Callback of *Discard*: the knobs show the engine's values again."""
    page = current_page()
    page.state.pending.clear()
    page.state.problem = ""


def knob_changed(path: str) -> None:
    """Callback of every knob: hot settings apply at once, the others wait for *Apply*."""
    page = current_page()
    # Of the newest widget: the browser repeats the value of one that was replaced meanwhile.
    value = _from_widget(path, held(knob_key(path, page.state.epochs[path])))
    page.state.shown[path] = value
    current = get_setting(page.engine.history.config, path)
    if value is None or value == current:
        page.state.pending.pop(path, None)
        return
    if all_settings()[path].metadata["change"] == "hot":
        apply_changes(page, {path: value})
        return
    page.state.problem = ""
    if attempt(page, lambda: None):
        page.state.pending[path] = value


def _preview(page: Page) -> str:
    waiting = ", ".join(
        change_text(page.texts, path, value) for path, value in page.state.pending.items()
    )
    try:
        report = page.engine.client.preview(dict(page.state.pending))
    except WorkbenchError as error:
        return f":orange[:material/warning: {escape(sentence(str(error)))}]"
    told = preview_sentence(page.texts, report)
    return f"{escape(page.texts('report.pending', what=waiting))}. {escape(told)}"


def _seed(page: Page) -> None:
    """Show the engine's values where they are not what the widgets hold.

    A widget whose value the page changes becomes a new one, with another key and initial value:
    the browser may still send the old value with a message that is under way, and a widget inside
    a closed "more" takes its initial value whenever it is opened first. Streamlit forgets a
    widget that was not drawn (while presenting); that is made anew too.
    """
    state, config = page.state, page.engine.history.config
    for path in all_settings():
        value = state.pending.get(path, get_setting(config, path))
        known = knob_key(path, state.epochs.get(path, 0)) in st.session_state
        if not known or path not in state.shown or state.shown[path] != value:
            state.epochs[path] = state.epochs.get(path, -1) + 1
            state.initial[path] = value
        state.shown[path] = value
    state.seen_version = page.engine.history.version


def _knob(page: Page, path: str) -> None:
    item = all_settings()[path]
    meta, value = item.metadata, page.state.initial[path]
    common: dict[str, Any] = dict(
        label=setting_label(page.texts, path),
        key=knob_key(path, page.state.epochs[path]),
        help=page.texts.get(f"knob.{path}.help") or None,
        disabled=page.locked,
        on_change=knob_changed,
        args=(path,),
    )

    def told(choice: Any) -> str:
        return value_text(page.texts, path, choice)

    if isinstance(item.default, bool):
        st.toggle(value=value, **common)
    elif meta["choices"]:
        options = ordered_choices(path)
        options += page.engine.client.names_of_own(meta["own"])
        options += [] if value in options else [value]
        st.selectbox(options=options, index=options.index(value), format_func=told, **common)
    elif isinstance(item.default, str):
        st.text_input(value=value, max_chars=400, **common)
    elif meta["main"]:
        st.select_slider(options=slider_steps(path, value), value=value, format_func=told, **common)
    else:
        whole = isinstance(item.default, int)
        kind = int if whole else float
        st.number_input(
            min_value=kind(meta["low"]),
            max_value=kind(meta["high"]),
            value=kind(value),
            step=1 if whole else _step(meta["high"]),
            **common,
        )


def ordered_choices(path: str) -> list[Any]:
    """Choices of a setting; formats stand by family, so that a long list stays readable."""
    choices = list(all_settings()[path].metadata["choices"])
    if path not in (K_FORMAT, V_FORMAT):
        return choices
    families = list(FAMILIES)
    place = {name: families.index(format_family(name)) if format_family(name) in families else 99
             for name in choices}  # fmt: skip
    return sorted(choices, key=lambda name: place[name])


def slider_steps(path: str, *also: Any) -> list[Any]:
    """Stops of a slider: powers of two within the range, 0 where it means off, and `also`."""
    item = all_settings()[path]
    low, high = item.metadata["low"], item.metadata["high"]
    kind = int if isinstance(item.default, int) else float
    stops = {kind(2**power) for power in range(41) if low <= 2**power <= high}
    if low == 0:
        stops = {stop for stop in stops if stop >= 8} | {kind(0)}
    elif low < 1:
        stops |= {kind(2.0**-power) for power in (1, 2) if 2.0**-power >= low}
    limit = {"cache.hbm_budget_mib": 4096, "tiers.dram_mib": 4096}.get(path)
    if limit:
        stops = {stop for stop in stops if stop <= limit}
    stops |= {kind(value) for value in also if value is not None}
    return sorted(stops)


def _step(high: float) -> float:
    return 0.01 if high <= 1 else 1.0


def _from_widget(path: str, value: Any) -> Any:
    default = all_settings()[path].default
    if isinstance(default, float) and isinstance(value, int) and not isinstance(value, bool):
        return float(value)
    return value
