"""Random tensors from a generator, in the type and on the device of another tensor.

They are drawn where the generator lives, so that one seed gives one result on every device.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Protocol, runtime_checkable

import torch
from torch import Tensor
from torch.nn.modules.batchnorm import _BatchNorm

from fedglass.core.errors import ModelError, UsageError
from fedglass.core.registry import register
from fedglass.core.rng import stream
from fedglass.core.tensors import Update
from fedglass.core.text import DLFA
from fedglass.defend import checks
from fedglass.fl.local import GradientFn, MeanGradient, Step
from fedglass.fl.release import Outgoing, Release
from fedglass.models.network import Network


def normal(like: Tensor, generator: torch.Generator) -> Tensor:
    """Independent standard normal entries."""
    return torch.randn(like.shape, generator=generator, dtype=like.dtype, device=generator.device).to(like.device)


def uniform(like: Tensor, generator: torch.Generator) -> Tensor:
    """Independent entries, uniform in [0, 1)."""
    return torch.rand(like.shape, generator=generator, dtype=like.dtype, device=generator.device).to(like.device)


def laplace(like: Tensor, generator: torch.Generator) -> Tensor:
    """Independent Laplace entries of scale 1: the difference of two exponential ones, which is never infinite."""
    pair = torch.empty((2, *like.shape), dtype=like.dtype, device=generator.device).exponential_(generator=generator)
    return (pair[0] - pair[1]).to(like.device)


# The gradient of each example of a local step, which private training clips and defences perturb.


CHUNK_ENTRIES = 2**25
"""How many gradient entries are held at once: 128 MiB in single precision."""


def example_gradients(step: Step, only: Sequence[int] | None = None) -> Iterator[list[Tensor]]:
    """The gradients of the examples' own losses, some examples at a time.  # (chunk, *shape) each

    `only` names the parameters by position; without it all of them are differentiated.
    """
    refuse_batch_statistics(step)
    chosen = list(range(len(step.weights))) if only is None else list(only)
    entries = sum(step.weights[i].numel() for i in chosen)
    size = max(1, CHUNK_ENTRIES // max(1, entries))
    with torch.set_grad_enabled(step.differentiable):
        for first in range(0, len(step.inputs), size):
            rows = slice(first, first + size)
            yield _chunk(step, chosen, step.inputs[rows], step.targets[rows])


def _chunk(step: Step, chosen: Sequence[int], inputs: Tensor, targets: Tensor) -> list[Tensor]:
    def loss(moved: Sequence[Tensor], example: Tensor, target: Tensor) -> Tensor:
        weights = list(step.weights)
        for i, tensor in zip(chosen, moved, strict=True):
            weights[i] = tensor
        return step.loss(step.network(weights, example[None]), target[None])

    at = tuple(step.weights[i] for i in chosen)
    found = torch.func.vmap(torch.func.grad(loss), in_dims=(None, 0, 0))(at, inputs, targets)
    return list(found)


def refuse_batch_statistics(step: Step) -> None:
    """An example has no gradient of its own where the layers mix the examples of a batch."""
    if len(step.inputs) > 1 and _mixes_examples(step.network):
        raise ModelError(
            "The network normalises with the statistics of the batch, so an example has no gradient of its own, which "
            "this defence needs: set training.batch_norm to frozen, or choose a network without BatchNorm."
        )


def _mixes_examples(network: Network) -> bool:
    return any(isinstance(m, _BatchNorm) and (m.training or m.running_mean is None) for m in network._module.modules())


def noise_source(step: Step) -> torch.Generator:
    """The generator of a step whose gradient is random."""
    if step.generator is None:
        raise UsageError("This defence draws random numbers: give the local step a generator (Step.generator).")
    return step.generator


# A defence on each example's gradient, inside every local step.


@runtime_checkable
class Additive(Protocol):
    """A defence that adds noise which does not depend on what it is added to."""

    def mean_noise(self, like: Update, examples: int, generator: torch.Generator) -> Update:
        """The mean of the noise of that many examples."""
        ...


@dataclass(frozen=True)
class PerExample:
    """mean_i defence(g_i) over the examples of the batch, g_i being the gradient of example i's own loss.

    This is how the defences of Table 6 act in the release of [Dimitrov et al., 2022]: on the plain gradient of each
    example, neither clipped nor multiplied by the learning rate, with a strength that does not follow its size.
    Noise that does not depend on the gradient is added to their mean, mean_i (g_i + n_i) = g + mean_i n_i, without
    computing them one by one. Unlike in that release, each local step draws anew: see `SameEachEpoch`.
    """

    defence: Release

    def gradient(self, step: Step) -> Sequence[Tensor]:
        generator = noise_source(step)
        if isinstance(self.defence, Additive):
            plain = _named(step, MeanGradient().gradient(step))
            noise = self.defence.mean_noise(plain, len(step.inputs), generator)
            return [plain[name] + noise[name] for name in step.network.names]
        return self._mean(step, generator)

    def _mean(self, step: Step, generator: torch.Generator) -> Sequence[Tensor]:
        total = [torch.zeros_like(w) for w in step.weights]
        for chunk in example_gradients(step):
            for own in zip(*chunk, strict=True):
                released = self.defence.release(Outgoing(_named(step, own), generator))
                total = [t + released[name] for t, name in zip(total, step.network.names, strict=True)]
        return [t / len(step.inputs) for t in total]


def _named(step: Step, tensors: Sequence[Tensor]) -> dict[str, Tensor]:
    return dict(zip(step.network.names, tensors, strict=True))


# Flat clipping of an update.


PAPER = (
    "Abadi, Chu, Goodfellow, McMahan, Mironov, Talwar, Zhang: Deep Learning with Differential Privacy, CCS 2016, "
    "https://arxiv.org/abs/1607.00133"
)


@register("defences", "clip", summary="the update scaled down to a maximal L2 norm", paper=PAPER)
@dataclass(frozen=True)
class Clip:
    """u / max(1, ||u|| / norm), with the L2 norm over all parameters together [Abadi et al., 2016, Section 3.1].

    >>> Clip(norm=1.0).release(Outgoing({"w": torch.tensor([3.0, 4.0])}, torch.Generator()))
    {'w': tensor([0.6000, 0.8000])}
    """

    norm: float

    def __post_init__(self) -> None:
        checks.positive(self, "norm")

    def release(self, leaving: Outgoing) -> Update:
        length = norm_of(leaving.update)
        if length <= self.norm:
            return leaving.update
        return {name: tensor * (self.norm / length) for name, tensor in leaving.update.items()}


def norm_of(update: Update) -> Tensor:
    """The L2 norm over all parameters together."""
    length: Tensor = torch.linalg.vector_norm(torch.stack([torch.linalg.vector_norm(t) for t in update.values()]))
    return length


# Random numbers that repeat in every epoch.


@dataclass(frozen=True)
class SameEachEpoch:
    """The defended gradient with random numbers that depend on the batch's place in its epoch alone.

    The release of [Dimitrov et al., 2022] splits its random key once into one for each place in the epoch and uses
    these in every epoch again. Over E epochs the noise of an update then has a standard deviation of sqrt(E) times
    that of noise drawn anew. The paper does not mention it; the release's script for Table 6 runs this code.
    """

    defended: GradientFn

    def gradient(self, step: Step) -> Sequence[Tensor]:
        seed = noise_source(step).initial_seed()
        return self.defended.gradient(replace(step, generator=stream(seed, "place", step.place)))


# Gaussian noise.


@register("defences", "gaussian_noise", summary="Gaussian noise on the update", paper=DLFA)
@dataclass(frozen=True)
class GaussianNoise:
    """u + n with independent n ~ N(0, std^2) at every entry [Dimitrov et al., 2022, Appendix C.1].

    `std` is absolute: it does not follow the size of the update. On an update it is in the unit of the weights,
    that is, the learning rate times what it would be on one gradient.

    >>> GaussianNoise(std=0.0).release(Outgoing({"w": torch.ones(2)}, torch.Generator()))
    {'w': tensor([1., 1.])}
    """

    std: float

    def __post_init__(self) -> None:
        checks.at_least_zero(self, "std")

    def release(self, leaving: Outgoing) -> Update:
        noise = self.mean_noise(leaving.update, 1, leaving.generator)
        return {name: tensor + noise[name] for name, tensor in leaving.update.items()}

    def mean_noise(self, like: Update, examples: int, generator: torch.Generator) -> Update:
        """The mean of the noise of that many examples, drawn at once.

        The mean of n independent N(0, std^2) is N(0, std^2 / n): the same distribution, for 1/n of the work.
        """
        std = self.std / math.sqrt(examples)
        return {name: std * normal(tensor, generator) for name, tensor in like.items()}


@register(
    "defences",
    "gaussian_noise_per_example",
    summary="Gaussian noise on each example's gradient in every local step",
    paper=DLFA,
)
def gaussian_noise_per_example(std: float) -> PerExample:
    """Gaussian noise on each example's gradient."""
    return PerExample(GaussianNoise(std))


