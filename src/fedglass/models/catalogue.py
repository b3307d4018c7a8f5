"""Models by name: those of the papers, those of installed packages, and a user's own as `package.module:factory`."""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn

from fedglass.core.errors import ModelError, UsageError, refused
from fedglass.core.registry import Entry, call, find, takes
from fedglass.core.rng import derive, stream
from fedglass.core.types import MOST_PIXELS
from fedglass.models.init import Initialisation, PyTorchDefault
from fedglass.models.network import Shape

_DEFAULT = PyTorchDefault()
MOST_ENTRIES = 3 * 64 * 64
"""Entries of an image up to which a pass takes no more than milliseconds."""
FEW_CLASSES = 1000
"""Classes up to which a built-in model of such images is never too large."""
MOST_WEIGHTS = 2**28
"""Of a built-in model: a gibibyte as floats. Shape and classes may come from a file of others."""


def build_foreign(entry: Entry, shape: Shape, classes: int, seed: int) -> nn.Module:
    """Build a model by the factory of an installed package or of the user, and run it once.

    The factory is called with `shape` and `classes`, if it takes them. The factory and its lazy layers draw from the
    global generator, which is seeded here: call this inside `torch.random.fork_rng`.
    """
    factory, name = entry.value, entry.name
    if not callable(factory) or isinstance(factory, nn.Module):
        raise ModelError(
            f"The model {name!r} is {type(factory).__name__}, expected a function or a class that returns a "
            "torch.nn.Module."
        )
    # After the import, whose own draws happen only the first time.
    torch.default_generator.manual_seed(derive(seed, "model", name))
    offered = {"shape": shape, "classes": classes}
    model = call(entry, factory, {key: value for key, value in offered.items() if takes(factory, key)})
    if not isinstance(model, nn.Module):
        raise ModelError(
            f"The model {name!r} returned {type(model).__name__}, expected a torch.nn.Module: return the model itself."
        )
    _check_output(model, name, shape, classes)
    return model


def _check_output(model: nn.Module, name: str, shape: Shape, classes: int) -> None:
    """Run one pass in evaluation mode, which also gives lazy layers their shapes and changes no statistics."""
    modes = {layer: layer.training for layer in model.modules()}

    def refusal(reason: str) -> ModelError:
        return ModelError(
            f"The model of {name!r} does not take a batch of shape {(2, *shape)}: {reason}. Make the factory use its "
            "arguments `shape` and `classes`, or give the plan the model's own."
        )

    with refused(refusal), torch.no_grad():
        output = model.eval()(torch.zeros(2, *shape))
    for layer, training in modes.items():
        layer.training = training
    # The outputs of a segmentation network are of the shape (2, classes, h, w).
    if not isinstance(output, Tensor) or output.ndim not in (2, 4) or tuple(output.shape[:2]) != (2, classes):
        got = f"shape {tuple(output.shape)}" if isinstance(output, Tensor) else type(output).__name__
        raise ModelError(
            f"The model of {name!r} returned {got} for a batch of 2, expected logits of shape "
            f"(2, {classes}), one output for each class or for each number of a target: correct the network, the "
            "number of classes or the targets, and return only the logits."
        )


def build(
    name: str,
    *,
    shape: Shape,
    classes: int,
    init: Initialisation = _DEFAULT,
    seed: int = 0,
    single_output: bool = False,
) -> nn.Module:
    """Build the model of that name for inputs of that shape, initialised only from the seed.

    The default initialisation draws the layers of a built-in model, and keeps the weights of any other factory.
    With `single_output` one class is allowed, which losses on numbers take.

    >>> model = build("lenet", shape=(3, 32, 32), classes=10)
    >>> sum(p.numel() for p in model.parameters())
    15826
    """
    if len(shape) != 3 or min(shape) < 1:
        raise UsageError(f"shape must be three positive numbers (channels, height, width), got {shape}.")
    least = 1 if single_output else 2
    if classes < least:
        raise UsageError(f"classes must be at least {least}, got {classes}.")
    if math.prod(shape) > MOST_PIXELS:
        raise UsageError(f"shape must have at most {MOST_PIXELS:,} pixels, got {shape}: reduce the images.")
    with torch.random.fork_rng(devices=[]):
        # New layers, and modules on import, draw from the global generator: its state is restored.
        entry = find("models", name)
        model = build_built_in(entry, shape, classes) if entry.built_in else build_foreign(entry, shape, classes, seed)
    if entry.built_in or not isinstance(init, PyTorchDefault):
        init.apply(model, stream(seed, "init", name))
    return model


def build_built_in(entry: Entry, shape: Shape, classes: int) -> nn.Module:
    """Build a model of our own, and run empty images through it.

    Of large images only the shapes are run, since that takes torch a second to import.
    """
    try:
        if math.prod(shape) > MOST_ENTRIES or classes > FEW_CLASSES:
            _check_weights(entry, shape, classes)
        model: nn.Module = entry.value(shape=shape, classes=classes)
        model.eval()
        with torch.no_grad():
            if math.prod(shape) <= MOST_ENTRIES:
                model(torch.zeros(2, *shape))
            else:
                state = {key: tensor.to("meta") for key, tensor in model.state_dict().items()}
                torch.func.functional_call(model, state, (torch.empty(2, *shape, device="meta"),))
    except RuntimeError as error:
        raise ModelError(
            f"The model {entry.name!r} cannot take inputs of shape {shape} ({error}): give larger images "
            "or choose another model."
        ) from error
    return model.train()


def _check_weights(entry: Entry, shape: Shape, classes: int) -> None:
    """Refuse a model that is too large, before any weight is allocated."""
    with torch.device("meta"):
        weights = sum(p.numel() for p in entry.value(shape=shape, classes=classes).parameters())
    if weights > MOST_WEIGHTS:
        raise ModelError(
            f"The model {entry.name!r} has {weights:,} weights for inputs of shape {shape} and {classes} classes, "
            f"expected at most {MOST_WEIGHTS:,}: give smaller images or fewer classes, or choose another model."
        )
