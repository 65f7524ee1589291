"""Files of settings: both spellings, and a sentence for each way to get one wrong."""

from pathlib import Path

import pytest

from app.quality.settings import read_file
from workbench.cli import main
from workbench.errors import SettingError
from workbench.lab.figures import report
from workbench.quality.plan import QualityPlan
from workbench.quality.results import Setting
from workbench.quality.run import measure
from workbench.quality.settings_file import format_changes, read_settings
from workbench.quality.table import as_table, figures_of

EXAMPLES = Path(__file__).resolve().parents[2] / "docs" / "examples"
JSON = '[{"name": "eight", "cache.k_format": "int8", "retention.budget_tokens": 128}]'
TOML = '[[setting]]\nname = "eight"\ncache.k_format = "int8"\n"retention.budget_tokens" = 128\n'
EIGHT = Setting(name="eight", changes={"cache.k_format": "int8", "retention.budget_tokens": 128})


def write(folder: Path, name: str, text: str) -> Path:
    path = folder / name
    path.write_text(text)
    return path


def test_json_and_toml_say_the_same(tmp_path: Path):
    assert read_settings(write(tmp_path, "a.json", JSON)) == [EIGHT]
    assert read_settings(write(tmp_path, "a.toml", TOML)) == [EIGHT]


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("{", "bad.json is no JSON or TOML"),
        ("[]", "bad.json holds no list of settings"),
        ('{"name": "x"}', "bad.json holds no list of settings"),
        ('[{"cache.k_format": "int8"}]', "bad.json, setting 1 has no name"),
        ('[{"name": "a"}, 3]', "bad.json, setting 2 has no name"),
        ('[{"name": "a"}, {"name": "a"}]', "setting 'a' is there twice"),
        ('[{"name": "a b"}, {"name": "A-b"}]', "setting 'A-b' is there twice"),
        ('[{"name": "a", "cache.k": 1}]', "setting 'a': unknown setting 'cache.k'"),
        ('[{"name": "a", "cache.k_format": "int5"}]', "setting 'a': cache.k_format = 'int5'"),
        ('[{"name": "a", "model.path": "x"}]', "setting 'a': model.path changes the weights"),
        (
            '[{"name": "a", "cache.prefix_caching": true}]',
            "setting 'a': cache.prefix_caching is the quality lab's own",
        ),
    ],
)
def test_a_wrong_file_is_refused_by_name(tmp_path: Path, text: str, sentence: str):
    with pytest.raises(SettingError, match=sentence):
        read_settings(write(tmp_path, "bad.json", text))


@pytest.mark.parametrize("path", sorted(EXAMPLES.glob("*.toml")), ids=lambda path: path.name)
def test_the_command_and_the_page_read_the_examples_alike(path: Path):
    read = read_file(path.name, path.read_bytes())
    assert read.problems == []
    assert [(item.name, item.changes) for item in read.settings] == [
        (item.name, item.changes) for item in read_settings(path)
    ]


def test_a_missing_file_is_refused(tmp_path: Path):
    with pytest.raises(SettingError, match="none.json cannot be read .No such file"):
        read_settings(tmp_path / "none.json")


def test_the_command_refuses_before_it_loads_a_model(tmp_path: Path, capsys):
    path = write(tmp_path, "a.json", '[{"name": "odd", "cache.k_fromat": "int8"}]')
    with pytest.raises(SystemExit) as ended:
        main(["quality", "--set", str(path), "--model", str(tmp_path / "no-model.gguf")])
    assert ended.value.code == 2
    assert capsys.readouterr().err.startswith("setting 'odd': unknown setting 'cache.k_fromat'")


def test_the_command_refuses_an_impossible_plan(capsys):
    with pytest.raises(SystemExit):
        main(["quality", "--windows", "0"])
    assert capsys.readouterr().err == "num_windows = 0 is out of range: 1 to 4096\n"


def test_figures_of_a_sweep_have_names_of_their_own(model):
    plan = QualityPlan(context=256, scored=32, num_windows=2, needle=True, num_bootstrap=50)
    settings = [
        Setting(name="K4/V2", changes=format_changes("kivi4", "kivi2")),
        Setting(name="int8", changes=format_changes("int8", "int8")),
    ]
    reports = measure(model, settings, plan)
    shown = report(figures_of(reports))
    names = [figure.name for figure in shown.figures]
    assert {"kl_k4_v2", "top1_int8", "needle_int8", "bits_per_element_k4_v2"} <= set(names)
    assert shown.figures[0].note.startswith("95 %: ")
    table = as_table(reports)
    assert table.row_count == 2 and list(table.columns[0].cells)[0] == "int8"
