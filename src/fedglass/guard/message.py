"""The message: all that leaves a client. The guard makes it, and not the app.

The app's own arrays are compared with a replay of the declared training, within a tolerance and up to noise. Whatever
fits into that tolerance, or passes for noise, would leave with them. So they never do. What leaves is the replay
itself, rounded, or with noise that the guard draws: no choice of the app is left in it but the training.
"""

from __future__ import annotations

import copy
import math
import secrets
import sys
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
import scipy  # its parts are imported when they are first used
import torch
from torch import Tensor
from torch.func import functional_call
from torch.nn.modules.batchnorm import _NormBase

from fedglass.checks.noise import replayed
from fedglass.core.tensors import RUNNING, Params, moved_statistics
from fedglass.core.thresholds import REPLAY_FAINT, REPLAY_ROUNDING
from fedglass.core.types import BatchNorm
from fedglass.defend.dpsgd import DPSGD
from fedglass.fl.local import Step, path
from fedglass.fl.release import Protection
from fedglass.guard.outbound import Outbound, Protected

DIGITS = 3
"""Digits of a figure, before or behind the point."""
LARGEST, LARGEST_COUNT = 1_000, 1_000_000
"""Bounds of a figure and of a number of examples that the guard did not count."""
SMALLEST = sys.float_info.min
"""Steps below it are not exact: changes that would need them do not leave."""


def change_that_leaves(out: Outbound, protected: Protected) -> dict[str, Tensor] | None:
    """Return by how much each tensor changes in the message, before rounding; tensors without a change stay.

    None where the running statistics are not those of the declared training.
    """
    quiet = protected.noiseless
    rule = quiet.gradient if protected.dpsgd is None else FreshNoise(protected.dpsgd)
    update = replayed(out.claim(Protection(rule, quiet.release)), draw=secrets.randbits(63))
    if protected.noisy:
        return {name: tensor + protected.std * fresh_normals(tensor) for name, tensor in update.items()}
    statistics = _statistics_that_leave(out, quiet)
    return None if statistics is None else {**update, **statistics}


def built(before: Params, change: Params, *, noisy: bool, as_update: bool) -> dict[str, Tensor]:
    """Return plain, contiguous tensors under the names that came: what came plus its change, or the change alone.

    A change without noise is rounded.

    >>> built({"w": torch.tensor([1.0, -0.0])}, {"w": torch.tensor([0.5, 0.001])}, noisy=False, as_update=False)
    {'w': tensor([1.5000, 0.0000])}
    """
    message = {}
    for name, came in before.items():
        held = came.detach().cpu().double()
        moved = change.get(name, torch.zeros_like(held))
        moved = moved if noisy else rounded(moved)
        sent = (moved if as_update else held + moved).to(came.dtype).clone(memory_format=torch.contiguous_format)
        message[name] = sent.add_(0) if sent.is_floating_point() else sent  # no zero has a sign
    return message


def rounded(change: Tensor) -> Tensor:
    """Return the change in steps of a power of two, of at most the replay's tolerance for such a tensor.

    Towards zero, so that a declared clipping still holds.

    >>> rounded(torch.tensor([1.0, -0.5, 0.001, -0.001]))
    tensor([ 1.0000, -0.5000,  0.0000,  0.0000])
    """
    largest = float(change.abs().max()) if change.numel() else 0.0
    if not change.is_floating_point() or not 0 < largest < math.inf:
        return change
    exact = change.double()
    shares = exact / largest  # their squares are neither infinite nor all zero
    size = REPLAY_ROUNDING * float(shares.square().mean().sqrt()) * largest
    if size < SMALLEST:
        return torch.zeros_like(change)
    step = 2.0 ** math.floor(math.log2(size))
    return (torch.trunc(exact / step) * step).to(change.dtype) + 0.0


def fresh_normals(like: Tensor) -> Tensor:
    """Return independent standard normal entries, in double precision, from the system's source for secrets.

    A generator of torch has 2^32 beginnings, and whoever tries them all takes its noise away.
    """
    words = np.frombuffer(secrets.token_bytes(8 * like.numel()), dtype=np.uint64)
    uniform = ((words >> np.uint64(12)) + 0.5) * 2.0**-52
    return torch.from_numpy(scipy.special.ndtri(uniform)).reshape(like.shape)


@dataclass(frozen=True)
class FreshNoise:
    """DP-SGD as declared, with noise that the guard draws."""

    rule: DPSGD

    def gradient(self, step: Step) -> Sequence[Tensor]:
        std = self.rule.noise_multiplier * self.rule.clip / self.rule.divisor(len(step.inputs))
        quiet = replace(self.rule, noise_multiplier=0.0).gradient(step)
        return [(g.double() + std * fresh_normals(g)).to(g.dtype) for g in quiet]


def figure(value: float, largest: int = LARGEST) -> float:
    """Return a finite figure as it leaves: three digits, at most three of them behind the point, and bounded.

    Raise ValueError for others.

    >>> figure(0.123456), figure(123.456), figure(-1e9), figure(-0.0)
    (0.123, 123.0, -1000.0, 0.0)
    """
    plain = float(value)  # a number of the app's own class may compare as it likes
    if not math.isfinite(plain):
        raise ValueError(f"A figure must be finite, got {plain}.")
    return float(f"{round(min(max(plain, -largest), largest), DIGITS):.{DIGITS}g}") + 0.0


def count(value: float) -> int:
    """Return a number of examples that the guard did not see, such as those of an evaluation, as it leaves.

    >>> count(1234), count(3.6e16), count(-5)
    (1230, 1000000, 0)
    """
    return int(figure(max(float(value), 0.0), LARGEST_COUNT))


def _statistics_that_leave(out: Outbound, protection: Protection) -> dict[str, Tensor] | None:
    """Return the change of running statistics and their counters; None where it is not that of the training.

    They leave as they came where the message does not move them.
    """
    if not moved_statistics(out.before, out.after):
        return {}
    if out.training.batch_norm is not BatchNorm.BATCH:
        return None
    changes = {name: change for name, change in _replayed_statistics(out, protection).items() if name in out.after}
    for name, change in changes.items():
        if change.is_floating_point():
            came, left = (params[name].double() for params in (out.before, out.after))
            tolerance = REPLAY_ROUNDING * float(change.norm()) + REPLAY_FAINT * float(came.norm())
            if not float((left - came - change).norm()) <= tolerance:
                return None
    return changes


def _replayed_statistics(out: Outbound, protection: Protection) -> dict[str, Tensor]:
    """Return by how much the declared training moves running statistics and counters."""
    claim = out.claim(protection)
    (client,) = claim.clients
    module = copy.deepcopy(out.model).eval()
    module.load_state_dict(out.buffers, strict=False)
    for layer in module.modules():
        if isinstance(layer, _NormBase):
            layer.train()
    network, inputs, batches = claim.network(BatchNorm.BATCH), claim.inputs(client.images), list(client.batches())
    start, rule = claim.weights, protection.gradient
    waypoints = path(network, start, inputs, client.labels, batches, client.training, rule)
    for batch, at in zip(batches, waypoints, strict=False):  # the last one is behind the last batch
        with torch.no_grad():  # the network itself leaves its statistics alone
            functional_call(module, dict(zip(network.names, at.weights, strict=True)), (inputs[batch.rows],))
    moved = {name: t for name, t in module.named_buffers() if name.rpartition(".")[2] in RUNNING}
    return {
        name: t.double() - out.buffers[name] if t.is_floating_point() else t - out.buffers[name]
        for name, t in moved.items()
    }
