"""What the tables of a plan are made of: types of keys, and tables that name something of the registry.

Every number has a largest value, far beyond what an audit can be asked for in earnest: a slip of the finger, or a plan
of somebody who means harm, is refused before anything is built.
"""

from __future__ import annotations

from collections import Counter
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, StringConstraints, field_validator, model_validator

from fedglass.core.optimisers import OPTIMISERS, Optimiser
from fedglass.core.types import BatchNorm, Training, Whitening

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


# How a client trains, and how its pixels are normalised, as a plan says it.


class TrainingTable(Table):
    """How a client trains."""

    lr: LearningRate
    """The learning rate."""
    epochs: Steps = 1
    """Passes over the client's examples in a round."""
    batch_size: Examples | None = None
    """Examples in a local step; all of them where it is left out. One epoch of one step is FedSGD."""
    batch_norm: Literal["frozen", "batch"] = "frozen"
    """Which statistics normalisation layers use while a client trains: the running ones, or the batch's."""
    optimiser: Literal["sgd", "adam", "adamw"] = "sgd"
    """The update rule of a local step."""
    momentum: Share | None = None
    """Of SGD."""
    nesterov: bool | None = None
    """Whether SGD's momentum looks ahead."""
    weight_decay: NotNegative | None = None
    """Added to the gradient (sgd, adam), or apart from it (adamw)."""
    betas: Annotated[list[Share], Field(min_length=2, max_length=2)] | None = None
    """Of Adam's two moments."""
    eps: Positive | None = None
    """Of Adam's denominator."""
    shuffle: bool = True
    """Whether each epoch takes the examples in a new order; false: in the order of the data."""
    steps: Steps | None = None
    """Local steps in a round, in place of epochs."""
    clip: Positive | None = None
    """The norm down to which each step's gradient is scaled."""
    label_smoothing: Share = 0.0
    """The share of each label that is spread over all classes."""

    @model_validator(mode="after")
    def _consistent(self) -> TrainingTable:
        sgd = self.optimiser == "sgd"
        foreign = ("betas", "eps") if sgd else ("momentum", "nesterov")
        given = next((name for name in foreign if getattr(self, name) is not None), None)
        if given is not None:
            whose = 'optimiser = "adam" or "adamw"' if sgd else 'optimiser = "sgd"'
            raise ValueError(f'{given} goes with {whose}, got optimiser = "{self.optimiser}": leave one of them out')
        if self.nesterov and not self.momentum:
            raise ValueError("nesterov needs a momentum above 0: add momentum = 0.9, or leave nesterov out")
        if self.steps is not None and "epochs" in self.model_fields_set:
            raise ValueError("steps takes the place of epochs, got both: leave one of them out")
        return self

    def value(self) -> Training:
        return Training(
            self.lr,
            self.epochs,
            self.batch_size,
            BatchNorm(self.batch_norm),
            self._optimiser(),
            self.shuffle,
            self.steps,
            self.clip,
            self.label_smoothing,
        )

    def _optimiser(self) -> Optimiser:
        """With the optimiser's own default for what the plan does not say."""
        betas = None if self.betas is None else (self.betas[0], self.betas[1])
        said = {"weight_decay": self.weight_decay, "momentum": self.momentum, "nesterov": self.nesterov}
        options: dict[str, Any] = {**said, "betas": betas, "eps": self.eps}
        return OPTIMISERS[self.optimiser](**{name: value for name, value in options.items() if value is not None})


class WhiteningTable(Table):
    """Channel means and deviations, where the dataset's own are not wanted."""

    mean: PerChannel
    """Of each channel, for pixels in [0, 1]."""
    std: PerChannel
    """Of each channel."""

    def value(self) -> Whitening:
        return Whitening(tuple(self.mean), tuple(self.std))


# A federation to simulate, as a plan says it.


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
