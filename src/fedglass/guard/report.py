"""What a guard says: to its own client all that it saw, to everybody else one of two fixed sentences."""

from __future__ import annotations

import enum
import math
import time
from dataclasses import asdict, dataclass, field
from typing import Any, Literal

import torch
from torch import Tensor

from fedglass.core.errors import FedglassError
from fedglass.core.tensors import Params

# How much of a guard's time is left.


class OutOfTime(Exception):
    """There is no time left for what was to be done next."""


class Clock:
    """Runs from the moment it is made. As an attack's progress callback it ends the attack between two iterations."""

    def __init__(self, seconds: float) -> None:
        self._end = time.monotonic() + seconds

    @property
    def left(self) -> float:
        return self._end - time.monotonic()

    def check(self) -> None:
        """Raise where the time is used up."""
        if self.left <= 0:
            raise OutOfTime

    def __call__(self, done: int, total: int) -> None:
        self.check()


# What a client can know of how its updates fare from round to round, and what it can not.


SAME = 0.999
"""The cosine from which on the global model's step is taken for one client's update."""


@dataclass(frozen=True)
class GuardCounts:
    """Of this client alone. How many others sent or refused is the server's knowledge, and is not told here."""

    checked: int = 0
    refused: int = 0
    """Updates that were not let out."""
    warned: int = 0
    """Updates that left although something spoke against them."""
    alone: int = 0
    """Rounds after which the global model had moved along this client's update and no other's."""


@dataclass
class GuardMemory:
    """The last update that left, and counts."""

    counts: GuardCounts = field(default_factory=GuardCounts)
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
        step, sent = (torch.cat(tensors) for tensors in zip(*pairs, strict=True))
        size = float(step.norm() * sent.norm())
        return size > 0 and float(step @ sent) / size >= SAME


def _flat(tensor: Tensor) -> Tensor:
    return tensor.detach().cpu().double().flatten()


Policy = Literal["block", "warn", "log"]
REFUSED = "The client's guard did not let this update leave."
"""All that leaves in place of an update: no number, no name and no exception's text, which may tell of the data."""


class Reason(enum.Enum):
    """Why an update should not leave."""

    STRUCTURE = "structure"
    """Something else than the model's tensors would leave."""
    NOT_FINITE = "not finite"
    FEW_EXAMPLES = "few examples"
    CLIPPING = "clipping"
    """The message is longer than the declared clipping lets it be."""
    NOISE = "noise"
    """The declared noise is not in the message, or not in all of it, or it can not be told."""
    NOT_EXPLAINED = "not explained"
    """The declared training on these examples does not give the message: whatever it holds, nobody has checked it."""
    SINGLED_OUT = "singled out"
    """The message points at the true examples among others."""
    RECOVERED = "recovered"
    """An attack shows private images."""
    ALONE = "alone"
    """The last step of the global model was this client's own update: nobody else's was in it."""
    OUT_OF_TIME = "out of time"
    TOO_LARGE = "too large"
    UNWATCHED = "unwatched"
    """Nobody saw how the update was made, or it was made in a way that can not be played again."""
    FAULT = "fault"
    """The guard itself failed."""

    def __repr__(self) -> str:
        return f"Reason.{self.name}"


class GuardRefusal(FedglassError):
    """An update may not leave. Its text is fixed."""

    def __init__(self) -> None:
        super().__init__(REFUSED)


@dataclass(frozen=True)
class CheckResult:
    """What the checks found that take time: they run apart from the client, and may be stopped."""

    reasons: tuple[Reason, ...] = ()
    residual: float | None = None
    """|replayed - message| / |message|."""
    escaped: tuple[str, ...] = ()
    """Where the declared noise is missing or repeats: tensors, or tests that the message fails as a whole."""
    p_value: float | None = None
    """Of the true examples' rank among decoys, if the message told nothing; None where it was not asked."""
    decoys: int = 0
    attack: str = ""
    """The attack that showed most."""
    starts: int = 0
    """How often attacks were run to their end."""
    shown: int | None = None
    """How many private images it recovers, or shows so that they may be recognised; None where none was run."""
    best: float | None = None
    """The gate's metric of the image that it shows best."""
    oracle: bool = False
    """Whether the attacks were told what an adversary has to guess, such as the true labels."""
    fault: str = field(default="", repr=False)
    """What went wrong in the guard. Like all of this it stays at the client."""


@dataclass(frozen=True)
class GuardReport:
    """All that a guard saw of one update. It is made with the private examples, and stays where they are.

    >>> report = GuardReport("block", reasons=(Reason.FEW_EXAMPLES,), examples=1)
    >>> report.allowed, report.answer
    (False, "The client's guard did not let this update leave.")
    >>> GuardReport("warn", reasons=(Reason.FEW_EXAMPLES,)).allowed
    True
    """

    policy: Policy
    reasons: tuple[Reason, ...] = ()
    examples: int | None = None
    """Distinct examples behind the message."""
    norm: float | None = None
    """Of all that would leave, beside what was there before."""
    examined: CheckResult = field(default_factory=CheckResult)
    seconds: float = 0.0

    @property
    def sound(self) -> bool:
        """Whether nothing speaks against the update."""
        return not self.reasons

    @property
    def allowed(self) -> bool:
        """Whether it may leave: always, unless the policy is to block."""
        return self.sound or self.policy != "block"

    @property
    def answer(self) -> str:
        """What may be said to others; empty where the update itself leaves."""
        return "" if self.allowed else REFUSED

    def enforce(self) -> None:
        """Raise where the update may not leave."""
        if not self.allowed:
            raise GuardRefusal

    def as_json(self) -> dict[str, Any]:
        """Plain values for the client's own log; what is not a finite number is null."""
        fields: dict[str, Any] = _plain(asdict(self))
        return {"allowed": self.allowed, **fields}


def _plain(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _plain(entry) for key, entry in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(entry) for entry in value]
    if isinstance(value, enum.Enum):
        return value.value
    return None if isinstance(value, float) and not math.isfinite(value) else value
