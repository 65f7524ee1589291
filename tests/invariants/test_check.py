"""`workbench check`: a short run here, the whole one in the long tests, and what it must catch."""

import json
import subprocess
import sys

import pytest

from tests.engine.harness import Runner, build, model, tokens
from workbench.config import all_settings
from workbench.lab.check import Check, measure
from workbench.lab.planted import PLANTED, catch
from workbench.lab.random_changes import CHANGES
from workbench.lab.random_load import ABORT_STATES


@pytest.mark.parametrize("seed", [4, 6])
def test_random_run_violates_nothing(seed: int) -> None:
    check = Check(model(seed - 1), seed)
    check.run(200, lambda text: None)
    assert check.violations == []
    assert check.engine.log.totals["preempt"] > 10 and check.counts["evictions"] > 50
    assert check.counts["compared"] > 0


def test_every_setting_is_changed_but_those_that_name_what_is_not_there() -> None:
    changed = {path for changes in CHANGES.values() for each in changes for path in each}
    named = {
        "model.path", "model.weight_format", "model.num_threads", "cache.calibration",
        "cache.rank_plan", "tiers.disk_path", "tiers.disk_transport", "tiers.shared_address",
        "tiers.shared_transport", "tiers.object_transport",
    }  # fmt: skip
    folders = {"tiers.object_url"}  # of the run's own
    assert changed.isdisjoint(named | folders)
    assert changed | named | folders == set(all_settings())


@pytest.mark.parametrize("name", PLANTED)
def test_planted_fault_is_caught(name: str) -> None:
    words = {
        "leaked reference": "I2: block", "late write": "I3: the bytes of hashed block",
        "wrong hash": "I3:", "double free": "I2: block", "stale table": "I2: block",
    }  # fmt: skip
    assert catch(name, model()).startswith(words[name])


def test_a_wrong_token_is_a_violation() -> None:
    check = Check(model(), 0)
    check.load.prompts["x"], check.load.outputs["x"] = tokens(9), [1, 2, 3]
    check._compare("x")
    assert check.violations == ["I9: request x differs from the naive loop at 0"]


def test_more_planted_faults_are_caught() -> None:
    """Faults beyond the five: positions, ownership, slabs, keys, lengths."""

    def live() -> Runner:
        runner = Runner(build())
        runner.add(tokens(22), 20)
        runner.add(tokens(13, 1), 20)
        runner.step(4)
        return runner

    def broken(runner: Runner) -> str:
        return runner.engine.check_integrity().message

    runner = live()
    runner.engine.stack.manager.requests["1"].stored_len[0] += 1
    assert broken(runner).startswith("I4: ")
    runner = live()
    runner.engine.stack.manager.requests["1"].pos[0, 8:12] += 4
    assert broken(runner).startswith("I3: ") or broken(runner).startswith("I4: ")
    runner = live()  # two tables swap their tails: counts agree, owners do not
    first, second = (runner.engine.stack.manager.requests[name] for name in ("1", "2"))
    one, two = first.num_pages[0] - 1, second.num_pages[0] - 1
    first.table[0, one], second.table[0, two] = second.table[0, two], first.table[0, one]
    assert broken(runner).startswith("I3: request ")
    runner = live()
    row = runner.engine.stack.pool.index.rows()[0]
    row.lineage = "int8@model"
    assert broken(runner) == f"I3: the key of block {row.blocks[0]} is not the hash of its tokens"
    runner = live()
    runner.engine.stack.pool._unassigned.pop()
    assert broken(runner).startswith("I1: ")
    runner = live()
    runner.engine.requests["1"].num_computed_tokens = 99
    assert broken(runner).startswith("I4: ")


@pytest.mark.long
@pytest.mark.timeout(1800)
def test_the_whole_check() -> None:
    command = [sys.executable, "-m", "workbench.cli", "check", "--steps", "5000", "--json"]
    command[1:3] = ["-c", "from workbench.cli import main; main()"]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    figures = {each["name"]: each["value"] for each in json.loads(done.stdout)["figures"]}
    assert figures["check_violations"] == 0
    assert figures["check_preemptions"] >= 100
    assert figures["check_evictions"] >= 100
    assert figures["check_tier_faults"] >= 50
    assert figures["check_aborts_by_state"] >= 1
    for kind in ("hot", "recode", "rebuild"):
        assert figures[f"check_applies_{kind}"] >= 20
    assert figures["planted_caught"] == 5


def test_figures_have_the_names_the_docs_know() -> None:
    names = {figure.name for figure in measure(lambda text: None, steps=3, seed=0)}
    assert names >= {
        "check_violations", "check_preemptions", "check_evictions", "check_tier_faults",
        "check_applies_hot", "check_applies_recode", "check_applies_rebuild",
        "check_aborts_by_state", "planted_caught",
    }  # fmt: skip
    assert len(ABORT_STATES) == 6
