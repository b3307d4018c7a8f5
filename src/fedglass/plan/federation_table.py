"""A federation to simulate, as a plan says it."""

from __future__ import annotations

from collections import Counter
from typing import Annotated, Any, Literal

from pydantic import Field, field_validator, model_validator

from fedglass.plan.keys import (
    MOST_TURNS,
    Classes,
    Clients,
    Defences,
    Examples,
    Held,
    Name,
    Named,
    Positive,
    Rounds,
    Seed,
    Side,
    SomeClients,
    Table,
    Title,
    listed,
)
from fedglass.plan.training_table import TrainingTable, WhiteningTable


class RuleTable(Named):
    """An aggregation rule; keys beside its name are its options."""


class BehaviourTable(Named):
    """What a client does with its turn; keys beside its name are its options."""


class GroupTable(Table):
    """Clients that differ from the rest of their federation."""

    clients: SomeClients
    """Their positions."""
    behaviour: Annotated[list[BehaviourTable], Field(max_length=1000)] = []
    """One, or one for each round, of which the last stays; honest where nothing is said."""
    rejoins_after: Annotated[int, Field(ge=1, le=100_000)] | None = None
    """Rejected updates in a row after which each of them comes back under a new name; never where it is left out."""
    defences: Defences | None = None
    """In place of the plan's; an empty list is none."""
    training: TrainingTable | None = None
    """In place of the federation's."""

    @field_validator("behaviour", "defences", mode="before")
    @classmethod
    def _one_or_more(cls, value: Any) -> Any:
        return listed(value)


class SweepTable(Table):
    """One option of one of the plan's defences over several values: each makes a federation of its own."""

    defence: Name
    """Its name in `[[defences]]`."""
    option: Name
    """Such as `noise_multiplier`; what the defence's own table says of it is put aside."""
    values: Annotated[list[Annotated[float, Field(allow_inf_nan=False)] | int], Field(min_length=2, max_length=50)]
    """The report draws what the attacks reach over them, beside the best blind guess."""


class FederationTable(Table):
    """A federation to simulate."""

    name: Title = ""
    """In the report, where there are several."""
    data: Name
    """A name of `fedglass list datasets`, `format:PATH`, or a path."""
    split: Literal["train", "test"] = "train"
    """Which of the data, where they have both."""
    size: Side | None = None
    """Bring the images to size x size pixels."""
    classes: Classes | None = None
    """More classes than the data have."""
    relabel_classes: Classes | None = None
    """Draw the labels anew from so many classes: a stand-in for other data."""
    clients: Clients = 1
    """How many there are."""
    examples: Examples | Annotated[list[Examples], Field(min_length=1, max_length=10_000)] | None = None
    """Of each client, or a list with one number for each; all that there are where it is left out."""
    test_examples: Held = 0
    """Kept from all clients, to measure the trained model by."""
    server_examples: Held = 0
    """Of the server's own, kept from all clients: rules such as balance compare with the update that they give."""
    partition: Literal["iid", "dirichlet", "writers"] = "iid"
    """How the data are dealt out."""
    alpha: Positive | None = None
    """Of the Dirichlet partition: small means that few clients hold most of a class."""
    model: Name = "lenet"
    """A name of `fedglass list models`, or `package.module:factory` for your own."""
    init: Name = "default"
    """A name of `fedglass list initialisations`, or `file:` or `transfer:` and a path of safetensors."""
    untrained: Annotated[list[Name], Field(max_length=1000)] = []
    """Parameters that no client trains or sends, as in fine-tuning: names with * such as "features.*"."""
    rounds: Rounds = 1
    """How many are played."""
    participation: Annotated[float, Field(gt=0, le=1)] = 1.0
    """The share of the clients that each round calls."""
    training: TrainingTable
    """What every client does in a round."""
    whitening: WhiteningTable | None = None
    """In place of the data's own."""
    defended: bool = True
    """False: without the plan's defences, for comparison."""
    sweep: SweepTable | None = None
    """The federation once for each value of an option of a defence."""
    rule: RuleTable | None = None
    """How the server combines the updates: `fedglass list rules`; the mean where it is left out."""
    group: Annotated[list[GroupTable], Field(max_length=10_000)] = []
    """Clients that differ from the rest."""
    seed: Seed | None = None
    """In place of the plan's."""

    @field_validator("group", mode="before")
    @classmethod
    def _one_or_more(cls, value: Any) -> Any:
        return listed(value)

    @model_validator(mode="after")
    def _consistent(self) -> FederationTable:
        if (self.partition == "dirichlet") != (self.alpha is not None):
            raise ValueError('alpha goes with partition = "dirichlet", expected both or neither')
        if isinstance(self.examples, list) and len(self.examples) != self.clients:
            raise ValueError(
                f"examples must be one number, or one for each of the {self.clients} clients, got "
                f"{len(self.examples)} numbers"
            )
        if self.rounds * self.clients > MOST_TURNS:
            raise ValueError(
                f"rounds x clients must be at most {MOST_TURNS:,}, got {self.rounds:,} x {self.clients:,}: ask for "
                "fewer of one of them"
            )
        if self.sweep is not None and not self.defended:
            raise ValueError("sweep changes one of the plan's defences, which defended = false leaves out: drop either")
        if self.sweep is not None and len(set(self.sweep.values)) < len(self.sweep.values):
            raise ValueError(f"sweep.values must differ from each other, got {self.sweep.values}")
        grouped = [client for group in self.group for client in group.clients]
        twice = {client for client, times in Counter(grouped).items() if times > 1}
        for client in grouped:
            if client >= self.clients:
                raise ValueError(f"group.clients must be among 0 to {self.clients - 1}, got {client}")
            if client in twice:
                raise ValueError(f"client {client} is named twice in [[federation.group]], expected one group for each")
        return self
