"""An optimiser as a pure update rule, with the adjoint of one of its steps in closed form.

A step takes weights, gradient and state to new weights and a new state. Its adjoint takes the derivatives of a
loss with respect to the new ones back to the old ones and to the gradient, which lets `fl.trajectory` differentiate
a whole training without a graph over its steps.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar, Protocol

import torch
from torch import Tensor

from fedglass.core.errors import UsageError

Tensors = Sequence[Tensor]
"""One for each parameter."""


@dataclass(frozen=True, eq=False)
class State:
    """The state that an optimiser carries from one step to the next."""

    slots: tuple[Tensors, ...] = ()
    """Momentum, or the two moments of Adam."""
    count: int = 0
    """How many steps were taken."""


@dataclass(frozen=True, eq=False)
class Move:
    """One step: where it starts, and along which gradient."""

    weights: Tensors
    gradient: Tensors
    state: State
    lr: float


@dataclass(frozen=True, eq=False)
class Adjoint:
    """The derivatives of a loss with respect to the weights and to the optimiser's state."""

    weights: Tensors
    slots: tuple[Tensors, ...] = ()


class Optimiser(Protocol):
    """The rule of a local step; no method leaves a graph behind or changes what it is given."""

    def init(self, weights: Tensors) -> State:
        """The state before the first step."""
        ...

    def step(self, move: Move) -> tuple[list[Tensor], State]:
        """The new weights and the new state."""
        ...

    def pull_back(self, move: Move, adjoint: Adjoint) -> tuple[Adjoint, Tensors, float]:
        """The vector-Jacobian product of `step`; `adjoint` is that of its results.

        Returns:
            The adjoint of the old weights and state, without what reaches the weights through the gradient; that of the
            gradient, but for a scale; and that scale. What is computed from the gradient's adjoint is multiplied by the
            scale, which saves plain SGD a pass.
        """
        ...

    def travel(self, lr: float, steps: int) -> float | None:
        """Return how far the weights go along a constant gradient of size 1; None where that is not all that counts."""
        ...


@dataclass(frozen=True)
class SGD:
    """b' = momentum b + (1 - dampening) d, w' = w - lr b', with d = g + weight_decay w, as torch.optim.SGD.

    The first b' is d itself. With `nesterov` the step is lr (d + momentum b').

    >>> SGD().travel(0.1, steps=10), SGD(momentum=0.5).travel(1.0, steps=2), SGD(weight_decay=0.1).travel(0.1, 1)
    (1.0, 2.5, None)
    """

    momentum: float = 0.0
    dampening: float = 0.0
    nesterov: bool = False
    weight_decay: float = 0.0

    def __post_init__(self) -> None:
        for name, value in (("momentum", self.momentum), ("dampening", self.dampening)):
            if not 0 <= value < 1:
                raise UsageError(f"SGD.{name} must be at least 0 and below 1, got {value}.")
        _check_decay(self, self.weight_decay)
        if self.dampening and not self.momentum:
            raise UsageError("SGD.dampening dampens the momentum, which is 0: set SGD.momentum, or leave it out.")
        if self.nesterov and (not self.momentum or self.dampening):
            raise UsageError(
                "SGD.nesterov needs a momentum above 0 and no dampening, got "
                f"momentum={self.momentum:g} and dampening={self.dampening:g}: correct these, or leave it out."
            )

    def init(self, weights: Tensors) -> State:
        return State((tuple(torch.zeros_like(w, requires_grad=False) for w in weights),)) if self.momentum else State()

    @torch.no_grad()
    def step(self, move: Move) -> tuple[list[Tensor], State]:
        along = _decayed(move, self.weight_decay)
        slots: tuple[Tensors, ...] = ()
        if self.momentum:
            (old,), keep = move.state.slots, self._keep(move.state)
            buffer = [torch.add(b * self.momentum, d, alpha=keep) for b, d in zip(old, along, strict=True)]
            slots = (buffer,)
            along = _added(along, buffer, self.momentum) if self.nesterov else buffer
        moved = [torch.sub(w, d, alpha=move.lr) for w, d in zip(move.weights, along, strict=True)]
        return moved, State(slots, move.state.count + 1)

    @torch.no_grad()
    def pull_back(self, move: Move, adjoint: Adjoint) -> tuple[Adjoint, Tensors, float]:
        if not self.momentum:
            direct = _added(adjoint.weights, adjoint.weights, -move.lr * self.weight_decay)
            return Adjoint(direct), adjoint.weights, -move.lr
        share = -move.lr * (self.momentum if self.nesterov else 1.0)
        buffer = _added(adjoint.slots[0], adjoint.weights, share)
        keep = self._keep(move.state)
        gradient = buffer if keep == 1.0 else [b * keep for b in buffer]
        if self.nesterov:
            gradient = _added(gradient, adjoint.weights, -move.lr)
        direct = _added(adjoint.weights, gradient, self.weight_decay)
        return Adjoint(direct, ([b * self.momentum for b in buffer],)), gradient, 1.0

    def travel(self, lr: float, steps: int) -> float | None:
        if self.weight_decay:
            return None
        if not self.momentum:
            return lr * steps
        # b_t = momentum^t + (1 - dampening) (1 - momentum^t) / (1 - momentum) along a gradient of size 1.
        fading = (1 - self.momentum**steps) / (1 - self.momentum)
        buffers = fading + (1 - self.dampening) / (1 - self.momentum) * (steps - fading)
        return lr * (steps + self.momentum * buffers if self.nesterov else buffers)

    def _keep(self, state: State) -> float:
        """The share of a gradient that enters the momentum."""
        return 1.0 if state.count == 0 else 1.0 - self.dampening


