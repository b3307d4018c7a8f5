"""The defences of other frameworks under the names of fedglass, with options that it can run again.

DP-SGD by Opacus is read from its optimiser, its accountant and its data loader; nothing of Opacus is imported.

Opacus wraps the optimiser. torch reports the step of the inner one, and the wrapper is then on the call stack. What
the engine counts is reached through the hook that it attaches to the wrapper.
"""

from __future__ import annotations

import traceback
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, fields
from typing import TYPE_CHECKING, Any

from torch.optim.optimizer import Optimizer

from fedglass.core.errors import UsageError
from fedglass.defend.dpsgd import DPSGD, PoissonDPSGD
from fedglass.defend.filters import PercentilePrivacy, SVTPrivacy
from fedglass.recordings.facts import ACCOUNTANT
from fedglass.recordings.privacy import DATA_KIND, FULL_WEIGHTS, NAMES

if TYPE_CHECKING:
    from fedglass.recorders.steps import ObservedStep

PACKAGE = "opacus."
FLAT, POISSON = "DPOptimizer", "UniformWithReplacementSampler"
"""Opacus's optimiser that clips each example's whole gradient to one norm, and its sampler of Poisson batches."""
OPTIONS = ("noise_multiplier", "max_grad_norm", "expected_batch_size", "loss_reduction")
MOST_ENTRIES = 1000
"""Entries of an accountant's history that are stored."""


@dataclass(frozen=True, eq=False)
class PrivateStep:
    """The options of one step, by Opacus's wrapper of an optimiser."""

    kind: str
    """The class of the wrapper; with its module unless it is one of Opacus's own."""
    options: Mapping[str, Any]
    divisor: float | None
    """What the noisy sum over the examples is divided by; None if the wrapper does not say."""
    accountant: Any = None
    """The object that counts the steps; None if none is attached."""


def private_step(optimiser: Optimizer) -> PrivateStep | None:
    """Return what the wrapper says that is stepping this optimiser; None if no wrapper of Opacus is."""
    callers = (frame.f_locals.get("self") for frame, _ in traceback.walk_stack(None))
    wrapper = next((caller for caller in callers if getattr(caller, "original_optimizer", None) is optimiser), None)
    if wrapper is None or not hasattr(wrapper, "noise_multiplier"):
        return None
    options = {name: getattr(wrapper, name, None) for name in OPTIONS}
    divisor = 1.0 if options["loss_reduction"] == "sum" else None
    if divisor is None and isinstance(options["expected_batch_size"], int | float):
        divisor = float(options["expected_batch_size"] * getattr(wrapper, "accumulated_iterations", 1))
    # The accountant's own method `get_optimizer_hook_fn` makes the hook of the wrapper.
    around = closure_variables(getattr(wrapper, "step_hook", None)).values()
    accountant = next((value for value in around if isinstance(getattr(value, "history", None), list)), None)
    return PrivateStep(class_name(wrapper, PACKAGE), options, divisor, accountant)


def class_name(value: object, package: str) -> str:
    """Return the class of a value; one of another package with its module, since an SGD of others may do anything."""
    kind = type(value)
    return kind.__name__ if kind.__module__.startswith(package) else f"{kind.__module__}.{kind.__name__}"[-200:]


def closure_variables(function: Any) -> dict[str, Any]:
    """Return the variables that a function takes from the functions around it; none of anything else."""
    names = getattr(getattr(function, "__code__", None), "co_freevars", ())
    cells = getattr(function, "__closure__", None) or ()
    return {name: cell.cell_contents for name, cell in zip(names, cells, strict=False)}


def rate_of_step(drawn: Sequence[tuple[float, int]], passes: int, examples: int) -> float | None:
    """Return the rate at which the examples of a step were drawn; None if it took others than were drawn for it.

    Args:
        drawn: The rate and the size of each Poisson sample since the previous step.
    """
    rates = {rate for rate, _ in drawn}
    complete = len(drawn) == passes and sum(size for _, size in drawn) == examples
    return rates.pop() if complete and len(rates) == 1 else None


