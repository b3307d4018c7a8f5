"""A message that was recorded from a real federation, as a plan says it."""

from __future__ import annotations

import math
from typing import Annotated, Any

from pydantic import Field, field_validator, model_validator

from fedglass.plan.keys import (
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
    listed,
)
from fedglass.plan.training_table import TrainingTable, WhiteningTable

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
