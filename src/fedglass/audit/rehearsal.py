"""A rehearsal of an audit: what could only fail after the training, or deep in an attack, is refused before both.

Nothing is trained or attacked. The parts of every attack are bound to a message of zeros, and a defence sees two
examples.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace

import torch

from fedglass.attack.hypotheses import AnyAttack
from fedglass.audit.isolation import without_unused_oracles
from fedglass.audit.play import FAILURES
from fedglass.audit.sources import Recorded, Simulated, Source
from fedglass.core.errors import FedglassError, UsageError
from fedglass.core.params import buffers_of, weights_of
from fedglass.core.rng import stream
from fedglass.core.types import Observation
from fedglass.fl.local import MeanGradient, Step, schedule
from fedglass.fl.release import AsIs
from fedglass.models.network import Network
from fedglass.rounds.client import Client, Message
from fedglass.rounds.federation import Federation, Round, Transcript
from fedglass.rounds.views import View

FEW = 2
"""Examples that a defence is tried on: more than one, which tells those that can not bear a batch."""


@dataclass(frozen=True, eq=False)
class Scene:
    """A message as it will be seen, but for its entries, and how many examples each client behind it has."""

    seen: Observation
    sizes: tuple[int, ...]


def rehearse(sources: Sequence[Source], attacks: Mapping[str, AnyAttack]) -> None:
    """Refuse the first attack or defence that could not be played, in a sentence that says why."""
    for source in sources:
        if isinstance(source, Simulated):
            _try_defence(source.federation)
        # Views that differ in the client alone are all alike.
        for scene in {scene.sizes: scene for scene in scenes(source)}.values():
            for name, attack in attacks.items():
                with _blaming(f"attack {name!r}"):
                    _try_attack(attack, scene)


@contextmanager
def _blaming(where: str) -> Iterator[None]:
    """What would make a case fail makes the plan wrong."""
    try:
        yield
    except FAILURES as error:
        kind = "" if isinstance(error, FedglassError) else f"{type(error).__name__}: "
        raise UsageError(f"{where}: {kind}{error}") from error


def scenes(source: Source) -> Iterator[Scene]:
    """What the adversary will see, one for each view."""
    if isinstance(source, Recorded):
        knows = source.observation.knows
        each, more = divmod(knows.examples, knows.clients)
        yield Scene(source.observation, tuple(each + (i < more) for i in range(knows.clients)))
    if isinstance(source, Simulated):
        sizes = {client.name: len(client.labels) for client in source.federation.clients}
        looked_at = {index: _silent_round(source.federation, index) for index in set(map(_round_of, source.views))}
        for view in source.views:
            rounds = (looked_at[_round_of(view)],) * (_round_of(view) + 1)
            seen, truth = view.see(Transcript(source.federation, rounds), source.knows)
            yield Scene(seen, tuple(sizes[name] for name in truth.clients))


def _round_of(view: View) -> int:
    return int(getattr(view, "round", 0))


def _silent_round(federation: Federation, index: int) -> Round:
    """A round in which the right clients take part and all send zeros."""
    before, buffers = weights_of(federation.model), buffers_of(federation.model)
    nothing = {name: torch.zeros_like(w) for name, w in before.items()}
    clients = federation.called(index)
    messages = tuple(Message(c, nothing, buffers, _batch_labels(c, federation)) for c in clients)
    return Round(before, buffers, messages, nothing)


def _batch_labels(client: Client, federation: Federation) -> tuple[tuple[int, ...], ...]:
    batches = schedule(federation.training, len(client.labels), None)
    return tuple(tuple(client.labels[batch.rows].tolist()) for batch in batches)


def _try_defence(federation: Federation) -> None:
    """One local step of a few examples, and the release of its update."""
    client = max(federation.clients, key=lambda c: len(c.labels))
    if isinstance(client.gradient, MeanGradient) and isinstance(client.release, AsIs):
        return
    network = Network(federation.model, buffers_of(federation.model), federation.training.batch_norm)
    before = weights_of(federation.model)
    rows = slice(0, min(FEW, federation.training.batches(len(client.labels))[0].stop))
    inputs, noise = federation.whitening.whiten(client.images[rows]), stream(federation.seed, "rehearsal")
    weights = [before[name].requires_grad_() for name in network.names]
    with _blaming("defences"):
        gradient = client.gradient.gradient(Step(network, weights, inputs, client.labels[rows], generator=noise))
        client.release.release({n: g.detach() for n, g in zip(network.names, gradient, strict=True)}, noise)


def _try_attack(attack: AnyAttack, scene: Scene) -> None:
    """Ask the attack what it would refuse, with what it will be told and how many examples each client has."""
    knows = without_unused_oracles(scene.seen.knows, attack)
    attack.check(replace(scene.seen, knows=replace(knows, sizes=scene.sizes)))
