"""From the names under which tensors travelled to the names of the model: the one mapper of bundles, guard, recorders.

Frameworks send lists of arrays without names, and wrappers (torch.compile, DistributedDataParallel, Opacus) put
prefixes before names.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass

from torch import Tensor, nn

from fedglass.core.errors import UpdateError
from fedglass.core.tensors import COUNTER

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
