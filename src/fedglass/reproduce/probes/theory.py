"""The terms of a bound on what a peer's reconstruction is wrong by [Yue et al., 2025, Theorem 1 and Appendix A].

Federated SGD (one local step), M clients with batches of B examples, learning rate eta = 1 / L_g, gradients of single
examples clipped to C, noise of deviation sigma C / B in each of the d coordinates. For the round k, counted from 0,
the paper has in Eq. 41

    sqrt(d_in) RMSE_k <= min{ e_0 + rho_0 Delta_(k+1) + rho_1 sigma, 2 upsilon },
    rho_0 = 2 L_psi sqrt(2 k / eta),    rho_1 = 2 sqrt(2 d) L_psi C k / (sqrt(M) B),
    Delta_(k+1) = sqrt(f(w_0) - f(w_(k+1))),    e_0 = max_i |x_i - psi_i(g_0)|.

It takes what an attack finds for a function psi_i of the step g alone with the Lipschitz constant L_psi, although an
attack is told the weights too, and all images and reconstructions for equally long (upsilon). No constant is known of
an attack that searches. `steepness` is what its own reconstructions show: a LOWER estimate, so that the true right-hand
side is at least what is computed here.
"""

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

from fedglass.attack.best_of import AnyAttack
from fedglass.attack.parts import Progress
from fedglass.attack.stages import progress_part
from fedglass.audit.assessment import best_guess
from fedglass.audit.cases import ProbeResult
from fedglass.audit.target import Target
from fedglass.core.errors import UsageError
from fedglass.core.tensors import Params, flatten
from fedglass.core.types import Observation, Training
from fedglass.defend.dpsgd import DPSGD
from fedglass.federation.behaviours import Behaviour, Honest
from fedglass.federation.client import Client
from fedglass.federation.federation import Federation
from fedglass.federation.peer import PeerView
from fedglass.federation.transcript import Round, Transcript
from fedglass.federation.truth import Truth
from fedglass.federation.views import Knows
from fedglass.fl.local import GradientFn, MeanGradient
from fedglass.reproduce.charts import LogPlot
from fedglass.reproduce.cost import SECOND_ORDER, Workload
from fedglass.reproduce.probes.probe import match_images


@dataclass(frozen=True)
class FederationSizes:
    """What the bound takes from the federation."""

    lr: float
    clients: int
    batch: int
    """Examples of each client in a step."""
    parameters: int
    clip: float = 0.0
    noise: float = 0.0
    """The noise multiplier sigma; without noise the clipping does not enter."""

    def __post_init__(self) -> None:
        if self.lr <= 0 or min(self.clients, self.batch, self.parameters) < 1 or self.clip < 0 or self.noise < 0:
            raise UsageError(
                "The bound needs a learning rate above 0, at least one client, example and parameter, and clip and "
                f"noise of at least 0, got {self}."
            )


@dataclass(frozen=True)
class BoundTerms:
    """The right-hand side in one round, all of it as distances between whole images (not divided by sqrt(d_in))."""

    base: float
    """e_0."""
    gap: float | None
    """rho_0 Delta; None where the training has raised the objective, so that Delta is the root of a negative number."""
    noise: float
    """rho_1 sigma."""
    cap: float
    """2 upsilon."""

    @property
    def total(self) -> float | None:
        """The first of the two that the minimum is taken of; None where the gap is not defined."""
        return None if self.gap is None else self.base + self.gap + self.noise

    @property
    def capped(self) -> bool:
        """Whether the bound says no more than that images have a length."""
        return self.total is None or self.total >= self.cap

    def error(self, pixels: int) -> float:
        """The bound on the RMSE of images of so many values; the cap where there is nothing else.

        >>> BoundTerms(base=1.0, gap=2.0, noise=0.0, cap=10.0).error(pixels=9)
        1.0
        >>> BoundTerms(base=1.0, gap=None, noise=0.0, cap=6.0).error(pixels=9)
        2.0
        """
        return (self.cap if self.total is None else min(self.total, self.cap)) / math.sqrt(pixels)


def objective_gap(first: float, later: float) -> float | None:
    """Delta = sqrt(f(w_0) - f(w_(k+1))); None where the objective has risen.

    >>> objective_gap(2.25, 2.0), objective_gap(2.0, 2.25)
    (0.5, None)
    """
    return math.sqrt(first - later) if later <= first else None


