"""Does a recorded message bear out what is declared of it? Checks that need no truth.

Each looks at one trace that a training leaves whatever the data were. They are one-sided: a message that passes them
may still have been made otherwise, and one that fails was not made as declared.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from itertools import chain

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.nn.modules.batchnorm import _NormBase

from fedglass.checks.replay import Declared, Part
from fedglass.core.optimisers import SGD, Adam, AdamW
from fedglass.core.rng import stream
from fedglass.core.tensors import COUNTER, MEAN, VARIANCE, Params, moved_statistics
from fedglass.core.types import BatchNorm, Training, Whitening
from fedglass.federation.transcript import MEAN_RULE, UNKNOWN_RULE, Participant, Transcript
from fedglass.federation.truth import Truths
from fedglass.federation.views import ViewResult
from fedglass.fl.local import schedule, train
from fedglass.fl.release import Protection
from fedglass.models.network import Network

# How large the message of a declared training is on other images: what is plausible, without the truth.


LONGEST = 50
"""Local steps beyond which a training is not tried on other images."""
SURE = 0.5
"""The probability from which on a network is sure of an image."""


@dataclass(frozen=True, eq=False)
class Declaration:
    """A training from given weights, whatever the data were."""

    model: nn.Module
    before: Params
    buffers: Params
    shape: tuple[int, int, int]
    whitening: Whitening
    training: Training
    steps: int


def largest(declared: Declaration) -> float | None:
    """The largest norm of one step, under the labels that surprise the network most; None after several steps.

    Several may leave the region where gradients are what they were: a training that diverges has no largest size.
    """
    if declared.steps > 1:
        return None
    network = _network(declared)
    return max(_norm(declared, network, inputs, p.argmin(1)) for inputs, p in _expected(declared, network))


def smallest(declared: Declaration) -> float | None:
    """The smallest norm under the labels that the network expects; infinite where the training diverges each time.

    None where the network is sure of any image, so that it may have learnt what it is sure of, or where the training
    is too long to be tried.
    """
    network = _network(declared)
    expected = _expected(declared, network)
    if declared.steps > LONGEST or _sure(expected):
        return None
    return min(_norm(declared, network, inputs, p.argmax(1)) for inputs, p in expected)


def knows_nothing(declared: Declaration) -> bool:
    """Whether the network is sure of no image: one that has learnt its data may have hardly a gradient there."""
    return not _sure(_expected(declared, _network(declared)))


def _sure(expected: list[tuple[Tensor, Tensor]]) -> bool:
    return any(not float(p.max()) < SURE for _, p in expected)


def _network(declared: Declaration) -> Network:
    return Network(declared.model, declared.buffers, declared.training.batch_norm)


def _expected(declared: Declaration, network: Network) -> list[tuple[Tensor, Tensor]]:
    """Other images, and the probabilities that the network gives their classes."""
    weights = [declared.before[name] for name in network.names]
    with torch.no_grad():
        return [(inputs, F.softmax(network(weights, inputs), dim=1)) for inputs in _batches(declared)]


def _batches(declared: Declaration) -> Iterator[Tensor]:
    """One image at a time; together where layers normalise by the batch, which one image may not be enough for."""
    inputs = declared.whitening.whiten(_images(declared.shape))
    return iter([inputs] if declared.training.batch_norm is BatchNorm.BATCH else torch.split(inputs, 1))


def _images(shape: tuple[int, int, int]) -> Tensor:
    """Noise, smooth noise, and flat ones: from the busiest to the plainest that pixels can be.  # (4, c, h, w)"""
    noise = torch.rand(1, *shape, generator=stream(0, "plausible"))
    coarse = torch.rand(1, shape[0], 3, 3, generator=stream(1, "plausible"))
    smooth = F.interpolate(coarse, size=shape[1:], mode="bilinear", align_corners=True)
    return torch.cat([noise, smooth, torch.zeros(1, *shape), torch.ones(1, *shape)])


