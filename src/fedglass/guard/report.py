"""The report of a guard, its clock and its memory.

The client gets the whole report. All others get one fixed sentence, or nothing.
"""

from __future__ import annotations

import enum
import json
import logging
import math
import os
import time
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any, Literal

import torch
from torch import Tensor

from fedglass.audit.play import OutOfTime
from fedglass.core.errors import FedglassError, UsageError
from fedglass.core.files import make_folder
from fedglass.core.tensors import RUNNING, Params
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
    """The memory of a guard from round to round: the last update that left, what the app had made, and counts."""

    counts: GuardCounts = field(default_factory=GuardCounts)
    before: Params | None = None
    sent: Params | None = None
    draft: Params | None = None
    """The app's own update, whose noise is not that of the message."""
    accepted: Params | None = None
    """The last received model without a reason against it."""
    moved: Params | None = None
    """The client's own update to that model, whether it left or not."""

    def accept(self, received: Params, moved: Params) -> None:
        """Keep a received model and the own update to it, for the check of the next one."""
        self.accepted, self.moved = _copied(received), _copied(moved)

    def keep(self, before: Params, sent: Params, draft: Params) -> None:
        self.before, self.sent, self.draft = _copied(before), _copied(sent), _copied(draft)

    def forget(self) -> None:
        """Forget the last update, since none left in this round."""
        self.before = self.sent = self.draft = None

    def was_alone(self, now: Params) -> bool:
        """Return whether the step from the last global model to this one is along the update that was sent.

        Then it was the only one in the mean: others refused, were lost, or never existed. A server that mixes in an
        update of its own is not detected.
        """
        if self.before is None or self.sent is None or set(now) < set(self.before):
            return False
        # Counters and running statistics of all clients move alike.
        names = [name for name in self.before if name.rpartition(".")[2] not in RUNNING]
        pairs = [(_flat(now[n]) - _flat(self.before[n]), _flat(self.sent[n])) for n in names]
        step, sent = (torch.cat(tensors) for tensors in zip(*pairs, strict=True))
        size = float(step.norm() * sent.norm())
        return size > 0 and float(step @ sent) / size >= SAME_STEP


def _copied(params: Params) -> Params:
    return {name: tensor.detach().cpu().clone() for name, tensor in params.items()}


def _flat(tensor: Tensor) -> Tensor:
    return tensor.detach().cpu().double().flatten()


Policy = Literal["block", "warn", "log"]
Level = Literal["reconstruction", "singling_out"]
FIRST_LINES: Mapping[Level, str] = {
    "reconstruction": "level reconstruction: an update is refused if an attack reads an example. Whether it names its "
    'examples among others is not checked, as it was in earlier versions: set level="singling_out" for that.',
    "singling_out": "level singling_out: an update is refused if an attack reads an example or if the update singles "
    "examples out.",
}
"""The first line in the log of a guard, by its level."""
LOG = logging.getLogger("fedglass.guard")
REFUSED = "The client's guard did not let this update leave."
"""The sentence that leaves instead of an update. A number, a name or an exception's text may reveal data."""


def level_of(false_alarms: float, level: Level) -> Level:
    """Return the level that the older setting means.

    >>> level_of(0, "reconstruction"), level_of(0.05, "reconstruction")
    ('reconstruction', 'singling_out')
    """
    if not 0 <= false_alarms < 1:
        raise UsageError(f"Guard.false_alarms must be at least 0 and below 1, got {false_alarms}.")
    if false_alarms == 0 and level == "singling_out":
        raise UsageError('Guard.false_alarms=0 means level="reconstruction", got level="singling_out": leave it out.')
    return "singling_out" if false_alarms else "reconstruction"


class Reason(enum.Enum):
    """A reason why an update should not leave, or why a received model should not be trained."""

    STRUCTURE = "structure"
    """Something other than the model's tensors would leave, or other than named tensors of numbers came."""
    NOT_FINITE = "not finite"
    FEW_EXAMPLES = "few examples"
    CLIPPING = "clipping"
    """The message is longer than the declared clipping allows."""
    NOISE = "noise"
    """The declared noise is not in the message, or not in all of it, or cannot be tested."""
    NOT_EXPLAINED = "not explained"
    """The declared training on these examples does not give the message: its content is unchecked."""
    SINGLED_OUT = "singled out"
    """The message names its examples among others of the same label; asked at the level `singling_out` alone."""
    UNDECIDED = "undecided"
    """The level `singling_out` is asked for, and the candidate game decides nothing."""
    RECEIVED = "received model"
    """The model that came shows signs of having been crafted: see `fedglass.guard.received`."""
    ADDED_LAYERS = "added layers"
    """The received model has tensors that the last accepted one did not have."""
    PARALLEL_ROWS = "parallel rows"
    """Rows of a dense layer repeat one direction, as in an imprint."""
    LONE_UNITS = "lone units"
    """Units fire for single examples far more often than under other weights, as with trap weights."""
    CLASS_ROW = "class row"
    """One class of the last layer has a row or a bias of extreme size, as in fishing."""
    UNEXPLAINED_CHANGE = "unexplained change"
    """A tensor moved much farther than the others since the last accepted model, in units of the own update."""
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
class Decision:
    """The reasons against something, and what a policy makes of them."""

    policy: Policy
    reasons: tuple[Reason, ...] = ()

    @property
    def sound(self) -> bool:
        """True where there is no reason against it."""
        return not self.reasons

    @property
    def allowed(self) -> bool:
        """True where it may leave, or be trained: always, unless the policy is to block."""
        return self.sound or self.policy != "block"

    @property
    def answer(self) -> str:
        """The sentence for others; empty where it is allowed."""
        return "" if self.allowed else REFUSED

    def as_json(self) -> dict[str, Any]:
        """Return plain values for the client's log, without tensors; numbers that are not finite become null."""
        fields: dict[str, Any] = plain_values(asdict(self))
        return {"allowed": self.allowed, **fields}


