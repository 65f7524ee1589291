"""Figures of the GPU: read by NVML where there is one, else n/a with the reason, never 0."""

import pynvml
import pytest
import torch

from workbench.clock import ManualClock
from workbench.engine.views.hardware import INTERVAL_S, NAMES, Hardware


@pytest.fixture
def hardware() -> tuple[Hardware, ManualClock]:
    clock = ManualClock()
    return Hardware(clock), clock


def test_every_figure_has_a_value_or_says_why(hardware: tuple[Hardware, ManualClock]) -> None:
    numbers = hardware[0].numbers()
    assert list(numbers) == list(NAMES)
    for name, number in numbers.items():
        assert number.unit == NAMES[name]
        assert (number.value is None) == bool(number.why), name
    if not torch.cuda.is_available():
        assert {number.why[:15] for number in numbers.values()} == {"no NVIDIA GPU ("}
    else:
        assert numbers["gpu_memory"].value > 0 and numbers["gpu_power"].value > 0


def test_it_is_asked_at_most_once_an_interval(hardware: tuple[Hardware, ManualClock]) -> None:
    asked, clock = hardware
    first = asked.numbers()
    clock.advance(INTERVAL_S / 2)
    assert asked.numbers() is first
    clock.advance(INTERVAL_S / 2)
    assert asked.numbers() is not first


def test_one_figure_that_cannot_be_read_leaves_the_others(monkeypatch: pytest.MonkeyPatch) -> None:
    """A GPU without NVLink, or a counter that a driver does not have."""
    asked = Hardware(ManualClock())

    def ask(name: str) -> float:
        if name.startswith("nvlink"):
            raise pynvml.NVMLError(pynvml.NVML_ERROR_NOT_SUPPORTED)
        return 7.0

    monkeypatch.setattr(asked, "_ask", ask)
    monkeypatch.setattr(asked, "_why", "")
    numbers = asked.numbers()
    assert numbers["pcie_rx"].value == 7.0 and numbers["pcie_rx"].why == ""
    assert numbers["nvlink_tx"].value is None and numbers["nvlink_tx"].why == "Not Supported"
