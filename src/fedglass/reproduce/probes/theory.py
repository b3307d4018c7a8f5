"""Theorem 1 of the maliciously curious client, measured: a bound on the error of a peer's reconstruction.

[Yue et al., 2025, Theorem 1 and Appendix A]

Federated SGD (one local step), M clients with batches of B examples, learning rate eta = 1 / L_g, gradients of single
examples clipped to C, noise of deviation sigma C / B in each of the d coordinates. For the round k, counted from 0,
the paper has in Eq. 41

    sqrt(d_in) RMSE_k <= min{ e_0 + rho_0 Delta_(k+1) + rho_1 sigma, 2 upsilon },
    rho_0 = 2 L_psi sqrt(2 k / eta),    rho_1 = 2 sqrt(2 d) L_psi C k / (sqrt(M) B),
    Delta_(k+1) = sqrt(f(w_0) - f(w_(k+1))),    e_0 = max_i |x_i - psi_i(g_0)|.

The theorem takes the reconstruction for a function psi_i of the step g alone with the Lipschitz constant L_psi,
although an attack knows the weights too. It also takes all images and reconstructions for equally long (upsilon). No
such constant is known for an attack that searches. `steepness` estimates it from the attack's own reconstructions: a
LOWER estimate, so that the true right-hand side is at least what is computed here.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field

import torch
from torch import Tensor, nn
from torch.func import functional_call
from torch.nn.functional import cross_entropy

from fedglass.attack.best_of import AnyAttack
from fedglass.attack.parts import Progress
from fedglass.attack.stages import progress_part
from fedglass.audit.assessment import best_guess
from fedglass.audit.cost import SECOND_ORDER, Workload
from fedglass.audit.target import ProbeResult, Target
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
from fedglass.reproduce.probes.probe import PublishedProbe, match_images


@dataclass(frozen=True)
class FederationSizes:
    """The sizes of a federation that the bound depends on."""

    lr: float
    clients: int
    batch: int
    """The number of examples of each client in a step."""
    parameters: int
    clip: float = 0.0
    noise: float = 0.0
    """The noise multiplier sigma; without noise the clipping has no influence."""


@dataclass(frozen=True)
class BoundTerms:
    """The right-hand side in one round, all of it as distances between whole images (not divided by sqrt(d_in))."""

    base: float
    """e_0."""
    gap: float | None
    """rho_0 Delta; None if the training has raised the objective, so that Delta is the root of a negative number."""
    noise: float
    """rho_1 sigma."""
    cap: float
    """2 upsilon."""

    @property
    def total(self) -> float | None:
        """Return the first argument of the minimum; None if the gap is undefined."""
        return None if self.gap is None else self.base + self.gap + self.noise

    @property
    def capped(self) -> bool:
        """Return whether the bound states only that images have a length."""
        return self.total is None or self.total >= self.cap

    def error(self, pixels: int) -> float:
        """Return the bound on the RMSE of images of so many values; the cap if there is nothing else.

        >>> BoundTerms(base=1.0, gap=2.0, noise=0.0, cap=10.0).error(pixels=9)
        1.0
        >>> BoundTerms(base=1.0, gap=None, noise=0.0, cap=6.0).error(pixels=9)
        2.0
        """
        return (self.cap if self.total is None else min(self.total, self.cap)) / math.sqrt(pixels)


def bound_terms(
    of: FederationSizes, index: int, steep: float, gap: float | None, base: float, longest: float
) -> BoundTerms:
    """Return the terms in the round `index`, counted from 0.

    In the first round only the base error is left, whatever the gap: the proof takes no step from there.

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


def steepness(images_by_round: Sequence[Tensor], gradients: Sequence[Tensor]) -> float:
    """Return the largest |psi_i(g_0) - psi_i(g_k)| / |g_0 - g_k| over images i and rounds k: at most L_psi, if any.

    `images_by_round` holds each round's reconstructions in the order of the same originals, `gradients` its step as one
    vector. A change of the reconstruction without one of the step is infinitely steep.

    >>> steepness([torch.zeros(1, 2), torch.tensor([[3.0, 4.0]])], [torch.zeros(1), torch.tensor([2.0])])
    2.5
    """
    if len(images_by_round) != len(gradients) or len(images_by_round) < 2:
        raise UsageError(f"A slope needs two rounds or more, got {len(images_by_round)} and {len(gradients)}.")
    slopes = []
    for images, gradient in zip(images_by_round, gradients, strict=True):
        moved, way = float(image_norms(images_by_round[0] - images).max()), float((gradients[0] - gradient).norm())
        slopes.append(0.0 if moved == 0 else math.inf if way == 0 else moved / way)
    return max(slopes)