def sample_rate_of(sampler: Any) -> float | None:
    """Return the rate of a Poisson sampler of Opacus; another one may split its batches into smaller ones."""
    candidates: tuple[Any, Any] = sampler, getattr(sampler, "sampler", None)
    for candidate in candidates:
        kind = type(candidate)
        if kind.__name__ == POISSON and kind.__module__.startswith(PACKAGE):
            return float(candidate.sample_rate)
    return None


def privacy_facts(steps: Sequence[ObservedStep]) -> dict[str, Any]:
    """Return the defence and the accountant's history; nothing if Opacus was not in every step."""
    private = [step.private for step in steps if step.private is not None]
    if not private or len(private) < len(steps):
        return {}
    return {"defences": [_defence(steps, private)], ACCOUNTANT: _history(private[-1].accountant)}


def _defence(steps: Sequence[ObservedStep], private: Sequence[PrivateStep]) -> Part:
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


Part = dict[str, Any]
"""A name and options, as bundles hold rules and defences."""
NVFLARE = {"PercentilePrivacy": PercentilePrivacy, "SVTPrivacy": SVTPrivacy}
SVT_LEDGER = "get_privacy_ledger"
CLIPPING_MODS = ("fixedclipping_mod", "adaptiveclipping_mod")


def nvflare_defence(part: object, options: Mapping[str, Any], kind: str, steps: object) -> Part:
    """Return a filter of NVFlare as a defence of fedglass, where it acts as one; else by its class with all options.

    A filter of full weights is not a defence of an update, and one with options out of range does nothing. `steps` is
    what the message says of its local steps, by which these filters divide. SVTPrivacy has a ledger since NVFlare 2.9,
    and was another mechanism before.
    """
    name = type(part).__name__
    raw = {"name": name, "options": dict(options)}
    filter_class = NVFLARE.get(name)
    if filter_class is None or (filter_class is SVTPrivacy and not hasattr(part, SVT_LEDGER)):
        return raw
    if kind == FULL_WEIGHTS:
        return {"name": name, "options": {**options, DATA_KIND: kind}}
    known = {field.name for field in fields(filter_class)}
    mapped = {option: value for option, value in options.items() if option in known and value is not None}
    mapped["steps"] = steps if isinstance(steps, int | float) else 1
    with suppress(UsageError):
        filter_class(**mapped)
        return {"name": NAMES[name], "options": mapped}
    return raw


def flower_clipping(config: Mapping[str, Any] | None, *, adaptive: bool) -> list[Part] | None:
    """Return the clipping that a configuration asks of a client; whether the client obeys is unknown."""
    norm = (config or {}).get("clipping_norm")
    if isinstance(norm, bool) or not isinstance(norm, int | float):
        return None
    marked = {"adaptive": True} if adaptive else {}
    return [{"name": "flower_fixed_clipping", "options": {"clipping_norm": float(norm), **marked}}]


def is_adaptive(strategies: Sequence[object]) -> bool:
    """Return whether one of these strategies, which wrap each other, adapts the norm to the data."""
    return any("AdaptiveClipping" in kind.__name__ for strategy in strategies for kind in type(strategy).__mro__)


def flower_defences(mods: Sequence[Any], config: Mapping[str, Any]) -> list[Part]:
    """Return the defences that Flower's own mods apply to an update, under fedglass's names.

    >>> flower_defences([], {})
    []
    """
    defences: list[Part] = []
    for mod in mods:
        name = getattr(mod, "__name__", type(mod).__name__)
        if name in CLIPPING_MODS:
            defences += flower_clipping(config, adaptive=name == "adaptiveclipping_mod") or []
        if name == "LocalDpMod":
            options = {key: float(getattr(mod, key)) for key in ("clipping_norm", "sensitivity", "epsilon", "delta")}
            defences.append({"name": "flower_local_dp", "options": options})
    return defences
