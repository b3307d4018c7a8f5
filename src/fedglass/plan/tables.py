"""The tables of a plan: types of keys, tables that name a registered part, and those of federations and recordings.

Every number has a largest value, far beyond any real audit: a typing error or a malicious plan is refused before
anything is built.
"""

from __future__ import annotations

import math
from collections import Counter
from dataclasses import fields
from typing import Annotated, Any, Literal

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, StringConstraints, model_validator

from fedglass.core.optimisers import OPTIMISERS
from fedglass.core.types import MOST_PIXELS, BatchNorm, Training, Whitening
from fedglass.fl.loss.targets import loss_fields

MOST_CASES = 100_000
"""Largest attacks x messages x repeats of a plan; each case is a record and takes at least seconds."""
MOST_TURNS = 10_000_000
"""Largest rounds x clients of a federation, which are listed before anything runs."""

Name = Annotated[str, StringConstraints(min_length=1, max_length=200)]
Title = Annotated[str, StringConstraints(max_length=200)]
Repeats = Annotated[int, Field(ge=1, le=10_000)]
Clients = Annotated[int, Field(ge=1, le=10_000)]
Rounds = Annotated[int, Field(ge=1, le=100_000)]
Examples = Annotated[int, Field(ge=1, le=1_000_000)]
HeldOut = Annotated[int, Field(ge=0, le=1_000_000)]
Steps = Annotated[int, Field(ge=1, le=1_000_000)]
Classes = Annotated[int, Field(ge=2, le=100_000)]
Outputs = Annotated[int, Field(ge=1, le=100_000)]
Side = Annotated[int, Field(ge=1, le=2048)]
"""Side of images in pixels; no attack can handle larger ones."""
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
Index = Annotated[int, Field(ge=0, lt=10**9)]
Folder = Annotated[str, StringConstraints(min_length=1, max_length=4096)]


class PlanTable(BaseModel):
    """A table of a plan: unknown keys are refused, and the docstring of a key is its documentation.

    Strict: true is not 1, and "5" is not 5.
    """

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True, use_attribute_docstrings=True)


class PartTable(BaseModel):
    """A rule, behaviour, defence or refinement by its name; all other keys are its options."""

    model_config = ConfigDict(frozen=True, extra="allow", strict=True, use_attribute_docstrings=True)

    name: Name
    """A name of `fedglass list`, or `package.module:name` for your own code."""

    @property
    def options(self) -> dict[str, Any]:
        return dict(self.model_extra or {})


def listed(value: Any) -> Any:
    """Return a list for a single table: `[federation]` is short for `[[federation]]`."""
    return [value] if isinstance(value, dict) else value


Listed = BeforeValidator(listed)
Defences = Annotated[list[PartTable], Field(max_length=20), Listed]


