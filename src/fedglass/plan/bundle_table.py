"""A recorded federation in a bundle, as a plan says it: what is given here takes the place of what the bundle tells."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import Field, StringConstraints, field_validator

from fedglass.plan.keys import Classes, Defences, Examples, Name, Side, Table, Title, listed
from fedglass.plan.training_table import TrainingTable, WhiteningTable

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