@dataclass(frozen=True)
class ReceivedFigures:
    """The figure of each sign; None where it cannot be computed from what is known."""

    parallel_rows: float | None = None
    lone_units: float | None = None
    lone_first_units: float | None = None
    """The same of a dense layer without others in front of it."""
    rare_units: float | None = None
    """By how much more of that layer's units fire rarely."""
    class_row: float | None = None
    class_bias: float | None = None
    unexplained_change: float | None = None


@dataclass(frozen=True)
class ReceivedReport(Decision):
    """The report on one received model; it stays at the client.

    >>> ReceivedReport("block", (Reason.PARALLEL_ROWS,)).allowed
    False
    """

    figures: ReceivedFigures = ReceivedFigures()
    fault: str = field(default="", repr=False)
    """The error in the check."""


@dataclass(frozen=True)
class CheckResult:
    """The result of the checks that take time: they run outside of the client's process, and may be stopped."""

    reasons: tuple[Reason, ...] = ()
    residual: float | None = None
    """|replayed - message| / |message|."""
    escaped: tuple[str, ...] = ()
    """The tensors where the declared noise is missing or repeats, or the tests that the message fails as a whole."""
    attack: str = ""
    """The attack that showed most."""
    starts: int = 0
    """The number of complete runs of attacks."""
    shown: int | None = None
    """Private images that it recovers, or shows so that they may be recognised; None where no attack was run."""
    best: float | None = None
    """The gate's metric of its best image."""
    change: Params | None = field(default=None, repr=False, compare=False)
    """By how much each tensor of the message changes what came, before rounding; None where it was not made."""
    oracle: bool = False
    """Whether the attacks were given what an adversary has to guess, such as the true labels."""
    singled_out: int | None = None
    """Examples that the message names among `candidates` others; None where the candidate game was not played."""
    candidates: int = 0
    received: ReceivedReport | None = None
    """The report on the model that came; None where it was not checked."""
    fault: str = field(default="", repr=False)
    """The error in the guard. Like all of this it stays at the client."""


@dataclass(frozen=True)
class GuardReport(Decision):
    """The full report on one update. It is made with the private examples, and stays where they are.

    >>> report = GuardReport("block", reasons=(Reason.FEW_EXAMPLES,), examples=1)
    >>> report.allowed, report.answer
    (False, "The client's guard did not let this update leave.")
    >>> GuardReport("warn", reasons=(Reason.FEW_EXAMPLES,)).allowed
    True
    """

    examples: int | None = None
    """Distinct examples behind the message."""
    norm: float | None = None
    """The norm of the difference between what would leave and what came."""
    examined: CheckResult = field(default_factory=CheckResult)
    seconds: float = 0.0
    message: Params | None = field(default=None, repr=False, compare=False)
    """The tensors to send, which the guard made: `after`, or `update` where that was checked. None where it refuses,
    and where a policy lets out what the guard cannot make itself."""

    def enforce(self) -> None:
        """Raise GuardRefusal where the update may not leave."""
        if not self.allowed:
            raise GuardRefusal

    def as_json(self) -> dict[str, Any]:
        bare = replace(self, message=None, examined=replace(self.examined, change=None))
        fields = super(GuardReport, bare).as_json()
        del fields["message"], fields["examined"]["change"]
        return fields

    def append_to(self, path: Path, number: int) -> None:
        """Append the report to the client's own log; a log that cannot be written decides nothing."""
        line = json.dumps({"update": number, **self.as_json()}, allow_nan=False) + "\n"
        try:
            make_folder(path.parent)
            file = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT | getattr(os, "O_NOFOLLOW", 0), 0o600)
            with open(file, "a", encoding="utf-8") as log:
                log.write(line)
        except (OSError, FedglassError):
            LOG.warning("the guard's log cannot be written: check Guard.log")


def plain_values(value: Any) -> Any:
    """Return plain values of a report; numbers that are not finite become null."""
    if isinstance(value, dict):
        return {key: plain_values(entry) for key, entry in value.items()}
    if isinstance(value, list | tuple):
        return [plain_values(entry) for entry in value]
    if isinstance(value, enum.Enum):
        return value.value
    return None if isinstance(value, float) and not math.isfinite(value) else value
