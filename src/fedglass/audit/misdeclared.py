"""What is often declared wrongly of a training, each with the line that would say it rightly."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

from fedglass.core.optimisers import SGD, Adam, AdamW
from fedglass.core.types import BatchNorm, Training, Whitening
from fedglass.data.whitening import CIFAR10, CIFAR100, FEMNIST

NORMALISATIONS = {
    "none (mean 0, std 1)": Whitening((0.0,), (1.0,)),
    "none, pixels of 0 to 255 (mean 0, std 1/255)": Whitening((0.0,), (1 / 255,)),
    "mean 0.5, std 0.5": Whitening((0.5,), (0.5,)),
    "MNIST's (mean 0.1307, std 0.3081)": Whitening((0.1307,), (0.3081,)),
    "FEMNIST's": FEMNIST,
    "CIFAR-10's": CIFAR10,
    "CIFAR-100's": CIFAR100,
    "ImageNet's": Whitening((0.485, 0.456, 0.406), (0.229, 0.224, 0.225)),
}
"""By which pixels are often normalised."""


def other_trainings(declared: Training) -> Iterator[tuple[str, Change]]:
    """What a client may have done in place of what is declared."""
    optimisers = {
        "the optimiser has momentum: set momentum = 0.9": SGD(momentum=0.9),
        "the optimiser has momentum: set momentum = 0.5": SGD(momentum=0.5),
        "the optimiser has Nesterov's momentum: set momentum = 0.9, nesterov = true": SGD(momentum=0.9, nesterov=True),
        'the optimiser is Adam: set optimiser = "adam"': Adam(),
        'the optimiser is AdamW: set optimiser = "adamw"': AdamW(),
        "the optimiser is plain SGD: leave momentum and optimiser out": SGD(),
        **{
            f"the optimiser decays the weights: set weight_decay = {decay:g}": SGD(weight_decay=decay)
            for decay in (1e-4, 5e-4, 1e-3, 1e-2, 1e-1)
        },
        "the optimiser has momentum and decays the weights: set momentum = 0.9, weight_decay = 0.0005": SGD(
            momentum=0.9, weight_decay=5e-4
        ),
    }
    for words, optimiser in optimisers.items():
        if optimiser != declared.optimiser:
            yield words, Change("optimiser", optimiser)
    other = BatchNorm.FROZEN if declared.batch_norm is BatchNorm.BATCH else BatchNorm.BATCH
    yield f'normalisation layers used other statistics: set batch_norm = "{other.value}"', Change("batch_norm", other)
    for epochs in (1, 2, 3, 4, 5, 10, 20):
        if epochs != declared.epochs and declared.steps is None:
            yield f"the number of epochs is another: set epochs = {epochs}", Change("epochs", epochs)
    for size in (None, 1, 2, 4, 8, 16, 32, 64):
        if size != declared.batch_size:
            words = "leave batch_size out" if size is None else f"set batch_size = {size}"
            yield f"the batches are of another size: {words}", Change("batch_size", size)


@dataclass(frozen=True)
class Change:
    """One field of a training set to another value."""

    field: str
    value: object

    def __call__(self, training: Training) -> Training:
        return replace(training, **{self.field: self.value})  # type: ignore[arg-type] # named beside its value