def _norm(declared: Declaration, network: Network, inputs: Tensor, labels: Tensor) -> float:
    """The norm of the message; infinite where the training diverges."""
    whole = replace(declared.training, epochs=1, batch_size=None, steps=declared.steps, shuffle=False)
    start = [declared.before[name] for name in network.names]
    after = train(network, start, inputs, labels, schedule(whole, len(labels), None), whole)
    square = sum(float((a - b).double().square().sum()) for a, b in zip(after, start, strict=True))
    return math.sqrt(square) if math.isfinite(square) else math.inf


WINDOW = 0.04
"""Sizes that differ by less than this share count as equal: weights of single precision, moved by a small rate."""
PILED = 0.25
"""The share of equal sizes from which on steps are Adam's. Plain SGD was seen to have 0.05 at the most."""
SCATTERED = 0.1
"""The share below which one step is not Adam's, which was seen to have 0.68 at the least."""
HEIGHT = 3.0
"""How many times the median the largest of Adam's steps may be; that of SGD was seen to be 12 and more."""
GRAIN = 2.0**-20
"""The share of a weight up to which a local step moves it by its rounding, of which many are equal: 8 x 2^-23."""
ENTRIES = 16
"""That a tensor must have moved for its sizes to be compared, and two tensors must."""
LARGEST_EPS = 1e-6
"""Adam's eps up to which its first step is as long as the rate at nearly every entry."""
SLACK = 1.05
"""Rounding of what is bounded by arithmetic alone."""
BEYOND = 30.0
"""How many times larger a message may be than the same training makes of the most surprising of other images."""
BELOW = 1000.0
"""How many times smaller it may be than that of the least surprising ones."""


@dataclass(frozen=True, eq=False)
class Statement:
    """A message and how it is said to have been made, without the data behind it."""

    model: nn.Module
    before: Params
    buffers: Params
    buffers_after: Params
    """Running statistics after the training; empty where they were not recorded."""
    update: Params
    shape: tuple[int, int, int]
    whitening: Whitening
    trainings: tuple[tuple[int, Training], ...]
    """Of each client behind the message, how many examples it has and what it did with them."""
    defended: bool | None = None
    """Whether a defence has changed the sizes; None where nobody knows."""

    @property
    def training(self) -> Training | None:
        """The one training of all clients; None where they differ."""
        kinds = {training for _, training in self.trainings}
        return kinds.pop() if len(kinds) == 1 else None

    @property
    def steps(self) -> int:
        """The most that any client took."""
        return max(training.local_steps(examples) for examples, training in self.trainings)


def contradictions(said: Statement) -> tuple[str, ...]:
    """What of the message can not be as declared: in words, with the line of the plan to correct."""
    if said.training is None:
        return ()
    sizes = () if said.defended else (_equal_sizes, _scattered_sizes, _beyond_adam, _size)
    return tuple(chain.from_iterable(check(said, said.training) for check in (_statistics, _counter, *sizes)))


def _statistics(said: Statement, training: Training) -> Iterator[str]:
    """Running statistics move where layers normalise by the batch, and stay where they are frozen."""
    names = [name for name in _running(said.model) if name in said.buffers and name in said.buffers_after]
    if not names:
        return
    moved = moved_statistics(said.buffers, said.buffers_after)
    frozen = training.batch_norm is BatchNorm.FROZEN
    if frozen and moved:
        yield (
            f"the running statistics moved ({moved[0]} and {len(moved) - 1} more) although frozen ones are declared: "
            'set training.batch_norm = "batch"'
        )
    if not frozen and not moved:
        yield (
            "the running statistics did not move although training by the batch's own is declared: set "
            'training.batch_norm = "frozen", or record those after the training (recording.buffers_after)'
        )


def _counter(said: Statement, training: Training) -> Iterator[str]:
    """Each step in train mode adds one to `num_batches_tracked`; a mean over clients has no such count."""
    counters = [f"{name}.{COUNTER}" for name in _normalising(said.model)]
    known = [name for name in counters if name in said.buffers and name in said.buffers_after]
    if training.batch_norm is BatchNorm.FROZEN or len(said.trainings) > 1 or not known:
        return
    counted = {int(said.buffers_after[name]) - int(said.buffers[name]) for name in known}
    if counted != {0} and said.steps not in counted:  # none at all is told by the statistics themselves
        yield (
            f"the layers counted {max(counted)} batch(es), and {said.steps} local step(s) are declared: correct "
            "training.epochs, training.batch_size or training.steps"
        )


