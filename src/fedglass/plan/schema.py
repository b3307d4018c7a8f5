"""The plan file: what is audited, against whom, by which attacks, and where the limit lies."""

from __future__ import annotations

import math
import tomllib
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, StringConstraints, ValidationError, field_validator, model_validator

from fedglass.core.errors import UsageError
from fedglass.core.optimisers import OPTIMISERS, Optimiser
from fedglass.core.types import BatchNorm, Training, Whitening
from fedglass.plan.errors import in_one_sentence
from fedglass.verdict.gate import Gate

LONGEST = 2**20
"""Bytes of a plan file."""
LARGEST_SIDE = 2048
"""Pixels along a side; no attack can handle larger images."""
MOST_PIXELS = 2**28
"""Of all images behind one message together: a gibibyte as floats."""

Name = Annotated[str, StringConstraints(min_length=1, max_length=200)]
Count = Annotated[int, Field(ge=1, strict=True)]
Index = Annotated[int, Field(ge=0, strict=True)]
Seed = Annotated[int, Field(ge=0, lt=2**63, strict=True)]
Flag = Annotated[bool, Field(strict=True)]
Share = Annotated[float, Field(ge=0, lt=1, strict=True)]
Rate = Annotated[float, Field(gt=0, allow_inf_nan=False, strict=True)]
Numbers = Annotated[list[Annotated[float, Field(allow_inf_nan=False)]], Field(min_length=1, max_length=16)]