@dataclass(frozen=True)
class _WithMoments:
    """w' = w - lr m / (sqrt(v) + eps) with bias-corrected moments of the gradient [Kingma and Ba, 2015]."""

    decoupled: ClassVar[bool]
    """Whether weights decay apart from the moments, instead of by their gradient."""

    betas: tuple[float, float] = (0.9, 0.999)
    eps: float = 1e-8
    weight_decay: float = 0.0

    def __post_init__(self) -> None:
        name = type(self).__name__
        if len(self.betas) != 2 or not all(0 <= beta < 1 for beta in self.betas):
            raise UsageError(f"{name}.betas must be two numbers of at least 0 and below 1, got {self.betas}.")
        if not 0 < self.eps < math.inf:
            raise UsageError(f"{name}.eps must be positive and finite, got {self.eps}.")
        _check_decay(self, self.weight_decay)

    def init(self, weights: Tensors) -> State:
        means, squares = (tuple(torch.zeros_like(w, requires_grad=False) for w in weights) for _ in range(2))
        return State((means, squares))

    @torch.no_grad()
    def step(self, move: Move) -> tuple[list[Tensor], State]:
        means, squares = self._moments(move, self._along(move))
        length, fullness = self._corrections(move)
        root = math.sqrt(fullness)
        weights = self._shrunk(move, move.weights) if self.decoupled else move.weights
        moved = [
            torch.addcdiv(w, m, (v.sqrt() / root).add_(self.eps), value=-length)
            for w, m, v in zip(weights, means, squares, strict=True)
        ]
        return moved, State((means, squares), move.state.count + 1)

    @torch.no_grad()
    def pull_back(self, move: Move, adjoint: Adjoint) -> tuple[Adjoint, Tensors, float]:
        """The adjoints of the old weights and moments, and of the gradient.

        With r = sqrt(v' / fullness) the step is -length m' / (r + eps). Its derivative by the gradient d is the
        difference of two large terms, one for each moment, in which most cancels. It is written after the cancellation,

            -length / (r + eps)^2 ((1 - b1) eps + ((1 - b1) b2 v - (1 - b2) b1 m d) / (fullness r)),

        so that little is left to rounding: at the first step, where m = v = 0, only eps remains. An entry whose v' is
        zero has never had a gradient; its step is taken to stay zero, as the derivative of a sign is.
        """
        (one, two), (length, full), along = self.betas, self._corrections(move), self._along(move)
        gradient, means, squares = [], [], []
        columns = along, *move.state.slots, *self._moments(move, along), adjoint.weights, *adjoint.slots
        # In place from here on, in tensors made here: fresh memory costs more than the arithmetic.
        for d, m, v, mean, square, a, to_mean, to_square in zip(*columns, strict=True):
            root = square.div_(full).sqrt_()
            dead = root == 0
            below = root + self.eps
            rate = (a * -length).div_(below).div_(below).masked_fill_(dead, 0.0)
            safe = root.mul_(full).masked_fill_(dead, 1.0)
            slope = (v * ((1 - one) * two)).addcmul_(m, d, value=(two - 1) * one).div_(safe).add_((1 - one) * self.eps)
            gradient.append(slope.mul_(rate).add_(to_mean, alpha=1 - one).addcmul_(d, to_square, value=2 * (1 - two)))
            means.append(below.mul_(rate).add_(to_mean).mul_(one))
            squares.append(mean.div_(safe).mul_(rate).mul_(-0.5).add_(to_square).mul_(two))
        if self.decoupled:
            return Adjoint(self._shrunk(move, adjoint.weights), (means, squares)), gradient, 1.0
        return Adjoint(_added(adjoint.weights, gradient, self.weight_decay), (means, squares)), gradient, 1.0

    def travel(self, lr: float, steps: int) -> float | None:
        return None

    def _along(self, move: Move) -> Tensors:
        return move.gradient if self.decoupled else _decayed(move, self.weight_decay)

    def _shrunk(self, move: Move, tensors: Tensors) -> list[Tensor]:
        return [t * (1 - move.lr * self.weight_decay) for t in tensors]

    def _corrections(self, move: Move) -> tuple[float, float]:
        """Return lr, corrected for the first moment's start at zero, and the share of its full size of the second."""
        one, two = (float(1 - beta ** (move.state.count + 1)) for beta in self.betas)
        return float(move.lr / one), two

    def _moments(self, move: Move, along: Tensors) -> tuple[list[Tensor], list[Tensor]]:
        """Return the two moments after this step."""
        (one, two), (means, squares) = self.betas, move.state.slots
        return (
            [torch.lerp(m, d, 1 - one) for m, d in zip(means, along, strict=True)],
            [(v * two).addcmul_(d, d, value=1 - two) for v, d in zip(squares, along, strict=True)],
        )


