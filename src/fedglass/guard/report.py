"""The report of a guard, its clock and its memory.

The client gets the whole report. All others get one fixed sentence, or nothing.
"""

from __future__ import annotations

import enum
import math
import time
from dataclasses import asdict, dataclass, field
from typing import Any, Literal

import torch
from torch import Tensor

from fedglass.audit.play import OutOfTime
from fedglass.core.errors import FedglassError
from fedglass.core.tensors import Params
from fedglass.core.thresholds import SAME_STEP


class Clock:
    """The time budget of a guard, from now on. As a progress callback it ends an attack between two iterations."""

    def __init__(self, seconds: float) -> None:
        self._end = time.monotonic() + seconds

    @property
    def remaining(self) -> float:
        return self._end - time.monotonic()

    def check(self) -> None:
        """Raise OutOfTime where the time is used up."""
        if self.remaining <= 0:
            raise OutOfTime

    def __call__(self, done: int, total: int) -> None:
        self.check()


@dataclass(frozen=True)
class GuardCounts:
    """Counts of one client's updates. Only the server knows how many other clients sent or refused."""

    checked: int = 0
    refused: int = 0
    """Updates that the guard blocked."""
    warned: int = 0
    """Updates that left although there was a reason against them."""
    alone: int = 0
    """Rounds after which the global model had moved along this client's update alone."""


@dataclass
class GuardMemory:
    """The memory of a guard from round to round: the last update that left, and counts."""

    counts: GuardCounts = field(default_factory=GuardCounts)
    before: Params | None = None
    sent: Params | None = None

    def keep(self, before: Params, sent: Params) -> None:
        self.before = {name: tensor.detach().cpu().clone() for name, tensor in before.items()}
        self.sent = {name: tensor.detach().cpu().clone() for name, tensor in sent.items()}

    def forget(self) -> None:
        """Forget the last update, since none left in this round."""
        self.before = self.sent = None

    def was_alone(self, now: Params) -> bool:
        """Return whether the step from the last global model to this one is along the update that was sent.

        Then it was the only one in the mean: others refused, were lost, or never existed. A server that mixes in an
        update of its own is not detected.
        """
        if self.before is None or self.sent is None or set(now) < set(self.before):
            return False
        pairs = [(_flat(now[n]) - _flat(before), _flat(self.sent[n])) for n, before in self.before.items()]
        step, sent = (torch.cat(tensors) for tensors in zip(*pairs, strict=True))
        size = float(step.norm() * sent.norm())
        return size > 0 and float(step @ sent) / size >= SAME_STEP


def _flat(tensor: Tensor) -> Tensor:
    return tensor.detach().cpu().double().flatten()


Policy = Literal["block", "warn", "log"]
REFUSED = "The client's guard did not let this update leave."
"""The sentence that leaves instead of an update. A number, a name or an exception's text may reveal data."""


class Reason(enum.Enum):
    """A reason why an update should not leave."""

    STRUCTURE = "structure"
    """Something other than the model's tensors would leave."""
    NOT_FINITE = "not finite"
    FEW_EXAMPLES = "few examples"
    CLIPPING = "clipping"
    """The message is longer than the declared clipping allows."""
    NOISE = "noise"
    """The declared noise is not in the message, or not in all of it, or cannot be tested."""
    NOT_EXPLAINED = "not explained"
    """The declared training on these examples does not give the message: its content is unchecked."""
    SINGLED_OUT = "singled out"
    """The message singles out the true examples among decoys."""
    RECOVERED = "recovered"
    """An attack shows private images."""
    ALONE = "alone"
    """The last step of the global model was this client's update alone."""
    OUT_OF_TIME = "out of time"
    TOO_LARGE = "too large"
    UNWATCHED = "unwatched"
    """The training was not observed, or cannot be run again."""
    FAULT = "fault"
    """The guard itself failed."""

    def __repr__(self) -> str:
        return f"Reason.{self.name}"


class GuardRefusal(FedglassError):
    """The refusal of an update. Its text is fixed."""

    def __init__(self) -> None:
        super().__init__(REFUSED)


@dataclass(frozen=True)
class CheckResult:
    """The result of the checks that take time: they run outside of the client's process, and may be stopped."""

    reasons: tuple[Reason, ...] = ()
    residual: float | None = None
    """|replayed - message| / |message|."""
    escaped: tuple[str, ...] = ()
    """The tensors where the declared noise is missing or repeats, or the tests that the message fails as a whole."""
    p_value: float | None = None
    """Chance of the true examples' rank among decoys if the message revealed nothing; None where it was not tested."""
    decoys: int = 0
    attack: str = ""
    """The attack that showed most."""
    starts: int = 0
    """The number of complete runs of attacks."""
    shown: int | None = None
    """Private images that it recovers, or shows so that they may be recognised; None where no attack was run."""
    best: float | None = None
    """The gate's metric of its best image."""
    oracle: bool = False
    """Whether the attacks were given what an adversary has to guess, such as the true labels."""
    fault: str = field(default="", repr=False)
    """The error in the guard. Like all of this it stays at the client."""


@dataclass(frozen=True)
class GuardReport:
    """The full report on one update. It is made with the private examples, and stays where they are.

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
    """The norm of the difference between what would leave and what came."""
    examined: CheckResult = field(default_factory=CheckResult)
    seconds: float = 0.0

    @property
    def sound(self) -> bool:
        """True where there is no reason against the update."""
        return not self.reasons

    @property
    def allowed(self) -> bool:
        """True where the update may leave: always, unless the policy is to block."""
        return self.sound or self.policy != "block"

    @property
    def answer(self) -> str:
        """The sentence for others; empty where the update itself leaves."""
        return "" if self.allowed else REFUSED

    def enforce(self) -> None:
        """Raise GuardRefusal where the update may not leave."""
        if not self.allowed:
            raise GuardRefusal

    def as_json(self) -> dict[str, Any]:
        """Return plain values for the client's log; numbers that are not finite become null."""
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