class TrainingTable(PlanTable):
    """The training of a client."""

    lr: LearningRate
    """The learning rate."""
    epochs: Steps = 1
    """Passes over the client's examples per round."""
    batch_size: Examples | None = None
    """Examples in a local step; left out: all of them. One epoch of one step is FedSGD."""
    batch_norm: Literal["frozen", "batch"] = "frozen"
    """Statistics that normalisation layers use while a client trains: the running ones, or those of the batch."""
    optimiser: Literal["sgd", "adam", "adamw"] = "sgd"
    """The update rule of a local step."""
    momentum: Share | None = None
    """Momentum of SGD."""
    nesterov: bool | None = None
    """Whether SGD uses Nesterov momentum."""
    weight_decay: NotNegative | None = None
    """Weight decay, added to the gradient (sgd, adam) or decoupled from it (adamw)."""
    betas: Annotated[list[Share], Field(min_length=2, max_length=2)] | None = None
    """Decay rates of Adam's two moments."""
    eps: Positive | None = None
    """Constant in Adam's denominator."""
    shuffle: bool = True
    """Whether each epoch has a new order of the examples; false: the order of the data."""
    steps: Steps | None = None
    """Local steps per round, instead of epochs."""
    clip: Positive | None = None
    """Largest norm of each step's gradient; larger gradients are scaled down."""
    label_smoothing: Share = 0.0
    """The share of each label that is spread over all classes."""
    loss: Name | PartTable | None = None
    """The loss: a name of `fedglass list losses`, or a table of a name and options; left out: mean cross entropy."""

    @model_validator(mode="after")
    def _consistent(self) -> TrainingTable:
        sgd = self.optimiser == "sgd"
        foreign = ("betas", "eps") if sgd else ("momentum", "nesterov")
        unusable = next((name for name in foreign if getattr(self, name) is not None), None)
        if unusable is not None:
            needed = 'optimiser = "adam" or "adamw"' if sgd else 'optimiser = "sgd"'
            raise ValueError(f'{unusable} needs {needed}, got optimiser = "{self.optimiser}": leave one of them out')
        if self.nesterov and not self.momentum:
            raise ValueError("nesterov needs a momentum above 0: add momentum = 0.9, or leave nesterov out")
        if self.steps is not None and "epochs" in self.model_fields_set:
            raise ValueError("steps replaces epochs, but the plan has both: leave one of them out")
        if self.loss is not None and self.label_smoothing:
            raise ValueError(
                'label_smoothing belongs to the default loss: write loss = { name = "cross_entropy", label_smoothing = '
                f"{self.label_smoothing:g} }}, or leave one of them out"
            )
        return self

    def value(self) -> Training:
        """Return the training; keys that are left out have the optimiser's own defaults."""
        options = self.model_dump(include={"weight_decay", "momentum", "nesterov", "eps"}, exclude_none=True)
        if self.betas is not None:
            options["betas"] = tuple(self.betas)
        optimiser = OPTIMISERS[self.optimiser](**options)
        same = self.model_dump(include={field.name for field in fields(Training)}, exclude={"loss"})
        values = {"batch_norm": BatchNorm(self.batch_norm), "optimiser": optimiser, **self._loss()}
        return Training(**{**same, **values})

    def _loss(self) -> dict[str, Any]:
        """Return the fields of the loss; those of mean cross entropy are as without the key."""
        from fedglass.plan.options import made  # which imports this module

        if self.loss is None:
            return {}
        return loss_fields(made("losses", PartTable(name=self.loss) if isinstance(self.loss, str) else self.loss))


class WhiteningTable(PlanTable):
    """Channel means and standard deviations, instead of the dataset's own."""

    mean: PerChannel
    """Mean of each channel, for pixels in [0, 1]."""
    std: PerChannel
    """Standard deviation of each channel."""

    def value(self) -> Whitening:
        return Whitening(tuple(self.mean), tuple(self.std))


class GroupTable(PlanTable):
    """Clients that differ from the others of their federation."""

    clients: SomeClients
    """Positions of these clients."""
    behaviour: Annotated[list[PartTable], Field(max_length=1000), Listed] = []
    """One behaviour, such as poisoning, or one for each round (the last one stays); left out: honest."""
    rejoins_after: Annotated[int, Field(ge=1, le=100_000)] | None = None
    """Rejected updates in a row after which a client comes back under a new name; left out: never."""
    defences: Defences | None = None
    """Defences instead of the plan's; an empty list means none."""
    training: TrainingTable | None = None
    """Training instead of the federation's."""


class SweepTable(PlanTable):
    """Several values for one option of a defence of the plan: each value gives its own federation."""

    defence: Name
    """Name of the defence in `[[defences]]`."""
    option: Name
    """Name of the option, such as `noise_multiplier`; the value in the defence's own table is ignored."""
    values: Annotated[list[Finite | int], Field(min_length=2, max_length=50)]
    """Values of the option; the report plots the attacks' scores over them, next to the best blind guess."""


