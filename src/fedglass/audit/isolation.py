"""What an attack is handed: a copy on its device, with oracle facts only where its parts ask for them."""

from __future__ import annotations

import copy
from collections.abc import Iterator
from dataclasses import fields, is_dataclass, replace
from typing import Any

import torch
from torch import Tensor

from fedglass.attack.forward.one_gradient import RepeatedGradient
from fedglass.attack.forward.unroll import Unroll, UnrollEpochs
from fedglass.attack.hypotheses import TryEpochs
from fedglass.attack.images.per_epoch import BoundedEpochPixels, EpochPixels, OrderedEpochPixels
from fedglass.attack.labels.given import OracleBatchLabels, OracleLabels
from fedglass.attack.terms.distance import SquaredError
from fedglass.attack.terms.kernel import GaussianKernel
from fedglass.attack.terms.layers import LayeredSquaredError
from fedglass.attack.terms.partial_match import PartialMatch
from fedglass.attack.terms.reweighted import ReweightedL1
from fedglass.core.params import Params
from fedglass.core.types import Knowledge, Observation

SIMULATING = Unroll, UnrollEpochs, RepeatedGradient, EpochPixels, BoundedEpochPixels, OrderedEpochPixels
SIZED = SquaredError, LayeredSquaredError, ReweightedL1, GaussianKernel, PartialMatch
"""Distances that are not blind to the scale of the message."""


def oracle_facts(attack: object) -> frozenset[str]:
    """The oracle facts that the parts of an attack use.

    >>> from fedglass.recipes.catalogue import recipe
    >>> oracle_facts(recipe("inverting_gradients", labels=OracleLabels()))
    frozenset({'labels'})
    """
    asked = {OracleLabels: "labels", OracleBatchLabels: "batch_labels"}
    return frozenset(asked[type(part)] for part in _parts(attack) if type(part) in asked)


def needs_training(attack: object) -> bool:
    """Whether the attack simulates the client, for which it must know the client's training.

    >>> from fedglass.recipes.catalogue import recipe
    >>> [needs_training(recipe(name)) for name in ("dlfa", "sme", "dlfa_unknown_epochs")]
    [True, False, False]
    """
    return simulates(attack) and not isinstance(attack, TryEpochs)


def simulates(attack: object) -> bool:
    """Whether the attack plays the client's training through, be it one that is known or several that are supposed.

    >>> from fedglass.recipes.catalogue import recipe
    >>> [simulates(recipe(name)) for name in ("dlfa", "sme", "dlfa_unknown_epochs")]
    [True, False, True]
    """
    return any(isinstance(part, SIMULATING) for part in _parts(attack))


def simulates_batches(attack: object) -> bool:
    """Whether the attack knows the client's training and simulates its batches, to which labels of each may be told.

    >>> from fedglass.recipes.catalogue import recipe
    >>> [simulates_batches(recipe(name)) for name in ("dlfa", "sme", "dlfa_fedsgd_epoch", "dlfa_unknown_epochs")]
    [True, False, False, False]
    """
    return needs_training(attack) and any(isinstance(part, Unroll) for part in _parts(attack))


def compares_sizes(part: object) -> bool:
    """Whether an attack or a stage of it compares sizes, which a message has only where lr and T are known.

    >>> from fedglass.recipes.catalogue import recipe
    >>> [compares_sizes(recipe(name)) for name in ("dlg", "coarse_to_fine", "sme")]
    [True, True, False]
    """
    return any(isinstance(term, SIZED) for term in _parts(part))


def told(knows: Knowledge, attack: object) -> Knowledge:
    """The knowledge without the oracle facts that the attack has no part for.

    So an attack can not use them unmarked.
    """
    asked = oracle_facts(attack)
    return replace(
        knows,
        labels=knows.labels if "labels" in asked else None,
        batch_labels=knows.batch_labels if "batch_labels" in asked else None,
    )


def handed(observation: Observation, attack: object, device: torch.device) -> Observation:
    """The observation as one attack sees it, sharing no tensor with the original.

    Tensors are copied also where they are on the device already: fresh ones are aligned alike in every
    process, on which the last bits of a matrix product may depend.
    """
    knows = told(observation.knows, attack)
    facts = {f.name: _copied(getattr(knows, f.name), device) for f in fields(Knowledge)}
    tensors = (observation.before, observation.buffers, observation.update)
    before, buffers, update = (_copied_all(params, device) for params in tensors)
    # `to` moves a module in place: the observation's own must stay where it is.
    model = observation.model if device.type == "cpu" else copy.deepcopy(observation.model).to(device)
    return Observation(model, before, buffers, update, Knowledge(**facts))


def iterations_of(attack: object) -> int | None:
    """How many iterations the last solver of an attack makes, if it says so."""
    found = [getattr(part, "iterations", None) for part in _parts(attack)]
    return next((n for n in reversed(found) if isinstance(n, int)), None)


def _parts(value: Any) -> Iterator[Any]:
    """The value and everything that it is composed of."""
    yield value
    if isinstance(value, tuple):
        children = value
    elif is_dataclass(value):
        children = tuple(getattr(value, f.name) for f in fields(value))
    else:
        return
    for child in children:
        yield from _parts(child)


def _copied(value: Any, device: torch.device) -> Any:
    return value.detach().to(device, copy=True) if isinstance(value, Tensor) else value


def _copied_all(params: Params, device: torch.device) -> dict[str, Tensor]:
    return {name: _copied(tensor, device) for name, tensor in params.items()}
