"""What a client can know of how its updates fare from round to round, and what it can not."""

from __future__ import annotations

from dataclasses import dataclass, field

import torch
from torch import Tensor

from fedglass.core.params import Params

SAME = 0.999
"""The cosine from which on the global model's step is taken for one client's update."""


@dataclass(frozen=True)
class Counts:
    """Of this client alone. How many others sent or refused is the server's knowledge, and is not told here."""

    checked: int = 0
    refused: int = 0
    """Updates that were not let out."""
    warned: int = 0
    """Updates that left although something spoke against them."""
    alone: int = 0
    """Rounds after which the global model had moved along this client's update and no other's."""


@dataclass
class Memory:
    """The last update that left, and counts."""

    counts: Counts = field(default_factory=Counts)
    before: Params | None = None
    sent: Params | None = None

    def keep(self, before: Params, sent: Params) -> None:
        self.before = {name: tensor.detach().cpu().clone() for name, tensor in before.items()}
        self.sent = {name: tensor.detach().cpu().clone() for name, tensor in sent.items()}

    def forget(self) -> None:
        """Nothing left in this round."""
        self.before = self.sent = None

    def was_alone(self, now: Params) -> bool:
        """Whether the step from the last global model to this one is along the update that was sent.

        Then it was the only one in the mean: others refused, were lost, or never were. A server that mixes in
        something of its own is not found out.
        """
        if self.before is None or self.sent is None or set(now) < set(self.before):
            return False
        pairs = [(_flat(now[n]) - _flat(before), _flat(self.sent[n])) for n, before in self.before.items()]
        step, sent = (torch.cat(each) for each in zip(*pairs, strict=True))
        size = float(step.norm() * sent.norm())
        return size > 0 and float(step @ sent) / size >= SAME


def _flat(tensor: Tensor) -> Tensor:
    return tensor.detach().cpu().double().flatten()