def image_norms(images: Tensor) -> Tensor:
    """Return the norm of each image.  # (n, c, h, w) -> (n,)"""
    norms: Tensor = torch.linalg.vector_norm(images.flatten(1), dim=1)
    return norms


def smoothness(weights: Sequence[Tensor], gradients: Sequence[Tensor]) -> float:
    """Return the largest |g_0 - g_k| / |w_0 - w_k| over rounds: at most L_g, if the steps are free of noise.

    >>> smoothness([torch.zeros(1), torch.tensor([2.0])], [torch.ones(1), torch.zeros(1)])
    0.5
    """
    ways = [
        (float((weights[0] - w).norm()), float((gradients[0] - g).norm()))
        for w, g in zip(weights, gradients, strict=True)
    ]
    return max((turned / way for way, turned in ways if way > 0), default=0.0)


@dataclass(frozen=True, eq=False)
class _AttackedRound:
    """One round of the federation and the attack on it."""

    index: int
    before: Tensor  # (d,)
    gradient: Tensor  # (d,), g_k = (w_k - w_(k+1)) / eta
    objective: float
    """f(w_(k+1)), the mean loss over the examples of all clients."""
    images: Tensor  # (n, c, h, w), in the order of the private images


@dataclass(frozen=True)
class Theorem1(PublishedProbe):
    """Continues the federation behind a message, attacks some of its rounds as a client, and compares with the bound.

    Every client, the adversary too, clips its gradients and adds noise if `noise` is above 0, as in the theorem.
    Objective, base error and lengths are measured with the private images: they are an oracle's.
    """

    reader: AnyAttack
    iterations: int
    """Iterations of the reader, for the estimate of its time."""
    audited: tuple[int, ...]
    """Attacked rounds, counted from 0; round 0 is one of them."""
    noise: float = 0.0
    clip: float = 4.0
    behaviour: Behaviour = field(default_factory=Honest)
    """Behaviour of the adversary."""

    def __post_init__(self) -> None:
        if len(self.audited) < 2 or self.audited[0] != 0 or list(self.audited) != sorted(set(self.audited)):
            raise UsageError(f"The rounds of Theorem 1 must ascend from 0, at least two of them, got {self.audited}.")

    def measure(self, target: Target, seed: int, progress: Progress) -> ProbeResult:
        observation, truth = target.observation, target.known_truth
        training = observation.knows.training
        if training is None or training.local_steps(1) != 1:
            raise UsageError(
                "Theorem 1 is about federated SGD: let every client take one step, and the adversary know the training."
            )
        federation = self._federation(observation, truth, training, seed)
        attacked = [
            self._read(federation, index, round_, truth, seed, progress)
            for index, round_ in enumerate(federation.play(self.audited[-1] + 1))
            if index in self.audited
        ]
        examples = observation.knows.sizes or (observation.knows.examples,)
        parameters = sum(w.numel() for w in observation.before.values())
        sizes = FederationSizes(training.lr, len(examples), min(examples), parameters, self.clip, self.noise)
        start = objective(federation.model, observation.before, observation, truth)
        base = float(image_norms(attacked[0].images - truth.private.images).max())
        longest = max(
            float(image_norms(images).max()) for images in (truth.private.images, *(r.images for r in attacked))
        )
        steep = steepness([r.images for r in attacked], [r.gradient for r in attacked])
        gaps = [math.sqrt(start - r.objective) if r.objective <= start else None for r in attacked]
        bounds = [bound_terms(sizes, r.index, steep, gap, base, longest) for r, gap in zip(attacked, gaps, strict=True)]
        blind = best_guess(observation, truth, truth.private.labels, ("rmse",), None)[0]["rmse"]
        guess = math.sqrt(sum(value**2 for value in blind) / len(blind))
        rate = smoothness([r.before for r in attacked], [r.gradient for r in attacked])
        return _finding(attacked, bounds, truth, guess, {"steepness": steep, "smoothness": rate * training.lr})

    def _federation(self, observation: Observation, truth: Truth, training: Training, seed: int) -> Federation:
        """Return the clients behind the message, the adversary last, with the model that it was sent."""
        model = copy.deepcopy(observation.model)
        model.load_state_dict({**observation.before, **observation.buffers})
        gradient: GradientFn = DPSGD(self.clip, self.noise) if self.noise else MeanGradient()
        sizes = list(observation.knows.sizes or ())
        parts = zip(torch.split(truth.images, sizes), torch.split(truth.labels, sizes), strict=True)
        last = len(sizes) - 1
        clients = [
            Client(f"client {i}", *examples, gradient, behaviour=self.behaviour if i == last else Honest())
            for i, examples in enumerate(parts)
        ]
        return Federation(model, clients, training, observation.knows.classes, observation.knows.whitening, seed=seed)

    def _read(
        self, federation: Federation, index: int, round_: Round, truth: Truth, seed: int, progress: Progress
    ) -> _AttackedRound:
        """Attack that round; the truth is for the order and the score alone."""
        transcript = Transcript(federation.model, federation.terms, {index: round_})
        view = PeerView(len(federation.clients) - 1, index)
        observation = view.see(transcript, Knows(labels=True), federation.truths([index])).observation
        done = progress_part(progress, self.audited.index(index), len(self.audited))
        images = match_images(self.reader.run(observation, seed, done).images, truth).ordered
        step = flatten(round_.step)
        reached = objective(federation.model, round_.after, observation, truth)
        return _AttackedRound(index, flatten(round_.before), -step / federation.training.lr, reached, images)

    def stages(self) -> tuple[int, ...]:
        return (self.iterations,)

    def seconds(self, load: Workload) -> float:
        plain = SECOND_ORDER * load.clients * load.gradient(load.examples)
        return len(self.audited) * self.iterations * plain + self.audited[-1] * load.clients * load.training_seconds()


