"""Set-up files agree with one another and with what the traps demand."""

import re
import subprocess
import sys
import tomllib
import zipfile
from pathlib import Path

import pytest
from packaging.markers import Marker
from packaging.requirements import Requirement
from typer.main import get_command

from workbench.cli import build_app


@pytest.fixture(scope="module")
def project(repo_root: Path) -> dict:
    return tomllib.loads((repo_root / "pyproject.toml").read_text())["project"]


@pytest.fixture(scope="module")
def pins(repo_root: Path) -> dict[str, str]:
    lines = (repo_root / "constraints.txt").read_text().splitlines()
    parsed = [Requirement(line) for line in lines if line and not line.startswith("#")]
    return {canonical(item.name): str(item.specifier) for item in parsed}


def canonical(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()


def requirements(project: dict) -> list[Requirement]:
    lines = list(project["dependencies"])
    for extra in project["optional-dependencies"].values():
        lines += extra
    return [Requirement(line) for line in lines]


def test_every_dependency_is_pinned_exactly_inside_its_range(
    project: dict, pins: dict[str, str]
) -> None:
    assert all(re.fullmatch(r"==[^,*+]+", pin) for pin in pins.values())
    for item in requirements(project):
        if canonical(item.name) in ("kv-workbench", "setuptools"):
            continue
        pin = pins[canonical(item.name)]
        assert item.specifier.contains(pin.removeprefix("==")), f"{item} against {pin}"


def test_triton_is_for_linux_only(project: dict) -> None:
    triton = next(item for item in requirements(project) if item.name == "triton")
    assert isinstance(triton.marker, Marker)
    assert triton.marker.evaluate({"sys_platform": "linux"})
    assert not triton.marker.evaluate({"sys_platform": "darwin"})
    assert not triton.marker.evaluate({"sys_platform": "win32"})


def test_set_up_files_name_no_index(repo_root: Path) -> None:
    names = ("pyproject.toml", "constraints.txt", "Makefile", ".ci/run", "README.md")
    for name in names:
        text = (repo_root / name).read_text()
        assert not re.search(r"index-url\s*=?\s*\S*//|/simple\b|find-links|file://", text), name


def test_commands_named_in_the_readme_exist(repo_root: Path) -> None:
    makefile = (repo_root / "Makefile").read_text()
    for path in ("README.md", "docs/benchmarks.md"):
        text = (repo_root / path).read_text()
        for target in set(re.findall(r"(?:^|`)make ([a-z][a-z-]*)", text, re.MULTILINE)):
            assert re.search(rf"^{target}:", makefile, re.MULTILINE), f"{path}: make {target}"
    help_text = subprocess.run(
        ["make", "help"], cwd=repo_root, capture_output=True, text=True, check=True
    ).stdout
    for target in ("app", "test", "test-long", "lint", "bench", "notebook", "clean"):
        assert f"make {target} " in help_text


def test_workbench_commands_named_in_the_documents_exist(repo_root: Path) -> None:
    """`workbench NAME [NAME] --option ...` in a fence or in backticks, with each of its options."""
    root = get_command(build_app())
    found = 0
    for path in ("README.md", *map(str, (repo_root / "docs").glob("*.md"))):
        text = (repo_root / path).read_text()
        for line in re.findall(r"(?:^|`|bin/)workbench ([a-z][^`\n]*)", text, re.MULTILINE):
            words, command = line.split("#")[0].split(), root
            while words and words[0] in getattr(command, "commands", {}):
                command = command.commands[words.pop(0)]  # type: ignore[attr-defined]
            assert command is not root, f"{path}: workbench {line}"
            known = {option for param in command.params for option in param.opts} | {"--help"}
            used = {word.split("=")[0] for word in words if word.startswith("--")}
            assert used <= known, f"{path}: workbench {line}"
            found += 1
    assert found > 10


def test_structure_names_every_package(repo_root: Path) -> None:
    text = (repo_root / "docs/structure.md").read_text()
    packages = [
        path.parent.relative_to(repo_root)
        for path in (repo_root / "workbench").rglob("__init__.py")
        if any(item.suffix == ".py" and item != path for item in path.parent.iterdir())
    ]
    missing = [str(path) for path in packages if f"`{path}/`" not in text]
    assert not missing, f"docs/structure.md has no line for {missing}"


def test_structure_names_no_package_without_code(repo_root: Path) -> None:
    text = (repo_root / "docs/structure.md").read_text()
    folders = re.findall(r"^\| `([\w/]+)/` \|", text, re.MULTILINE)
    empty = [name for name in folders if not _holds_code(repo_root / name)]
    assert len(folders) > 20 and not empty, f"docs/structure.md tells of {empty}, where no code is"


def _holds_code(folder: Path) -> bool:
    found = (path for kind in ("py", "ipynb") for path in folder.rglob(f"*.{kind}"))
    return any(path.stat().st_size > 0 for path in found)


def test_wheel_contains_the_packages(repo_root: Path, tmp_path: Path) -> None:
    """Built from a copy of the sources, so that nothing is left beside them."""
    subprocess.run(
        ["git", "checkout-index", "--all", f"--prefix={tmp_path}/source/"],
        cwd=repo_root, check=True, capture_output=True,
    )  # fmt: skip
    build = (
        "import sys; from setuptools import build_meta; print(build_meta.build_wheel(sys.argv[1]))"
    )
    done = subprocess.run(
        [sys.executable, "-c", build, str(tmp_path)],
        cwd=tmp_path / "source", capture_output=True, text=True, timeout=120,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-2000:]
    with zipfile.ZipFile(tmp_path / done.stdout.split()[-1]) as wheel:
        names = wheel.namelist()
    tops = {name.split("/")[0] for name in names if ".dist-info" not in name}
    assert tops == {"workbench", "kvkernels"}
    for name in ("workbench/cli.py", "workbench/cache/keys.py", "kvkernels/layout.py"):
        assert name in names


def test_pypis_kernels_is_not_shadowed(repo_root: Path, tmp_path: Path) -> None:
    """transformers asks for PyPI's `kernels`: our folder of that name must never answer."""
    assert not (repo_root / "kernels/__init__.py").exists()
    find = "import importlib.util as u; s = u.find_spec('kernels'); print(s and s.origin)"
    for folder in (tmp_path, repo_root):
        done = subprocess.run(
            [sys.executable, "-c", find], cwd=folder, capture_output=True, text=True, check=True
        )
        origin = done.stdout.strip()
        assert origin == "None" or not origin.startswith(str(repo_root / "kernels"))
    package = tmp_path / "kernels"
    package.mkdir()
    (package / "__init__.py").write_text("WHOSE = 'theirs'\n")
    whose = f"import sys; sys.path.append({str(tmp_path)!r}); import kernels; print(kernels.WHOSE)"
    done = subprocess.run(
        [sys.executable, "-c", whose], cwd=repo_root, capture_output=True, text=True, check=True
    )
    assert done.stdout.strip() == "theirs"


def test_workbench_is_importable_from_anywhere(tmp_path: Path) -> None:
    find = "import kvkernels, workbench; print(workbench.__version__)"
    subprocess.run([sys.executable, "-c", find], cwd=tmp_path, check=True, capture_output=True)


def test_streamlit_process_needs_no_torch(repo_root: Path) -> None:
    """Reads the sources: an import inside a function counts too."""
    pattern = re.compile(r"^\s*(?:import|from)\s+(?:torch|kvkernels|triton)\b", re.MULTILINE)
    for path in (repo_root / "app").rglob("*.py"):
        assert not pattern.search(path.read_text()), f"{path} imports torch or kernels"


def test_license_is_apache_2(repo_root: Path) -> None:
    text = (repo_root / "LICENSE").read_text()
    assert "Apache License" in text and "END OF TERMS AND CONDITIONS" in text
