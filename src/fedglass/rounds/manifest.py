"""The manifest of a saved transcript: what is in which file, checked before anything is believed."""

from __future__ import annotations

from dataclasses import asdict
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, StringConstraints

from fedglass.core.errors import UsageError
from fedglass.core.optimisers import OPTIMISERS
from fedglass.core.types import BatchNorm, Training, Whitening
from fedglass.rounds.transcript import Participant, Round, Terms

FORMAT: Literal[1] = 1

Text = Annotated[str, StringConstraints(max_length=2000)]
Sha256 = Annotated[str, StringConstraints(pattern=r"^[0-9a-f]{64}$")]
FileName = Annotated[str, StringConstraints(pattern=r"^[0-9A-Za-z_.-]{1,100}$")]
Count = Annotated[int, Field(ge=1)]
Names = Annotated[list[Text], Field(max_length=100_000)]


class _Table(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


class Held(_Table):
    """A file of tensors and what it must be."""

    file: FileName
    sha256: Sha256


class OptimiserFacts(_Table):
    """An optimiser by name, with its options."""

    name: Text
    options: dict[Text, float | bool | list[float]] = {}

    @classmethod
    def of(cls, training: Training) -> OptimiserFacts:
        kind = next((name for name, made in OPTIMISERS.items() if made is type(training.optimiser)), None)
        if kind is None:
            raise UsageError(
                f"A transcript can not name the optimiser {training.optimiser!r}, expected one of "
                f"{', '.join(OPTIMISERS)}: save it without the clients' training."
            )
        plain = {k: list(v) if isinstance(v, tuple) else v for k, v in vars(training.optimiser).items()}
        return cls(name=kind, options=plain)

    def value(self) -> Any:
        if self.name not in OPTIMISERS:
            raise ValueError(f"unknown optimiser {self.name!r}, expected one of {', '.join(OPTIMISERS)}")
        plain = {name: tuple(v) if isinstance(v, list) else v for name, v in self.options.items()}
        return OPTIMISERS[self.name](**plain)


class TrainingFacts(_Table):
    """A client's training as it was declared."""

    lr: float
    epochs: Count
    batch_size: Count | None
    batch_norm: Literal["frozen", "batch"]
    optimiser: OptimiserFacts
    shuffle: bool
    steps: Count | None
    clip: float | None
    label_smoothing: float

    @classmethod
    def of(cls, training: Training) -> TrainingFacts:
        told = {"batch_norm": training.batch_norm.value, "optimiser": OptimiserFacts.of(training)}
        return cls.model_validate({**vars(training), **told})

    def value(self) -> Training:
        told = {"batch_norm": BatchNorm(self.batch_norm), "optimiser": self.optimiser.value()}
        return Training(**{**dict(self), **told})


class ParticipantFacts(_Table):
    """A participant of a round."""

    name: Text
    examples: Count
    training: TrainingFacts | None
    lr: Annotated[float, Field(gt=0, allow_inf_nan=False)] | None
    steps: Count | None
    weight: Count | None = None
    known_as: Text = ""
    counted: bool = True
    untrained: Names = []

    @classmethod
    def of(cls, known: Participant) -> ParticipantFacts:
        training = None if known.training is None else TrainingFacts.of(known.training)
        return cls.model_validate({**vars(known), "training": training, "untrained": list(known.untrained)})

    def value(self) -> Participant:
        training = None if self.training is None else self.training.value()
        return Participant(**{**dict(self), "training": training, "untrained": tuple(self.untrained)})


class RoundFacts(_Table):
    """A round: its own file, and one of each message."""

    index: Annotated[int, Field(ge=0)]
    models: Held
    participants: Annotated[list[ParticipantFacts], Field(min_length=1, max_length=100_000)]
    messages: dict[Text, Held]
    kept: Names


class TermsFacts(_Table):
    """What everybody in the federation knows."""

    shape: tuple[Count, Count, Count]
    classes: Annotated[int, Field(ge=2)]
    mean: list[float]
    std: list[float]
    clients: Names
    rule: Text
    class_names: Names | None
    defences: dict[Text, Names] | None
    behaviours: Names

    @classmethod
    def of(cls, terms: Terms) -> TermsFacts:
        facts = asdict(terms)
        whitening = facts.pop("whitening")
        return cls.model_validate({**facts, "mean": list(whitening["mean"]), "std": list(whitening["std"])})

    def value(self) -> Terms:
        return Terms(
            self.shape,
            self.classes,
            Whitening(tuple(self.mean), tuple(self.std)),
            tuple(self.clients),
            self.rule,
            None if self.class_names is None else tuple(self.class_names),
            None if self.defences is None else {name: tuple(words) for name, words in self.defences.items()},
            tuple(self.behaviours),
        )


class Manifest(_Table):
    """`manifest.json`."""

    format: Literal[1] = FORMAT
    fedglass: Text
    origin: Text
    terms: TermsFacts
    rounds: Annotated[list[RoundFacts], Field(min_length=1, max_length=100_000)]


def facts_of(index: int, past: Round, models: Held, messages: dict[str, Held]) -> RoundFacts:
    """One round of a manifest."""
    people = [ParticipantFacts.of(p) for p in past.participants]
    return RoundFacts(index=index, models=models, participants=people, messages=messages, kept=list(past.kept))