def objective(model: nn.Module, weights: Params, observation: Observation, truth: Truth) -> float:
    """Return f(w), the mean loss over the examples of all clients, the adversary's included."""
    with torch.no_grad():
        logits = functional_call(
            copy.deepcopy(model).eval(), dict(weights), (observation.knows.whitening.whiten(truth.images),)
        )
        return float(cross_entropy(logits.double(), truth.labels))


def _finding(
    attacked: Sequence[_AttackedRound],
    bounds: Sequence[BoundTerms],
    truth: Truth,
    guess: float,
    measured: dict[str, float],
) -> ProbeResult:
    """Return the figures of the table, the terms of each round, and a plot."""
    private = truth.private.images
    pixels = private[0].numel()
    errors = [float(torch.sqrt((read.images - private).double().square().mean())) for read in attacked]  # Eq. 34
    limits = [bound.error(pixels) for bound in bounds]
    capped = [read.index + 1 for read, bound in zip(attacked, bounds, strict=True) if bound.capped]
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
        r.index + 1: b.total / math.sqrt(pixels) for r, b in zip(attacked, bounds, strict=True) if b.total is not None
    }
    points = {
        "Theorem 1 without its cap": list(uncapped.items()),
        "Theorem 1": [(r.index + 1, limit) for r, limit in zip(attacked, limits, strict=True)],
        "best blind guess": [(r.index + 1, guess) for r in attacked],
        "measured": [(r.index + 1, error) for r, error in zip(attacked, errors, strict=True)],
    }
    rounds = [
        {"round": r.index + 1, "objective": r.objective, "rmse": e, **asdict(b)}
        for r, e, b in zip(attacked, errors, bounds, strict=True)
    ]
    drawn = {"title": "RMSE", "axis": "round", "points": {name: line for name, line in points.items() if line}}
    return ProbeResult({"extra": {"measures": measures, "rounds": rounds, "lines": [drawn]}})
