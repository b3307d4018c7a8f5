"""How a client trains, and how its pixels are normalised, as a plan says it."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import Field, model_validator

from fedglass.core.optimisers import OPTIMISERS, Optimiser
from fedglass.core.types import BatchNorm, Training, Whitening
from fedglass.plan.keys import Examples, LearningRate, NotNegative, PerChannel, Positive, Share, Steps, Table


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
