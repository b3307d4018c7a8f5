"""Identities of values: equal values have equal identities in every process, and different values different ones."""

from __future__ import annotations

import contextlib
import enum
import functools
import hashlib
import inspect
import pickle
import sys
from collections.abc import Iterable, Mapping
from dataclasses import fields, is_dataclass
from operator import attrgetter
from pathlib import PurePath
from types import MappingProxyType

import torch
from torch import Tensor, nn

from fedglass.core.errors import UsageError
from fedglass.core.tensors import Params

_NUMBERS = (bool, int, float, complex)
_TEXTS = (str, bytes)
LATER = {"later": True}
"""Metadata of a field that was added to a class later: at its default it is left out, so that older identities hold."""
_BOOKKEEPING = frozenset(vars(nn.Module()))
"""Attributes of every module: parameters and children, which are identified separately, hooks, and its mode."""


def digest(*parts: str) -> str:
    """Return the SHA-256 of a list of texts; it also depends on where one text ends.

    >>> digest("ab", "c") == digest("a", "bc")
    False
    """
    state = hashlib.sha256()
    for part in parts:
        raw = part.encode()
        state.update(len(raw).to_bytes(8, "big") + raw)
    return state.hexdigest()


def identity_text(value: object, what: str = "The value") -> str:
    """Return the value as text, such that different values have different texts.

    Only what can be written down has one: numbers, text, enums, paths, collections, functions and classes of a module
    by their names, partials of these, and frozen dataclasses of all that. Anything else is refused, since two of it
    that are configured differently could not be told apart; `what` names it in the refusal.

    >>> identity_text((1, 1.0, True, "a", len))
    "(1, 1.0, True, 'a', builtins.len)"
    >>> identity_text(lambda x: x, "The loss of the attack")
    Traceback (most recent call last):
    fedglass.core.errors.UsageError: The loss of the attack is a function without a name of its own, ...
    """
    if value is None or isinstance(value, range | torch.device | torch.dtype):
        return repr(value)
    if isinstance(value, enum.Enum):
        return f"{_named(type(value), what)}.{value.name}"
    for base in (*_NUMBERS, *_TEXTS):
        if isinstance(value, base):  # as Python writes it, also a value of a subclass such as numpy's float64
            return base.__repr__(value)
    if isinstance(value, PurePath):
        return f"Path({str(value)!r})"
    if isinstance(value, tuple | list | set | frozenset | Mapping):
        return _collection(value, what)
    if isinstance(value, functools.partial):
        named = {"function": value.func, "arguments": value.args, "options": value.keywords}
        return f"partial({', '.join(identity_text(part, f'{what}: its {name}') for name, part in named.items())})"
    if inspect.isroutine(value) or inspect.isclass(value):
        return _named(value, what)
    if is_dataclass(value):
        return _dataclass(value, what)
    raise _refusal(what, f"of type {type(value).__name__}")


def of_tensor(tensor: Tensor) -> str:
    """Return a digest of values, shape and type.

    >>> of_tensor(torch.zeros(2)) == of_tensor(torch.zeros(2, 1))
    False
    """
    flat = tensor.detach().cpu().contiguous().reshape(-1)
    state = hashlib.sha256(f"{tensor.dtype} {tuple(tensor.shape)}".encode())
    state.update(flat.view(torch.uint8).numpy().data)
    return state.hexdigest()


def of_params(params: Params) -> str:
    """Return a digest of named tensors, in the order of their names."""
    return digest(*(text for name in sorted(params) for text in (name, of_tensor(params[name]))))


def of_architecture(model: nn.Module) -> str:
    """Return a digest of the classes of a model's modules and their attributes, such as a slope that no repr shows.

    A function without a name of its own is identified by its code, any other attribute that cannot be written down by
    its pickle; where that fails too the model is refused.
    """
    texts: list[str] = []
    for name, module in model.named_modules(remove_duplicate=False):
        kind = type(module)
        values = {key: value for key, value in vars(module).items() if key not in _BOOKKEEPING}
        attributes = sorted(f"{key}={_written(value, f'{kind.__name__}.{key}')}" for key, value in values.items())
        texts += [name, _qualified(kind.__module__, kind.__qualname__), *attributes]
    return digest(*texts)


