"""Theorem 1 of the maliciously curious client, measured: each term of its bound, beside what the attack is wrong by."""

from __future__ import annotations

import copy
import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from typing import ClassVar

import torch
from torch import Tensor, nn
from torch.func import functional_call
from torch.nn.functional import cross_entropy

from fedglass.analysis.reconstruction_bound import (
    Federated,
    Terms,
    lengths,
    objective_gap,
    root_mean_square,
    smoothness,
    steepness,
    terms,
)
from fedglass.attack.hypotheses import AnyAttack
from fedglass.attack.parts import Progress
from fedglass.attack.starts import part
from fedglass.audit.guesses import best_guess
from fedglass.audit.probe import Finding
from fedglass.audit.target import Target
from fedglass.core.errors import UsageError
from fedglass.core.params import Params, flatten
from fedglass.core.types import Observation, Training
from fedglass.defend.dpsgd import DPSGD
from fedglass.fl.local import GradientFn, MeanGradient
from fedglass.metrics.matching import Matching, match
from fedglass.reproduce.cost import SECOND_ORDER, Load
from fedglass.reproduce.curves import Lines
from fedglass.rounds.behaviour.behaviour import Behaviour
from fedglass.rounds.behaviour.honest import Honest
from fedglass.rounds.client import Client
from fedglass.rounds.federation import Federation
from fedglass.rounds.transcript import Round, Transcript
from fedglass.rounds.truth import Truth
from fedglass.rounds.views.peer import PeerView
from fedglass.rounds.views.view import Knows


@dataclass(frozen=True, eq=False)
class _Read:
    """One audited round."""

    index: int
    before: Tensor  # (d,)
    gradient: Tensor  # (d,), g_k = (w_k - w_(k+1)) / eta
    objective: float
    """f(w_(k+1)), the mean loss over the examples of all clients."""
    found: Tensor  # (n, c, h, w), in the order of the private images


@dataclass(frozen=True)
class Theorem1:
    """Plays the federation behind a message on, round by round, and attacks it in some of them as one of its clients.

    Every client, the adversary too, takes its gradients with clipping and noise where `noise` is above 0, as in the
    theorem. Objective, base error and lengths are measured with the private images: they are an oracle's.
    """

    accelerated: ClassVar[bool] = False
    attack: ClassVar[None] = None

    reader: AnyAttack
    iterations: int
    """Of the reader, for the estimate of its time."""
    audited: tuple[int, ...]
    """Rounds, counted from 0, which is among them."""
    noise: float = 0.0
    clip: float = 4.0
    behaviour: Behaviour = field(default_factory=Honest)
    """Of the adversary."""

    def __post_init__(self) -> None:
        if len(self.audited) < 2 or self.audited[0] != 0 or list(self.audited) != sorted(set(self.audited)):
            raise UsageError(f"The rounds of Theorem 1 must ascend from 0, at least two of them, got {self.audited}.")

    def measure(self, target: Target, seed: int, progress: Progress) -> Finding:
        seen, truth = target.observation, target.known_truth
        training = seen.knows.training
        if training is None or training.local_steps(1) != 1:
            raise UsageError(
                "Theorem 1 is about federated SGD: let every client take one step, and the adversary know."
            )
        federation = self._federation(seen, truth, training, seed)
        reads = [self._read(federation, i, past, truth, seed, progress) for i, past in self._played(federation)]
        of = self._federated(seen, training)
        start = objective(federation.model, seen.before, seen, truth)
        base = float(lengths(reads[0].found - truth.private.images).max())
        longest = max(float(lengths(images).max()) for images in (truth.private.images, *(r.found for r in reads)))
        steep = steepness([r.found for r in reads], [r.gradient for r in reads])
        bounds = [terms(of, r.index, steep, objective_gap(start, r.objective), base, longest) for r in reads]
        blind = best_guess(seen, truth, truth.private.labels, ("rmse",), None).values["rmse"]
        guess = math.sqrt(sum(value**2 for value in blind) / len(blind))
        rate = smoothness([r.before for r in reads], [r.gradient for r in reads])
        return _finding(reads, bounds, truth, guess, {"steepness": steep, "smoothness": rate * training.lr})

    def _federation(self, seen: Observation, truth: Truth, training: Training, seed: int) -> Federation:
        """The clients behind the message, the adversary last, from the model that it was sent."""
        model = copy.deepcopy(seen.model)
        model.load_state_dict({**seen.before, **seen.buffers})
        gradient: GradientFn = DPSGD(self.clip, self.noise) if self.noise else MeanGradient()
        sizes = list(seen.knows.sizes or ())
        parts = zip(torch.split(truth.images, sizes), torch.split(truth.labels, sizes), strict=True)
        last = len(sizes) - 1
        clients = [
            Client(f"client {i}", *own, gradient, behaviour=self.behaviour if i == last else Honest())
            for i, own in enumerate(parts)
        ]
        return Federation(model, clients, training, seen.knows.classes, seen.knows.whitening, seed=seed)

    def _played(self, federation: Federation) -> list[tuple[int, Round]]:
        rounds = enumerate(federation.play(self.audited[-1] + 1))
        return [(index, past) for index, past in rounds if index in self.audited]

    def _read(
        self, federation: Federation, index: int, past: Round, truth: Truth, seed: int, progress: Progress
    ) -> _Read:
        """What the attack finds in that round; the truth is for the order and the score alone."""
        transcript = Transcript(federation.model, federation.terms, {index: past})
        view = PeerView(len(federation.clients) - 1, index)
        seen = view.see(transcript, Knows(labels=True), federation.truths([index])).observation
        done = part(progress, self.audited.index(index), len(self.audited))
        found = self.reader.run(seen, seed, done).images.detach().cpu().clamp(0, 1)
        partner = match(found, truth.images).partner[: len(truth.private.labels)]
        step = flatten(past.step)
        reached = objective(federation.model, past.after, seen, truth)
        return _Read(
            index, flatten(past.before), -step / federation.training.lr, reached, Matching(partner).apply(found)
        )

    def _federated(self, seen: Observation, training: Training) -> Federated:
        sizes = seen.knows.sizes or (seen.knows.examples,)
        count = sum(w.numel() for w in seen.before.values())
        return Federated(training.lr, len(sizes), min(sizes), count, self.clip, self.noise)

    def seconds(self, load: Load) -> float:
        plain = SECOND_ORDER * load.clients * load.gradient(load.examples)
        return len(self.audited) * self.iterations * plain + self.audited[-1] * load.clients * load.training_seconds()


