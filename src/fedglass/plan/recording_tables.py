"""Tables of a plan for recorded federations: a bundle, or one message in loose files.

Values that a plan gives for a bundle override the bundle's own.
"""

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
    whose: Annotated[list[ClientName], Field(min_length=1, max_length=10_000)] | None = None
    """Names of the clients to audit; all by default."""
    training: TrainingTable | None = None
    """The training of each client; overrides the bundle's."""
    defended: bool | Defences | None = None
    """Whether a defence was in place, or which with what options; overrides the bundle's."""

    @field_validator("defended", mode="before")
    @classmethod
    def _one_or_more(cls, value: Any) -> Any:
        return listed(value)


MOST_PIXELS = 2**28
"""Of all images behind one message together: a gibibyte as floats."""


class RecordingTable(Table):
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
    classes: Classes
    """Of the model."""
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
