"""One experiment of a paper as a value: what the clients do, what the adversary knows, and what is measured."""

from __future__ import annotations

from dataclasses import dataclass, field

from fedglass.core.types import Training
from fedglass.fl.local import GradientFn, MeanGradient
from fedglass.fl.release import AsIs, Release
from fedglass.models.init import Initialisation, PyTorchDefault
from fedglass.reproduce.probes.probe import PublishedProbe
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
    """How a client takes the gradient in a local step: where some defences are."""
    release: Release = field(default_factory=AsIs)
    """What a client does to the update before it leaves: where the others are."""
    warm_up: WarmUp | None = None


@dataclass(frozen=True)
class Experiment:
    """A setup, what the adversary knows of it, and a probe."""

    setup: Setup
    probe: PublishedProbe
    knows: Knows = field(default_factory=Knows)
    supposed: Training | None = None
    """What the adversary takes for the clients' training, where that is wrong."""
