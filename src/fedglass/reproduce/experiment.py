"""One experiment of a paper as a value: what the clients do, what the adversary knows, and what is measured."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Protocol

from torch import Tensor

from fedglass.attack.parts import Progress
from fedglass.core.types import Observation, Training
from fedglass.fl.local import GradientFn, MeanGradient
from fedglass.fl.release import AsIs, Release
from fedglass.models.init import Initialisation, PyTorchDefault
from fedglass.rounds.truth import Truth
from fedglass.rounds.views.view import Knows


@dataclass(frozen=True)
class WarmUp:
    """Rounds of federated averaging that come before the round that is attacked."""

    rounds: int
    training: Training
    examples: int | None = None
    """Of each client; None takes all that its writer has."""
    called: int = 10
    """Clients in each round."""


@dataclass(frozen=True)
class Setup:
    """All that decides a message, beside the data and the seed."""

    data: str
    """A kind of `populations.KINDS`."""
    network: str
    training: Training
    examples: int
    init: Initialisation = field(default_factory=PyTorchDefault)
    clients: int = 1
    """How many clients' updates the server sees as their mean."""
    gradient: GradientFn = field(default_factory=MeanGradient)
    """How a client takes the gradient in a local step: where the defences are."""
    shuffled: bool = True
    """Whether a client shuffles its examples anew in each epoch."""
    warm_up: WarmUp | None = None


@dataclass(frozen=True)
class Defended(Setup):
    """A setup whose clients change the update before it leaves."""

    release: Release = field(default_factory=AsIs)


@dataclass(frozen=True, eq=False)
class Finding:
    """What was measured on one message."""

    measures: Mapping[str, float]
    """The figures of this message, by the names of the published table."""
    per_image: Mapping[str, tuple[float, ...]] = field(default_factory=dict)
    originals: Tensor | None = None  # (n, c, h, w)
    shown: Tensor | None = None  # (n, c, h, w), in the order of the originals
    by_epoch: Tensor | None = None  # (epochs, n, c, h, w), in the order of the originals
    curves: Mapping[str, tuple[float, ...]] = field(default_factory=dict)
    """What a figure of the paper draws for one client."""
    record: Mapping[str, object] = field(default_factory=dict)
    """Further fields of the record."""


class Probe(Protocol):
    """What is done with a message. A frozen dataclass: its repr is a part of the experiment's identity."""

    def measure(self, seen: Observation, truth: Truth, seed: int, progress: Progress) -> Finding: ...


@dataclass(frozen=True)
class Experiment:
    """A setup, what the adversary knows of it, and a probe."""

    setup: Setup
    probe: Probe
    knows: Knows = field(default_factory=Knows)
    supposed: Training | None = None
    """What the adversary takes for the clients' training, where that is wrong."""