def of_model(model: nn.Module) -> str:
    """Return a digest of architecture, parameters and buffers, also those that are never saved."""
    tensors = {
        **dict(model.named_parameters(remove_duplicate=False)),
        **dict(model.named_buffers(remove_duplicate=False)),
    }
    return digest(of_architecture(model), of_params(tensors))


def _collection(value: Iterable[object], what: str) -> str:
    kind = type(value)
    if isinstance(value, Mapping):
        if kind not in (dict, MappingProxyType):
            raise _refusal(what, f"of type {kind.__name__}")
        items = [
            f"{identity_text(key, f'{what}: a key')}: {identity_text(element, f'{what}[{key!r}]')}"
            for key, element in value.items()
        ]
        return f"{{{', '.join(sorted(items))}}}"
    texts = [identity_text(element, f"{what}[{i}]") for i, element in enumerate(value)]
    if isinstance(value, set | frozenset):
        texts.sort()
    name = "" if kind in (tuple, list) else _named(kind, what)
    marks = "[]" if isinstance(value, list) else "()"
    return f"{name}{marks[0]}{', '.join(texts)}{marks[1]}"


def _dataclass(value: object, what: str) -> str:
    """Return the class and every field that counts in a comparison."""
    kind = type(value)
    name = _named(kind, what)
    if not kind.__dataclass_params__.frozen:  # type: ignore[attr-defined]  # typeshed leaves it out
        raise _refusal(what, f"of type {kind.__name__}, which can change")
    counted = [
        field.name
        for field in fields(value)  # type: ignore[arg-type]  # checked by the caller
        if field.compare and not (field.metadata.get("later") and getattr(value, field.name) == field.default)
    ]
    texts = [
        f"{name_of_field}={identity_text(getattr(value, name_of_field), f'{what}: {kind.__name__}.{name_of_field}')}"
        for name_of_field in counted
    ]
    return f"{name}({', '.join(texts)})"


def _named(value: object, what: str) -> str:
    """Return the name under which its module has a function or a class."""
    module, name = str(getattr(value, "__module__", "")), getattr(value, "__qualname__", "")
    # The qualified name of torch.relu is that of a class that torch does not show, its plain name is right.
    for qualified in (name, getattr(value, "__name__", "")):
        with contextlib.suppress(AttributeError, KeyError):
            if attrgetter(qualified)(sys.modules[module]) is value:
                return _qualified(module, qualified)
    noun = f"the class {name}" if inspect.isclass(value) else "a function"
    raise _refusal(what, f"{noun} without a name of its own", "define it at the top level of a module")


def _qualified(module: str, name: str) -> str:
    """Return a name with its module; fedglass's own are named without it, so that moving a file changes no identity.

    Classes of fedglass that share a name have different fields, which the identity states too.

    >>> _qualified("fedglass.core.optimisers", "Adam"), _qualified("torch.optim.adam", "Adam")
    ('fedglass.Adam', 'torch.optim.adam.Adam')
    """
    return f"fedglass.{name}" if module.partition(".")[0] == "fedglass" else f"{module}.{name}"


def _written(value: object, what: str) -> str:
    """Return an attribute of a module as text; it need not be a value of fedglass."""
    try:
        return identity_text(value, what)
    except UsageError as refusal:
        if inspect.isfunction(value):
            cells = [cell.cell_contents for cell in value.__closure__ or ()]
            constants = [*cells, value.__defaults__, *(c for c in value.__code__.co_consts if not inspect.iscode(c))]
            names = repr((value.__code__.co_code, value.__code__.co_names))
            return digest(names, *(_written(constant, what) for constant in constants))
        try:
            return hashlib.sha256(pickle.dumps(value)).hexdigest()
        except (pickle.PicklingError, AttributeError, TypeError):
            raise refusal from None


def _refusal(what: str, is_a: str, remedy: str = "make it a frozen dataclass of plain values") -> UsageError:
    return UsageError(
        f"{what} is {is_a}, which cannot be written down, so that an audit could not tell it from another: {remedy}."
    )
