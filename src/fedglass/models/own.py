"""A user's own model, made by a factory that is named as `package.module:factory`."""

from __future__ import annotations

import importlib
import inspect
from collections.abc import Callable
from operator import attrgetter

import torch
from torch import Tensor, nn

from fedglass.core.errors import ModelError
from fedglass.core.rng import derive
from fedglass.models.stem import Shape

# What the code of others raises when it is wrong. Not `Exception`: our own errors and interrupts pass.
_FAULTS = (
    ArithmeticError,
    AssertionError,
    AttributeError,
    ImportError,
    LookupError,
    NameError,
    OSError,
    RuntimeError,
    SyntaxError,
    TypeError,
    ValueError,
)


def construct(name: str, shape: Shape, classes: int, seed: int) -> nn.Module:
    """Import the factory, call it with what it takes of `shape` and `classes`, and try the model once.

    The factory and its lazy layers draw from the global generator, which is seeded here: call this inside
    `torch.random.fork_rng`.
    """
    factory = _import(name)
    # After the import, whose own draws happen only the first time.
    torch.default_generator.manual_seed(derive(seed, "model", name))
    try:
        model = factory(**_arguments(factory, shape, classes))
    except _FAULTS as error:
        raise ModelError(f"The model factory {name!r} failed: {_said(error)}.") from error
    if not isinstance(model, nn.Module):
        raise ModelError(
            f"The model factory {name!r} returned {type(model).__name__}, expected a torch.nn.Module: "
            "return the model itself."
        )
    _try(model, name, shape, classes)
    return model


def _import(name: str) -> Callable[..., object]:
    module, _, attribute = name.partition(":")
    if not module or not attribute:
        raise ModelError(f"The model {name!r} is not of the form 'package.module:factory'.")
    try:
        factory = attrgetter(attribute)(importlib.import_module(module))
    except _FAULTS as error:
        raise ModelError(
            f"The model factory {name!r} does not import: {_said(error)}. Expected 'package.module:factory'; "
            "check the spelling, and that the package is installed, lies beside the plan or is in PYTHONPATH."
        ) from error
    if not callable(factory) or isinstance(factory, nn.Module):
        raise ModelError(
            f"The model factory {name!r} is {type(factory).__name__}, expected a function or a class that "
            "returns a torch.nn.Module."
        )
    return factory  # type: ignore[no-any-return]  # callable() does not narrow Any


def _arguments(factory: Callable[..., object], shape: Shape, classes: int) -> dict[str, object]:
    offered: dict[str, object] = {"shape": shape, "classes": classes}
    takes = inspect.signature(factory).parameters
    by_keyword = (inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY)
    return {key: value for key, value in offered.items() if key in takes and takes[key].kind in by_keyword}


def _try(model: nn.Module, name: str, shape: Shape, classes: int) -> None:
    """One pass in evaluation mode, which also gives lazy layers their shapes and changes no statistics."""
    modes = {layer: layer.training for layer in model.modules()}
    try:
        with torch.no_grad():
            output = model.eval()(torch.zeros(2, *shape))
    except _FAULTS as error:
        raise ModelError(
            f"The model of {name!r} does not take a batch of shape {(2, *shape)}: {_said(error)}. "
            "Make the factory use its arguments `shape` and `classes`, or give the plan the model's own."
        ) from error
    for layer, training in modes.items():
        layer.training = training
    if not isinstance(output, Tensor) or tuple(output.shape) != (2, classes):
        got = f"shape {tuple(output.shape)}" if isinstance(output, Tensor) else type(output).__name__
        raise ModelError(
            f"The model of {name!r} returned {got} for a batch of 2, expected logits of shape "
            f"(2, {classes}): check the number of classes and return the logits alone."
        )


def _said(error: BaseException) -> str:
    return f"{type(error).__name__}: {error}".rstrip(".")
