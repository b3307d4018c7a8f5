"""A model of others, made by a factory of an installed package or of the user's own."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from fedglass.core.errors import ModelError
from fedglass.core.foreign import refused
from fedglass.core.registry import Entry, call, takes
from fedglass.core.rng import derive
from fedglass.models.stem import Shape


def construct(entry: Entry, shape: Shape, classes: int, seed: int) -> nn.Module:
    """Call the factory with what it takes of `shape` and `classes`, and try the model once.

    The factory and its lazy layers draw from the global generator, which is seeded here: call this inside
    `torch.random.fork_rng`.
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
    _try(model, name, shape, classes)
    return model


def _try(model: nn.Module, name: str, shape: Shape, classes: int) -> None:
    """One pass in evaluation mode, which also gives lazy layers their shapes and changes no statistics."""
    modes = {layer: layer.training for layer in model.modules()}

    def refusal(words: str) -> ModelError:
        return ModelError(
            f"The model of {name!r} does not take a batch of shape {(2, *shape)}: {words}. Make the factory use its "
            "arguments `shape` and `classes`, or give the plan the model's own."
        )

    with refused(refusal), torch.no_grad():
        output = model.eval()(torch.zeros(2, *shape))
    for layer, training in modes.items():
        layer.training = training
    if not isinstance(output, Tensor) or tuple(output.shape) != (2, classes):
        got = f"shape {tuple(output.shape)}" if isinstance(output, Tensor) else type(output).__name__
        raise ModelError(
            f"The model of {name!r} returned {got} for a batch of 2, expected logits of shape "
            f"(2, {classes}): check the number of classes and return the logits alone."
        )
