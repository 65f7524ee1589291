"""NIXL beside the direct ways, in small: a share each where it is installed, nothing where not."""

import pytest

from tests.spatial.test_disk_transports import HAS_NIXL
from tests.spatial.test_shared_transports import nixl_only
from workbench.lab import media_bench
from workbench.lab.transport_bench import WHAT, measure_transports


def quiet(text: str) -> None:
    """Nobody reads the progress."""


@pytest.mark.skipif(HAS_NIXL, reason="NIXL is installed")
def test_nothing_is_told_of_what_is_not_there() -> None:
    assert measure_transports(quiet, media_bench.QUICK) == []


@nixl_only
def test_each_plug_in_has_its_shares() -> None:
    figures = measure_transports(quiet, media_bench.QUICK)
    assert [figure.name for figure in figures] == [
        f"transport_{name}_{what}_share" for name in ("disk", "store", "objects") for what in WHAT
    ]
    for figure, way in zip(figures[::3], ("POSIX", "UCX", "OBJ"), strict=True):
        assert figure.value and f"NIXL {way}" in figure.note
