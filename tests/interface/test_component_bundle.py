"""The ES module is joined correctly from its files, and its strings are complete."""

import re
import shutil
import subprocess
from pathlib import Path

import pytest

from app.components.live_view.bundle import SOURCES, default_text, files_in_order, module_source
from workbench.events import EVENT_KINDS

DECLARATION = re.compile(
    r"^(?:export )?(?:async )?(?:function|class|const|let) (\w+)(?:[^=\n;]*= [^,;\n(]+, (\w+) =)?",
    re.M,
)


def top_level_names() -> list[str]:
    names: list[str] = []
    for path in SOURCES.glob("*.js"):
        for first, second in DECLARATION.findall(path.read_text(encoding="utf-8")):
            names += [name for name in (first, second) if name]
    return names


def test_every_file_is_joined_and_names_are_unique() -> None:
    assert set(files_in_order()) == {path.name for path in SOURCES.glob("*.js")}
    names = top_level_names()
    assert sorted(names) == sorted(set(names))


@pytest.mark.parametrize("target", ["streamlit", "widget"])
def test_the_module_stands_alone(target: str) -> None:
    source = module_source(target)
    assert not re.search(r"^\s*import\b", source, re.M)
    assert "</script" not in source


@pytest.mark.parametrize("target", ["streamlit", "widget"])
def test_node_parses_the_module(target: str, tmp_path: Path) -> None:
    node = shutil.which("node")
    if node is None:
        pytest.skip("no node: the browser parses the module in the component's tests")
    path = tmp_path / "module.mjs"
    path.write_text(module_source(target), encoding="utf-8")
    done = subprocess.run([node, "--check", str(path)], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


def test_an_unknown_target_is_named() -> None:
    with pytest.raises(ValueError, match="target = 'vue' is unknown: choose streamlit or widget"):
        module_source("vue")


def test_files_are_small_and_never_parse_markup() -> None:
    for path in SOURCES.glob("*.js"):
        text = path.read_text(encoding="utf-8")
        assert len(text.splitlines()) < 300, path.name
        for word in ("innerHTML", "outerHTML", "insertAdjacentHTML", "document.write", "eval("):
            assert word not in text, f"{path.name} uses {word}"


def test_every_literal_key_has_an_english_string() -> None:
    text = default_text()
    for path in SOURCES.glob("*.js"):
        for key in re.findall(r'words\("([\w.]+)"', path.read_text(encoding="utf-8")):
            assert key in text, f"{path.name}: {key}"


@pytest.mark.parametrize("kind", EVENT_KINDS)
def test_every_event_has_a_sentence(kind: str) -> None:
    sentence = default_text()[f"event.{kind}"]
    assert sentence[0].isupper() or sentence[0] == "{"
    assert sentence.endswith((".", "}"))