class _Table(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


def listed(value: Any) -> Any:
    """A single table stands for a list of one: `[federation]` is short for `[[federation]]`."""
    return [value] if isinstance(value, dict) else value


class TrainingTable(_Table):
    """How a client trains."""

    lr: Rate
    epochs: Count = 1
    batch_size: Count | None = None
    batch_norm: Literal["frozen", "batch"] = "frozen"
    optimiser: Literal["sgd", "adam", "adamw"] = "sgd"
    momentum: Share | None = None
    nesterov: Flag | None = None
    weight_decay: Annotated[float, Field(ge=0, allow_inf_nan=False, strict=True)] | None = None
    betas: Annotated[list[Share], Field(min_length=2, max_length=2)] | None = None
    eps: Rate | None = None
    shuffle: Flag = True
    steps: Count | None = None
    clip: Rate | None = None
    label_smoothing: Share = 0.0

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


class WhiteningTable(_Table):
    """Channel means and deviations, where the dataset's own are not wanted."""

    mean: Numbers
    std: Numbers

    def value(self) -> Whitening:
        return Whitening(tuple(self.mean), tuple(self.std))


class Named(BaseModel):
    """Something of the registry; keys beside its name are its options."""

    model_config = ConfigDict(frozen=True, extra="allow")

    name: Name

    @property
    def options(self) -> dict[str, Any]:
        return dict(self.model_extra or {})


class DefenceTable(Named):
    """A defence; keys beside its name are its options."""


class RuleTable(Named):
    """An aggregation rule; keys beside its name are its options."""


class BehaviourTable(Named):
    """What a client does with its turn; keys beside its name are its options."""


class GroupTable(_Table):
    """Clients that differ from the rest of their federation."""

    clients: Annotated[list[Index], Field(min_length=1)]
    """Their positions."""
    behaviour: list[BehaviourTable] = []
    """One, or one for each round, of which the last stays; honest where nothing is said."""
    defences: list[DefenceTable] | None = None
    """In place of the plan's; an empty list is none."""
    training: TrainingTable | None = None

    @field_validator("behaviour", mode="before")
    @classmethod
    def _one_or_more(cls, value: Any) -> Any:
        return listed(value)


class FederationTable(_Table):
    """A federation to simulate."""

    name: str = ""
    data: Name
    split: Literal["train", "test"] = "train"
    size: Annotated[int, Field(ge=1, le=LARGEST_SIDE, strict=True)] | None = None
    classes: Annotated[int, Field(ge=2, strict=True)] | None = None
    relabel_classes: Annotated[int, Field(ge=2, strict=True)] | None = None
    clients: Count = 1
    examples: Count | Annotated[list[Count], Field(min_length=1)] | None = None
    test_examples: Index = 0
    partition: Literal["iid", "dirichlet", "writers"] = "iid"
    alpha: Rate | None = None
    model: Name = "lenet"
    init: Name = "default"
    rounds: Count = 1
    participation: Annotated[float, Field(gt=0, le=1)] = 1.0
    training: TrainingTable
    whitening: WhiteningTable | None = None
    defended: Flag = True
    rule: RuleTable | None = None
    group: list[GroupTable] = []
    seed: Seed | None = None

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


class RecordingTable(_Table):
    """A message that was recorded from a real federation."""

    name: str = ""
    model: Name
    before: Name
    after: Name | None = None
    update: Name | None = None
    buffers: Name | None = None
    truth: Name | None = None
    classes: Annotated[int, Field(ge=2, strict=True)]
    shape: Annotated[list[Count], Field(min_length=3, max_length=3)] | None = None
    examples: Count | None = None
    clients: Count = 1
    training: TrainingTable | None = None
    lr: Rate | None = None
    steps: Count | None = None
    """Local steps of each client, where they are known without epochs and batch size."""
    whitening: WhiteningTable

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


class AdversaryTable(_Table):
    """Who attacks, what it sees and what it knows."""

    view: Literal["server", "aggregate", "peer"] = "server"
    client: Index | Annotated[list[Index], Field(min_length=1)] | Literal["all"] = 0
    """Whose update the server sees, or which participant the peer is."""
    round: Index | Annotated[list[Index], Field(min_length=1)] = 0
    knows_training: Flag = True
    knows_steps: Flag = False
    knows_labels: Flag = False
    knows_batch_labels: Flag = False


class AttackTable(Named):
    """A published attack; keys that are not named here are options of its recipe."""

    label: Name | None = None
    labels: Name | None = None


class MetricsTable(_Table):
    """Which figures are computed."""

    names: Annotated[list[Name], Field(min_length=1)] = ["psnr", "ssim", "rmse", "lpips"]


class GateTable(_Table):
    """Where the limit lies."""

    metric: Name = "psnr"
    threshold: Annotated[float, Field(allow_inf_nan=False)] = 20.0
    max_share: float = 0.0
    inconclusive_fails: Flag = False

    def value(self) -> Gate:
        return Gate(self.metric, self.threshold, self.max_share, self.inconclusive_fails)


class Plan(_Table):
    """A whole plan file."""

    title: str = ""
    seed: Seed = 0
    repeats: Count = 1
    federation: list[FederationTable] = []
    recording: list[RecordingTable] = []
    adversary: AdversaryTable = AdversaryTable()
    defences: list[DefenceTable] = []
    attacks: Annotated[list[AttackTable], Field(min_length=1)]
    metrics: MetricsTable = MetricsTable()
    gate: GateTable = GateTable()

    @field_validator("federation", "recording", mode="before")
    @classmethod
    def _one_or_more(cls, value: Any) -> Any:
        return listed(value)

    @model_validator(mode="after")
    def _consistent(self) -> Plan:
        if bool(self.federation) == bool(self.recording):
            raise ValueError("a plan has either [federation] tables to simulate or [recording] tables to read")
        if self.recording and self.adversary.view == "peer":
            raise ValueError(
                'adversary.view = "peer" needs a federation to simulate: a recorded message is one of others'
            )
        if self.recording and self.defences:
            raise ValueError("defences are applied to simulated federations only; a recorded update has passed its own")
        labels = [attack.label or attack.name for attack in self.attacks]
        twice = sorted({name for name in labels if labels.count(name) > 1})
        if twice:
            raise ValueError(f"attacks need different names, {twice[0]!r} comes twice: give one a label of its own")
        return self


def read_plan(path: Path) -> tuple[Plan, str]:
    """The plan in a file, and its text."""
    try:
        with path.open("rb") as file:
            raw = file.read(LONGEST + 1)
    except OSError as error:
        raise UsageError(
            f"Cannot read the plan {path}: {error.strerror}; `fedglass init` writes one to start from."
        ) from error
    if len(raw) > LONGEST:
        raise UsageError(f"The plan {path} is longer than {LONGEST} bytes: it is another file.")
    try:
        text = raw.decode()
    except UnicodeDecodeError as error:
        raise UsageError(f"The plan {path} is not UTF-8 text ({error.reason} at byte {error.start}).") from error
    return parse_plan(text, str(path)), text


def parse_plan(text: str, where: str = "plan") -> Plan:
    """The plan in a text.

    >>> plan = parse_plan('[federation]\\ndata = "photos"\\ntraining.lr = 0.1\\n[[attacks]]\\nname = "idlg"')
    >>> plan.federation[0].model, plan.attacks[0].name
    ('lenet', 'idlg')
    """
    try:
        content = tomllib.loads(text)
    except (tomllib.TOMLDecodeError, RecursionError) as error:
        raise UsageError(f"{where} is not valid TOML: {error}.") from error
    try:
        return Plan.model_validate(content)
    except ValidationError as error:
        raise UsageError(f"{where}: {in_one_sentence(error, Plan, content)}") from error
