"""Forward passes, followed from the first module that is called to what comes out of the last."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm

from fedglass.bundle.names import COMPILED
from fedglass.record.functions import mark_as_made
from fedglass.record.steps import Pass

RANDOM = (nn.Dropout, nn.Dropout1d, nn.Dropout2d, nn.Dropout3d, nn.AlphaDropout, nn.FeatureAlphaDropout)


class Passes:
    """The forward passes since the last step.

    A network may be called as a whole or in stretches: what is given something that another module has made goes on
    with the pass of that. One that is called by keywords has its inputs read off the first module inside that is not.
    """

    def __init__(self, begins: Callable[[nn.Module], None], ends: Callable[[Pass, list[Tensor]], None]) -> None:
        self.since: list[Pass] = []
        self._begins, self._ends = begins, ends
        self._depth = 0
        self._network = False
        """Whether a module with weights of its own is being computed."""
        self._pass: Pass | None = None
        self._drawn: Tensor | None = None

    def entered(self, module: nn.Module, inputs: tuple[Any, ...]) -> None:
        """A module is called."""
        given = next(tensors_in(inputs), None)
        if self._depth == 0:
            self._begin(module, inputs, given)
        elif self._pass is not None and self._pass.nothing_given and _is_data(given):
            self._pass.inputs = _kept(given)
        self._depth += 1
        if self._pass is not None:
            _look_at(self._pass, module)

    def _begin(self, module: nn.Module, inputs: tuple[Any, ...], given: Tensor | None) -> None:
        self._drawn = _generator_state(given)
        self._network = any(True for _ in module.parameters())
        if given is not None and given.grad_fn is not None:
            self._pass = self.since[-1] if self.since else None
        elif self._network:
            autocast = torch.is_autocast_enabled("cpu" if given is None else given.device.type)
            self._pass = Pass(module, _kept(given), autocast=autocast)
            self._pass.given = max(1, sum(1 for _ in tensors_in(inputs)))
            self._begins(module)
            if hasattr(module, COMPILED):  # nothing inside of it is heard
                for each in module.modules():
                    _look_at(self._pass, each)

    def left(self, module: nn.Module, output: Any) -> None:
        """A module has given what it makes."""
        if self._depth == 0:
            return
        self._depth -= 1
        if self._depth:
            return
        begun, self._pass = self._pass, None
        outputs = [tensor for tensor in tensors_in((output,)) if tensor.requires_grad]
        if begun is not None and begun.nothing_given:
            return  # no more than its weights can be in what came out
        if self._network:
            mark_as_made(outputs)
        if begun is None or not outputs:
            return
        begun.drew = begun.drew or not _same(self._drawn, _generator_state(begun.inputs))
        if self._network:
            begun.logits = [tensor.detach() for tensor in outputs if tensor.dim() == 2]
        if not any(begun is each for each in self.since):
            self.since.append(begun)
            self._ends(begun, outputs)


def _kept(given: Tensor | None) -> Tensor | None:
    """A copy, since a batch may be overwritten before the step is taken."""
    return None if given is None else given.detach().clone()


def _is_data(given: Tensor | None) -> bool:
    """Whether it is neither a weight nor made of any."""
    return given is not None and given.grad_fn is None and not isinstance(given, nn.Parameter)


def _look_at(begun: Pass, module: nn.Module) -> None:
    if isinstance(module, _BatchNorm):
        # Without running statistics those of the batch are used in every mode.
        begun.batch_norm.add(module.training or module.running_mean is None)
    if isinstance(module, RANDOM) and module.training and module.p > 0:
        begun.dropout = True


def _generator_state(given: Tensor | None) -> Tensor:
    """That of the generator which a network draws from where its inputs are."""
    return torch.cuda.get_rng_state(given.device) if given is not None and given.is_cuda else torch.get_rng_state()


def _same(one: Tensor | None, other: Tensor) -> bool:
    return one is not None and one.shape == other.shape and torch.equal(one, other)


def tensors_in(values: Iterable[Any]) -> Iterator[Tensor]:
    """The tensors among arguments or results, also within lists and dictionaries."""
    for value in values:
        if isinstance(value, Tensor):
            yield value
        elif isinstance(value, list | tuple):
            yield from tensors_in(value)
        elif isinstance(value, Mapping):
            yield from tensors_in(value.values())
