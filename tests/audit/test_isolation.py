"""An attack is handed a copy, and oracle facts only where it has a part that asks for them."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch

from fedglass.attack.hypotheses import TryEpochs
from fedglass.attack.labels.given import OracleBatchLabels, OracleLabels
from fedglass.audit.isolation import handed, iterations_of, oracle_facts
from fedglass.core.types import Observation
from fedglass.recipes.catalogue import recipe
from fedglass.rounds.federation import Federation
from fedglass.rounds.observe import observe
from fedglass.rounds.views.server import ServerView
from fedglass.rounds.views.view import Knows

CPU = torch.device("cpu")


@pytest.fixture
def seen(make_federation: Callable[..., Federation]) -> Observation:
    return observe(make_federation(), ServerView(), Knows(labels=True, batch_labels=True))[0]


def test_an_attack_without_an_oracle_part_is_told_nothing(seen: Observation) -> None:
    knows = handed(seen, recipe("inverting_gradients"), CPU).knows
    assert knows.labels is None
    assert knows.batch_labels is None
    assert knows.training == seen.knows.training


def test_an_oracle_part_gets_its_own_fact_alone(seen: Observation) -> None:
    plain = handed(seen, recipe("inverting_gradients", labels=OracleLabels()), CPU).knows
    assert plain.labels is not None
    assert plain.batch_labels is None
    batches = handed(seen, recipe("inverting_gradients", labels=OracleBatchLabels()), CPU).knows
    assert batches.labels is None
    assert batches.batch_labels == seen.knows.batch_labels


def test_oracle_parts_are_found_inside_a_wrapped_attack() -> None:
    inner = recipe("inverting_gradients", labels=OracleLabels(), iterations=7)
    assert oracle_facts(TryEpochs(inner)) == {"labels"}
    assert iterations_of(TryEpochs(inner)) == 7
    assert oracle_facts(recipe("dlg")) == frozenset()


def test_a_copy_shares_no_memory(seen: Observation) -> None:
    copied = handed(seen, recipe("inverting_gradients", labels=OracleLabels()), CPU)
    for mine, theirs in ((seen.before, copied.before), (seen.update, copied.update)):
        for name, tensor in mine.items():
            assert torch.equal(tensor, theirs[name])
            assert tensor.data_ptr() != theirs[name].data_ptr()
    assert seen.knows.labels is not None
    assert copied.knows.labels is not None
    assert seen.knows.labels.data_ptr() != copied.knows.labels.data_ptr()
