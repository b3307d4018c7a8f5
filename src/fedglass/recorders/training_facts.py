"""Facts of a bundle about a client's training, from the steps that were observed.

A fact that the steps do not show is left out. What fedglass's own training does not have becomes a reservation.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from enum import Enum
from typing import Any

from torch import nn

from fedglass.models.names import unwrap
from fedglass.recorders.defences import privacy_facts
from fedglass.recorders.steps import ForwardPass, ObservedStep
from fedglass.recordings.facts import INPUTS, OBJECTIVE, RESERVATION_IDS, RESERVATIONS, UNKNOWN_LOSS
from fedglass.recordings.privacy import draws_poisson

NEGLIGIBLE = 1e-3
"""A relative difference that is rounding."""
LONGEST_LIST = 1000
"""Entries of a list of learning rates that are stored."""
NO_STEP = (
    "No torch optimizer step was observed for client %r, so its training is not recorded: it ran in another thread or "
    "process, or without torch.optim."
)


class Reservation(Enum):
    """Something in a client's training that fedglass's own training does not have, with the sentence for users."""

    ODD_BATCHES = "The batches do not make whole epochs, for example because the last one is dropped."
    SEVERAL_OPTIMISERS = "Several optimisers took steps: {optimisers}."
    CARRIED_STATE = "The optimiser carried its state over from an earlier round: make it anew in each round."
    DIFFERENT_OPTIONS = "The options of the optimiser differ between parameter groups or steps."
    DIFFERENT_RATES = "The learning rate differs between steps or parameters."
    UNKNOWN_LOSS = "The loss was not computed by a function of torch.nn.functional."
    PENALTY = "The objective also depends on the weights directly, as a proximal term does."
    WEIGHTED_LOSS = "Examples or classes had different weights in the loss."
    OTHER_TARGETS = "The targets of the loss are not one class for each example."
    CHANGED_OUTPUTS = "The loss was computed on changed outputs of the network, such as scaled ones."
    SCALED_LOSS = "The objective is the mean loss times {factor}."
    CHANGED_GRADIENTS = "Gradients were changed between backward and the step, as by noise or compression."
    MIXED_BATCH_NORM = "Some batch normalisation layers used the statistics of the batch, others did not."
    DROPOUT = "Dropout was active."
    RANDOM_NETWORK = "The network drew random numbers, as dropout does."
    SEVERAL_INPUTS = "The network has several input tensors; the first one is taken as the image."
    SEVERAL_NETWORKS = "Several networks were trained; it is unknown which of them was sent."
    WRITTEN_BY_HAND = "Weights were changed outside of optimiser steps, for example by averaging."
    MIXED_PRECISION = "Automatic mixed precision was on."
    ACCUMULATED_GRADIENTS = "Gradients of several forward passes were accumulated in a step."
    UNSEEN_PASS = "A step was taken without a visible forward pass."
    DIFFERENT_PARAMETERS = "Not all steps trained the same parameters."
    OBSERVATION_FAILED = "Observation of this client's training failed; no training facts were recorded."

    @property
    def identifier(self) -> str:
        """The name by which code compares reservations in a bundle."""
        return self.name.lower()


Reservations = dict[Reservation, str]
"""The sentences about one training, in the order in which their reasons were met."""


def _add(reservations: Reservations, reservation: Reservation, **details: str) -> None:
    reservations.setdefault(reservation, reservation.value.format(**details))


def _reservation_facts(reservations: Reservations) -> dict[str, Any]:
    """Return the sentences, which users read, and the identifiers, which code compares."""
    if not reservations:
        return {}
    return {RESERVATIONS: list(reservations.values()), RESERVATION_IDS: [r.identifier for r in reservations]}


def training_facts(steps: Sequence[ObservedStep]) -> dict[str, Any]:
    """Return the facts of one client in one round, among them the reservations."""
    if not steps:
        return {"steps": 0}
    reservations, privacy = Reservations(), privacy_facts(steps)
    poisson = draws_poisson(privacy.get("defences"))
    epochs = {} if poisson else _epochs(steps)
    if "epochs" not in epochs and not poisson and all(step.rows for step in steps):
        _add(reservations, Reservation.ODD_BATCHES)
    facts = {
        "steps": len(steps),
        "examples": len({row for step in steps for row in step.rows}) or None,
        "batch_sizes": [step.examples for step in steps] if all(step.examples for step in steps) else None,
        **epochs,
        **_optimiser(steps, reservations),
        **_losses(steps, reservations),
        "clip": _clip(steps, reservations),
        "batch_norm": _batch_norm(steps, reservations),
        "untrained": _untrained(steps, reservations),
        **privacy,
    }
    if not privacy and any(step.private is not None for step in steps):
        _add(reservations, Reservation.CHANGED_GRADIENTS)
    _check_network(steps, reservations)
    return {name: value for name, value in {**facts, **_reservation_facts(reservations)}.items() if value is not None}


def failed_facts() -> dict[str, Any]:
    """Return the facts of a training whose observation failed."""
    return _reservation_facts({Reservation.OBSERVATION_FAILED: Reservation.OBSERVATION_FAILED.value})


def model_facts(steps: Sequence[ObservedStep], first_pass: ForwardPass | None = None) -> dict[str, Any]:
    """Return the shape of an input, the number of classes, and the model's class if a plan can name it.

    They are those of the first step, and without a step those of the first forward pass.
    """
    forward = next((step.passes[0] for step in steps if step.passes), first_pass)
    if forward is None:
        return {}
    shape = None if forward.shape is None else list(forward.shape)
    is_image = shape is not None and len(shape) == 3
    # The outputs that a loss with a name takes, such as one of a regression.
    of_loss = next((step.objective.outputs for step in steps if step.objective is not None), None)
    facts = {
        "shape": shape if is_image else None,
        INPUTS: None if is_image else shape,
        "classes": forward.outputs if forward.outputs is not None and forward.outputs > 1 else of_loss,
        "model": _factory(forward.module),
    }
    return {name: value for name, value in facts.items() if value is not None}


def _epochs(steps: Sequence[ObservedStep]) -> dict[str, Any]:
    """Return epochs and batch size, if each epoch took every example once, in batches of one size but for the last."""
    examples = {row for step in steps for row in step.rows}
    size = steps[0].examples
    if not examples or not size:
        return {}
    per_epoch = math.ceil(len(examples) / size)
    epochs = [[row for step in steps[i : i + per_epoch] for row in step.rows] for i in range(0, len(steps), per_epoch)]
    sizes = [min(size, len(examples) - i * size) for i in range(per_epoch)]
    complete = all(len(rows) == len(examples) and set(rows) == examples for rows in epochs)
    if not complete or any(step.examples != sizes[i % per_epoch] for i, step in enumerate(steps)):
        return {"batch_size": size} if len({step.examples for step in steps}) == 1 else {}
    # A single epoch does not show whether another one would have another order.
    shuffle = {} if len(epochs) == 1 else {"shuffle": any(rows != epochs[0] for rows in epochs)}
    return {"epochs": len(epochs), "batch_size": size, **shuffle}


def _optimiser(steps: Sequence[ObservedStep], reservations: Reservations) -> dict[str, Any]:
    names = {step.optimiser for step in steps}
    if len(names) > 1:
        _add(reservations, Reservation.SEVERAL_OPTIMISERS, optimisers=", ".join(sorted(names)))
        return {}
    if steps[0].carried:
        _add(reservations, Reservation.CARRIED_STATE)
    options = [{k: v for k, v in group.items() if k != "lr"} for step in steps for group in step.options]
    rates = [[float(group["lr"]) for group in step.options if "lr" in group] for step in steps]
    facts: dict[str, Any] = {"optimiser": steps[0].optimiser}
    if all(group == options[0] for group in options):
        facts["options"] = options[0]
    else:
        _add(reservations, Reservation.DIFFERENT_OPTIONS)
    if rates[0] and all(rate == rates[0][0] for step in rates for rate in step):
        facts["lr"] = rates[0][0]
    else:
        _add(reservations, Reservation.DIFFERENT_RATES)
        facts["x-lrs"] = [max(step, default=None) for step in rates][:LONGEST_LIST]
    return facts


def _losses(steps: Sequence[ObservedStep], reservations: Reservations) -> dict[str, Any]:
    """Return the loss by its name, with words around it if it is not the plain mean, and its label smoothing."""
    losses = [loss for step in steps for loss in step.losses]
    names = sorted({loss.name for loss in losses})
    if not losses:
        _add(reservations, Reservation.UNKNOWN_LOSS)
        return {OBJECTIVE: {"name": UNKNOWN_LOSS}}
    if any(step.penalty for step in steps):
        _add(reservations, Reservation.PENALTY)
        names = [*names, "penalty"]
    if not all(loss.plain for loss in losses):
        _add(reservations, Reservation.WEIGHTED_LOSS)
        names = ["weighted", *names]
    if "cross_entropy" in names and any(step.labels is None for step in steps if step.losses and step.rows):
        if _objective(steps) in (None, {"name": UNKNOWN_LOSS}):  # a named loss, such as one of pixels, is simulated
            _add(reservations, Reservation.OTHER_TARGETS)
        names = [*names, "of other targets"]
    if any(step.changed_outputs for step in steps):
        _add(reservations, Reservation.CHANGED_OUTPUTS)
        names = [*names, "of changed outputs"]
    factors = [_loss_factor(step) for step in steps]
    if any(abs(factor - 1) > NEGLIGIBLE for factor in factors):
        _add(reservations, Reservation.SCALED_LOSS, factor=f"{factors[0]:.4g}")
        names = [f"{factors[0]:.4g} x", *names]
    smoothing = {loss.label_smoothing for loss in losses}
    return {
        "loss": " ".join(names),
        "label_smoothing": smoothing.pop() if len(smoothing) == 1 else None,
        OBJECTIVE: _objective(steps),
    }


def _objective(steps: Sequence[ObservedStep]) -> dict[str, Any] | None:
    """Return name and options of the loss; None for cross entropy that is plain or changed, as `loss` describes it."""
    stepping = [step for step in steps if step.losses]
    if all(loss.name == "cross_entropy" and loss.plain_mean for step in stepping for loss in step.losses):
        return None
    named = [step.objective for step in stepping]
    parts = [None if one is None else {"name": one.name, "options": dict(one.options)} for one in named]
    changed = any(step.penalty or len(step.passes) > 1 for step in steps)
    settled = not changed and all(part == parts[0] for part in parts)
    if settled and parts[0] is not None:
        return parts[0]
    is_cross_entropy = all(loss.name == "cross_entropy" for step in stepping for loss in step.losses)
    return None if is_cross_entropy else {"name": UNKNOWN_LOSS}


def _loss_factor(step: ObservedStep) -> float:
    """Return the factor before the mean loss over all examples of a step.

    Mixed precision multiplies the loss and divides the gradient before the step: that is taken out.
    """
    factor, gradient = sum(loss.weight for loss in step.losses), step.gradient
    if step.private is not None:  # which sums up examples, in however many passes they came
        factor /= max(1, len(step.passes))
    if step.autocast and gradient is not None and gradient.same_direction and gradient.before:
        factor *= gradient.used / gradient.before
    return factor


def _clip(steps: Sequence[ObservedStep], reservations: Reservations) -> float | None:
    """Return the norm to which gradients were clipped between backward and the step; None if they were not."""
    gradients = [step.gradient for step in steps if step.gradient is not None]
    # Without the factor that mixed precision puts before the loss.
    scales = [sum(loss.weight for loss in step.losses) if step.autocast else 1.0 for step in steps if step.gradient]
    gradients = [g._replace(before=g.before / s) if s > 0 else g for g, s in zip(gradients, scales, strict=True)]
    changed = [g for g in gradients if not g.same_direction or not g.same_length(NEGLIGIBLE)]
    if not changed:
        return None
    norms = [gradient.used for gradient in changed]
    same_norm = max(norms) - min(norms) <= 10 * NEGLIGIBLE * max(norms)
    shortened = all(gradient.used < gradient.before and gradient.same_direction for gradient in changed)
    others_shorter = all(g.before <= max(norms) * (1 + NEGLIGIBLE) for g in gradients if g not in changed)
    if shortened and same_norm and others_shorter:
        return max(norms)
    rescaled = any(step.autocast for step in steps) and all(gradient.same_direction for gradient in changed)
    if not rescaled:
        _add(reservations, Reservation.CHANGED_GRADIENTS)
    return None


def _batch_norm(steps: Sequence[ObservedStep], reservations: Reservations) -> str | None:
    modes = {mode for step in steps for forward in step.passes for mode in forward.batch_norm}
    if len(modes) > 1:
        _add(reservations, Reservation.MIXED_BATCH_NORM)
        return None
    return {(): "none", (True,): "batch", (False,): "frozen"}[tuple(modes)]


def _check_network(steps: Sequence[ObservedStep], reservations: Reservations) -> None:
    passes = [forward for step in steps for forward in step.passes]
    dropout = any(forward.dropout for forward in passes)
    by_module = {id(step.module): step.weights for step in steps if step.module is not None}
    # Parts of one network, called in turn, are stepped as one.
    share_no_weights = sum(map(len, by_module.values())) == len(frozenset().union(*by_module.values()))
    applies = {
        Reservation.DROPOUT: dropout,
        Reservation.RANDOM_NETWORK: not dropout and any(forward.drew_random for forward in passes),
        Reservation.SEVERAL_INPUTS: any(forward.input_tensors > 1 for forward in passes),
        Reservation.SEVERAL_NETWORKS: len(by_module) > 1 and share_no_weights,
        Reservation.WRITTEN_BY_HAND: any(step.by_hand for step in steps),
        Reservation.MIXED_PRECISION: any(step.autocast for step in steps),
        Reservation.ACCUMULATED_GRADIENTS: any(len(step.passes) > 1 and step.private is None for step in steps),
        Reservation.UNSEEN_PASS: not all(step.passes for step in steps),
    }
    for reservation in (reservation for reservation, is_so in applies.items() if is_so):
        _add(reservations, reservation)


def _untrained(steps: Sequence[ObservedStep], reservations: Reservations) -> list[str] | None:
    """Return the parameters that no step moves, by the names of the network; None if all are trained."""
    by_step = [
        [name for name, parameter in unwrap(step.module).named_parameters() if id(parameter) not in step.weights]
        for step in steps
        if step.module is not None
    ]
    if any(untrained != by_step[0] for untrained in by_step):
        _add(reservations, Reservation.DIFFERENT_PARAMETERS)
        return None
    return by_step[0] if by_step and by_step[0] else None


def _factory(module: nn.Module) -> str | None:
    """Return the class of a model as a plan names it; None for torch's own building blocks and local classes."""
    kind = type(unwrap(module))
    if kind.__module__.startswith(("torch.", "__")) or "<locals>" in kind.__qualname__:
        return None
    return f"{kind.__module__}:{kind.__qualname__}"
