"""From the names under which tensors travelled to the names of the model: the one mapper of bundles, guard, recorders.

Frameworks send lists of arrays without names, and wrappers (torch.compile, DistributedDataParallel, Opacus) put
prefixes before names.

`FixedLayers` has parameters that are not trained, as in fine-tuning: these are constant, as buffers are.
"""

from __future__ import annotations

import copy
import fnmatch
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from fedglass.core.errors import ModelError, UpdateError
from fedglass.core.tensors import COUNTER
from fedglass.core.text import some, values_by_key

COMPILED, PARALLEL, PER_EXAMPLE = "_orig_mod", "module", "_module"
"""Attributes under which torch.compile, DataParallel and Opacus's GradSampleModule hold the network that they wrap."""
WRAPPING_PACKAGES = ("torch", "opacus")

Shape = tuple[int, ...]


@dataclass(frozen=True, eq=False)
class Names:
    """The correspondence between the names of a message and those of a model."""

    model: Mapping[str, str]
    """By the name in the message."""

    def applied(self, tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """Return the tensors of a message under the names of the model."""
        return {self.model[name]: tensor for name, tensor in tensors.items()}

    def lacking(self, model: nn.Module) -> list[str]:
        """Return the parameters of the model that did not travel."""
        travelled = set(self.model.values())
        return [name for name, _ in model.named_parameters() if name not in travelled]


def unwrap(model: nn.Module) -> nn.Module:
    """Return the network inside of wrappers that compile it, train it in parallel or give gradients per example.

    Only wrappers of torch and Opacus are taken off: a network of one's own may have a part called `module`.

    >>> network = nn.Linear(1, 1)
    >>> unwrap(nn.DataParallel(network)) is network, unwrap(network) is network
    (True, True)
    """
    while type(model).__module__.partition(".")[0] in WRAPPING_PACKAGES:
        inner = (getattr(model, attribute, None) for attribute in (COMPILED, PARALLEL, PER_EXAMPLE))
        wrapped = next((part for part in inner if isinstance(part, nn.Module)), None)
        if wrapped is None:
            break
        model = wrapped
    return model


def names_of(sent: Sequence[tuple[str, Shape]], model: nn.Module, where: str, untrained: Collection[str] = ()) -> Names:
    """Match each sent tensor with one of the model: by name, or by order if they are numbered.

    Args:
        sent: Names and shapes in the order in which they were sent. Named tensors may be a part of the model's.
        where: What the error names as the origin of the tensors.
        untrained: Parameters that a numbered list may leave out.

    Raises:
        UpdateError: if names or shapes do not fit the model in any way.
    """
    shapes = {name: tuple(tensor.shape) for name, tensor in model.state_dict().items()}
    names = [name for name, _ in sent]
    numbered = all(name.isdecimal() for name in names)
    matched = _match_order(sent, model, shapes, untrained) if numbered else _match_names(names, shapes)
    if matched is None:
        unmatched = "" if numbered else next((name for name in names if name not in shapes), names[0])
        raise UpdateError(
            f"{where} was not recorded from this model: it has {len(names)} arrays"
            + (" without names" if numbered else f" such as {unmatched!r}")
            + f", and the model {len(shapes)} such as {next(iter(shapes), 'nothing')!r}; name the model that was "
            "trained."
        )
    for name, shape in sent:
        if shapes[matched[name]] != shape:
            raise UpdateError(
                f"{where} was not recorded from this model: {name!r} has shape {shape}, and the model's "
                f"{matched[name]!r} {shapes[matched[name]]}; name the model that was trained, with its shape and "
                "classes."
            )
    return Names(matched)


def _match_names(names: Sequence[str], model_names: Collection[str]) -> dict[str, str] | None:
    """Return the names of the model by the first way of removing prefixes that gives each of them once."""
    for stripped in _ways_to_strip(names):
        matched = {name: stripped(name) for name in names}
        if all(name in model_names for name in matched.values()) and len(set(matched.values())) == len(matched):
            return matched
    return None


def _ways_to_strip(names: Sequence[str]) -> Iterator[Callable[[str], str]]:
    yield lambda name: name
    yield _without_compiled
    yield lambda name: _without_compiled(name).removeprefix(f"{PARALLEL}.")
    paths = [_without_compiled(name).split(".") for name in names]
    depth = 0
    while all(len(path) > depth + 1 for path in paths) and len({path[depth] for path in paths}) == 1:
        depth += 1
        yield lambda name, depth=depth: ".".join(_without_compiled(name).split(".")[depth:])  # type: ignore[misc] # mypy knows no lambda with a default


def _without_compiled(name: str) -> str:
    return ".".join(part for part in name.split(".") if part != COMPILED)


def _match_order(
    sent: Sequence[tuple[str, Shape]], model: nn.Module, shapes: Mapping[str, Shape], untrained: Collection[str]
) -> dict[str, str] | None:
    """Match numbered tensors with the state, the state without counters, or the parameters; untrained ones may lack.

    If only the number of tensors fits, the first such order is returned, so that an error can name the odd shape.
    """
    complete = [list(shapes), [name for name in shapes if not name.endswith(COUNTER)]]
    complete.append([name for name, _ in model.named_parameters()])
    orders = [*complete, *([name for name in order if name not in untrained] for order in complete)]
    ordered = sorted(sent, key=lambda pair: int(pair[0]))
    fitting = [order for order in orders if len(order) == len(sent)]
    same_shapes = (order for order in fitting if [shapes[name] for name in order] == [shape for _, shape in ordered])
    order = next(same_shapes, fitting[0] if fitting else None)
    return None if order is None else {number: name for name, (number, _) in zip(order, ordered, strict=True)}


FIXED = "untrained_parameters"
DOUBLE_ROUNDING = 16 * torch.finfo(torch.float64).eps
"""The relative rounding of a mean that was taken in double precision."""


def with_fixed(model: nn.Module, names: Collection[str]) -> nn.Module:
    """Return a copy of the model with these parameters as buffers, which are neither differentiated nor sent.

    >>> model = with_fixed(nn.Sequential(nn.Linear(2, 3), nn.Linear(3, 2)), ["0.weight", "0.bias"])
    >>> [name for name, _ in model.named_parameters()], [name for name, _ in model.named_buffers()]
    (['1.weight', '1.bias'], ['0.weight', '0.bias'])
    """
    wrong = [name for name in names if name not in can_be_fixed(model)]
    if wrong:
        raise ModelError(
            f"{wrong[0]!r} cannot be held fixed: it is not a parameter of the network, or several layers share it."
        )
    partly_fixed = copy.deepcopy(model)
    for name in names:
        path, _, last = name.rpartition(".")
        layer = partly_fixed.get_submodule(path)
        tensor = layer._parameters.pop(last)
        assert tensor is not None, "it was found among the parameters"
        layer.register_buffer(last, tensor.detach().clone())
    # This attribute gives the network another identity than the same one with all layers trained.
    vars(partly_fixed)[FIXED] = (*vars(partly_fixed).get(FIXED, ()), *names)
    return partly_fixed


def can_be_fixed(model: nn.Module) -> list[str]:
    """Return the parameters that no two layers share."""
    places = values_by_key((id(parameter), name) for name, parameter in model.named_parameters(remove_duplicate=False))
    return [names[0] for names in places.values() if len(names) == 1]


def matching_parameters(model: nn.Module, patterns: Sequence[str]) -> list[str]:
    """Return the parameters with names that match a pattern.

    Refuse a pattern that matches no parameter, and patterns that together match all of them.

    >>> matching_parameters(nn.Sequential(nn.Linear(2, 3), nn.Linear(3, 2)), ["0.*"])
    ['0.weight', '0.bias']
    """
    names = [name for name, _ in model.named_parameters()]
    for pattern in patterns:
        if not any(fnmatch.fnmatchcase(name, pattern) for name in names):
            raise ModelError(
                f"federation.untrained has {pattern!r}, which matches no parameter, expected some of "
                f"{some(names)}: correct it; * stands for any characters."
            )
    matches = [name for name in names if any(fnmatch.fnmatchcase(name, pattern) for pattern in patterns)]
    if len(matches) == len(names):
        raise ModelError("federation.untrained has all parameters of the network: leave some to be trained.")
    return matches


def exceeds_precision(tensor: Tensor, kind: torch.dtype, start: Tensor | None) -> bool:
    """Return True if weights need more precision than the model's type has and did not start that way.

    Such weights have moved, and the model's type cannot represent the move.

    >>> fine = torch.ones(2, dtype=torch.float64) + 1e-12
    >>> exceeds_precision(fine, torch.float32, start=torch.ones(2)), exceeds_precision(fine, torch.float32, start=fine)
    (True, False)
    >>> exceeds_precision(fine, torch.float64, start=None)
    False
    """
    weights = tensor.double()
    finer = not torch.equal(weights.to(kind).double(), weights)
    return finer and (start is None or not torch.equal(start.double(), weights))


def unmoved(before: Tensor, update: Tensor) -> bool:
    """Return True if an update is zero up to the rounding of a mean over clients or of a difference.

    Rounding ends at numbers that a weight can represent, or is that of double precision. Any value between is a
    difference that was sent as such, and depends on the data however small it is.
    """
    grain = 2 * torch.finfo(before.dtype).eps
    held = (before + update) - before == update
    rounded = torch.where(held, update.abs() <= grain * before.abs(), update.abs() <= DOUBLE_ROUNDING * before.abs())
    return bool(rounded.all())
