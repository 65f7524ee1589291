"""Presets of requests and when they arrive; seeded and bounded, from texts at hand."""

import inspect
import random
from collections.abc import Callable
from pydoc_data.topics import topics
from typing import Any

from workbench.engine.process.protocol import Arrival, Workload
from workbench.errors import SettingError
from workbench.lab.chat_texts import FOLLOW_UPS, QUESTIONS, SHORT_PROMPTS, SYSTEM_PROMPT
from workbench.request import RequestSpec, SamplingParams

MAX_REQUESTS = 1000


def make_workload(name: str, **options: Any) -> Workload:
    """A preset by name; raises SettingError for an unknown name or option."""
    if name not in PRESETS:
        raise SettingError(f"unknown workload {name!r}: choose one of {', '.join(PRESETS)}")
    allowed = inspect.signature(PRESETS[name]).parameters
    for option, value in options.items():
        if option not in allowed:
            raise SettingError(
                f"workload {name!r} has no option {option!r}: it takes {', '.join(allowed)}"
            )
        if not isinstance(value, (int, float)):
            raise SettingError(f"{option} = {value!r} is not allowed: give a number")
    return PRESETS[name](**options)


def shared_chat(
    *, num_requests: int = 6, max_tokens: int = 160, seed: int = 0, forever: bool = True
) -> Workload:
    """Chat requests under one system prompt of about 200 tokens; a new one follows each end."""
    _bounded("num_requests", num_requests, 1, 64)
    draw = random.Random(seed)
    questions = draw.sample(QUESTIONS, len(QUESTIONS))
    num_arrivals = 240 if forever else num_requests
    arrivals = [
        Arrival(
            _first_then_others_s(min(index, num_requests - 1)),
            RequestSpec(
                messages=_chat(questions[index % len(questions)]),
                sampling=_sampling(draw.randint(max_tokens // 2, max_tokens), draw),
                label=f"chat {index + 1}",
            ),
        )
        for index in range(num_arrivals)
    ]
    return Workload(
        name="shared_chat", arrivals=arrivals, max_in_flight=num_requests, repeat=forever
    )


def long_document(
    *, num_requests: int = 3, num_chars: int = 4000, max_tokens: int = 96, seed: int = 0
) -> Workload:
    """Questions about one long text (chapters of Python's own manual), which they share."""
    _bounded("num_requests", num_requests, 1, 64)
    _bounded("num_chars", num_chars, 100, 200_000)
    draw = random.Random(seed)
    text = _document(draw, num_chars)
    asked = draw.sample(DOCUMENT_QUESTIONS, len(DOCUMENT_QUESTIONS))
    arrivals = [
        Arrival(
            2.0 * index,
            RequestSpec(
                messages=[{"role": "user", "content": f"{text}\n\n{asked[index % len(asked)]}"}],
                sampling=_sampling(max_tokens, draw),
                label=f"document {index + 1}",
            ),
        )
        for index in range(num_requests)
    ]
    return Workload(name="long_document", arrivals=arrivals)


def many_short(
    *, num_requests: int = 48, per_s: float = 4.0, max_tokens: int = 24, seed: int = 0
) -> Workload:
    """Short prompts without anything in common, arriving at random (Poisson) moments."""
    _bounded("num_requests", num_requests, 1, MAX_REQUESTS)
    _bounded("per_s", per_s, 0.01, 1000.0)
    draw = random.Random(seed)
    arrivals, at_s = [], 0.0
    for index in range(num_requests):
        prompt = f"{draw.choice(SHORT_PROMPTS)} ({draw.randint(100, 999)})"
        spec = RequestSpec(
            messages=[{"role": "user", "content": prompt}],
            sampling=_sampling(draw.randint(max(1, max_tokens // 2), max_tokens), draw),
            label=f"short {index + 1}",
        )
        arrivals.append(Arrival(round(at_s, 4), spec))
        at_s += draw.expovariate(per_s)
    return Workload(name="many_short", arrivals=arrivals)


def thrash(
    *, num_requests: int = 24, num_chars: int = 1600, max_tokens: int = 256, seed: int = 0
) -> Workload:
    """More long requests at once than the pool can hold, nothing shared: blocks run out."""
    _bounded("num_requests", num_requests, 1, MAX_REQUESTS)
    _bounded("num_chars", num_chars, 100, 200_000)
    draw = random.Random(seed)
    arrivals = [
        Arrival(
            0.0,
            RequestSpec(
                messages=[
                    {"role": "user", "content": f"Part {index + 1}. {_document(draw, num_chars)}"}
                ],
                sampling=_sampling(max_tokens, draw, ignore_eos=True),
                label=f"pressure {index + 1}",
            ),
        )
        for index in range(num_requests)
    ]
    return Workload(name="thrash", arrivals=arrivals)


def multi_turn(
    *, num_chats: int = 4, num_turns: int = 4, max_tokens: int = 80, seed: int = 0
) -> Workload:
    """Conversations whose next turn repeats everything before it, the model's answer included."""
    _bounded("num_chats", num_chats, 1, 64)
    _bounded("num_turns", num_turns, 1, 50)
    draw = random.Random(seed)
    questions = draw.sample(QUESTIONS, len(QUESTIONS))
    arrivals: list[Arrival] = []
    for turn in range(num_turns):
        for chat in range(num_chats):
            first = turn == 0
            text = questions[chat % len(questions)] if first else draw.choice(FOLLOW_UPS)
            messages = _chat(text) if first else [{"role": "user", "content": text}]
            spec = RequestSpec(
                messages=messages,
                sampling=_sampling(max_tokens, draw),
                label=f"chat {chat + 1}, turn {turn + 1}",
            )
            follows = -1 if first else (turn - 1) * num_chats + chat
            arrivals.append(Arrival(0.0, spec, follows))
    return Workload(name="multi_turn", arrivals=arrivals, max_in_flight=num_chats)


PRESETS: dict[str, Callable[..., Workload]] = {
    "shared_chat": shared_chat,
    "long_document": long_document,
    "many_short": many_short,
    "thrash": thrash,
    "multi_turn": multi_turn,
}

DOCUMENT_QUESTIONS = (
    "Sum this text up in three sentences.",
    "Which rule in this text is the most surprising, and why?",
    "Write five questions that this text answers.",
    "Explain the main idea of this text to a beginner.",
    "List the terms that this text defines.",
)


def _first_then_others_s(index: int) -> float:
    """The second comes when the first has computed the shared prompt, so that it finds it."""
    return 0.0 if index == 0 else round(0.3 + 0.2 * index, 1)


def _chat(question: str) -> list[dict[str, str]]:
    return [{"role": "system", "content": SYSTEM_PROMPT}, {"role": "user", "content": question}]


def _sampling(max_tokens: int, draw: random.Random, ignore_eos: bool = False) -> SamplingParams:
    return SamplingParams(
        temperature=0.7,
        top_p=0.95,
        seed=draw.randrange(2**31),
        max_tokens=max(1, max_tokens),
        ignore_eos=ignore_eos,
    )


def _document(draw: random.Random, num_chars: int) -> str:
    """Chapters of the manual in random order, cut to a length."""
    names = sorted(topics)
    text = ""
    while len(text) < num_chars:
        text += str(topics[draw.choice(names)]) + "\n"
    return text[:num_chars]


def _bounded(name: str, value: float, low: float, high: float) -> None:
    if not low <= value <= high:
        raise SettingError(f"{name} = {value} is out of range: {low} to {high}")
