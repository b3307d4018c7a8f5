"""What the steps that were seen say about a client's training, as facts of a bundle; the rest is left out."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

from torch import nn

from fedglass.models.names import unwrap
from fedglass.recorders.steps import ObservedStep
from fedglass.recordings.format import INPUTS, MANY_CHARACTERS, MANY_NUMBERS, RESERVATIONS

NEGLIGIBLE = 1e-3
"""A relative difference that is rounding."""
BY_HAND = "Weights were written to beside the optimiser's steps, as where an average takes their place."
"""Said of what no training has; what was written may be a defence's noise."""
ODD_BATCHES = "The batches were not those of whole epochs, as where the last one is dropped."
"""Said of batches that no training makes; those who have recorded which they were can play them again."""
MOST_TOLD = 1000
"""Entries of a list that is told in words only."""


def training_facts(steps: Sequence[ObservedStep]) -> dict[str, Any]:
    """The facts of one client in one round; `x-reservations` says what fedglass's own training does not have."""
    if not steps:
        return {"steps": 0}
    doubts, epochs = _Doubts(), _epochs(steps)
    if "epochs" not in epochs and all(step.rows for step in steps):
        doubts.say(ODD_BATCHES)
    facts = {
        "steps": len(steps),
        "examples": len({row for step in steps for row in step.rows}) or None,
        "batch_sizes": [step.examples for step in steps] if all(step.examples for step in steps) else None,
        **epochs,
        **_optimiser(steps, doubts),
        **_losses(steps, doubts),
        "clip": _clip(steps, doubts),
        "batch_norm": _batch_norm(steps, doubts),
        "untrained": _untrained(steps, doubts),
    }
    _check_network(steps, doubts)
    facts[RESERVATIONS] = doubts.sentences or None
    return {name: value for name, value in facts.items() if value is not None}


def model_facts(steps: Sequence[ObservedStep]) -> dict[str, Any]:
    """The shape of an image and the number of classes, and the model's class where it can be made without arguments."""
    seen = next((step for step in steps if step.module is not None), None)
    if seen is None or seen.module is None:
        return {}
    images = seen.shape is not None and len(seen.shape) == 3
    facts = {
        "shape": list(seen.shape) if images and seen.shape is not None else None,
        INPUTS: list(seen.shape) if not images and seen.shape is not None else None,
        "classes": seen.outputs if seen.outputs is not None and seen.outputs > 1 else None,
        "model": _factory(seen.module),
    }
    return {name: value for name, value in facts.items() if value is not None}


class _Doubts:
    """Sentences about what was seen and can not be simulated; each once."""

    def __init__(self) -> None:
        self.sentences: list[str] = []

    def say(self, sentence: str) -> None:
        if sentence not in self.sentences:
            self.sentences.append(sentence)


def _epochs(steps: Sequence[ObservedStep]) -> dict[str, Any]:
    """Epochs and batch size, where each pass took every example once, in batches of one size but for the last."""
    examples = {row for step in steps for row in step.rows}
    size = steps[0].examples
    if not examples or not size:
        return {}
    each = math.ceil(len(examples) / size)
    passes = [[row for step in steps[i : i + each] for row in step.rows] for i in range(0, len(steps), each)]
    sizes = [min(size, len(examples) - i * size) for i in range(each)]
    whole = all(len(taken) == len(examples) and set(taken) == examples for taken in passes)
    if not whole or any(step.examples != sizes[i % each] for i, step in enumerate(steps)):
        return {"batch_size": size} if len({step.examples for step in steps}) == 1 else {}
    # The examples are kept in the order of the first pass, so that a single one has no other.
    return {"epochs": len(passes), "batch_size": size, "shuffle": any(taken != passes[0] for taken in passes)}


