"""Retention policies take the bytes they claim, with every grouping and at both levels."""

import pytest

from workbench.lab.figures import Figure
from workbench.model.random_launch import random_model
from workbench.quality.bytes_bench import (
    BUDGET,
    LEVELS,
    LONG,
    Claim,
    claim_figure,
    measure_budgets,
    retention_changes,
)
from workbench.settings.cache import GROUPINGS
from workbench.settings.retention import RETENTION_POLICIES


def test_each_policy_level_and_grouping_is_there() -> None:
    names = ("retention.policy", "retention.level", "cache.grouping")
    whole = [tuple(changes[name] for name in names) for changes in retention_changes(quick=False)]
    assert len(set(whole)) == (len(RETENTION_POLICIES) - 1) * len(LEVELS) * len(GROUPINGS)
    quick = [tuple(changes[name] for name in names) for changes in retention_changes(quick=True)]
    for at, values in enumerate((RETENTION_POLICIES[1:], LEVELS, GROUPINGS)):
        assert {found[at] for found in quick} == set(values)


@pytest.mark.parametrize("level", LEVELS)
@pytest.mark.parametrize("grouping", GROUPINGS)
def test_a_policy_takes_its_budget(grouping: str, level: str) -> None:
    changes = next(changes for changes in retention_changes(quick=True))
    changes |= {"retention.policy": "h2o", "cache.grouping": grouping, "retention.level": level}
    (claim,) = measure_budgets(random_model(2), [changes])
    assert claim.claimed == LONG / BUDGET and claim.error <= 0.01
    assert claim.name == f"h2o {level} {grouping}"


def test_what_takes_another_budget_is_seen() -> None:
    """A page too many in each group is an error of a seventh."""
    changes = next(changes for changes in retention_changes(quick=True))
    (claim,) = measure_budgets(random_model(2), [changes | {"retention.budget_tokens": 112}])
    assert claim.error == pytest.approx(1 / 7)
    figure: Figure = claim_figure([Claim("int8", 2.0, 2.0)], [claim])
    assert figure.value == claim.error
    assert figure.note.startswith("largest with sink+window page model; ")


@pytest.mark.long
def test_every_policy_takes_its_budget() -> None:
    for claim in measure_budgets(random_model(2), retention_changes(quick=False)):
        assert claim.error <= 0.01, claim