class FederationTable(PlanTable):
    """A federation to simulate."""

    name: Title = ""
    """Name in the report, if there are several federations."""
    data: Name
    """A name of `fedglass list datasets`, `format:PATH`, or a path."""
    split: Literal["train", "test"] = "train"
    """Part of the data, if they have both."""
    size: Side | None = None
    """Resize the images to size x size pixels."""
    classes: Classes | None = None
    """Number of classes, if larger than in the data."""
    relabel_classes: Classes | None = None
    """Replace the labels by random ones from this number of classes: a stand-in for other data."""
    clients: Clients = 1
    """Number of clients."""
    examples: Examples | Annotated[list[Examples], Field(min_length=1, max_length=10_000)] | None = None
    """Examples per client, or a list with one number for each client; left out: all examples."""
    test_examples: HeldOut = 0
    """Examples that no client has, to measure the trained model: a random draw from `data`, with the classes in
    proportion. A test split of its own, such as `test_images` in an npz file, is not read."""
    server_examples: HeldOut = 0
    """Examples of the server that no client has, for rules such as balance, which compare with the update from them."""
    partition: Literal["iid", "dirichlet", "writers"] = "iid"
    """Distribution of the data over clients."""
    alpha: Positive | None = None
    """Parameter of the Dirichlet partition; if it is small, few clients hold most of a class."""
    model: Name = "lenet"
    """A name of `fedglass list models`, or `package.module:factory` for your own."""
    init: Name = "default"
    """A name of `fedglass list initialisations`, or `file:` or `transfer:` and a path of safetensors."""
    untrained: Annotated[list[Name], Field(max_length=1000)] = []
    """Parameters that clients neither train nor send, as in fine-tuning: patterns such as "features.*"."""
    rounds: Rounds = 1
    """Number of rounds."""
    participation: Annotated[float, Field(gt=0, le=1)] = 1.0
    """Share of the clients that take part in each round."""
    training: TrainingTable
    """Training of every client in a round."""
    whitening: WhiteningTable | None = None
    """Normalisation instead of the data's own."""
    defended: bool = True
    """Whether the federation has the plan's defences; false: none, for comparison."""
    sweep: SweepTable | None = None
    """Run the federation once for each value of an option of a defence."""
    rule: PartTable | None = None
    """Aggregation rule of the server: `fedglass list rules`; left out: the mean."""
    group: Annotated[list[GroupTable], Field(max_length=10_000), Listed] = []
    """Groups of clients that differ from the others."""
    seed: Seed | None = None
    """Seed instead of the plan's."""

    @model_validator(mode="after")
    def _consistent(self) -> FederationTable:
        if (self.partition == "dirichlet") != (self.alpha is not None):
            raise ValueError('alpha belongs to partition = "dirichlet": set both or neither')
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
            raise ValueError(
                "sweep changes a defence of the plan, but defended = false removes it: leave one of them out"
            )
        if self.sweep is not None and len(set(self.sweep.values)) < len(self.sweep.values):
            raise ValueError(f"sweep.values must differ from each other, got {self.sweep.values}")
        grouped = [client for group in self.group for client in group.clients]
        twice = {client for client, times in Counter(grouped).items() if times > 1}
        for client in grouped:
            if client >= self.clients:
                raise ValueError(f"group.clients must be among 0 to {self.clients - 1}, got {client}")
            if client in twice:
                raise ValueError(
                    f"client {client} occurs twice in [[federation.group]]: put each client into one group"
                )
        return self


class ChainTable(PlanTable):
    """Defences that act one after another; one of them is varied."""

    defences: Annotated[list[PartTable], Field(min_length=1, max_length=20), Listed]
    """The defences, written as `[[defences]]`; the varied option may be left out."""
    varied: Name | None = None
    """Name of the varied defence; left out: the last one that declares a strength."""
    option: Name | None = None
    """Its varied option; left out: the one that the defence declares, such as `noise_multiplier` of `dpsgd`."""
    weakest: Finite | None = None
    """The value that protects least; left out: what the defence declares."""
    strongest: Finite | None = None
    """The value that protects most; left out: what the defence declares."""


class AdviseTable(PlanTable):
    """The settings that `fedglass advise` compares; audits ignore it."""

    chain: Annotated[list[ChainTable], Field(max_length=20), Listed] = []
    """Chains of defences to compare, one or several tables; left out: `[[defences]]` as one chain."""
    strengths: Annotated[int, Field(ge=2, le=50)] = 6
    """Strengths that are tried of each chain, at most."""
    seeds: Annotated[int, Field(ge=2, le=100)] = 3
    """Federations that each strength is tried on, with other splits, weights and noise; as many check the advice."""


