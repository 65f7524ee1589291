"""A text of the user's: what is refused, and that a job reads it and leaves no file behind."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from app.panels.quality_card import basis
from app.quality.jobs import QualityJobs, follow_until
from app.quality.own_text import MAX_TEXT_BYTES, OwnText, TextFile, read_text
from app.text import load_texts
from workbench.errors import RequestError
from workbench.quality.job_protocol import JobPlan
from workbench.quality.plan import QualityPlan
from workbench.quality.results import Setting

PLAN = QualityPlan(context=160, scored=16, num_windows=1, context_chunk=32)
INT4 = Setting(name="int4", changes={"cache.k_format": "int4", "cache.v_format": "int4"})


@pytest.mark.parametrize("data, told", [
    (b"", "a.txt is empty: give some pages of text"),
    (b" \n\t", "a.txt is empty"),
    (b"abc\xff", "a.txt is no UTF-8 text (byte 3): save it as UTF-8"),
    ("ab".encode("utf-16"), "a.txt is no UTF-8 text"),
    (b"ab\0c", "a.txt holds zero bytes, so it is no text: choose a text file"),
    (b"x" * (MAX_TEXT_BYTES + 1), "a.txt has 524,289 bytes: give a text of at most 512 KiB"),
])  # fmt: skip
def test_a_bad_text_is_one_sentence(data: bytes, told: str) -> None:
    with pytest.raises(RequestError) as refused:
        read_text("a.txt", data)
    assert str(refused.value).startswith(told) and "\n" not in str(refused.value)


def test_a_text_is_read_as_it_is() -> None:
    own = read_text("../../etc/my notes.txt", "\ufeffüber\r\nall".encode())
    assert own == OwnText("my_notes.txt", "über\r\nall")
    assert own.label.startswith("my_notes.txt (") and len(own.label) == len("my_notes.txt ()") + 8
    file = TextFile(own)
    assert file.path.read_bytes() == "über\r\nall".encode()
    assert file.path.parent.stat().st_mode & 0o077 == 0
    file.close()
    file.close()
    assert not file.path.parent.exists()


@pytest.fixture
def jobs() -> Iterator[QualityJobs]:
    owner = QualityJobs()
    yield owner
    owner.close()


def measured(jobs: QualityJobs, own: OwnText | None) -> str:
    """KL on a text, as told; the file is gone afterwards."""
    jobs.start(JobPlan(settings=[INT4], plan=PLAN, random_layers=2), "sweep", own)
    path = jobs._file.path if jobs._file else None
    assert (path is None) == (own is None)
    assert follow_until(jobs, lambda status: not status.running, 60)
    assert path is None or not path.exists()
    return jobs.status.error


def test_a_job_reads_the_text_and_says_so(jobs: QualityJobs) -> None:
    own = OwnText("book.txt", "The quick brown fox jumps over the lazy dog. " * 20)
    assert measured(jobs, None) == ""
    built_in = jobs.result("int4")
    assert measured(jobs, own) == ""
    ours = jobs.result("int4")
    assert built_in is not None and ours is not None
    assert built_in.text == "" and ours.text == own.label
    assert built_in.report.kl_mean != ours.report.kl_mean
    assert built_in.report.perplexity_full != ours.report.perplexity_full
    texts = load_texts()
    assert f"Text: {own.label}." in basis(texts, ours) and "Text:" not in basis(texts, built_in)
    assert jobs.text(own.label) == own and jobs.text("") is None
    jobs.clear()
    with pytest.raises(RequestError, match="is no longer held: choose its file again"):
        jobs.text(own.label)


def test_a_text_too_short_is_told_by_its_own_name(jobs: QualityJobs) -> None:
    error = measured(jobs, OwnText("note.txt", "too short"))
    assert error.startswith("note.txt has 9 tokens and a window takes 176: give a longer text")
    assert jobs.status.state == "failed" and str(Path("/")) not in error