def _optimiser(steps: Sequence[ObservedStep], doubts: _Doubts) -> dict[str, Any]:
    names = {step.optimiser for step in steps}
    if len(names) > 1:
        doubts.say(f"Several optimisers took steps: {', '.join(sorted(names))}.")
        return {}
    if steps[0].carried:
        doubts.say("The optimiser carried its state over from an earlier round.")
    settings = [{k: v for k, v in group.items() if k != "lr"} for step in steps for group in step.options]
    rates = [[float(group["lr"]) for group in step.options if "lr" in group] for step in steps]
    facts: dict[str, Any] = {"optimiser": steps[0].optimiser}
    if all(each == settings[0] for each in settings):
        facts["options"] = settings[0]
    else:
        doubts.say("Groups of parameters, or steps, had different options of the optimiser.")
    if rates[0] and all(rate == rates[0][0] for step in rates for rate in step):
        facts["lr"] = rates[0][0]
    else:
        doubts.say("The learning rate was not the same in all steps and for all parameters.")
        facts["x-lrs"] = [max(step, default=None) for step in rates][:MOST_TOLD]
    return facts


def _losses(steps: Sequence[ObservedStep], doubts: _Doubts) -> dict[str, Any]:
    losses = [loss for step in steps for loss in step.losses]
    names = sorted({loss.name for loss in losses})
    if not losses:
        doubts.say("The loss was not computed by a function of torch.nn.functional.")
        return {}
    if any(step.penalty for step in steps):
        doubts.say("The weights entered what was minimised directly too, as a proximal term does.")
        names = [*names, "penalty"]
    if not all(loss.plain for loss in losses):
        doubts.say("Examples or classes had different weights in the loss.")
        names = ["weighted", *names]
    if "cross_entropy" in names and any(step.labels is None for step in steps if step.losses and step.rows):
        doubts.say("The loss was not given one class for each example.")
        names = [*names, "of other targets"]
    if any(step.otherwise for step in steps):
        doubts.say("The loss was given other numbers than the network's outputs, as where these are scaled or masked.")
        names = [*names, "of changed outputs"]
    weights = [_weight(step) for step in steps]
    if any(abs(weight - 1) > NEGLIGIBLE for weight in weights):
        doubts.say(f"What was minimised is the mean loss times {weights[0]:.4g}.")
        names = [f"{weights[0]:.4g} x", *names]
    smoothing = {loss.label_smoothing for loss in losses}
    return {
        "loss": names[0] if len(names) == 1 else " ".join(names),
        "label_smoothing": smoothing.pop() if len(smoothing) == 1 else None,
    }


def _weight(step: ObservedStep) -> float:
    """The factor before the mean loss over all examples of a step, whatever scaled it on the way."""
    scaled = step.gradient is not None and step.gradient[2] and step.autocast
    back = step.gradient[1] / step.gradient[0] if scaled and step.gradient is not None and step.gradient[0] else 1.0
    return sum(loss.weight for loss in step.losses) * back


def _unscaled(step: ObservedStep, was: float, used: float, along: bool) -> tuple[float, float, bool]:
    """The gradient without the factor that mixed precision puts before the loss and takes out before the step."""
    scale = sum(loss.weight for loss in step.losses) if step.autocast else 1.0
    return (was / scale if scale > 0 else was), used, along


def _clip(steps: Sequence[ObservedStep], doubts: _Doubts) -> float | None:
    """The norm to which gradients were shortened on their way from backward to the optimiser."""
    seen = [_unscaled(step, *step.gradient) for step in steps if step.gradient is not None]
    changed = [(was, used, along) for was, used, along in seen if abs(was - used) > NEGLIGIBLE * max(was, used)]
    changed += [(was, used, along) for was, used, along in seen if (was, used, along) not in changed and not along]
    if not changed:
        return None
    norms = [used for _, used, _ in changed]
    alike = max(norms) - min(norms) <= 10 * NEGLIGIBLE * max(norms)
    shortened = all(used < was and along for was, used, along in changed)
    within = all(was <= max(norms) * (1 + NEGLIGIBLE) for was, used, along in seen if (was, used, along) not in changed)
    if shortened and alike and within:
        return max(norms)
    if not (any(step.autocast for step in steps) and all(along for _, _, along in changed)):
        doubts.say("Gradients were changed between backward and the step, as by noise or compression.")
    return None


