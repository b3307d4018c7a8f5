"""Is the declared noise in every tensor of the message? Clipping and noise are verified, not believed.

`audit.noise` compares whole messages, in which a few entries do not count. Frameworks were seen to leave just these
out: tensors without an axis, running statistics. Here each tensor must hold as much noise as is declared.
"""

from __future__ import annotations

from dataclasses import replace

import torch
from scipy.stats import f as fisher
from torch import Tensor

from fedglass.audit.repeats import between, within
from fedglass.audit.replay import Declared, message_of
from fedglass.core.params import Params
from fedglass.fl.protection import Protection
from fedglass.guard.outbound import Outbound
from fedglass.guard.protected import Protected

DRAWS = 6
"""Replays from which the size of noise inside of local steps is taken."""
LEVEL = 1e-3
"""The chance that any tensor of a message with its noise is said to lack it."""
SHARE = 0.9
"""Of the declared deviation that must be there: the rest is left to rounding and to how a library counts."""
CERTAIN = 1e6
"""Degrees of freedom that stand for a deviation that is known."""


def escaped(out: Outbound, declared: Declared, protected: Protected) -> tuple[str, ...]:
    """The tensors that the declared noise is not in.

    What is left of a tensor beside its replay is compared in size with the noise, by Fisher's test of two variances;
    the replay is the clipped one or, since what escapes the one may escape the other, the one without any defence.
    Buffers are not trained, and a defence of the parameters' update leaves them as they are: where they move they
    leave without noise.
    """
    # Drawn orders would be another noise, of a size that nobody declared.
    if not all(part.has_no_order for part in declared.parts):
        return tuple(out.parameters)
    clean, bare = (_played(declared, each) for each in (protected.noiseless, Protection()))
    usual, freedom = _usual(declared, protected, clean)
    tests = 2 * len(clean)
    found = [name for name in out.leaving if name not in clean and _moved(out, name)]
    for name, tensor in clean.items():
        sent = declared.update[name].double()
        left = min(_mean_square(sent - each[name]) for each in (clean, bare)) if bare else _mean_square(sent - tensor)
        ratio = left / (SHARE**2 * usual[name]) if usual[name] > 0 else 0.0
        if not fisher.cdf(ratio, tensor.numel(), freedom * tensor.numel()) > LEVEL / tests:
            found.append(name)
    return tuple(found)


def repeated(declared: Declared, protected: Protected, last: Params | None) -> tuple[str, ...]:
    """Where the noise is not drawn anew: inside of the message, or as in the last one that left.

    Noise of the declared size that is the same at two places is none in their difference.
    """
    clean = _played(declared, protected.noiseless)
    left = {name: declared.update[name].double() - tensor for name, tensor in clean.items()}
    return (*within(left), *between(left, {"as in the last update": last or {}}))


def _usual(declared: Declared, protected: Protected, clean: dict[str, Tensor]) -> tuple[dict[str, float], float]:
    """The mean square of the noise in each tensor, and how many replays it is known from."""
    if protected.dpsgd is None:
        return dict.fromkeys(clean, protected.std**2), CERTAIN
    draws = [_played(declared, protected.protection, draw) for draw in range(DRAWS)]
    return {name: sum(_mean_square(each[name] - clean[name]) for each in draws) / DRAWS for name in clean}, DRAWS


def _played(declared: Declared, protection: Protection, draw: int = 0) -> dict[str, Tensor]:
    parts = tuple(replace(part, protection=protection) for part in declared.parts)
    return dict(zip(declared.before, message_of(replace(declared, parts=parts), 0, draw), strict=True))


def _mean_square(tensor: Tensor) -> float:
    return float(tensor.square().mean()) if tensor.numel() else 0.0


def _moved(out: Outbound, name: str) -> bool:
    return not torch.equal(out.after[name], out.before[name])
