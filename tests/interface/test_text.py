"""Every string that is used exists, in every language, with the same placeholders."""

import ast
import re
import string
from pathlib import Path
from typing import get_args

import msgspec

from app.components.live_view.bundle import default_text
from app.panels.knobs import GROUPS, group_paths, sections
from app.panels.terms import TERMS
from app.text import languages, load_texts, read_strings
from app.text.sentences import preview_sentence, report_sentence
from workbench.config import all_settings
from workbench.events import EVENT_KINDS
from workbench.snapshot import ApplyReport
from workbench.views import ApplyNote, WeightNoteKind

APP = Path(__file__).resolve().parents[2] / "app"


def used_keys() -> list[tuple[str, str]]:
    """(file, key or pattern) of each call `texts(...)`; parts that vary are `.*`."""
    found = []
    for path in APP.rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            if not isinstance(node, ast.Call) or not node.args:
                continue
            name = (
                node.func.attr
                if isinstance(node.func, ast.Attribute)
                else getattr(node.func, "id", "")
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
    wanted += [f"event.{kind}" for kind in EVENT_KINDS]
    wanted += [f"note.{note}" for note in get_args(ApplyNote)]
    wanted += [f"weight_note.{kind}" for kind in get_args(WeightNoteKind)]
    wanted += [f"{part}.{term}" for term in TERMS for part in ("word", "term")]
    assert [key for key in wanted if key not in strings] == []


def test_every_setting_under_more_stands_under_one_heading() -> None:
    strings = load_texts().strings
    for dim in GROUPS:
        found = sections(dim)
        assert sorted(sum(found.values(), [])) == sorted(group_paths(dim)[1])
        assert len(found) == 1 or all(f"group.section.{name}" in strings for name in found)


def test_terms_are_two_sentences() -> None:
    texts = load_texts()
    for term in TERMS:
        assert texts(f"term.{term}").count(". ") == 1, term
    pictured = [key for key in default_text() if key.startswith("term.") and key != "term.more"]
    assert len(pictured) > 20
    assert [key for key in pictured if default_text()[key].count(". ") != 1] == []


def disagreements(other: dict[str, str], english: dict[str, str]) -> list[str]:
    """Keys that one of the two lacks, or whose placeholders differ."""
    lacking = set(other) ^ set(english)
    both = set(other) & set(english)
    return sorted(
        lacking | {key for key in both if placeholders(other[key]) != placeholders(english[key])}
    )


def test_languages_agree() -> None:
    english = read_strings("en")
    for language in languages()[1:]:
        assert disagreements(read_strings(language), english) == [], language
    planted = {key: f"~{text}" for key, text in english.items()}
    assert disagreements(planted, english) == []
    del planted["block.label"]
    planted |= {"block.title": "Block {cell}", "of.no.use": "x"}
    assert disagreements(planted, english) == ["block.label", "block.title", "of.no.use"]


def test_unknown_language_reads_in_english() -> None:
    assert load_texts("xx").language == "en"


def placeholders(text: str) -> set[str]:
    return {name for _, name, _, _ in string.Formatter().parse(text) if name}


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
    told = report_sentence(texts, msgspec.structs.replace(report, notes=["swap_without_tier"]))
    assert "re-encoded; while every tier is off nothing can be swapped" in told
