"""Every string that is used exists, in every language, with the same placeholders."""

import ast
import json
import re
import string
from pathlib import Path

import pytest

from app.panels.terms import TERMS
from app.text import languages, load_texts, read_strings
from app.text.sentences import event_sentence, preview_sentence, report_sentence
from workbench.config import all_settings
from workbench.events import EVENT_KINDS, Event
from workbench.snapshot import ApplyReport

APP = Path(__file__).resolve().parents[2] / "app"


def used_keys() -> list[tuple[str, str]]:
    """(file, key or pattern) of each call `texts(...)`; parts that vary are `.*`."""
    found = []
    for path in APP.rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            if not isinstance(node, ast.Call) or not node.args:
                continue
            name = node.func.attr if isinstance(node.func, ast.Attribute) else getattr(
                node.func, "id", ""
            )
            if name != "texts":
                continue
            found += [(path.name, pattern) for pattern in patterns(node.args[0])]
    return found


def patterns(argument: ast.expr) -> list[str]:
    """Regular expressions that the key of one call matches."""
    if isinstance(argument, ast.Constant):
        return [re.escape(str(argument.value))]
    if isinstance(argument, ast.IfExp):
        return patterns(argument.body) + patterns(argument.orelse)
    if isinstance(argument, ast.JoinedStr):
        parts = [
            re.escape(part.value) if isinstance(part, ast.Constant) else ".*"
            for part in argument.values
        ]
        return ["".join(parts)]
    if isinstance(argument, ast.BinOp) and isinstance(argument.left, ast.Constant):
        return [re.escape(argument.left.value) + ".*"]
    return []


def test_every_key_used_exists() -> None:
    strings = load_texts().strings
    calls = used_keys()
    assert len(calls) > 60
    missing = [(file, key) for file, key in calls if not any(re.fullmatch(key, k) for k in strings)]
    assert missing == []


def test_settings_events_and_terms_have_texts() -> None:
    strings = load_texts().strings
    wanted = [f"knob.{path}.{part}" for path in all_settings() for part in ("label", "help")]
    wanted += [f"event.{kind}.default" for kind in EVENT_KINDS]
    wanted += [f"term.{term}.{part}" for term in TERMS for part in ("label", "text")]
    assert [key for key in wanted if key not in strings] == []


def test_terms_are_two_sentences() -> None:
    texts = load_texts()
    for term in TERMS:
        assert texts(f"term.{term}.text").count(". ") == 1, term


def test_component_keys_exist() -> None:
    file = APP / "components" / "live_view" / "text_keys.json"
    strings = load_texts().strings
    assert [key for key in json.loads(file.read_text()) if key not in strings] == []


def test_languages_agree() -> None:
    english = read_strings("en")
    for language in languages()[1:]:
        other = read_strings(language)
        assert set(other) == set(english), language
        for key, text in other.items():
            assert placeholders(text) == placeholders(english[key]), (language, key)


def test_unknown_language_reads_in_english() -> None:
    assert load_texts("xx").language == "en"


def placeholders(text: str) -> set[str]:
    return {name for _, name, _, _ in string.Formatter().parse(text) if name}


@pytest.mark.parametrize(
    ("kind", "data", "sentence"),
    [
        ("share", {"other_request_id": "1", "num_blocks": 12, "num_tokens": 192},
         "Request 4 shares 12 blocks with request 1: 192 tokens were not computed again."),
        ("evict", {"num_blocks": 13, "to_tier": "G2", "for_request_id": "9"},
         "13 blocks were pushed out to DRAM because request 9 needed room."),
        ("store", {"num_blocks": 2, "tier": "G2", "num_bytes": 737280},
         "2 blocks (720 KiB) were stored in DRAM."),
        ("preempt", {"reason": "no free block", "num_blocks": 3, "how": "recompute"},
         "Request 4 gave up 3 blocks and will compute them again: no free block."),
        ("apply", {"changes": {"cache.k_format": "int8"}, "milliseconds": 41.7},
         "Applied K format int8 in 42 ms."),
    ],
)  # fmt: skip
def test_event_sentences(kind: str, data: dict[str, object], sentence: str) -> None:
    event = Event(seq=1, step=2, time_s=0.0, kind=kind, request_id="4", data=data)
    assert event_sentence(load_texts(), event) == sentence


def test_every_kind_reads_even_without_numbers() -> None:
    for kind in EVENT_KINDS:
        event = Event(seq=1, step=1, time_s=0.0, kind=kind, request_id="7", data={})
        assert event_sentence(load_texts(), event).endswith(".")


def test_preview_and_report_sentences() -> None:
    report = ApplyReport(
        version=2, changes={"cache.k_format": "int8"}, previous={"cache.k_format": "bf16"},
        kinds={"cache.k_format": "recode"}, num_recoded_blocks=130, blocks_before=182,
        blocks_after=346, milliseconds=40.2,
    )  # fmt: skip
    texts = load_texts()
    assert preview_sentence(texts, report) == (
        "int8: 1.9 × blocks; 130 of 182 blocks re-encoded; about 40 ms."
    )
    assert report_sentence(texts, report) == (
        "K format int8; 182 → 346 blocks; 130 of 182 blocks re-encoded; took 40 ms."
    )
