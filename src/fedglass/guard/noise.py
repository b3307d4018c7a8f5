"""Is the declared noise in every tensor of the message? Clipping and noise are verified, not believed."""

from __future__ import annotations

from dataclasses import replace

import scipy  # its parts are imported when they are first used
import torch
from torch import Tensor

from fedglass.audit.replay import Declared, has_no_order, message_of
from fedglass.checks.residual import Residual, refutations
from fedglass.core.optimisers import SGD
from fedglass.core.params import Params
from fedglass.fl.protection import Protection
from fedglass.guard.outbound import Outbound
from fedglass.guard.protected import Protected

DRAWS = 6
"""Replays from which the size of noise inside of several local steps is taken."""
LEVEL = 1e-3
"""The chance that any tensor of a message with its noise is said to lack it."""
SHARE = 0.9
"""Of the deviation of several noisy steps that must be there: it is known from a few replays alone."""


def missing_noise(out: Outbound, declared: Declared, protected: Protected, last: Params | None) -> tuple[str, ...]:
    """Return where the declared noise is missing: tensors, or tests that the whole message fails.

    Buffers are not trained, and a defence of the parameters' update leaves them as they are: where they move they
    leave without noise. `last` is the last update that left, in which the same noise must not be.
    """
    # Drawn orders would be another noise, of a size that nobody declared.
    if not has_no_order(declared):
        return tuple(out.parameters)
    clean = _played(declared, protected.noiseless)
    bare = [name for name in out.leaving if name not in clean and _moved(out, name)]
    std = _std(declared, protected)
    if std is None:
        return (*bare, *_smaller_than_replays(declared, protected, clean))
    residual = {name: declared.update[name].double() - tensor for name, tensor in clean.items()}
    others = {} if last is None or not all(name in last for name in residual) else {"the last update": last}
    sent = {name: declared.before[name] + declared.update[name] for name in residual}
    found = refutations(Residual(residual, std, message=sent, before=declared.before, weights_sent=True, others=others))
    return (*bare, *dict.fromkeys(each.tensor or each.test.replace("_", " ") for each in found))


def _std(declared: Declared, protected: Protected) -> float | None:
    """Return the deviation of the noise at every entry; None where it is not the same additive noise everywhere."""
    inside = protected.dpsgd
    if inside is None or inside.noise_multiplier == 0:
        return protected.std
    (part,) = declared.parts
    training, size = part.training, len(part.labels)
    linear = isinstance(training.optimiser, SGD) and not training.optimiser.nesterov and training.clip is None
    if part.steps > 1 or not linear or protected.clip is not None:
        return None
    return training.lr * inside.noise_multiplier * inside.clip / size


def _smaller_than_replays(declared: Declared, protected: Protected, clean: dict[str, Tensor]) -> list[str]:
    """Return the tensors that hold less noise than replays do, by Fisher's test of two variances."""
    draws = [_played(declared, protected.protection, draw) for draw in range(DRAWS)]
    bare = _played(declared, Protection())
    found = []
    for name, tensor in clean.items():
        usual = sum(_mean_square(each[name] - tensor) for each in draws) / DRAWS
        left = min(_mean_square(declared.update[name].double() - each[name]) for each in (clean, bare))
        ratio = left / (SHARE**2 * usual) if usual > 0 else 0.0
        if not scipy.stats.f.cdf(ratio, tensor.numel(), DRAWS * tensor.numel()) > LEVEL / (2 * len(clean)):
            found.append(name)
    return found


def _played(declared: Declared, protection: Protection, draw: int = 0) -> dict[str, Tensor]:
    parts = tuple(replace(part, protection=protection) for part in declared.parts)
    return dict(zip(declared.before, message_of(replace(declared, parts=parts), 0, draw), strict=True))


def _mean_square(tensor: Tensor) -> float:
    return float(tensor.square().mean()) if tensor.numel() else 0.0


def _moved(out: Outbound, name: str) -> bool:
    return not torch.equal(out.after[name], out.before[name])
