"""Media unplugged and filled by hand, and put right again: counted misses, never wrong bytes."""

import contextlib
import os
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from app.panels.tiers_outages import outage_lines
from app.text import load_texts
from tests.engine.harness import Runner, build, pages, tokens
from workbench.clock import ManualClock
from workbench.engine.views.tier_report import set_outage, tiers_report
from workbench.errors import SettingError, TierError
from workbench.lab.fault_kinds import StoreProcess
from workbench.spatial.hierarchy.medium import MediumFault
from workbench.spatial.hierarchy.object_address import open_store

ON = {
    "G3": {"disk_pages": 40},
    "store": {"shared": "store", "shared_mib": 1.0},
    "valkey": {"shared": "valkey", "shared_mib": 8.0},
    "G4": {},
}
EMPTIED = ("store", "valkey")  # what they held dies with their process


@pytest.fixture
def own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The workbench's own cache folder, where its objects lie."""
    monkeypatch.setenv("KV_WORKBENCH_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache"


def tier_on(harness: Any, medium: str, own: Path, **more: Any) -> tuple[Any, str]:
    """A harness with one slow tier, and the tier's name."""
    settings = dict(ON[medium])
    if medium == "G4":
        settings["object_url"] = str(own / "objects")
    t = harness(0, settings.pop("disk_pages", 0), ManualClock(), **settings, **more)
    t.settle()
    return t, medium if medium.startswith("G") else "G3.5"


def fill(t: Any, *numbers: int) -> None:
    for number in numbers:
        t.store(t.key(number))
        t.settle()


def found(t: Any, *numbers: int) -> list[str]:
    tiers: list[str] = t.load([t.key(number) for number in numbers])
    t.settle()
    return tiers


def state(t: Any, name: str) -> Any:
    return t.h.outages()[name]


@pytest.mark.parametrize("medium", ON)
def test_an_unplugged_medium_is_missed_and_comes_back(harness: Any, own: Path, medium: str) -> None:
    t, name = tier_on(harness, medium, own)
    fill(t, 0, 1, 2, 3)
    assert state(t, name).can == ("unplugged", "full") and not state(t, name).kind
    t.h.strike(name, "unplugged")
    assert found(t, 0) == [""]
    fill(t, 10)
    now = state(t, name)
    assert now.kind == "unplugged" and now.num_faults == 2 and not now.left_alone
    for number in range(11, 25):
        fill(t, number)
    assert state(t, name).left_alone and state(t, name).num_faults < 12
    t.h.strike(name, "none")
    assert state(t, name).kind == "" and not state(t, name).left_alone
    for _ in range(200):  # a process takes a while to start
        fill(t, 30)
        if found(t, 30) == [name]:
            break
        t.clock.advance(6.0)
        time.sleep(0.05)
    assert found(t, 30) == [name]
    assert found(t, 2, 3) == (["", ""] if medium in EMPTIED else [name] * 2)


@pytest.mark.parametrize("medium", ON)
def test_a_full_medium_keeps_what_it_has(harness: Any, own: Path, medium: str) -> None:
    t, name = tier_on(harness, medium, own)
    fill(t, 0, 1, 2)
    t.h.strike(name, "full")
    fill(t, *range(10, 22))
    now = state(t, name)
    assert now.kind == "full" and 0 < now.num_faults <= 10 and now.left_alone
    assert {reason for tier, reason in t.faults()} == {"over_cap" if name == "G3" else "full"}
    t.clock.advance(6.0)
    assert found(t, 0, 1, 2) == [name] * 3, "what it holds can be read"
    t.h.check_integrity()
    t.h.strike(name, "none")
    fill(t, 30, 31)
    assert found(t, 30, 31) == [name] * 2 and found(t, 0, 1, 2) == [name] * 3


def test_a_full_disk_gives_its_room_back_to_the_file_system(harness: Any, own: Path) -> None:
    t, name = tier_on(harness, "G3", own)
    fill(t, 0, 1)
    disk = t.disk.medium
    before = disk.file_bytes
    t.h.strike("G3", "full")
    t.settle()
    assert disk.file_bytes < before / 2 and os.stat(disk.place).st_blocks * 512 == disk.file_bytes
    t.h.strike("G3", "none")
    t.settle()
    assert disk.file_bytes >= before - 4096 and disk.capacity_bytes == t.disk.cap_bytes
    disk.check()


def test_stores_go_past_an_unplugged_tier(harness: Any, own: Path) -> None:
    t = harness(0, 40, ManualClock(), object_url=str(own / "objects"))
    t.settle()
    t.h.strike("G3", "unplugged")
    fill(t, *range(20))
    assert len(t.h.entries("G4")) == 12, "the first eight showed that the disk fails"
    assert found(t, 19) == ["G4"]


def test_only_media_of_ours_are_unplugged(harness: Any, tmp_path: Path, own: Path) -> None:
    (tmp_path / "store").mkdir(mode=0o700)
    process = StoreProcess(f"ipc://{tmp_path}/store/socket", 1.0)
    with process.serving():
        t = harness(0, 0, ManualClock(), shared="store", shared_address=process.address,
                    shared_mib=1.0, object_url=str(tmp_path / "mine"))  # fmt: skip
        t.settle()
        assert state(t, "G3.5").can == () and state(t, "G4").can == ("full",)
        for name, kind in (("G3.5", "unplugged"), ("G3.5", "full"), ("G4", "unplugged"),
                           ("G3", "full")):  # fmt: skip
            with pytest.raises(TierError, match=f"{name} cannot be {kind}: it is off, knows no"):
                t.h.strike(name, kind)
        fill(t, 0)
        assert found(t, 0) == ["G3.5"]
        client = t.h.mover.ladder.tiers[1].medium
        with pytest.raises(MediumFault, match="malformed"):
            client.fill_up()  # a store that others use is not sealed by one of them
        fill(t, 1)
        assert found(t, 1) == ["G3.5"]
        t.h.close()


@pytest.mark.parametrize("medium", ON)
def test_an_outage_ends_with_its_tier(harness: Any, own: Path, medium: str) -> None:
    t, name = tier_on(harness, medium, own)
    fill(t, 0)
    t.h.strike(name, "unplugged")
    with pytest.raises(TierError, match=f"{name} is unplugged already: plug it in again first"):
        t.h.strike(name, "full")
    t.h.close()  # leaves no hidden folder, no process, no descriptor of another file
    if medium == "G4":
        later, _ = tier_on(harness, medium, own)
        later.settle()
        assert found(later, 0) == ["G4"]


def test_a_folder_that_a_dead_engine_left_hidden_is_shown_again(harness: Any, own: Path) -> None:
    t, _ = tier_on(harness, "G4", own)
    fill(t, 0)
    medium = t.h.mover.ladder.tiers[2].medium
    medium.unplug()
    folder = Path(medium._opened.folder)
    assert folder.is_file()
    again = open_store(str(own / "objects"))
    assert folder.is_dir() and again.folder == str(folder)
    t.h.strike("G4", "none")  # nothing to do
    assert found(t, 0) == ["G4"]


# ---- with an engine


@contextlib.contextmanager
def engine_with(**tiers: Any) -> Iterator[Runner]:
    changes = {"cache.hbm_budget_mib": pages(32)} | {f"tiers.{k}": v for k, v in tiers.items()}
    runner = Runner(build(changes))
    try:
        yield runner
    finally:
        runner.engine.close()


def asked(runner: Runner, *seeds: int) -> list[list[int]]:
    answers = []
    for seed in seeds:
        answers.append(runner.one(tokens(96, seed), 4))
        runner.engine.hierarchy.wait_io()
    return answers


@pytest.mark.parametrize("kind", ["unplugged", "full"])
@pytest.mark.parametrize(
    "medium", ["G3", "G4", *(pytest.param(pool, marks=pytest.mark.long) for pool in EMPTIED)]
)
def test_answers_stay_the_same_through_an_outage(own: Path, medium: str, kind: str) -> None:
    name = medium if medium.startswith("G") else "G3.5"
    on = {"G3": {"disk_mib": 1.0}, "G4": {"object_url": str(own / "objects")}}.get(
        medium, ON[medium]
    )
    texts = load_texts()
    with engine_with() as plain:
        expected = asked(plain, 1, 2, 3)
    with engine_with(**on) as runner:
        assert asked(runner, 1, 2, 3) == expected
        set_outage(runner.engine, name, kind)
        assert asked(runner, 1, 2, 3, 4, 5)[:3] == expected
        report = tiers_report(runner.engine)
        (tier,) = (tier for tier in report.tiers if tier.name == name)
        assert tier.outage is not None and tier.outage.kind == kind and tier.outage.num_faults > 0
        (line,) = outage_lines(texts, report)
        assert line.startswith(f"{name} is {kind}.") and f"since: {tier.outage.num_faults}" in line
        assert "was computed again" in line
        set_outage(runner.engine, name, "none")
        assert (
            asked(runner, 1, 2, 3) == expected
            and outage_lines(texts, tiers_report(runner.engine)) == []
        )
        runner.engine.hierarchy.check_integrity()


def test_an_outage_that_does_not_exist_is_refused() -> None:
    with engine_with(disk_mib=1.0) as runner:
        with pytest.raises(SettingError, match="unknown tier 'G2': choose one of G3, G3.5, G4"):
            set_outage(runner.engine, "G2", "full")
        with pytest.raises(
            SettingError, match="unknown outage 'wet': choose one of unplugged, full"
        ):
            set_outage(runner.engine, "G3", "wet")
        set_outage(runner.engine, "G3", "none")  # nothing to put right
        assert tiers_report(runner.engine).tiers[0].outage is None, "DRAM has no plug"
