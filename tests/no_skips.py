"""In CI a skipped test fails: what is not tested must not look tested. The long tests may skip."""

import os
from collections.abc import Generator
from typing import Any

import pytest

# What CI lacks, and what stands in for it; the peers' environments are for long tests.
ALLOWED = ("there is a GPU here", "no node: the browser parses the module")


def _refuse(report: Any) -> None:
    """Turn a skip into a failure that says so."""
    reason = report.longrepr[2] if isinstance(report.longrepr, tuple) else str(report.longrepr)
    if not any(allowed in reason for allowed in ALLOWED):
        report.outcome = "failed"
        report.longrepr = f"{reason} (in CI no test may be skipped)"


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item) -> Generator[None, Any, Any]:
    """A test that skips itself."""
    report = yield
    expected = hasattr(report, "wasxfail") or item.get_closest_marker("long") is not None
    if report.skipped and os.environ.get("CI") == "true" and not expected:
        _refuse(report)
    return report


@pytest.hookimpl(wrapper=True)
def pytest_make_collect_report(collector: pytest.Collector) -> Generator[None, Any, Any]:
    """A module that skips itself, by `importorskip` say."""
    report = yield
    if report.skipped and os.environ.get("CI") == "true":
        _refuse(report)
    return report
