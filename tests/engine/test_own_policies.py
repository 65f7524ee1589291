"""Policy files of the user's own: what is read, what is run, and what never takes effect."""

import sys
from pathlib import Path

import pytest

from tests.engine.harness import Runner, build, pages, tokens
from workbench.cache.placement import PlacementPolicy
from workbench.engine.builtin import builtin_registry
from workbench.errors import SettingError
from workbench.own_policies import (
    FOLDER_VARIABLE,
    MOST_BYTES,
    MOST_FILES,
    policies_folder,
    policy_files,
    read_policy,
    run_policy,
)
from workbench.registry import KINDS, Registry

EXAMPLE = Path(__file__).parents[2] / "docs" / "examples" / "placement_policy.py"
POLICY = """
from dataclasses import dataclass

@dataclass(slots=True)
class Mine:
    by_recency: bool = False
    needs_mass: bool = False

    def keep(self, page, at, below):
        return {worth}

    def takers(self, page, below):
        return [tier.name for tier in below]

def register(registry):
    registry.register("placement", "{name}", Mine)
"""


def contents(registry: Registry) -> dict[str, list[str]]:
    return {kind: registry.names(kind) for kind in KINDS}


def test_the_example_serves_the_same_tokens() -> None:
    registry = builtin_registry()
    assert run_policy("example", read_policy(EXAMPLE), registry, []) == [
        ("placement", "beginnings")
    ]
    tiers = {"cache.hbm_budget_mib": pages(32), "tiers.dram_mib": 0.02, "tiers.disk_mib": 0.5}
    runner = Runner(build(tiers | {"tiers.policy": "beginnings"}, registry=registry))
    plain = Runner(build({"cache.hbm_budget_mib": pages(32)}))
    for seed in (0, 1, 2, 0, 1):
        assert runner.one(tokens(60, seed), 6) == plain.one(tokens(60, seed), 6)
    placer = runner.engine.hierarchy.mover.placer
    assert type(placer.policy).__name__ == "Beginnings" and placer.num_faults == 0
    assert runner.engine.fetch_counters.num_loaded_pages > 0
    runner.engine.close()
    plain.engine.close()


def test_a_file_loaded_again_replaces_what_it_had_registered() -> None:
    registry = builtin_registry()
    first = run_policy("mine", POLICY.format(worth=1.0, name="mine"), registry, [])
    old = registry.create("placement", "mine")
    second = run_policy("mine", POLICY.format(worth=2.0, name="mine"), registry, first)
    assert first == second == [("placement", "mine")]
    new = registry.create("placement", "mine")
    assert (old.keep(None, None, []), new.keep(None, None, [])) == (1.0, 2.0)
    running = sys.modules[new.__class__.__module__]
    with pytest.raises(SettingError, match="registers nothing"):
        run_policy("mine", "def register(registry): pass", registry, second)
    assert sys.modules[new.__class__.__module__] is running, "what runs keeps its module"
    third = run_policy("mine", POLICY.format(worth=2.0, name="other"), registry, second)
    assert third == [("placement", "other")] and "mine" not in registry.names("placement")


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("def register(registry)\n    pass", r"mine.py, line 1, ended with SyntaxError"),
        ("x = 1\n\nx / 0", r"mine.py, line 3, ended with ZeroDivisionError: division by zero"),
        ("import nowhere_at_all", r"line 1, ended with ModuleNotFoundError"),
        ("raise SystemExit(3)", r"line 1, ended with SystemExit: 3"),
        ("x = 1", r"mine.py has no function register: give it one"),
        ("register = 3", r"mine.py has no function register"),
        ("def register(registry): pass", r"mine.py registers nothing: call registry.register"),
        ("def register(): pass", r"mine.py ended with TypeError"),
        (POLICY.format(worth=1, name="lru"), r"placement 'lru' is registered already"),
        (
            "def register(registry):\n"
            "    registry.register('placement', 'a', object)\n"
            "    registry.register('places', 'b', object)",
            r"unknown kind 'places': choose one of",
        ),
    ],
)  # fmt: skip
def test_a_file_that_fails_changes_nothing(text: str, sentence: str) -> None:
    registry = builtin_registry()
    before = contents(registry)
    with pytest.raises(SettingError, match=sentence):
        run_policy("mine", text, registry, [])
    assert contents(registry) == before


def test_files_that_cannot_be_read_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "mine.py"
    with pytest.raises(SettingError, match=r"mine.py cannot be read \(No such file"):
        read_policy(path)
    path.write_bytes(b"\xff\xfe")
    with pytest.raises(SettingError, match="mine.py is no UTF-8 text"):
        read_policy(path)
    path.write_text("#" * (MOST_BYTES + 1))
    with pytest.raises(SettingError, match="has 262,145 bytes: keep it below 262,144"):
        read_policy(path)
    path.write_text("# text")
    path.chmod(0o646)
    with pytest.raises(SettingError, match="can be written by anybody: chmod o-w it"):
        read_policy(path)
    path.chmod(0o644)
    assert read_policy(path) == "# text"


def test_only_python_files_of_the_folder_are_listed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "policies"
    monkeypatch.setenv(FOLDER_VARIABLE, str(folder))
    assert policies_folder() == folder and policy_files() == []
    (folder / "deep.py").mkdir(parents=True)
    for name in ("b.py", "a.py", ".hidden.py", "notes.txt"):
        (folder / name).write_text("")
    assert [path.name for path in policy_files()] == ["a.py", "b.py"]
    for number in range(MOST_FILES):
        (folder / f"c{number:03}.py").write_text("")
    assert len(policy_files()) == MOST_FILES
    monkeypatch.delenv(FOLDER_VARIABLE)
    assert policies_folder().parts[-2:] == ("kv-workbench", "policies")


def test_a_registry_without_names_is_a_copy() -> None:
    registry = builtin_registry()
    copy = registry.without([("placement", "cost")])
    assert "cost" in registry.names("placement") and "cost" not in copy.names("placement")
    copy.register("placement", "mine", PlacementPolicy)
    assert copy.added_to(registry) == [("placement", "mine")]
    assert "mine" not in registry.names("placement")
