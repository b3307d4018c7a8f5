"""An attack is handed a copy, and oracle facts only where it has a part that asks for them."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import replace

import pytest
import torch
from torch import Tensor

from fedglass.attack.best_of import BestOf, GuessEpochs
from fedglass.attack.labels.given import OracleBatchLabels, OracleLabels
from fedglass.audit.probes import isolate, iterations_of, oracle_facts
from fedglass.core.types import Observation, Own
from fedglass.federation.federation import Federation, observe
from fedglass.federation.views import Knows, ServerView
from fedglass.recipes import recipe

CPU = torch.device("cpu")


@pytest.fixture
def seen(make_federation: Callable[..., Federation]) -> Observation:
    return observe(make_federation(), ServerView(), Knows(labels=True, batch_labels=True))[0]


def test_an_attack_without_an_oracle_part_is_told_nothing(seen: Observation) -> None:
    knows = isolate(seen, recipe("inverting_gradients"), CPU).knows
    assert knows.labels is None
    assert knows.batch_labels is None
    assert knows.training == seen.knows.training


def test_an_oracle_part_gets_its_own_fact_alone(seen: Observation) -> None:
    plain = isolate(seen, recipe("inverting_gradients", labels=OracleLabels()), CPU).knows
    assert plain.labels is not None
    assert plain.batch_labels is None
    batches = isolate(seen, recipe("inverting_gradients", labels=OracleBatchLabels()), CPU).knows
    assert batches.labels is None
    assert batches.batch_labels == seen.knows.batch_labels


def test_oracle_parts_are_found_inside_a_wrapped_attack() -> None:
    inner = recipe("inverting_gradients", labels=OracleLabels(), iterations=7)
    assert oracle_facts(BestOf(inner, GuessEpochs())) == {"labels"}
    assert iterations_of(BestOf(inner, GuessEpochs())) == 7
    assert oracle_facts(recipe("dlg")) == frozenset()


def places(tensors: Iterable[Tensor]) -> set[int]:
    return {tensor.data_ptr() for tensor in tensors}


def tensors_of(seen: Observation) -> list[Tensor]:
    assert seen.knows.labels is not None
    assert seen.own is not None
    own = (seen.own.images, seen.own.labels, *seen.own.update.values())
    named = (seen.before, seen.buffers, seen.update, seen.model.state_dict())
    return [seen.knows.labels, *own, *(tensor for params in named for tensor in params.values())]


def test_a_copy_shares_neither_a_tensor_nor_the_model(seen: Observation) -> None:
    seen = replace(seen, own=Own(torch.rand(2, 1, 12, 12), torch.tensor([0, 1]), dict(seen.update)))
    copied = isolate(seen, recipe("inverting_gradients", labels=OracleLabels()), CPU)
    mine, theirs = tensors_of(seen), tensors_of(copied)
    assert all(map(torch.equal, mine, theirs))
    assert not places(mine) & places(theirs)
    assert copied.model is not seen.model
    assert list(copied.model.state_dict()) == list(seen.model.state_dict())


def test_what_an_attack_does_to_its_model_stays_with_it(seen: Observation) -> None:
    before = {name: tensor.clone() for name, tensor in seen.model.state_dict().items()}
    with torch.no_grad():
        for parameter in isolate(seen, recipe("dlg"), CPU).model.parameters():
            parameter.fill_(7.0)
    assert all(torch.equal(tensor, before[name]) for name, tensor in seen.model.state_dict().items())
