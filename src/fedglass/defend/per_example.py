"""Defences that act on the gradient of each example inside the local steps, and checks of a defence's numbers.

`example_gradients` computes these gradients in chunks. `PerExample` applies any release to each of them, and
`SameEachEpoch` repeats the random numbers of a step in every epoch. `register_gradient_forms` registers both forms of
a release, under the names `<release>_per_example` and `<release>_released`.

The strength of a defence: the option that says how much it protects, and the values that are worth a try.
"""

from __future__ import annotations

import inspect
import math
import sys
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import TypeVar

import torch
from torch import Tensor
from torch.nn.modules.batchnorm import _BatchNorm

from fedglass.core.errors import ModelError, UsageError
from fedglass.core.registry import register
from fedglass.core.rng import stream
from fedglass.core.tensors import Update
from fedglass.core.text import DLFA
from fedglass.fl.local import GradientFn, MeanGradient, Step
from fedglass.fl.release import Outgoing, Release

T = TypeVar("T", bound=Release)
MIXED = 1e-3
"""Relative difference beyond which an output is another one in a larger batch: rounding makes less."""
CHUNK_ENTRIES = 2**25
"""How many gradient entries are held at once: 128 MiB in single precision."""


def check_share(owner: object, name: str) -> None:
    """Check that the field is a share of entries in [0, 1).

    >>> from types import SimpleNamespace
    >>> check_share(SimpleNamespace(share=1.5), "share")
    Traceback (most recent call last):
    fedglass.core.errors.UsageError: SimpleNamespace.share must be in [0, 1), got 1.5: it is a share, not a percentage.
    """
    _check_number(owner, name, lambda value: 0 <= value < 1, "in [0, 1)", "it is a share, not a percentage")


def check_closed_share(owner: object, name: str) -> None:
    """Check that the field is a share of entries in [0, 1], all of them included."""
    _check_number(owner, name, lambda value: 0 <= value <= 1, "in [0, 1]", "it is a share, not a percentage")


def check_percentage(owner: object, name: str) -> None:
    """Check that the field is a percentage in [0, 100]."""
    hint = "choose a percentage, since NVFlare sends the update unfiltered otherwise"
    _check_number(owner, name, lambda value: 0 <= value <= 100, "in [0, 100]", hint)


def check_at_least_zero(owner: object, name: str) -> None:
    """Check that the field is a finite number that is not negative."""
    _check_number(
        owner, name, lambda value: 0 <= value < math.inf, "a finite number of at least 0", "0 switches it off"
    )


def check_positive(owner: object, name: str) -> None:
    """Check that the field is a finite number above 0."""
    hint = "leave the defence out to switch it off"
    _check_number(owner, name, lambda value: 0 < value < math.inf, "a finite number above 0", hint)


def _check_number(owner: object, name: str, holds: Callable[[float], bool], expected: str, hint: str) -> None:
    """Refuse a field that is not a number, or one that the condition does not hold for."""
    value = getattr(owner, name)
    if isinstance(value, bool) or not isinstance(value, int | float):
        expected, hint = "a number", "write it without quotes"
    elif abs(value) <= sys.float_info.max and holds(value):  # a whole number may have more digits than a float takes
        return
    raise UsageError(f"{type(owner).__name__}.{name} must be {expected}, got {value!r}: {hint}.")