def _equal_sizes(said: Statement, training: Training) -> Iterator[str]:
    """Adam's first step is lr sign(g) but for eps [Kingma and Ba, 2015, Section 2.1]; gradients are never so even."""
    sizes = _moved(said)
    if not isinstance(training.optimiser, SGD) or sizes is None:
        return
    share = _densest(sizes)
    if share >= PILED and float(sizes[-1]) <= HEIGHT * float(sizes.median()):
        yield (
            f"{share:.0%} of the weights moved by the same amount ({float(sizes.median()):.3g}), as by Adam or a "
            f'sign and not by SGD: set training.optimiser = "adam" with lr = {float(sizes.median()) / said.steps:.2g}'
        )


def _scattered_sizes(said: Statement, training: Training) -> Iterator[str]:
    """One step of Adam leaves sizes that are nearly all equal; of several, or of a mean over clients, it need not.

    Nor where gradients are below eps, as in a network that has learnt its data.
    """
    optimiser, sizes = training.optimiser, _moved(said)
    alone = said.steps == 1 and len(said.trainings) == 1
    if not isinstance(optimiser, Adam | AdamW) or optimiser.eps > LARGEST_EPS or not alone or sizes is None:
        return
    share = _densest(sizes)
    if share < SCATTERED and knows_nothing(_declaration(said, training)):
        yield (
            f"at most {share:.1%} of the weights moved by the same amount, where one step of Adam moves nearly all by "
            "its learning rate: leave training.optimiser out"
        )


def _beyond_adam(said: Statement, training: Training) -> Iterator[str]:
    """No step of Adam is longer than lr max(1, (1 - b1) / sqrt(1 - b2)) [Kingma and Ba, 2015, Section 2.1].

    The first is no longer than lr. AdamW's decay comes on top.
    """
    optimiser = training.optimiser
    if not isinstance(optimiser, Adam | AdamW):
        return
    one, two = optimiser.betas
    longest = 1.0 if said.steps == 1 else max(1.0, (1 - one) / math.sqrt(1 - two))
    apart = optimiser.weight_decay if isinstance(optimiser, AdamW) else 0.0
    largest = max(float(w.abs().max()) for w in said.before.values() if w.numel())
    reach = training.lr * said.steps
    most = reach * (longest + apart * (largest + reach * longest))
    seen = max(float(u.abs().max()) for u in said.update.values() if u.numel())
    if seen > SLACK * most:
        yield (
            f"a weight moved by {seen:.3g}, where {said.steps} step(s) of Adam with lr = {training.lr:g} move it by "
            f"{most:.3g} at the most: correct training.lr, or leave training.optimiser out"
        )


def _size(said: Statement, training: Training) -> Iterator[str]:
    """The message beside those that the declared training makes of other images.

    One step that is far larger is impossible within reason: the gradient of cross entropy is the network's Jacobian
    times p - y, which is the largest for the label that surprises the network most, and the Jacobian was seen to
    differ by a factor of 2 between images, not of BEYOND. Several steps may diverge, to any size, unless they are
    clipped. Far smaller is common: a network that has learnt its data has hardly a gradient there. It is said only
    where the network is sure of nothing, and beside a training of the same length on what it expects.
    """
    if not isinstance(training.optimiser, SGD):
        return
    declared = _declaration(said, training)
    seen = math.sqrt(sum(float(u.double().square().sum()) for u in said.update.values()))
    correct = "correct training.lr (a loss that is summed over the examples makes it larger), epochs or batch_size"
    most, least = _most(said, training, declared), smallest(declared)
    if most is not None and seen > most:
        yield (
            f"the message has the norm {seen:.3g}, where the declared training moves no image's weights by more than "
            f"{most:.3g} within reason: {correct}"
        )
    if least is not None and seen * BELOW < least:
        yield (
            f"the message has the norm {seen:.3g}, where the declared training moves the weights by about "
            f"{least:.3g} on any image, since the network is sure of none: {correct}"
        )