@register(
    "defences",
    "gaussian_noise_released",
    summary="the same with noise that repeats in every epoch, as released",
    paper=DLFA,
)
def gaussian_noise_released(std: float) -> SameEachEpoch:
    """The same, repeated in every epoch as in the release of DLFA."""
    return SameEachEpoch(PerExample(GaussianNoise(std)))


# Laplacian noise.


@register("defences", "laplacian_noise", summary="Laplacian noise on the update", paper=DLFA)
@dataclass(frozen=True)
class LaplacianNoise:
    """u + n with independent n ~ Laplace(0, scale) at every entry [Dimitrov et al., 2022, Appendix C.1].

    The standard deviation is sqrt(2) times `scale`. The paper's Table 6 calls its parameter sigma; the paper's
    release passes it as the scale, which is what is taken here.

    >>> LaplacianNoise(scale=0.0).release(Outgoing({"w": torch.ones(2)}, torch.Generator()))
    {'w': tensor([1., 1.])}
    """

    scale: float

    def __post_init__(self) -> None:
        checks.at_least_zero(self, "scale")

    def release(self, leaving: Outgoing) -> Update:
        noise = self.mean_noise(leaving.update, 1, leaving.generator)
        return {name: tensor + noise[name] for name, tensor in leaving.update.items()}

    def mean_noise(self, like: Update, examples: int, generator: torch.Generator) -> Update:
        """The mean of the noise of that many examples. It is not Laplacian, so each one is drawn."""

        def mean(tensor: Tensor) -> Tensor:
            total = torch.zeros_like(tensor)
            for _ in range(examples):
                total += laplace(tensor, generator)
            return total * (self.scale / examples)

        return {name: mean(tensor) for name, tensor in like.items()}


@register(
    "defences",
    "laplacian_noise_per_example",
    summary="Laplacian noise on each example's gradient in every local step",
    paper=DLFA,
)
def laplacian_noise_per_example(scale: float) -> PerExample:
    """Laplacian noise on each example's gradient."""
    return PerExample(LaplacianNoise(scale))


@register(
    "defences",
    "laplacian_noise_released",
    summary="the same with noise that repeats in every epoch, as released",
    paper=DLFA,
)
def laplacian_noise_released(scale: float) -> SameEachEpoch:
    """The same, repeated in every epoch as in the release of DLFA."""
    return SameEachEpoch(PerExample(LaplacianNoise(scale)))