@dataclass(frozen=True)
class Adam(_WithMoments):
    """Adam [Kingma and Ba, 2015], as torch.optim.Adam; `weight_decay` is added to the gradient.

    >>> Adam().travel(0.1, steps=10) is None
    True
    """

    decoupled: ClassVar[bool] = False


@dataclass(frozen=True)
class AdamW(_WithMoments):
    """Adam whose decay is apart from the moments, w' = (1 - lr weight_decay) w - ... [Loshchilov and Hutter, 2019]."""

    decoupled: ClassVar[bool] = True

    weight_decay: float = 0.01


OPTIMISERS: Mapping[str, Callable[..., Optimiser]] = {"sgd": SGD, "adam": Adam, "adamw": AdamW}
"""By the names that plans and manifests have for them."""


def _decayed(move: Move, decay: float) -> Tensors:
    """Return the gradient with that of the weight decay added."""
    return _added(move.gradient, move.weights, decay)


def _added(first: Tensors, second: Tensors, share: float) -> Tensors:
    """Return first + share * second; the first ones themselves where the share is zero."""
    return [torch.add(x, y, alpha=share) for x, y in zip(first, second, strict=True)] if share else first


def _check_decay(owner: object, value: float) -> None:
    if not 0 <= value < math.inf:
        raise UsageError(f"{type(owner).__name__}.weight_decay must be finite and at least 0, got {value}.")