def _most(said: Statement, training: Training, declared: Declaration) -> float | None:
    """The largest norm that a message may have; None where there is none to be named."""
    optimiser = training.optimiser
    assert isinstance(optimiser, SGD)
    if training.clip is not None and not optimiser.weight_decay:
        travelled = optimiser.travel(training.lr, said.steps)
        return None if travelled is None else SLACK * training.clip * travelled
    one = largest(declared)
    return None if one is None else BEYOND * one


def _declaration(said: Statement, training: Training) -> Declaration:
    return Declaration(said.model, said.before, said.buffers, said.shape, said.whitening, training, said.steps)


def _normalising(model: nn.Module) -> list[str]:
    return [name for name, layer in model.named_modules() if isinstance(layer, _NormBase)]


def _running(model: nn.Module) -> list[str]:
    return [f"{name}.{kind}" for name in _normalising(model) for kind in (MEAN, VARIANCE)]


def _moved(said: Statement) -> Tensor | None:
    """By how much each weight moved, in order; None where too few did for a comparison.

    One layer alone may have gradients of equal size: zero weights of two classes, and pixels that are black or white.
    """
    pairs = [(u.abs().double(), said.before[name].abs().double()) for name, u in said.update.items()]
    kept = [moved[moved > GRAIN * said.steps * size] for moved, size in pairs]
    enough = [sizes for sizes in kept if len(sizes) >= ENTRIES]
    return torch.cat(enough).sort().values if len(enough) > 1 else None


def _densest(sizes: Tensor) -> float:
    """The largest share of sizes that count as equal; of sorted ones."""
    logs = sizes.log()
    ends = torch.searchsorted(logs, logs + WINDOW, right=True)
    return float((ends - torch.arange(len(logs))).max()) / len(logs)


# What a recorded round declares of its messages: to be played again, and to be checked without the data.


MEANS = (UNKNOWN_RULE, MEAN_RULE)
"""Rules of aggregation that a replay supposes."""


@dataclass(frozen=True, eq=False)
class Heard:
    """What a view saw of one recorded round."""

    transcript: Transcript
    index: int
    seen: ViewResult

    @property
    def people(self) -> list[Participant]:
        """Whose examples are in the message, the adversary's own last."""
        names = (*self.seen.clients, *(() if self.seen.own_client is None else (self.seen.own_client,)))
        present = {p.name: p for p in self.transcript.rounds[self.index].participants}
        return [present[name] for name in names]

    def declared(self, truths: Truths, protections: Mapping[str, Protection]) -> Declared | None:
        """What is said to have made the message; None where nobody has said how a client trained."""
        parts = []
        for person in self.people:
            own, training = truths.of(person.name, self.index), person.training
            if training is None:
                return None
            shield = protections.get(person.name, Protection())
            order = truths.batches(person.name, self.index)
            parts.append(Part(own.images, own.labels, training, shield, person.weight, order))
        o, terms = self.seen.observation, self.transcript.terms
        mine, mean = int(self.seen.own_client is not None), len(parts) == 1 or terms.rule in MEANS
        return Declared(o.model, o.before, o.buffers, o.update, terms.whitening, tuple(parts), self.index, mine, mean)

    def protections(self, protections: Mapping[str, Protection]) -> tuple[Protection, ...]:
        """Return what is said to protect each client; empty where somebody's is not known."""
        return () if self.unnamed(protections) else tuple(protections.get(p.name, Protection()) for p in self.people)

    def statement(self, protections: Mapping[str, Protection]) -> Statement | None:
        """The same without the data."""
        told = [(person.examples, person.training) for person in self.people]
        trainings = tuple((examples, training) for examples, training in told if training is not None)
        if len(trainings) < len(told):
            return None
        o, terms = self.seen.observation, self.transcript.terms
        return Statement(
            o.model,
            o.before,
            o.buffers,
            o.buffers_after,
            o.update,
            terms.shape,
            terms.whitening,
            trainings,
            None if self.unnamed(protections) else any(p != Protection() for p in self.protections(protections)),
        )

    def unnamed(self, protections: Mapping[str, Protection]) -> bool:
        """Return whether something protects a client of which nobody has said what."""
        defences = self.transcript.terms.defences
        known = {p.name for p in self.people if defences is not None and not defences.get(p.name)}
        return any(p.name not in protections and p.name not in known for p in self.people)
