"""What the tables of a plan are made of: types of keys, and tables that name something of the registry.

Every number has a largest value, far beyond what an audit can be asked for in earnest: a slip of the finger, or a plan
of somebody who means harm, is refused before anything is built.
"""

from __future__ import annotations

from typing import Annotated, Any

from pydantic import BaseModel, ConfigDict, Field, StringConstraints

MOST_CASES = 100_000
"""Attacks x messages x repeats of a whole plan; each is a record, and takes seconds at the least."""
MOST_TURNS = 10_000_000
"""Rounds x clients of a federation, which are listed before anything runs."""

Name = Annotated[str, StringConstraints(min_length=1, max_length=200)]
Title = Annotated[str, StringConstraints(max_length=200)]
Repeats = Annotated[int, Field(ge=1, le=10_000)]
Clients = Annotated[int, Field(ge=1, le=10_000)]
Rounds = Annotated[int, Field(ge=1, le=100_000)]
Examples = Annotated[int, Field(ge=1, le=1_000_000)]
Held = Annotated[int, Field(ge=0, le=1_000_000)]
Steps = Annotated[int, Field(ge=1, le=1_000_000)]
Classes = Annotated[int, Field(ge=2, le=100_000)]
Side = Annotated[int, Field(ge=1, le=2048)]
"""Pixels; no attack can handle larger images."""
Client = Annotated[int, Field(ge=0, lt=10_000)]
SomeClients = Annotated[list[Client], Field(min_length=1, max_length=10_000)]
Round = Annotated[int, Field(ge=0, lt=100_000)]
SomeRounds = Annotated[list[Round], Field(min_length=1, max_length=10_000)]
Seed = Annotated[int, Field(ge=0, lt=2**63)]
Share = Annotated[float, Field(ge=0, lt=1)]
LearningRate = Annotated[float, Field(gt=0, le=1000, allow_inf_nan=False)]
Positive = Annotated[float, Field(gt=0, le=1_000_000, allow_inf_nan=False)]
NotNegative = Annotated[float, Field(ge=0, le=1_000_000, allow_inf_nan=False)]
Finite = Annotated[float, Field(allow_inf_nan=False)]
PerChannel = Annotated[list[Finite], Field(min_length=1, max_length=16)]


class Table(BaseModel):
    """A table of a plan: every key is known, and says in its own words what it is.

    Strict: true is not 1, and "5" is not 5.
    """

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True, use_attribute_docstrings=True)


class Named(BaseModel):
    """Something of the registry; keys beside its name are its options."""

    model_config = ConfigDict(frozen=True, extra="allow", strict=True, use_attribute_docstrings=True)

    name: Name
    """As `fedglass list` shows it, or `package.module:name` for your own."""

    @property
    def options(self) -> dict[str, Any]:
        return dict(self.model_extra or {})


class DefenceTable(Named):
    """A defence; keys beside its name are its options."""


Defences = Annotated[list[DefenceTable], Field(max_length=20)]


def listed(value: Any) -> Any:
    """A single table stands for a list of one: `[federation]` is short for `[[federation]]`."""
    return [value] if isinstance(value, dict) else value
