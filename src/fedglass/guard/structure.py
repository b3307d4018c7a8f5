"""What may leave at all: the model's tensors with their shapes and types, and nothing else."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor

from fedglass.core.params import Params
from fedglass.core.statistics import COUNTER, moved_others
from fedglass.guard.outbound import Outbound
from fedglass.guard.report import Reason

LOST = 0.01
"""The share of a tensor's update that may be lost in rounding."""
SLACK = 1 + 1e-5
"""Rounding of a norm that was clipped in single precision."""

Clip = float | Mapping[str, float]
"""A bound on the norm of all that leaves together, or one of each tensor's own by its name."""


def misfit(before: Params, after: Params) -> bool:
    """Whether what would leave are other tensors than those that came: by name, shape, type, or by being none.

    >>> misfit({"w": torch.zeros(2)}, {"w": torch.ones(2)}), misfit({"w": torch.zeros(2)}, {"w": torch.ones(2), "x": 1})
    (False, True)
    """
    if list(after) != list(before):
        return True
    return any(
        not isinstance(after[name], Tensor)
        or after[name].shape != came.shape
        or after[name].dtype != came.dtype
        or after[name].layout != torch.strided
        for name, came in before.items()
    )


def finer(out: Outbound, update: Params) -> bool:
    """Whether differences leave that the weights to which they are added can not hold.

    All checks play the training again in the weights' own precision: what is lost there leaves all the same.
    """
    pairs = ((out.after[n].double() - out.before[n].double(), t.double()) for n, t in update.items())
    return any(float((kept - sent).norm()) > LOST * float(sent.norm()) for kept, sent in pairs)  # NaN is told by itself


def counters_tell_more(out: Outbound) -> bool:
    """Whether a counter of batches holds anything but the number of local steps."""
    moved = {float(out.after[name] - out.before[name]) for name in out.after if name.endswith(COUNTER)}
    return not moved <= {0.0, float(out.steps)}


def unplayed_buffers(out: Outbound) -> bool:
    """Whether a buffer has moved that no training of fedglass's own moves: what was put into it nobody has checked."""
    return bool(set(moved_others(out.before, out.after)) - set(out.parameters))


def finite(params: Params) -> bool:
    return all(bool(torch.isfinite(tensor).all()) for tensor in params.values())


def too_long(out: Outbound, clip: Clip) -> bool:
    """Whether the message is longer than a clipping without noise lets it be; a tensor without a bound may not move."""
    if not isinstance(clip, Mapping):
        return not out.norm <= clip * SLACK
    lengths = {name: float((out.after[name] - out.before[name]).double().norm()) for name in out.leaving}
    return any(not length <= clip.get(name, 0.0) * SLACK for name, length in lengths.items())


def at_a_glance(out: Outbound) -> tuple[Reason, ...]:
    """What speaks against an update before anything is computed of it."""
    names = {name for name, _ in (*out.model.named_parameters(), *out.model.named_buffers())}
    if misfit(out.before, out.after) or not set(out.parameters) <= set(out.after) <= names:
        return (Reason.STRUCTURE,)
    shapes = {name: tensor.shape for name, tensor in (*out.model.named_parameters(), *out.model.named_buffers())}
    if any(tensor.shape != shapes[name] for name, tensor in out.after.items()):
        return (Reason.STRUCTURE,)
    if not finite(out.after):
        return (Reason.NOT_FINITE,)
    if counters_tell_more(out):
        return (Reason.STRUCTURE,)
    return (Reason.NOT_EXPLAINED,) if unplayed_buffers(out) else ()
