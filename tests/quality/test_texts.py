"""Windows: deterministic, of the asked length, and a sentence where that cannot be."""

import sys
from pathlib import Path

import pytest

from workbench.errors import RequestError, SettingError
from workbench.model.random_launch import byte_tokenizer
from workbench.quality import texts
from workbench.quality.needle import DEPTHS, needle_windows
from workbench.quality.plan import MAX_HELD_BYTES, QualityPlan

TOKENIZER = byte_tokenizer()


def test_windows_are_the_same_for_the_same_seed_and_do_not_overlap():
    plan = QualityPlan(context=300, scored=100, num_windows=5)
    windows = texts.text_windows(TOKENIZER, plan)
    assert windows == texts.text_windows(TOKENIZER, plan)
    assert [len(window.token_ids) for window in windows] == [400] * 5
    assert all(window.num_scored == 100 for window in windows)
    assert len({window.token_ids for window in windows}) == 5
    other = QualityPlan(context=300, scored=100, num_windows=5, seed=1)
    assert texts.text_windows(TOKENIZER, other) != windows


def test_files_are_spread_over_and_may_give_fewer_windows(tmp_path: Path):
    path = tmp_path / "book.txt"
    path.write_text("".join(chr(97 + n % 26) for n in range(1000)))
    plan = QualityPlan(context=90, scored=10, num_windows=3, texts=(str(path),))
    windows = texts.text_windows(TOKENIZER, plan)
    assert TOKENIZER.decode(windows[0].token_ids).startswith("abc")
    assert TOKENIZER.decode(windows[2].token_ids) == path.read_text()[900:]
    many = QualityPlan(context=250, scored=50, num_windows=30, texts=(str(path),))
    assert len(texts.text_windows(TOKENIZER, many)) == 3


def test_a_short_text_is_refused_with_both_lengths(tmp_path: Path):
    path = tmp_path / "note.txt"
    path.write_text("too short")
    plan = QualityPlan(context=90, scored=10, texts=(str(path),))
    with pytest.raises(RequestError, match="note.txt has 9 tokens and a window takes 100: give"):
        texts.text_windows(TOKENIZER, plan)


def test_a_missing_file_is_named(tmp_path: Path):
    plan = QualityPlan(texts=(str(tmp_path / "none.txt"),))
    with pytest.raises(RequestError, match="none.txt cannot be read .No such file"):
        texts.text_windows(TOKENIZER, plan)


def test_a_python_without_help_topics_asks_for_files(monkeypatch):
    monkeypatch.setitem(sys.modules, "pydoc_data.topics", None)
    with pytest.raises(RequestError, match="this Python comes without its help topics"):
        texts.text_windows(TOKENIZER, QualityPlan())


def test_a_huge_file_is_refused(tmp_path: Path):
    path = tmp_path / "huge.txt"
    with path.open("wb") as file:
        file.truncate(texts.MAX_TEXT_BYTES + 1)
    with pytest.raises(RequestError, match="huge.txt makes the text larger than 16 MiB"):
        texts.read_texts((str(path),))


@pytest.mark.parametrize("name", ["context", "scored", "num_windows", "scored_chunk"])
def test_a_plan_without_tokens_is_refused_by_name(name: str):
    with pytest.raises(SettingError, match=f"{name} = 0 is out of range: 1 to"):
        QualityPlan(**{name: 0})


def test_an_unknown_weight_format_is_refused():
    with pytest.raises(SettingError, match="weight_format = 'int3' is not allowed: choose one of"):
        QualityPlan(weight_format="int3")


def test_held_log_probabilities_are_bounded():
    plan = QualityPlan(scored=4096)
    assert plan.held_bytes(1000) == 4096 * 1000 * 4
    with pytest.raises(SettingError, match="scored = 4096 would hold 768 MiB of log-prob"):
        plan.held_bytes(49152)
    assert QualityPlan(scored=MAX_HELD_BYTES // (4 * 49152)).held_bytes(49152) <= MAX_HELD_BYTES


@pytest.mark.parametrize("aware", [False, True])
def test_a_needle_lies_at_its_depth_and_its_digits_are_scored(aware: bool):
    plan = QualityPlan(context=400, query_aware=aware)
    windows = needle_windows(TOKENIZER, plan)
    assert len(windows) == len(DEPTHS)
    places = []
    for window in windows:
        context = TOKENIZER.decode(window.token_ids[: window.context])
        answer = TOKENIZER.decode(window.token_ids[window.score_from + 1 :])
        assert len(answer) == 5 and answer.isdigit()
        assert f"archive is {answer}." in context
        assert ("Question:" in context) == aware
        assert len(window.token_ids[: window.context]) == 400
        places.append(context.index(answer))
    assert places == sorted(places)


def test_a_context_too_short_for_the_needle_is_refused():
    with pytest.raises(SettingError, match="context = 64 does not suit the needle: it takes"):
        needle_windows(TOKENIZER, QualityPlan(context=64))