def bound_terms(
    of: FederationSizes, index: int, steep: float, gap: float | None, base: float, longest: float
) -> BoundTerms:
    """The terms in the round `index`, counted from 0. In the first one nothing but the base error is left, of whatever
    gap: the proof takes no step from there.

    >>> first = bound_terms(FederationSizes(0.5, 4, 2, 8), 0, steep=1.0, gap=0.3, base=1.0, longest=5.0)
    >>> first.gap, first.noise, first.total
    (0.0, 0.0, 1.0)
    >>> noisy = FederationSizes(0.5, 4, 2, 8, clip=4.0, noise=3.0)
    >>> later = bound_terms(noisy, 1, steep=1.0, gap=0.5, base=1.0, longest=5.0)
    >>> later.gap, later.noise, later.capped
    (2.0, 24.0, True)
    """
    slope = 2 * steep * math.sqrt(2 * index / of.lr)
    noise = 2 * math.sqrt(2 * of.parameters) * steep * of.clip * index / (math.sqrt(of.clients) * of.batch) * of.noise
    of_gap = 0.0 if index == 0 else None if gap is None else slope * gap
    return BoundTerms(base, of_gap, noise, 2 * longest)


def steepness(found: Sequence[Tensor], gradients: Sequence[Tensor]) -> float:
    """The largest |psi_i(g_0) - psi_i(g_k)| / |g_0 - g_k| over images i and rounds k: at most L_psi, if there is one.

    `found` are each round's reconstructions in the order of the same originals, `gradients` its step as one vector.
    A change of the reconstruction without one of the step is infinitely steep.

    >>> steepness([torch.zeros(1, 2), torch.tensor([[3.0, 4.0]])], [torch.zeros(1), torch.tensor([2.0])])
    2.5
    """
    if len(found) != len(gradients) or len(found) < 2:
        raise UsageError(f"A slope needs two rounds or more, got {len(found)} and {len(gradients)}.")
    return max(
        _slope(found[0], other, float((gradients[0] - g).norm())) for other, g in zip(found, gradients, strict=True)
    )


def _slope(first: Tensor, other: Tensor, way: float) -> float:
    moved = float((first - other).flatten(1).norm(dim=1).max())
    return 0.0 if moved == 0 else math.inf if way == 0 else moved / way


def image_norms(images: Tensor) -> Tensor:
    """The norm of each image.  # (n, c, h, w) -> (n,)"""
    found: Tensor = torch.linalg.vector_norm(images.flatten(1), dim=1)
    return found


def smoothness(weights: Sequence[Tensor], gradients: Sequence[Tensor]) -> float:
    """The largest |g_0 - g_k| / |w_0 - w_k| over rounds: at most L_g, where the steps are free of noise.

    >>> smoothness([torch.zeros(1), torch.tensor([2.0])], [torch.ones(1), torch.zeros(1)])
    0.5
    """
    ways = [
        (float((weights[0] - w).norm()), float((gradients[0] - g).norm()))
        for w, g in zip(weights, gradients, strict=True)
    ]
    return max((turned / way for way, turned in ways if way > 0), default=0.0)


def root_mean_square(found: Tensor, truth: Tensor) -> float:
    """The RMSE over all pixels of all images together [Eq. 34].

    >>> round(root_mean_square(torch.zeros(2, 4), torch.tensor([[0.0, 0, 0, 0], [1, 1, 1, 1]])) ** 2, 12)
    0.5
    """
    return float(torch.sqrt((found - truth).double().square().mean()))


# Theorem 1 of the maliciously curious client, measured: each term of its bound, beside what the attack is wrong by.


@dataclass(frozen=True, eq=False)
class _AttackedRound:
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

    def measure(self, target: Target, seed: int, progress: Progress) -> ProbeResult:
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
        base = float(image_norms(reads[0].found - truth.private.images).max())
        longest = max(float(image_norms(images).max()) for images in (truth.private.images, *(r.found for r in reads)))
        steep = steepness([r.found for r in reads], [r.gradient for r in reads])
        bounds = [bound_terms(of, r.index, steep, objective_gap(start, r.objective), base, longest) for r in reads]
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
    ) -> _AttackedRound:
        """What the attack finds in that round; the truth is for the order and the score alone."""
        transcript = Transcript(federation.model, federation.terms, {index: past})
        view = PeerView(len(federation.clients) - 1, index)
        seen = view.see(transcript, Knows(labels=True), federation.truths([index])).observation
        done = progress_part(progress, self.audited.index(index), len(self.audited))
        images = match_images(self.reader.run(seen, seed, done).images, truth).ordered
        step = flatten(past.step)
        reached = objective(federation.model, past.after, seen, truth)
        return _AttackedRound(index, flatten(past.before), -step / federation.training.lr, reached, images)

    def _federated(self, seen: Observation, training: Training) -> FederationSizes:
        sizes = seen.knows.sizes or (seen.knows.examples,)
        count = sum(w.numel() for w in seen.before.values())
        return FederationSizes(training.lr, len(sizes), min(sizes), count, self.clip, self.noise)

    def seconds(self, load: Workload) -> float:
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
    reads: Sequence[_AttackedRound],
    bounds: Sequence[BoundTerms],
    truth: Truth,
    guess: float,
    measured: dict[str, float],
) -> ProbeResult:
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
    drawn = LogPlot("RMSE", "round", {name: line for name, line in points.items() if line})
    return ProbeResult({"extra": {"measures": measures, "rounds": rounds, "lines": [asdict(drawn)]}})
