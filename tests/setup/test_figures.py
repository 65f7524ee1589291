"""Figures name their unit and provenance; a report is one JSON object."""

import json
from pathlib import Path

import pytest

from workbench.lab.figures import Figure, cpu_model, format_value, print_report, report


def test_report_is_one_object_with_machine_and_figures(capsys: pytest.CaptureFixture[str]) -> None:
    figures = [
        Figure(name="decode_ratio_b1", value=1.25, note="bf16"),
        Figure(name="gpu_ms", value=None, unit="ms", provenance="refused", note="no GPU"),
    ]
    print_report(report(figures), as_json=True)
    shown = json.loads(capsys.readouterr().out)
    assert set(shown) == {"machine", "figures"}
    assert set(shown["figures"][0]) == {"name", "value", "unit", "provenance", "note"}
    assert shown["figures"][1]["value"] is None
    machine = shown["machine"]
    assert machine["cores"] >= 1 and machine["ram_gib"] > 0 and machine["threads"] >= 1
    assert machine["cpu"] and machine["kernel"] and machine["python"] and machine["torch"]


def test_table_for_people(capsys: pytest.CaptureFixture[str]) -> None:
    print_report(report([Figure(name="rate", value=2000.0, unit="tok/s")]), as_json=False)
    out = capsys.readouterr().out
    assert "2,000" in out and "tok/s" in out and "measured" in out


def test_missing_value_needs_a_reason() -> None:
    with pytest.raises(ValueError, match="figure x has no value: say why in its note"):
        Figure(name="x", value=None)


def test_bad_and_double_names() -> None:
    with pytest.raises(ValueError, match="figure name 'Two Words': use lower case"):
        Figure(name="Two Words", value=1)
    with pytest.raises(ValueError, match="figure x is given twice"):
        report([Figure(name="x", value=1), Figure(name="x", value=2)])


def test_cpu_model(tmp_path: Path) -> None:
    file = tmp_path / "cpuinfo"
    file.write_text("processor\t: 0\nmodel name\t: Some CPU 9\n")
    assert cpu_model(file) == "Some CPU 9"
    assert cpu_model(tmp_path / "absent")


@pytest.mark.parametrize(
    ("value", "text"), [(None, "n/a"), (5000, "5,000"), (0.0, "0"), (1.2345, "1.23"), (12, "12")]
)
def test_format_value(value: float | None, text: str) -> None:
    assert format_value(value) == text
