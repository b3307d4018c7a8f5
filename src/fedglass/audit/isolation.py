"""What an attack is handed: a copy on its device, with oracle facts only where its parts ask for them."""

from __future__ import annotations

import copy
from dataclasses import fields, replace
from typing import Any

import torch
from torch import Tensor

from fedglass.attack.needs import needs_of, parts_of
from fedglass.core.facts import Fact
from fedglass.core.params import Params
from fedglass.core.types import Knowledge, Observation, Own


def oracle_facts(attack: object) -> frozenset[str]:
    """The oracle facts that the parts of an attack need, by name.

    >>> from fedglass.attack.labels.given import OracleLabels
    >>> from fedglass.recipes.catalogue import recipe
    >>> oracle_facts(recipe("inverting_gradients", labels=OracleLabels()))
    frozenset({'labels'})
    """
    return frozenset(fact.value for fact in needs_of(attack) if fact.oracle)


def without_unused_oracles(knows: Knowledge, attack: object) -> Knowledge:
    """The knowledge without the oracle facts that no part of the attack needs: it can not use them unmarked."""
    needed = needs_of(attack)
    return replace(
        knows,
        labels=knows.labels if {Fact.LABELS, Fact.GROUPS} & needed else None,
        batch_labels=knows.batch_labels if Fact.BATCH_LABELS in needed else None,
    )


def isolated(observation: Observation, attack: object, device: torch.device) -> Observation:
    """The observation as one attack sees it, sharing neither a tensor nor the model with the original.

    Tensors are copied also where they are on the device already: fresh ones are aligned alike in every
    process, on which the last bits of a matrix product may depend.
    """
    knows = without_unused_oracles(observation.knows, attack)
    facts = {field.name: _copied(getattr(knows, field.name), device) for field in fields(Knowledge)}
    tensors = (observation.before, observation.buffers, observation.update, observation.buffers_after)
    before, buffers, update, after = (_copied_all(params, device) for params in tensors)
    model = copy.deepcopy(observation.model).to(device)
    also = tuple(isolated(each, attack, device) for each in observation.also)
    return Observation(model, before, buffers, update, Knowledge(**facts), _own(observation.own, device), after, also)


def iterations_of(attack: object) -> int | None:
    """How many iterations the last solver of an attack makes, if it says so."""
    found = [getattr(part, "iterations", None) for part in parts_of(attack)]
    return next((n for n in reversed(found) if isinstance(n, int)), None)


def _own(own: Own | None, device: torch.device) -> Own | None:
    if own is None:
        return None
    return Own(_copied(own.images, device), _copied(own.labels, device), _copied_all(own.update, device), own.share)


def _copied(value: Any, device: torch.device) -> Any:
    return value.detach().to(device, copy=True) if isinstance(value, Tensor) else value


def _copied_all(params: Params, device: torch.device) -> dict[str, Tensor]:
    return {name: _copied(tensor, device) for name, tensor in params.items()}