def _batch_norm(steps: Sequence[ObservedStep], doubts: _Doubts) -> str | None:
    modes = {mode for step in steps for mode in step.batch_norm}
    if len(modes) > 1:
        doubts.say("Some layers of batch normalisation used the batch's statistics, others did not.")
        return None
    return {(): "none", (True,): "batch", (False,): "frozen"}[tuple(modes)]


def _check_network(steps: Sequence[ObservedStep], doubts: _Doubts) -> None:
    if any(step.dropout for step in steps):
        doubts.say("Dropout was active.")
    elif any(step.drew for step in steps):
        doubts.say("The network drew random numbers, as dropout does.")
    if any(step.given > 1 for step in steps):
        doubts.say("The network was given several tensors, of which the first is taken for the image.")
    if len({id(step.module) for step in steps if step.module is not None}) > 1 and _apart(steps):
        doubts.say("Several networks were trained: which of them was sent is not known.")
    if any(step.by_hand for step in steps):
        doubts.say(BY_HAND)
    if any(step.autocast for step in steps):
        doubts.say("Automatic mixed precision was on.")
    if any(step.passes > 1 for step in steps):
        doubts.say("Gradients of several forward passes were accumulated in a step.")
    if not all(step.passes for step in steps):
        doubts.say("A step was taken without a forward pass that could be seen.")


def _untrained(steps: Sequence[ObservedStep], doubts: _Doubts) -> list[str] | None:
    """The parameters that no step moves, by the network's own names; None where all are trained."""
    left = [
        [name for name, parameter in unwrap(step.module).named_parameters() if id(parameter) not in step.weights]
        for step in steps
        if step.module is not None
    ]
    if any(each != left[0] for each in left):
        doubts.say("Some steps trained other parameters than others did.")
        return None
    return left[0] if left and left[0] else None


def _apart(steps: Sequence[ObservedStep]) -> bool:
    """Whether the networks have no weights in common: stretches of one, called in turn, are stepped as one."""
    sets = {id(step.module): step.weights for step in steps if step.module is not None}
    return sum(len(each) for each in sets.values()) == len(frozenset().union(*sets.values()))


def _factory(module: nn.Module) -> str | None:
    """The class of a model as a plan names it, where it is no building block of torch's."""
    kind = type(unwrap(module))
    if kind.__module__.startswith(("torch.", "__")) or "<locals>" in kind.__qualname__:
        return None
    return f"{kind.__module__}:{kind.__qualname__}"


# What a reply holds beside its model and some figures: control variates, states of optimisers, whatever a client adds.
#
# Nothing of it is kept but its extent: no attack reads it, and an audit must know that it left.


def extents(values: Mapping[Any, Any]) -> dict[str, Any]:
    """By name, the extent of all that is more than a figure or a few words."""
    found = {str(name): extent(value) for name, value in values.items()}
    return {name: size for name, size in found.items() if size is not None}


def extent(value: Any) -> Any:
    """The shape of an array, the length of bytes, text or a list; None of what is a figure or a few words.

    >>> extent(0.5), extent("epoch 3"), extent([1.0] * 10), extent({"control": [1.0] * 100}), extent(b"1234")
    (None, None, None, {'control': [100]}, [4])
    """
    shape = getattr(value, "shape", None)
    if shape is not None:
        return [int(side) for side in shape] if len(shape) else None
    if isinstance(value, bytes | bytearray | memoryview):
        return [len(value)]
    if isinstance(value, str):
        return [len(value)] if len(value) >= MANY_CHARACTERS else None
    if isinstance(value, Mapping):
        inner = extents(value)
        return inner or ([len(value)] if len(value) >= MANY_NUMBERS else None)
    if isinstance(value, list | tuple | set | frozenset):
        held = [extent(each) for each in value]
        return [len(value)] if len(value) >= MANY_NUMBERS or any(size is not None for size in held) else None
    return None if value is None or isinstance(value, bool | int | float) else type(value).__name__
