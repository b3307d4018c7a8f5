"""The filters of NVFlare and the mods of Flower as defences, with the names and defaults of the frameworks.

They follow NVFlare 2.9 and Flower 1.41. All of them leave 0-d tensors as they are. They take an update, which is a
difference of weights, and never the weights themselves.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar, cast

import numpy as np
import torch
from torch import Tensor

from fedglass.core.errors import UsageError
from fedglass.core.registry import register
from fedglass.core.tensors import Update
from fedglass.defend.noise import GaussianNoise, laplace, normal
from fedglass.defend.per_example import (
    Strength,
    check_at_least_zero,
    check_closed_share,
    check_percentage,
    check_positive,
    check_share,
)
from fedglass.fl.release import Outgoing, limits_of_zeros, smallest_kept

SHOKRI = (
    "Shokri, Shmatikov: Privacy-Preserving Deep Learning, CCS 2015, https://doi.org/10.1145/2810103.2813687; NVFlare's "
    "PercentilePrivacy"
)
LYU = (
    "Lyu, Su, Li: Understanding the Sparse Vector Technique for Differential Privacy, VLDB 2017, "
    "https://arxiv.org/abs/1603.01699; NVFlare's SVTPrivacy"
)
DWORK = (
    "Dwork, Roth: The Algorithmic Foundations of Differential Privacy, 2014, Theorem A.1, "
    "https://doi.org/10.1561/0400000042; Flower's LocalDpMod"
)
MCMAHAN = (
    "McMahan, Ramage, Talwar, Zhang: Learning Differentially Private Recurrent Language Models, ICLR 2018, "
    "https://arxiv.org/abs/1710.06963; Flower's fixedclipping_mod"
)
CUT_OFF = 0.999
"""Share of gamma from which an entry counts as cut off: sent in half precision, it may be off by 0.0005."""
MOST_PASSES = 1000
"""Passes of the sparse vector technique, beyond which its threshold is out of reach; NVFlare would go on for ever."""


@register(
    "defences", "percentile_privacy", summary="small entries set to 0, large ones cut off, in NVFlare", paper=SHOKRI
)
@dataclass(frozen=True)
class PercentilePrivacy:
    """Entries below one percentile of all absolute values become 0, the others are clipped to [-gamma, gamma].

    The update is divided by `steps` before, and multiplied afterwards: NVFlare takes the number of local steps from the
    message (NUM_STEPS_CURRENT_ROUND), or 1. If at least `percentile` per cent of all entries are exactly 0, as with
    dead units or black pixels, the cutoff is 0 and nothing is removed. It is not differentially private.

    >>> update = {"w": torch.tensor([0.001, -0.002, 0.005, -0.03])}
    >>> PercentilePrivacy(percentile=50).release(Outgoing(update, torch.Generator()))
    {'w': tensor([ 0.0000,  0.0000,  0.0050, -0.0100])}
    """

    percentile: float = 10
    gamma: float = 0.01
    steps: float = 1
    strength: ClassVar = Strength("percentile", 10.0, 99.9, origin=100)

    def __post_init__(self) -> None:
        check_percentage(self, "percentile")
        check_positive(self, "gamma")
        check_positive(self, "steps")

    def release(self, leaving: Outgoing) -> Update:
        scaled = {name: tensor / self.steps for name, tensor in leaving.update.items()}
        sizes = np.concatenate([_array(tensor.abs()).ravel() for tensor in scaled.values()])
        cutoff = float(np.percentile(sizes, self.percentile))
        return {name: (t if t.dim() == 0 else self._filtered(t, cutoff)) * self.steps for name, t in scaled.items()}

    def _filtered(self, tensor: Tensor, cutoff: float) -> Tensor:
        return tensor.masked_fill(tensor.abs() < cutoff, 0.0).clamp(-self.gamma, self.gamma)

    def limits(self, low: Update, high: Update) -> tuple[Update, Update]:
        cut_off = CUT_OFF * self.gamma * self.steps
        wide_low = {n: t if t.dim() == 0 else t.masked_fill(t <= -cut_off, -math.inf) for n, t in low.items()}
        wide_high = {n: t if t.dim() == 0 else t.masked_fill(t >= cut_off, math.inf) for n, t in high.items()}
        filtered = [name for name, tensor in low.items() if tensor.dim() > 0]
        pair = {n: wide_low[n] for n in filtered}, {n: wide_high[n] for n in filtered}
        first, last = limits_of_zeros(*pair, smallest_kept(*pair))
        return {**low, **first}, {**high, **last}

    def most_zeros(self, entries: int) -> int:
        """Return the most zeros that the filter leaves in so many entries if its cutoff is above 0."""
        return math.floor(self.percentile / 100 * (entries - 1)) + 1


@register("defences", "svt_privacy", summary="some noisy entries above a noisy threshold, in NVFlare", paper=LYU)
@dataclass(frozen=True)
class SVTPrivacy:
    """The sparse vector technique: c = `fraction` of the entries, clipped to [-gamma, gamma], with Laplacian noise.

    An entry is accepted if its noisy absolute value reaches the noisy threshold `tau`; passes go on until c entries are
    accepted, of which c are drawn. All others become 0. `epsilon` pays for the choice alone: the release of the values
    costs `epsilon_release`, and without it c * `noise_var`. As of NVFlare 2.9.
    """

    fraction: float = 0.1
    epsilon: float = 0.1
    noise_var: float = 0.1
    gamma: float = 1e-5
    tau: float = 1e-6
    replace: bool = True
    epsilon_threshold: float | None = None
    epsilon_query: float | None = None
    epsilon_release: float | None = None
    steps: float = 1
    strength: ClassVar = Strength("fraction", 1.0, 0.001)

    def __post_init__(self) -> None:
        check_closed_share(self, "fraction")
        check_at_least_zero(self, "tau")
        given = [n for n in ("epsilon_threshold", "epsilon_query", "epsilon_release") if getattr(self, n) is not None]
        for name in ("epsilon", "noise_var", "gamma", "steps", *given):
            check_positive(self, name)
        threshold, query = self._choice_budgets(1)
        if min(threshold, query) <= 0 or not math.isclose(threshold + query, self.epsilon, rel_tol=1e-5):
            raise UsageError(
                "SVTPrivacy.epsilon_threshold and epsilon_query must be above 0 and sum to epsilon, got "
                f"{threshold:g} and {query:g} for {self.epsilon:g}: leave one of them out."
            )

    def uploads(self, entries: int) -> int:
        """Return how many of so many entries are sent."""
        return min(math.ceil(entries * self.fraction), entries)

    def release_budget(self, entries: int) -> float:
        """Return the epsilon of the released values alone."""
        return self.uploads(entries) * self.noise_var if self.epsilon_release is None else self.epsilon_release

    def spent(self, entries: int) -> float:
        """Return the whole epsilon of one release, as NVFlare's ledger counts it: that of the choice and of the values.

        >>> SVTPrivacy().spent(1000)
        10.1
        """
        return self.epsilon + self.release_budget(entries) if self.uploads(entries) else 0.0

    def _choice_budgets(self, uploads: int) -> tuple[float, float]:
        """Return the epsilon of the threshold and of the queries."""
        threshold, query = self.epsilon_threshold, self.epsilon_query
        if threshold is None and query is None:
            threshold = self.epsilon / (1 + (2 * uploads) ** (2 / 3))
        threshold = self.epsilon - cast(float, query) if threshold is None else threshold
        return threshold, self.epsilon - threshold if query is None else query

    def release(self, leaving: Outgoing) -> Update:
        names = sorted(leaving.update)
        tensors = [leaving.update[name] for name in names]
        scaled = torch.cat([tensor.detach().cpu().double().flatten() for tensor in tensors]) / self.steps
        clipped, sent = scaled.clamp(-self.gamma, self.gamma), torch.zeros_like(scaled)
        uploads, generator = self.uploads(len(scaled)), leaving.generator
        if uploads:
            accepted = self._accepted(clipped.abs(), uploads, generator)
            if self.replace:
                drawn = torch.randint(len(accepted), (uploads,), generator=generator, device=generator.device)
            else:
                drawn = torch.randperm(len(accepted), generator=generator, device=generator.device)[:uploads]
            chosen = accepted[drawn.cpu()]
            scale = 2 * self.gamma * uploads / self.release_budget(len(scaled))
            sent[chosen] = clipped[chosen] + scale * laplace(clipped[chosen], generator)
        pieces = torch.split(sent * self.steps, [tensor.numel() for tensor in tensors])
        released = {
            name: tensor if tensor.dim() == 0 else piece.view(tensor.shape).to(tensor)
            for name, tensor, piece in zip(names, tensors, pieces, strict=True)
        }
        return {name: released[name] for name in leaving.update}

    def _accepted(self, sizes: Tensor, uploads: int, generator: torch.Generator) -> Tensor:
        """Return the entries whose noisy size reaches the noisy threshold, in passes over those that did not."""
        threshold_budget, query_budget = self._choice_budgets(uploads)
        threshold = self.tau + self.gamma / threshold_budget * laplace(sizes[:1], generator)
        accepted = torch.zeros(len(sizes), dtype=torch.bool)
        for _ in range(MOST_PASSES):
            waiting = (~accepted).nonzero()[:, 0]
            noise = 2 * self.gamma * uploads / query_budget * laplace(sizes[waiting], generator)
            accepted[waiting[sizes[waiting] + noise >= threshold]] = True
            if int(accepted.sum()) >= uploads:
                return accepted.nonzero()[:, 0]
        raise UsageError(
            f"SVTPrivacy.tau = {self.tau:g} lets {int(accepted.sum())} of {uploads} entries pass, after {MOST_PASSES} "
            "passes: lower tau or fraction."
        )


@register("defences", "flower_fixed_clipping", summary="the update scaled down to a norm, in Flower", paper=MCMAHAN)
@dataclass(frozen=True)
class FlowerFixedClipping:
    """u * min(1, clipping_norm / ||u||), with the norm over all tensors; 0-d tensors count in it and are not scaled.

    `adaptive` marks adaptiveclipping_mod, whose norm the server changes from round to round [Andrew et al., 2021].

    >>> FlowerFixedClipping(1.0).release(Outgoing({"w": torch.tensor([3.0, 4.0])}, torch.Generator()))
    {'w': tensor([0.6000, 0.8000])}
    """

    clipping_norm: float
    adaptive: bool = False
    strength: ClassVar = Strength("clipping_norm", 10.0, 0.001)

    def __post_init__(self) -> None:
        check_positive(self, "clipping_norm")

    @property
    def norm(self) -> float:
        """The largest norm of what is sent, where no tensor is 0-d."""
        return self.clipping_norm

    def release(self, leaving: Outgoing) -> Update:
        # As Flower adds it up, in the precision of the tensors: another order would give other last digits.
        squares = [np.linalg.norm(_array(tensor).ravel()) ** 2 for tensor in leaving.update.values()]
        length = float(np.sqrt(sum(squares)))
        if not length > self.clipping_norm:
            return leaving.update
        factor = self.clipping_norm / length
        return {name: tensor if tensor.dim() == 0 else tensor * factor for name, tensor in leaving.update.items()}


@register("defences", "flower_local_dp", summary="clipping and Gaussian noise with an epsilon, in Flower", paper=DWORK)
@dataclass(frozen=True)
class FlowerLocalDP:
    """Flower's clipping, then noise of std = sensitivity sqrt(2 ln(1.25 / delta)) / epsilon; none on 0-d tensors.

    `sensitivity` is a free argument. The declared epsilon is sound only if it is at least `clipping_norm`, and epsilon
    is at most 1.

    >>> round(FlowerLocalDP(clipping_norm=1.0, sensitivity=1e-4, epsilon=10, delta=1e-5).std, 8)
    4.845e-05
    """

    clipping_norm: float
    sensitivity: float
    epsilon: float
    delta: float
    strength: ClassVar = Strength("epsilon", 10_000.0, 0.1)

    def __post_init__(self) -> None:
        check_positive(self, "clipping_norm")
        check_at_least_zero(self, "sensitivity")
        check_positive(self, "epsilon")
        check_positive(self, "delta")
        check_share(self, "delta")

    @property
    def std(self) -> float:
        """The standard deviation of the noise."""
        return self.sensitivity * math.sqrt(2 * math.log(1.25 / self.delta)) / self.epsilon

    @property
    def parts(self) -> tuple[FlowerFixedClipping, GaussianNoise]:
        """The same as two defences, for a network without 0-d parameters."""
        return FlowerFixedClipping(self.clipping_norm), GaussianNoise(self.std)

    def release(self, leaving: Outgoing) -> Update:
        clipped = FlowerFixedClipping(self.clipping_norm).release(leaving)
        return {
            name: tensor if tensor.dim() == 0 else tensor + self.std * normal(tensor, leaving.generator)
            for name, tensor in clipped.items()
        }


FILTERS = (PercentilePrivacy, SVTPrivacy, FlowerFixedClipping, FlowerLocalDP)


def _array(tensor: Tensor) -> np.ndarray[tuple[int, ...], np.dtype[np.floating]]:
    """Return the values in their own precision, half precision as single: NumPy lacks bfloat16."""
    values = tensor.detach().cpu()
    return (values if values.dtype in (torch.float32, torch.float64) else values.float()).numpy()
