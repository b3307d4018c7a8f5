"""A federation to simulate, as a plan says it."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import Field, field_validator, model_validator

from fedglass.plan.keys import Classes, Count, Flag, Index, Indices, Name, Named, Rate, Seed, Table, listed
from fedglass.plan.training_table import TrainingTable, WhiteningTable

LARGEST_SIDE = 2048
"""Pixels along a side; no attack can handle larger images."""


class DefenceTable(Named):
    """A defence; keys beside its name are its options."""


class RuleTable(Named):
    """An aggregation rule; keys beside its name are its options."""


class BehaviourTable(Named):
    """What a client does with its turn; keys beside its name are its options."""


class GroupTable(Table):
    """Clients that differ from the rest of their federation."""

    clients: Indices
    """Their positions."""
    behaviour: list[BehaviourTable] = []
    """One, or one for each round, of which the last stays; honest where nothing is said."""
    defences: list[DefenceTable] | None = None
    """In place of the plan's; an empty list is none."""
    training: TrainingTable | None = None
    """In place of the federation's."""

    @field_validator("behaviour", mode="before")
    @classmethod
    def _one_or_more(cls, value: Any) -> Any:
        return listed(value)


class FederationTable(Table):
    """A federation to simulate."""

    name: str = ""
    """In the report, where there are several."""
    data: Name
    """A name of `fedglass list datasets`, `format:PATH`, or a path."""
    split: Literal["train", "test"] = "train"
    """Which of the data, where they have both."""
    size: Annotated[int, Field(ge=1, le=LARGEST_SIDE, strict=True)] | None = None
    """Bring the images to size x size pixels."""
    classes: Classes | None = None
    """More classes than the data have."""
    relabel_classes: Classes | None = None
    """Draw the labels anew from so many classes: a stand-in for other data."""
    clients: Count = 1
    """How many there are."""
    examples: Count | Annotated[list[Count], Field(min_length=1)] | None = None
    """Of each client, or a list with one number for each; all that there are where it is left out."""
    test_examples: Index = 0
    """Kept from all clients, to measure the trained model by."""
    partition: Literal["iid", "dirichlet", "writers"] = "iid"
    """How the data are dealt out."""
    alpha: Rate | None = None
    """Of the Dirichlet partition: small means that few clients hold most of a class."""
    model: Name = "lenet"
    """A name of `fedglass list models`, or `package.module:factory` for your own."""
    init: Name = "default"
    """A name of `fedglass list initialisations`, or `file:` or `transfer:` and a path of safetensors."""
    rounds: Count = 1
    """How many are played."""
    participation: Annotated[float, Field(gt=0, le=1)] = 1.0
    """The share of the clients that each round calls."""
    training: TrainingTable
    """What every client does in a round."""
    whitening: WhiteningTable | None = None
    """In place of the data's own."""
    defended: Flag = True
    """False: without the plan's defences, for comparison."""
    rule: RuleTable | None = None
    """How the server combines the updates: `fedglass list rules`; the mean where it is left out."""
    group: list[GroupTable] = []
    """Clients that differ from the rest."""
    seed: Seed | None = None
    """In place of the plan's."""

    @model_validator(mode="after")
    def _consistent(self) -> FederationTable:
        if (self.partition == "dirichlet") != (self.alpha is not None):
            raise ValueError('alpha goes with partition = "dirichlet", expected both or neither')
        if isinstance(self.examples, list) and len(self.examples) != self.clients:
            raise ValueError(
                f"examples must be one number, or one for each of the {self.clients} clients, got "
                f"{len(self.examples)} numbers"
            )
        grouped = [client for group in self.group for client in group.clients]
        for client in grouped:
            if client >= self.clients:
                raise ValueError(f"group.clients must be among 0 to {self.clients - 1}, got {client}")
            if grouped.count(client) > 1:
                raise ValueError(f"client {client} is named twice in [[federation.group]], expected one group for each")
        return self
