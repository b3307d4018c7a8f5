"""A recorded federation in a bundle, as a plan says it: what is given here takes the place of what the bundle tells."""

from __future__ import annotations

import math
from typing import Annotated, Any, Literal

from pydantic import Field, StringConstraints, field_validator, model_validator

from fedglass.plan.tables import (
    Classes,
    Clients,
    Defences,
    Examples,
    LearningRate,
    Name,
    Side,
    Steps,
    Table,
    Title,
    TrainingTable,
    WhiteningTable,
    listed,
)

Index = Annotated[int, Field(ge=0, lt=10**9)]
Folder = Annotated[str, StringConstraints(min_length=1, max_length=4096)]
ClientName = Annotated[str, StringConstraints(min_length=1, max_length=200)]


class BundleTable(Table):
    """A federation that a recorder wrote to a folder: `fedglass record-info`, docs/bundles.md."""

    bundle: Folder
    """The folder."""
    name: Title = ""
    """In the report, where there are several; the folder's own where it is left out."""
    model: Name | None = None
    """The architecture, where the bundle names none or `package.module:factory`, which only a plan may run."""
    classes: Classes | None = None
    """Of the model, where the bundle does not tell."""
    shape: Annotated[list[Side], Field(min_length=3, max_length=3)] | None = None
    """Channels, height and width, where the bundle does not tell."""
    whitening: WhiteningTable | None = None
    """How the clients normalised their pixels, where the bundle does not tell."""
    examples: Examples | None = None
    """How many examples each client has, or the aggregate of nobody knows whom, where the bundle does not tell."""
    weights: Folder | None = None
    """Safetensors with what of the model never travels, such as the pretrained layers that nobody trains."""
    truth: Folder | None = None
    """A folder of what clients have kept of their own examples, to score by."""
    rounds: Annotated[list[Index], Field(min_length=1, max_length=10_000)] | Literal["all"] | None = None
    """Which are looked at, by the federation's own numbers; else the first, the last and what shows everybody once."""
    whose: Annotated[list[ClientName], Field(min_length=1, max_length=10_000)] | None = None
    """Whose messages, by name; everybody's where it is left out."""
    training: TrainingTable | None = None
    """What each client did, in place of what the bundle tells."""
    defended: bool | Defences | None = None
    """Whether a defence was in place, or which with what options, in place of what the bundle tells."""

    @field_validator("defended", mode="before")
    @classmethod
    def _one_or_more(cls, value: Any) -> Any:
        return listed(value)


# A message that was recorded from a real federation, as a plan says it.


MOST_PIXELS = 2**28
"""Of all images behind one message together: a gibibyte as floats."""


class RecordingTable(Table):
    """A message that was recorded from a real federation."""

    name: Title = ""
    """In the report, where there are several."""
    model: Name
    """The architecture: a name of `fedglass list models`, or `package.module:factory`."""
    before: Name
    """A safetensors file of the model's state before the client trained."""
    after: Name | None = None
    """The same after it."""
    update: Name | None = None
    """Or after - before, in place of `after`."""
    buffers: Name | None = None
    """A safetensors file of running statistics, where `before` has none."""
    buffers_after: Name | None = None
    """A safetensors file of those after the training, where there is no `after` that has them: to check by."""
    truth: Name | None = None
    """An npz file of the images and labels behind the message, to score by."""
    classes: Classes
    """Of the model."""
    shape: Annotated[list[Side], Field(min_length=3, max_length=3)] | None = None
    """Channels, height and width, where there is no truth."""
    examples: Examples | None = None
    """How many are behind the message, where there is no truth."""
    clients: Clients = 1
    """How many clients' updates are combined in the message."""
    training: TrainingTable | None = None
    """What each client did, as far as you know."""
    defended: bool | Defences | None = None
    """Whether a defence was in place, or which with what options; left out, nobody knows, and none is credited."""
    lr: LearningRate | None = None
    """The learning rate, where epochs and batch size are not known."""
    steps: Steps | None = None
    """Local steps of each client, where they are known without epochs and batch size."""
    whitening: WhiteningTable
    """How the clients normalised their pixels."""

    @field_validator("defended", mode="before")
    @classmethod
    def _one_or_more(cls, value: Any) -> Any:
        return listed(value)

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