def example_gradients(step: Step, only: Sequence[int] | None = None) -> Iterator[list[Tensor]]:
    """Yield the gradient of each example's own loss, a chunk of examples at a time.  # (chunk, *shape) each

    `only` selects parameters by position; without it the loss is differentiated by all of them, and the gradients of
    canaries follow those of the examples.
    """
    refuse_mixed_examples(step)
    chosen = list(range(len(step.weights))) if only is None else list(only)
    entries = sum(step.weights[i].numel() for i in chosen)
    size = max(1, CHUNK_ENTRIES // max(1, entries))
    with torch.set_grad_enabled(step.differentiable):
        for first in range(0, len(step.inputs), size):
            rows = slice(first, first + size)
            yield _chunk(step, chosen, step.inputs[rows], step.targets[rows])
    if step.canaries is not None and only is None:
        yield from step.canaries.gradients(step)


def _chunk(step: Step, chosen: Sequence[int], inputs: Tensor, targets: Tensor) -> list[Tensor]:
    def loss(moved: Sequence[Tensor], example: Tensor, target: Tensor) -> Tensor:
        weights = list(step.weights)
        for i, tensor in zip(chosen, moved, strict=True):
            weights[i] = tensor
        return step.loss(step.network(weights, example[None]), target[None])

    at = tuple(step.weights[i] for i in chosen)
    return list(torch.func.vmap(torch.func.grad(loss), in_dims=(None, 0, 0))(at, inputs, targets))


def refuse_mixed_examples(step: Step) -> None:
    """Refuse a network that mixes the examples of a batch: none of them has a gradient of its own then."""
    if len(step.inputs) < 2:
        return
    normalisations = [m for m in step.network._module.modules() if isinstance(m, _BatchNorm)]
    if any(m.training or m.running_mean is None for m in normalisations):
        raise ModelError(
            "The network normalises with the statistics of the batch, so an example has no gradient of its own, which "
            "this defence needs: set training.batch_norm to frozen, or choose a network without BatchNorm."
        )
    with torch.no_grad():
        alone, among = (step.network(step.weights, step.inputs[:count])[:1] for count in (1, 2))
    if not torch.allclose(alone, among, MIXED, MIXED * float(alone.abs().max()), equal_nan=True):
        raise ModelError(
            "What the network makes of an example depends on the rest of its batch, so an example has no gradient of "
            "its own, which this defence needs: choose a network that treats every example separately."
        )


def noise_source(step: Step) -> torch.Generator:
    """Return the generator of a step whose gradient is random."""
    if step.generator is None:
        raise UsageError("This defence draws random numbers: give the local step a generator (Step.generator).")
    return step.generator


class AdditiveNoise(ABC):
    """Base of defences that add noise which does not depend on what it is added to."""

    @abstractmethod
    def mean_noise(self, like: Update, examples: int, generator: torch.Generator) -> Update:
        """Return the mean of the noise of that many examples."""

    def release(self, leaving: Outgoing) -> Update:
        noise = self.mean_noise(leaving.update, 1, leaving.generator)
        return {name: tensor + noise[name] for name, tensor in leaving.update.items()}


@dataclass(frozen=True)
class PerExample:
    """mean_i defence(g_i) over the examples of the batch, g_i being the gradient of example i's own loss.

    This is how the defences of Table 6 act in the release of [Dimitrov et al., 2022]: on the plain gradient of each
    example, neither clipped nor multiplied by the learning rate, with a strength that does not follow its size.
    Noise that does not depend on the gradient is added to their mean, mean_i (g_i + n_i) = g + mean_i n_i, without
    computing them one by one. Unlike in that release, each local step draws new noise: see `SameEachEpoch`.
    """

    defence: Release

    def gradient(self, step: Step) -> Sequence[Tensor]:
        generator = noise_source(step)
        if isinstance(self.defence, AdditiveNoise):
            plain = _named(step, MeanGradient().gradient(step))
            noise = self.defence.mean_noise(plain, len(step.inputs), generator)
            return [plain[name] + noise[name] for name in step.network.names]
        total = [torch.zeros_like(w) for w in step.weights]
        for chunk in example_gradients(step):
            for gradient in zip(*chunk, strict=True):
                released = self.defence.release(Outgoing(_named(step, gradient), generator))
                total = [t + released[name] for t, name in zip(total, step.network.names, strict=True)]
        return [t / len(step.inputs) for t in total]


def _named(step: Step, tensors: Sequence[Tensor]) -> dict[str, Tensor]:
    return dict(zip(step.network.names, tensors, strict=True))


@dataclass(frozen=True)
class SameEachEpoch:
    """The defended gradient, with random numbers that depend only on the place of the batch in its epoch.

    The release of [Dimitrov et al., 2022] splits its random key once into one for each place in the epoch and uses
    these again in every epoch. Over E epochs the noise of an update then has sqrt(E) times the standard deviation of
    noise that every epoch draws separately. The paper does not mention it; the release's script for Table 6 runs this
    code.
    """

    defended: GradientFn

    def gradient(self, step: Step) -> Sequence[Tensor]:
        seed = noise_source(step).initial_seed()
        return self.defended.gradient(replace(step, generator=stream(seed, "place", step.place)))


def register_gradient_forms(name: str, summary: str) -> Callable[[type[T]], type[T]]:
    """Register two more forms of a release class: on each example's gradient, and the same repeated in every epoch.

    Their names are `<name>_per_example` and `<name>_released`, and both take the options of the class. `summary`
    describes the first form.
    """

    def registered(release: type[T]) -> type[T]:
        def per_example(*args: float, **options: float) -> PerExample:
            return PerExample(release(*args, **options))

        def released(*args: float, **options: float) -> SameEachEpoch:
            return SameEachEpoch(per_example(*args, **options))

        options = inspect.signature(release)
        repeated = "the same with random numbers that repeat in every epoch, as released"
        for form, text in ((per_example, summary), (released, repeated)):
            form.__dict__["__signature__"] = options  # plans and `fedglass list` read the options from it
            form.__dict__["strength"] = getattr(release, "strength", None)
            register("defences", f"{name}_{form.__name__}", summary=text, paper=DLFA)(form)
        return release

    return registered


@dataclass(frozen=True)
class Strength:
    """The option of a defence that is its strength, with a usual range; a defence names it as its attribute `strength`.

    Values are spread evenly in the logarithm of their distance from `origin`: 0 for noise and norms, where factors
    count, and 1 for shares of removed entries, where what is left counts.

    >>> Strength("std", 0.01, 1.0).at(0.5), Strength("share", 0.5, 0.995, origin=1).at(0.5)
    (0.1, 0.95)
    """

    option: str
    weakest: float
    strongest: float
    origin: float = 0.0

    def __post_init__(self) -> None:
        ratio = (self.strongest - self.origin) / ((self.weakest - self.origin) or math.nan)
        if not (0 < ratio < math.inf and ratio != 1):
            raise UsageError(
                f"{self.option} must go from its weakest to its strongest value on one side of {self.origin:g}, got "
                f"{self.weakest:g} and {self.strongest:g}: give two different values."
            )

    def at(self, position: float) -> float:
        """Return the value at a position from 0 (weakest) to 1 (strongest), with three digits of its distance."""
        first, last = self.weakest - self.origin, self.strongest - self.origin
        distance = first * (last / first) ** position
        return round(self.origin + float(f"{distance:.3g}"), 12)

    def position(self, value: float) -> float:
        """Return the position of a value."""
        first, last = self.weakest - self.origin, self.strongest - self.origin
        return math.log((value - self.origin) / first) / math.log(last / first)