def objective(model: nn.Module, weights: Params, seen: Observation, truth: Truth) -> float:
    """f(w): the mean loss over the examples of all clients, the adversary's own among them."""
    with torch.no_grad():
        logits = functional_call(
            copy.deepcopy(model).eval(), dict(weights), (seen.knows.whitening.whiten(truth.images),)
        )
        return float(cross_entropy(logits.double(), truth.labels))


def _finding(
    reads: Sequence[_Read], bounds: Sequence[Terms], truth: Truth, guess: float, measured: dict[str, float]
) -> Finding:
    """The table's figures, each round's terms, and the drawing."""
    private = truth.private.images
    pixels = private[0].numel()
    errors = [root_mean_square(read.found, private) for read in reads]
    limits = [bound.error(pixels) for bound in bounds]
    capped = [read.index + 1 for read, bound in zip(reads, bounds, strict=True) if bound.capped]
    measures = {
        "base": bounds[0].base / math.sqrt(pixels),
        "cap": bounds[0].cap / math.sqrt(pixels),
        "first": errors[0],
        "last": errors[-1],
        "blind": guess,
        "loosest": max(limit / error for limit, error in zip(limits, errors, strict=True)),
        "undefined": float(sum(bound.gap is None for bound in bounds)),
        **measured,
    }
    measures |= {"capped": float(capped[0])} if capped else {}
    uncapped = {
        r.index + 1: b.total / math.sqrt(pixels) for r, b in zip(reads, bounds, strict=True) if b.total is not None
    }
    points = {
        "Theorem 1 without its cap": list(uncapped.items()),
        "Theorem 1": [(r.index + 1, limit) for r, limit in zip(reads, limits, strict=True)],
        "best blind guess": [(r.index + 1, guess) for r in reads],
        "measured": [(r.index + 1, error) for r, error in zip(reads, errors, strict=True)],
    }
    rounds = [
        {"round": r.index + 1, "objective": r.objective, "rmse": e, **asdict(b)}
        for r, e, b in zip(reads, errors, bounds, strict=True)
    ]
    drawn = Lines("RMSE", "round", {name: line for name, line in points.items() if line})
    return Finding({"extra": {"measures": measures, "rounds": rounds, "lines": [asdict(drawn)]}})
