"""From the names that travelled to those of the model: numbered lists, and prefixes of wrappers."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from torch import Tensor, nn

from fedglass.core.errors import UpdateError
from fedglass.core.tensors import COUNTER

COMPILED, PARALLEL = "_orig_mod", "module"
"""What torch.compile and DataParallel put into the names of what they wrap."""


@dataclass(frozen=True, eq=False)
class Names:
    """How the names of a message are those of a model."""

    model: Mapping[str, str]
    """By the name in the message."""

    def applied(self, tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
        return {self.model[name]: tensor for name, tensor in tensors.items()}

    def lacking(self, model: nn.Module) -> list[str]:
        """The parameters of the model that did not travel."""
        known = set(self.model.values())
        return [name for name, _ in model.named_parameters() if name not in known]


def names_of(sent: Sequence[tuple[str, tuple[int, ...]]], model: nn.Module, where: str) -> Names:
    """Which tensor of the model each of the sent ones is, by name or, where they are numbered, by order.

    `sent` are names and shapes in the order in which they were sent; by name they may be a part of the model's. What
    fits in no way is refused in a sentence.
    """
    shapes = {name: tuple(tensor.shape) for name, tensor in model.state_dict().items()}
    names = [name for name, _ in sent]
    found = _numbered(sent, model, shapes) if all(name.isdecimal() for name in names) else _prefixed(names, shapes)
    if found is None:
        known = next(iter(shapes), "nothing")
        numbered = all(name.isdecimal() for name in names)
        raise UpdateError(
            f"{where} was not recorded from this model: it has {len(names)} arrays"
            + (" without names" if numbered else f" such as {_odd(names, shapes)!r}")
            + f", and the model {len(shapes)} such as {known!r}; name the model that was trained."
        )
    for name, shape in sent:
        if shapes[found[name]] != shape:
            raise UpdateError(
                f"{where} was not recorded from this model: {name!r} has shape {shape}, and the model's "
                f"{found[name]!r} {shapes[found[name]]}; name the model that was trained, with its shape and classes."
            )
    return Names(found)


def _odd(names: Sequence[str], shapes: Mapping[str, tuple[int, ...]]) -> str:
    return next((name for name in names if name not in shapes), names[0])


def _prefixed(names: Sequence[str], known: Mapping[str, object]) -> dict[str, str] | None:
    """The first way of undoing wrappers that gives names of the model, each once."""
    for undone in _ways(names):
        found = {name: undone(name) for name in names}
        if all(name in known for name in found.values()) and len(set(found.values())) == len(found):
            return found
    return None


def _ways(names: Sequence[str]) -> Iterator[Callable[[str], str]]:
    yield lambda name: name
    yield _without_compiled
    yield lambda name: _without_compiled(name).removeprefix(f"{PARALLEL}.")
    plain = [_without_compiled(name).split(".") for name in names]
    depth = 0
    while all(len(steps) > depth + 1 for steps in plain) and len({steps[depth] for steps in plain}) == 1:
        depth += 1
        yield lambda name, depth=depth: ".".join(_without_compiled(name).split(".")[depth:])  # type: ignore[misc] # mypy knows no lambda with a default


def _without_compiled(name: str) -> str:
    return ".".join(step for step in name.split(".") if step != COMPILED)


def _numbered(
    sent: Sequence[tuple[str, tuple[int, ...]]], model: nn.Module, shapes: Mapping[str, tuple[int, ...]]
) -> dict[str, str] | None:
    """By order: that of the state, of the state without counters, or of the parameters alone."""
    parameters = [name for name, _ in model.named_parameters()]
    orders = [list(shapes), [name for name in shapes if not name.endswith(COUNTER)], parameters]
    ordered = sorted(sent, key=lambda pair: int(pair[0]))
    fitting = [order for order in orders if len(order) == len(sent)]
    for order in fitting:
        if all(shapes[name] == shape for name, (_, shape) in zip(order, ordered, strict=True)):
            return {number: name for name, (number, _) in zip(order, ordered, strict=True)}
    return {number: name for name, (number, _) in zip(fitting[0], ordered, strict=True)} if fitting else None
