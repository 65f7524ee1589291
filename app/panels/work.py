"""Starting requests: presets, a dropped file of prompts, and the chat."""

import uuid
from typing import Any

import msgspec
import streamlit as st

from app.panels.act import attempt, sentence, start_requests
from app.panels.page import Page, current_page, held
from app.text.sentences import escape
from workbench.cache_control import LIFETIMES_S, CacheBreakpoint
from workbench.engine.process.protocol import Workload
from workbench.errors import WorkbenchError
from workbench.lab.prompts_file import MAX_FILE_BYTES, read_prompts
from workbench.lab.workloads import PRESETS, make_workload
from workbench.request import RequestSpec, SamplingParams

MAX_NAMED_LINES = 5
CHAT_TOKENS = 256


def show_work(page: Page) -> None:
    """Popover with the presets and the file of prompts."""
    texts = page.texts
    with st.popover(texts("button.workload"), help=texts("work.more_help"), key="work"):
        st.selectbox(
            texts("work.preset"),
            list(PRESETS),
            key="preset",
            format_func=lambda name: texts.get(f"preset.{name}", name),
            disabled=page.locked,
        )
        with st.container(horizontal=True):
            st.button(
                texts("button.run"),
                key="run_preset",
                type="primary",
                on_click=run_preset,
                disabled=page.locked,
            )
            st.button(
                texts("button.clear"),
                key="clear_requests",
                on_click=clear_requests,
                disabled=page.locked,
            )
        st.selectbox(
            texts("work.keep"),
            ["off", *LIFETIMES_S],
            key="keep_prompt",
            format_func=lambda ttl: texts(f"work.keep_{ttl}"),
            help=texts("work.keep_help"),
            disabled=page.locked,
        )
        st.file_uploader(
            texts("work.upload"),
            type=["jsonl", "json", "txt"],
            key="jsonl",
            help=texts("work.upload_help"),
            max_upload_size=MAX_FILE_BYTES // 2**20,
            on_change=file_dropped,
            disabled=page.locked,
        )
        for line in page.state.upload_report:
            st.caption(escape(line))
        st.button(
            texts("button.submit_file"),
            key="run_file",
            on_click=run_file,
            disabled=page.locked or held("jsonl") is None,
        )


def run_preset() -> None:
    """Callback: start the chosen preset."""
    page = current_page()
    start_preset(page, str(held("preset")))


def start_preset(page: Page, name: str, done: str = "") -> bool:
    """Start a preset's requests as one undoable change."""
    client = page.engine.client
    label = page.texts.get(f"preset.{name}", name)
    # A name of its own: the same preset may run twice, and undo stops this one.
    workload = msgspec.structs.replace(make_workload(name), name=f"{name}-{uuid.uuid4().hex[:8]}")
    return start_requests(
        page,
        lambda: list(client.run_workload(workload)),
        label,
        done or _started_sentence(page, workload, label),
        workload.name,
    )


def _started_sentence(page: Page, workload: Workload, label: str) -> str:
    """What a preset does from now on; `{n}` is left for the number started at once."""
    texts = page.texts
    if workload.repeat:
        return texts("work.repeats", label=label, n=workload.max_in_flight)
    if workload.arrivals[-1].at_s > 0 or any(a.follows >= 0 for a in workload.arrivals):
        return texts("work.started_first", label=label, total=len(workload.arrivals))
    return texts("work.started")


def clear_requests() -> None:
    """Callback: abort every request."""
    page = current_page()

    def run() -> None:
        page.engine.client.clear_requests()

    attempt(page, run)


def file_dropped() -> None:
    """Callback: say at once which lines can run and name each that cannot."""
    page = current_page()
    page.state.upload_report = []
    data = _file_data()
    if data is not None:
        _, page.state.upload_report = upload_report(page, data)


def upload_report(page: Page, data: bytes) -> tuple[list[tuple[int, RequestSpec]], list[str]]:
    """A dropped file's requests by line, and what to say of it: the good count, each bad line."""
    texts = page.texts
    try:
        requests, problems = read_prompts(data)
    except WorkbenchError as error:
        return [], [sentence(str(error))]
    if not requests and not problems:
        return [], [texts("work.file_empty")]
    told = [texts("work.lines_ok", n=len(requests), total=len(requests) + len(problems))]
    told += [sentence(problem) for problem in problems[:MAX_NAMED_LINES]]
    if len(problems) > MAX_NAMED_LINES:
        told.append(texts("work.lines_more", n=len(problems) - MAX_NAMED_LINES))
    return requests, told


def run_file() -> None:
    """Callback: submit the file's good lines; what the engine refuses is named too."""
    page = current_page()
    data = _file_data()
    if data is None:
        return
    requests, page.state.upload_report = upload_report(page, data)

    def submit_all() -> list[str]:
        ids = []
        for number, spec in requests:
            try:
                ids.append(page.engine.client.submit(spec))
            except WorkbenchError as error:
                page.state.upload_report.append(sentence(f"line {number}: {error}"))
        return ids

    if requests:
        start_requests(page, submit_all, page.texts("work.upload"))


def _file_data() -> bytes | None:
    file: Any = held("jsonl")
    return file.getvalue() if file is not None else None


def show_chat(page: Page) -> None:
    """The input that joins the running batch; the answer streams in the picture's text."""
    texts = page.texts
    with st.container(key="chat", gap="xsmall"):
        st.chat_input(
            texts("chat.placeholder"),
            key="chat_text",
            max_chars=8000,
            on_submit=chat_sent,
            disabled=page.locked,
        )
        if page.state.chat:
            st.button(
                texts("button.new_chat"),
                key="new_chat",
                type="tertiary",
                on_click=new_chat,
                disabled=page.locked,
            )


def chat_sent() -> None:
    """Callback: submit the conversation so far with the new turn, and select it."""
    page = current_page()
    said = str(held("chat_text") or "").strip()
    if not said:
        return
    messages = [*_conversation(page), {"role": "user", "content": said}]
    spec = RequestSpec(
        messages=messages,
        cache_control=_kept(len(messages) - 1),
        sampling=SamplingParams(max_tokens=CHAT_TOKENS),
        label=page.texts("chat.label", n=page.state.num_asked + 1),
    )

    def submit() -> str:
        request_id = page.engine.client.submit(spec)
        page.state.num_asked += 1
        page.state.chat.append((said, request_id))
        page.state.selected_request = request_id
        return page.texts("chat.sent", request=spec.label)

    if not attempt(page, submit):
        problem = page.state.problem.rstrip(".")
        page.state.problem = sentence(page.texts("chat.refused", error=problem))


def _kept(last: int) -> list[CacheBreakpoint]:
    """Where prompt caching keeps a chat: up to its last message, if that was chosen."""
    ttl = str(held("keep_prompt") or "off")
    return [CacheBreakpoint(message=last, ttl=ttl)] if ttl in LIFETIMES_S else []


def new_chat() -> None:
    """Callback: the next message begins a conversation of its own."""
    current_page().state.chat.clear()


def _conversation(page: Page) -> list[dict[str, str]]:
    """Earlier turns with the answers as far as they were written."""
    turns: list[dict[str, str]] = []
    for said, request_id in page.state.chat:
        turns.append({"role": "user", "content": said})
        turns.append({"role": "assistant", "content": page.engine.answer(request_id)})
    return turns
