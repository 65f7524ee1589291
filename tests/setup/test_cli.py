"""The command line: quick help, sentences instead of tracebacks, one JSON object."""

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest
from typer.main import get_command

from workbench.cli import build_app
from workbench.commands import bench, model
from workbench.commands.settings import COST
from workbench.config import all_settings


def workbench(
    *arguments: str, env: dict[str, str] | None = None
) -> subprocess.CompletedProcess[str]:
    command = [str(Path(sys.executable).parent / "workbench"), *arguments]
    return subprocess.run(command, capture_output=True, text=True, env=env, timeout=120)


def test_help_names_every_command() -> None:
    done = workbench("--help")
    assert done.returncode == 0
    groups = {"": build_app(), "model": model.build_app(), "bench": bench.build_app()}
    for group, app in groups.items():
        shown = workbench(*group.split(), "--help").stdout
        found = set(re.findall(r"^\W*([a-z][a-z-]+) ", shown, re.MULTILINE))
        wanted = set(get_command(app).commands)  # type: ignore[attr-defined]
        assert len(wanted) > 1 and wanted <= found, group
    promised = {"model", "run", "bench", "check", "settings", "quality", "calibrate"}
    assert promised <= set(get_command(groups[""]).commands)  # type: ignore[attr-defined]


def test_help_imports_nothing_heavy() -> None:
    code = (
        "import sys, workbench.cli as cli; cli.build_app(); "
        "print([name for name in ('torch', 'streamlit', 'pandas', 'numpy') if name in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def test_settings_as_json_are_complete() -> None:
    rows = json.loads(workbench("settings", "--json").stdout)["settings"]
    assert [row["path"] for row in rows] == list(all_settings())
    for row in rows:
        assert row["change"] in COST and row["allowed"]
        assert row["choices"] == [] or row["default"] in row["choices"]


def test_settings_as_a_table() -> None:
    shown = workbench("settings").stdout
    assert "cache.k_format" in shown and "allowed" in shown


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        ("k_format=int8", "unknown setting 'k_format': did you mean cache.k_format?"),
        ("cache.colour=red", "unknown setting 'cache.colour': `workbench settings` lists them all"),
        ("cache.block_size=17", "cache.block_size = 17 is not allowed: choose one of 4, 8, 16"),
        ("cache.block_size=many", "cache.block_size = 'many' is not allowed: give a number"),
        ("scheduling.token_budget=0", "scheduling.token_budget = 0 is out of range: 1 to 16384"),
        ("cache.prefix_caching=maybe", "cache.prefix_caching = 'maybe' is not allowed: give true"),
        ("cache.block_size", "--set cache.block_size: give path=value"),
    ],
)
def test_a_bad_setting_is_one_sentence(change: str, sentence: str, tmp_path: Path) -> None:
    path = tmp_path / "prompts.jsonl"
    path.write_text('"Hello"\n')
    done = workbench("run", str(path), "--set", change)
    assert done.returncode == 2
    assert done.stderr.startswith(sentence), done.stderr
    assert done.stderr.count("\n") == 1 and done.stdout == ""


@pytest.mark.parametrize(
    ("content", "sentence"),
    [
        (b'{"prompt": ""}\n', "prompts.jsonl, line 1: prompt is empty: give at least one token"),
        (b'{"prompt": "a"}\n\nhello\n[]', "prompts.jsonl, line 3: is not JSON"),
        (b'{"promt": "a"}', "prompts.jsonl, line 1: has an unknown field 'promt': use prompt, "),
        (b"\n \n", "prompts.jsonl is empty: give a line such as"),
        (b"\xff\xfe\x00", "the file is not UTF-8 text"),
    ],
)
def test_a_bad_workload_is_one_sentence(content: bytes, sentence: str, tmp_path: Path) -> None:
    path = tmp_path / "prompts.jsonl"
    path.write_bytes(content)
    done = workbench("run", str(path))
    assert done.returncode == 2
    assert done.stderr.startswith(sentence), done.stderr
    assert done.stderr.count("\n") == 1


@pytest.mark.parametrize(
    ("name", "sentence"),
    [
        ("absent.jsonl", "absent.jsonl cannot be read (No such file or directory): name a JSONL"),
        ("/", "/ cannot be read (Is a directory)"),
        ("no_such_preset", "unknown workload 'no_such_preset': choose one of "),
    ],
)
def test_an_unknown_workload_is_one_sentence(name: str, sentence: str) -> None:
    done = workbench("run", name)
    assert done.returncode == 2
    assert done.stderr.startswith(sentence) and done.stderr.count("\n") == 1, done.stderr


def test_info_of_a_missing_or_foreign_model_is_one_sentence(tmp_path: Path) -> None:
    done = workbench("model", "info", str(tmp_path / "absent.gguf"))
    assert done.returncode == 2
    assert done.stderr.endswith("does not exist: name a GGUF file or a Hugging Face folder\n")
    (tmp_path / "foreign.gguf").write_bytes(b"GIF89a" + bytes(200))
    done = workbench("model", "info", str(tmp_path / "foreign.gguf"))
    assert done.returncode == 2
    assert "foreign.gguf" in done.stderr and done.stderr.count("\n") == 1
