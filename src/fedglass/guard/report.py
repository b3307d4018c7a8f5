"""What a guard says: to its own client all that it saw, to everybody else one of two fixed sentences."""

from __future__ import annotations

import enum
import math
from dataclasses import asdict, dataclass, field
from typing import Any, Literal

from fedglass.core.errors import FedglassError

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
class Examined:
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
    examined: Examined = field(default_factory=Examined)
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
        told: dict[str, Any] = _plain(asdict(self))
        return {"allowed": self.allowed, **told}


def _plain(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _plain(each) for key, each in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(each) for each in value]
    if isinstance(value, enum.Enum):
        return value.value
    return None if isinstance(value, float) and not math.isfinite(value) else value
