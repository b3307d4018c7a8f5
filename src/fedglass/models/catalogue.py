"""Models by name: those of the papers, those of installed packages, and a user's own as `package.module:factory`."""

from __future__ import annotations

import math

import torch
from torch import nn

from fedglass.core.errors import ModelError, UsageError
from fedglass.core.registry import Entry, find, summaries
from fedglass.core.rng import stream
from fedglass.models.init import Initialisation, PyTorchDefault
from fedglass.models.own import construct
from fedglass.models.stem import Shape

_DEFAULT = PyTorchDefault()
SMALL = 3 * 64 * 64
"""Entries of an image up to which a pass costs no more than milliseconds."""


def build(
    name: str,
    *,
    shape: Shape,
    classes: int,
    init: Initialisation = _DEFAULT,
    seed: int = 0,
) -> nn.Module:
    """The model of that name for inputs of that shape, initialised from the seed alone.

    The default initialisation draws the layers of a built-in model, and keeps what any other factory made.

    >>> model = build("lenet", shape=(3, 32, 32), classes=10)
    >>> sum(p.numel() for p in model.parameters())
    15826
    """
    _check_request(shape, classes)
    with torch.random.fork_rng(devices=[]):
        # Layers that are made draw from the global generator, and modules may as they are imported: it is put back.
        entry = find("models", name)
        model = _known(entry, shape, classes) if entry.built_in else construct(entry, shape, classes, seed)
    if entry.built_in or not isinstance(init, PyTorchDefault):
        init.apply(model, stream(seed, "init", name))
    return model


def names() -> dict[str, str]:
    """Name and one-line description of every model.

    >>> names()["resnet18"]
    'ResNet-18'
    """
    return summaries("models")


def _known(entry: Entry, shape: Shape, classes: int) -> nn.Module:
    try:
        model: nn.Module = entry.value(shape=shape, classes=classes)
        _dry_run(model, shape)
    except RuntimeError as error:
        raise ModelError(
            f"The model {entry.name!r} can not take inputs of shape {shape} ({error}): give larger images "
            "or choose another model."
        ) from error
    return model


def _dry_run(model: nn.Module, shape: Shape) -> None:
    """A pass of empty images; of large ones with shapes only, whose machinery takes torch a second to import."""
    model.eval()
    with torch.no_grad():
        if math.prod(shape) <= SMALL:
            model(torch.zeros(2, *shape))
        else:
            state = {key: tensor.to("meta") for key, tensor in model.state_dict().items()}
            torch.func.functional_call(model, state, (torch.empty(2, *shape, device="meta"),))
    model.train()


def _check_request(shape: Shape, classes: int) -> None:
    if len(shape) != 3 or min(shape) < 1:
        raise UsageError(f"shape must be three positive numbers (channels, height, width), got {shape}.")
    if classes < 2:
        raise UsageError(f"classes must be at least 2, got {classes}.")
