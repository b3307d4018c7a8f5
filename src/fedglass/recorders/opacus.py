"""DP-SGD by Opacus, as its optimiser, its accountant and its data loader show it; nothing of Opacus is imported.

Opacus wraps the optimiser. torch reports the step of the inner one, and the wrapper is then on the call stack. What
the engine counts is reached through the hook that it attaches to the wrapper.
"""

from __future__ import annotations

import traceback
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, Protocol

from torch import Tensor
from torch.optim.optimizer import Optimizer

from fedglass.core.errors import UsageError
from fedglass.defend.dpsgd import DPSGD, PoissonDPSGD
from fedglass.recorders.filters import Part
from fedglass.recordings.facts import ACCOUNTANT

PACKAGE = "opacus."
FLAT, POISSON = "DPOptimizer", "UniformWithReplacementSampler"
"""Opacus's optimiser that clips each example's whole gradient to one norm, and its sampler of Poisson batches."""
OPTIONS = ("noise_multiplier", "max_grad_norm", "expected_batch_size", "loss_reduction")
MOST_ENTRIES = 1000
"""Entries of an accountant's history that are stored."""


@dataclass(frozen=True, eq=False)
class PrivateStep:
    """What Opacus's wrapper of an optimiser says of one step."""

    kind: str
    """The class of the wrapper; with its module unless it is one of Opacus's own."""
    options: Mapping[str, Any]
    divisor: float | None
    """What the noisy sum over the examples is divided by; None if the wrapper does not say."""
    accountant: Any = None
    """The object that counts the steps; None if none is attached."""


class StepOfOpacus(Protocol):
    """An observed step, as `recorders.steps` has it."""

    @property
    def private(self) -> PrivateStep | None: ...
    @property
    def sample_rate(self) -> float | None: ...
    @property
    def examples(self) -> int: ...


def private_step(optimiser: Optimizer) -> PrivateStep | None:
    """Return what the wrapper says that is stepping this optimiser; None if no wrapper of Opacus is."""
    callers = (frame.f_locals.get("self") for frame, _ in traceback.walk_stack(None))
    wrapper = next((caller for caller in callers if getattr(caller, "original_optimizer", None) is optimiser), None)
    if wrapper is None or not hasattr(wrapper, "noise_multiplier"):
        return None
    kind = type(wrapper)
    own = kind.__module__.startswith(PACKAGE)
    options = {name: getattr(wrapper, name, None) for name in OPTIONS}
    return PrivateStep(
        kind.__name__ if own else f"{kind.__module__}.{kind.__name__}"[-200:],
        options,
        _divisor(wrapper, options),
        _accountant(getattr(wrapper, "step_hook", None)),
    )


def _divisor(wrapper: Any, options: Mapping[str, Any]) -> float | None:
    if options["loss_reduction"] == "sum":
        return 1.0
    size, batches = options["expected_batch_size"], getattr(wrapper, "accumulated_iterations", 1)
    return float(size * batches) if isinstance(size, int | float) else None


def _accountant(hook: Any) -> Any:
    """Return the accountant that a hook of its own method `get_optimizer_hook_fn` belongs to."""
    contents = (cell.cell_contents for cell in getattr(hook, "__closure__", None) or ())
    return next((content for content in contents if isinstance(getattr(content, "history", None), list)), None)


class PoissonBatches:
    """The batches that Opacus's data loaders have drawn since the last step."""

    def __init__(self) -> None:
        self._drawn: list[tuple[float, int]] = []

    def on_batch(self, iterator: Any, batch: Sequence[Tensor]) -> None:
        """Note a batch that an iterator of a data loader yields, if it is a Poisson sample."""
        rate = _sample_rate(getattr(iterator, "_index_sampler", None))
        if rate is not None:
            self._drawn.append((rate, len(batch[0]) if batch else 0))

    def rate_of_step(self, passes: int, examples: int) -> float | None:
        """Return the rate at which the examples of a step were drawn; None if it took others than were drawn for it."""
        drawn, self._drawn = self._drawn, []
        rates = {rate for rate, _ in drawn}
        complete = len(drawn) == passes and sum(size for _, size in drawn) == examples
        return rates.pop() if complete and len(rates) == 1 else None


def _sample_rate(sampler: Any) -> float | None:
    """Return the rate of a Poisson sampler; another one may split its batches into smaller ones."""
    candidates: tuple[Any, Any] = sampler, getattr(sampler, "sampler", None)
    for candidate in candidates:
        kind = type(candidate)
        if kind.__name__ == POISSON and kind.__module__.startswith(PACKAGE):
            return float(candidate.sample_rate)
    return None


def privacy_facts(steps: Sequence[StepOfOpacus]) -> dict[str, Any]:
    """Return the defence and the accountant's history; nothing if Opacus was not in every step."""
    private = [step.private for step in steps if step.private is not None]
    if not private or len(private) < len(steps):
        return {}
    return {"defences": [_defence(steps, private)], ACCOUNTANT: _history(private[-1].accountant)}


def _defence(steps: Sequence[StepOfOpacus], private: Sequence[PrivateStep]) -> Part:
    """Return `dpsgd` or `dpsgd_poisson` with their options, if it acts as one; else Opacus's class with its own."""
    first = private[0]
    changing = any(
        (step.kind, step.options, step.divisor) != (first.kind, first.options, first.divisor) for step in private
    )
    raw = {"name": first.kind, "options": {} if changing else dict(first.options)}
    if changing or first.kind != FLAT or first.divisor is None:
        return raw
    options = {"clip": first.options["max_grad_norm"], "noise_multiplier": first.options["noise_multiplier"]}
    rates = {step.sample_rate for step in steps}
    rate = rates.pop() if len(rates) == 1 else None
    if rate is not None and rate < 1:
        options |= {"sample_rate": rate}
    if "sample_rate" in options or any(step.examples != first.divisor for step in steps):
        options |= {"expected_batch_size": first.divisor}
    with suppress(UsageError):  # of a norm for each layer, or of no number
        part = PoissonDPSGD(**options) if "sample_rate" in options else DPSGD(**options)
        return {"name": "dpsgd_poisson" if isinstance(part, PoissonDPSGD) else "dpsgd", "options": options}
    return raw


def _history(accountant: Any) -> dict[str, Any] | None:
    """Return what an accountant has counted: noise multiplier, rate of sampling and number of steps of each entry."""
    entries: Iterable[Any] = getattr(accountant, "history", ())
    history = [[float(noise), float(rate), int(steps)] for noise, rate, steps in list(entries)[:MOST_ENTRIES]]
    return {"name": type(accountant).__name__, "history": history} if history else None
