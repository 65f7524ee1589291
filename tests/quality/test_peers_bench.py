"""The comparison with quantized caches and kvpress: what it refuses, reads, and concludes."""

import json
import sys
from pathlib import Path

import numpy as np
import pytest

from workbench.errors import WorkbenchError
from workbench.quality import peers_bench, peers_kept
from workbench.quality.metrics import TokenScores
from workbench.quality.peers_process import (
    ENVIRONMENT,
    CacheRun,
    CachesAnswer,
    PressesAnswer,
    ask_peer,
    missing_environment,
    read_answer,
)
from workbench.quality.results import ByteReport
from workbench.quality.run import Contender

RUN = {"kl": [[0.1, 0.3]], "same": [[True, False]], "bits": 5.0, "bits_later": 9.0}


def quiet(text: str) -> None:
    """Progress that nobody reads."""


def lines(*messages: object) -> list[str]:
    return [json.dumps(message) for message in messages]


def test_without_the_environment_each_figure_says_how_to_make_it(tmp_path: Path) -> None:
    plan = peers_bench.PeersQualityPlan(*peers_bench.QUICK, root=tmp_path)
    figures = peers_bench.measure(quiet, plan=plan)
    assert [figure.name for figure in figures] == list(peers_bench.NAMES)
    assert {figure.note for figure in figures} == {
        "the peers' environment .venv-caches is missing: make it with `bash tests/peers/setup.sh "
        "caches`"
    }
    assert {figure.provenance for figure in figures} == {"refused"}


def test_answers_are_read_after_their_progress() -> None:
    told: list[str] = []
    answer = read_answer(
        lines({"progress": "window 1"}, {"answer": {"versions": {}, "caches": {"hqq4": RUN}}}),
        CachesAnswer, "quality_caches.py", told.append,
    )  # fmt: skip
    assert told == ["window 1"]
    assert answer is not None
    assert answer.caches["hqq4"].mean_kl == pytest.approx(0.2)
    assert answer.caches["hqq4"].top1 == 0.5
    assert read_answer([], CachesAnswer, "quality_caches.py", quiet) is None


@pytest.mark.parametrize(
    "line",
    ["no json", "[]", "{}", '{"answer": {}}', '{"answer": {"versions": {}, "caches": {"a": {}}}}'],
)
def test_a_line_that_is_neither_is_refused(line: str) -> None:
    with pytest.raises(
        WorkbenchError,
        match="the peer it.py printed a line that is no progress and no answer",
    ):
        read_answer([line], CachesAnswer, "it.py", quiet)


def test_a_press_without_its_kept_tokens_is_refused() -> None:
    presses = {"tova": {"0.5": {"kl": [[0.1]], "same": [[True]]}}}
    message = lines({"answer": {"versions": {}, "presses": presses}})
    with pytest.raises(WorkbenchError, match="missing required field `kept`"):
        read_answer(message, PressesAnswer, "it.py", quiet)


def test_a_peer_that_ends_early_names_its_reason(tmp_path: Path) -> None:
    python = tmp_path / ENVIRONMENT / "bin/python"
    python.parent.mkdir(parents=True)
    python.symlink_to(sys.executable)
    assert missing_environment(tmp_path) == ""
    with pytest.raises(
        WorkbenchError, match=r"the peer no_such.py ended without an answer \(.*No such file"
    ):
        ask_peer(
            "no_such.py", {"threads": 1}, CachesAnswer, tmp_path, tmp_path / "log", quiet
        )  # fmt: skip


def contender(name: str, kl: float, bits: float) -> Contender:
    zeros = np.zeros(64)
    scores = TokenScores(zeros, zeros == 0, zeros + kl, *[zeros] * 6)
    held = ByteReport(
        allocated=1, live=1, metadata=0, touched=64, bits_per_element=bits, ratio_to_bf16=1.0,
        tokens_per_mib=1.0, tokens_stored=1.0, num_tokens=1,
    )  # fmt: skip
    return Contender(name, peers_bench.lab_engine, windows=[scores], bytes=held)  # type: ignore[arg-type]


def peer(kl: float, bits: float) -> CacheRun:
    return CacheRun(kl=[[kl] * 64], same=[[True] * 64], bits=bits, bits_later=bits)


def test_ratios_take_the_best_peer_and_ours_within_its_bits() -> None:
    theirs = CachesAnswer(
        versions={}, caches={"quanto4": peer(0.04, 5.0), "quanto4_channel": peer(0.02, 5.0),
                             "hqq4": peer(0.1, 2.5)},
    )  # fmt: skip
    ours = [contender("large", 0.001, 5.5), contender("fits", 0.01, 5.0),
            contender("small", 0.03, 3.0)]  # fmt: skip
    figures = {
        figure.name: figure
        for figure in peers_bench.cache_figures(theirs, ours, peers_bench.QUICK[0])
    }
    assert figures["kl_ratio_quanto"].value == pytest.approx(0.5)
    assert figures["kl_ratio_quanto"].note.startswith(
        "our fits at 5 bits a number, quanto4_channel at 5; 95 %: 0.50 to 0.50"
    )
    assert figures["kl_ratio_hqq"].value is None
    assert figures["kl_ratio_hqq"].note == "n/a: none of ours takes at most the 2.5 bits of hqq4"
    assert figures["kl_ratio_hqq_2bit"].note == "n/a: the peer did not run it"
    assert figures["scored_tokens_peers"].value == 64
    assert figures["kl_ours_large"].value == pytest.approx(0.001)


def test_a_fifth_kept_says_whether_the_claim_holds(model) -> None:
    plan = peers_bench.QUICK[2]
    told: list[str] = []
    (figure,) = peers_kept.measure_kept(model, plan, told.append)
    assert figure.name == "top1_at_20pct_kept" and 0 <= figure.value <= 100
    assert "38 of 192 tokens a head" in figure.note
    assert "First window: sink+window uniform" in figure.note
    assert any("ada+pyramid" in text for text in told)


@pytest.mark.parametrize(
    ("share", "verdict"), [(0.5, "does not hold"), (0.9, "neither shown nor refuted"), (1, "holds")]
)
def test_the_verdict_needs_more_than_chance(share: float, verdict: str) -> None:
    zeros = np.zeros(200)
    best = np.where(np.arange(200) < 200 * share, 0, 1)
    scores = TokenScores(zeros, zeros == 0, zeros, zeros, zeros, zeros, zeros, best, zeros)
    figure = peers_kept.figure(("tova", "ada"), scores, peers_bench.PLAN[2], 205, "")
    assert figure.value == pytest.approx(100 * share)
    assert f" {verdict} for this 135M model" in figure.note


@pytest.mark.long
@pytest.mark.timeout(1800)
def test_the_peers_keep_what_ours_keep() -> None:
    if sentence := missing_environment(peers_bench.ROOT):
        pytest.skip(sentence)
    figures = {figure.name: figure for figure in peers_bench.measure(quiet, quick=True)}
    assert figures["kept_sets_equal"].value == 1, figures["kept_sets_equal"].note
    assert figures["kl_press_difference_max"].value <= 1e-3
    for name in ("kl_ratio_quanto", "kl_ratio_hqq"):
        assert 0 < figures[name].value <= 1, figures[name].note