class BundleTable(PlanTable):
    """A federation that a recorder wrote to a folder: `fedglass record-info`, docs/bundles.md."""

    bundle: Folder
    """The folder."""
    name: Title = ""
    """In the report, if there are several recordings; the folder's own by default."""
    model: Name | None = None
    """The architecture, if the bundle names none or `package.module:factory`, which only a plan may run."""
    classes: Classes | None = None
    """Of the model, if the bundle does not say."""
    shape: Annotated[list[Side], Field(min_length=3, max_length=3)] | None = None
    """Channels, height and width, if the bundle does not say."""
    whitening: WhiteningTable | None = None
    """How the clients normalised their pixels, if the bundle does not say."""
    examples: Examples | None = None
    """Examples of each client, or of an aggregate with unknown clients, if the bundle does not say."""
    weights: Folder | None = None
    """Safetensors file with parameters that clients never send, such as frozen pretrained layers."""
    truth: Folder | None = None
    """A folder of examples that clients stored, for scoring."""
    rounds: Annotated[list[Index], Field(min_length=1, max_length=10_000)] | Literal["all"] | None = None
    """Rounds to audit, by the federation's own numbers; by default some in which every client appears."""
    whose: Annotated[list[Name], Field(min_length=1, max_length=10_000)] | None = None
    """Names of the clients to audit; all by default."""
    training: TrainingTable | None = None
    """The training of each client; overrides the bundle's."""
    defended: bool | Defences | None = None
    """Whether a defence was in place, or which with what options; overrides the bundle's."""


class RecordingTable(PlanTable):
    """A message that was recorded from a real federation."""

    name: Title = ""
    """In the report, if there are several recordings."""
    model: Name
    """The architecture: a name of `fedglass list models`, or `package.module:factory`."""
    before: Name
    """A safetensors file of the model's state before the client trained."""
    after: Name | None = None
    """The same after it."""
    update: Name | None = None
    """Or after - before, instead of `after`."""
    buffers: Name | None = None
    """A safetensors file of running statistics, if `before` has none."""
    buffers_after: Name | None = None
    """A safetensors file of those after the training, for checks, if `after` has none."""
    truth: Name | None = None
    """An npz file of the images and labels behind the message, for scoring."""
    classes: Outputs
    """Of the model; of a loss without classes its number of outputs."""
    shape: Annotated[list[Side], Field(min_length=3, max_length=3)] | None = None
    """Channels, height and width, if there is no truth."""
    examples: Examples | None = None
    """Number of examples behind the message, if there is no truth."""
    clients: Clients = 1
    """How many clients' updates are combined in the message."""
    training: TrainingTable | None = None
    """The training of each client, if it is known."""
    defended: bool | Defences | None = None
    """Whether a defence was in place, or which with what options; by default unknown, and none is credited."""
    lr: LearningRate | None = None
    """The learning rate, if epochs and batch size are not known."""
    steps: Steps | None = None
    """Local steps of each client, if they are known without epochs and batch size."""
    whitening: WhiteningTable
    """How the clients normalised their pixels."""

    @model_validator(mode="after")
    def _one_message(self) -> RecordingTable:
        if (self.after is None) == (self.update is None):
            raise ValueError("give either after (the weights after training) or update (after - before)")
        if self.truth is None and (self.shape is None or self.examples is None):
            raise ValueError("without truth, shape = [channels, height, width] and examples must be given")
        if (self.lr is None) != (self.steps is None) or (self.lr is not None and self.training is not None):
            raise ValueError("give training, or lr and steps where epochs and batch size are not known")
        if self.shape is not None and math.prod(self.shape) * (self.examples or 1) > MOST_PIXELS:
            raise ValueError(
                f"shape times examples must be at most {MOST_PIXELS} pixels, which no attack can handle, got "
                f"{self.shape} times {self.examples or 1}"
            )
        return self
