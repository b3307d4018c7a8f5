"""A network cut at one of its layers: the front that feeds the layer, and the head that its outputs go through."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, replace

import torch
from torch import Tensor, nn
from torch.func import functional_call
from torch.nn.modules.batchnorm import _NormBase

from fedglass.core.params import Params
from fedglass.core.types import BatchNorm, Observation

ALONE = 1e-9
"""Relative change of the logits, in double precision, up to which they do not depend on what was changed."""


class _Reached(Exception):
    """Ends a forward pass at the layer that was asked for."""


@dataclass(frozen=True, eq=False)
class Cut:
    """A network at the weights before training, in one precision, cut at a layer."""

    model: nn.Module
    state: Params
    layer: str
    shape: tuple[int, int, int]

    def front(self, inputs: Tensor) -> Tensor:
        """Return what the layer is fed.  # (n, c, h, w), whitened -> (n, ...)"""
        reached: list[Tensor] = []

        def note(layer: nn.Module, arguments: tuple[Tensor, ...]) -> None:
            reached.append(arguments[0])
            raise _Reached

        with _hook(self.model.get_submodule(self.layer).register_forward_pre_hook(note)), suppress(_Reached):
            functional_call(self.model, dict(self.state), (inputs,))
        return reached[0]

    def outputs(self, inputs: Tensor) -> dict[str, Tensor]:
        """Return what each layer without parts gives before this layer is reached.  # (n, c, h, w), whitened"""
        seen: dict[str, Tensor] = {}

        def noting(name: str) -> Callable[..., None]:
            return lambda layer, arguments, output: seen.update({name: output})

        leaves = [(name, layer) for name, layer in self.model.named_modules() if not list(layer.children())]
        with ExitStack() as hooks:
            for name, layer in leaves:
                hooks.enter_context(_hook(layer.register_forward_hook(noting(name))))
            self.front(inputs)
        return seen

    def between(self, outputs: Tensor, after: str) -> Tensor:
        """Return what another layer is fed where this layer's outputs are these.  # (n, units) -> (n, ...)"""
        with _hook(self.model.get_submodule(self.layer).register_forward_hook(lambda *passed: outputs)):
            return replace(self, layer=after).front(outputs.new_zeros(1, *self.shape))

    def head(self, outputs: Tensor, state: Params | None = None, blank: Tensor | None = None) -> Tensor:
        """Return the logits where the layer's outputs are these, whatever one blank image gives.  # (n, units)"""
        image = outputs.new_zeros(1, *self.shape) if blank is None else blank
        with _hook(self.model.get_submodule(self.layer).register_forward_hook(lambda *passed: outputs)):
            logits: Tensor = functional_call(self.model, dict(self.state if state is None else state), (image,))
        return logits

    def headed(self) -> bool:
        """Return whether the logits depend on the image through this layer alone, each example on its own row."""
        draws = torch.Generator().manual_seed(0)
        like = next(iter(self.state.values()))
        weight = self.model.get_submodule(self.layer).get_parameter("weight")
        outputs = torch.randn(3, weight.shape[0], generator=draws).to(like)
        other = torch.randn(1, *self.shape, generator=draws).to(like)
        with torch.no_grad():
            try:
                logits, same = self.head(outputs), self.head(outputs, blank=other)
                lone = self.head(outputs[1:2])
            except (RuntimeError, ValueError, IndexError):
                return False
        close = logits.shape == same.shape and near(logits, same)
        return close and logits.shape[0] == 3 and near(logits[1:2], lone)


def cut_at(observation: Observation, layer: str, kind: torch.dtype = torch.float64) -> Cut:
    """Return the network cut at the layer of that name, with weights and buffers of this type."""
    model = copy.deepcopy(observation.model).eval().requires_grad_(False).to(kind)
    known = dict(model.named_buffers())
    tensors = {**observation.before, **{n: b for n, b in observation.buffers.items() if n in known}}
    state = {name: t.detach().to(kind) if t.is_floating_point() else t for name, t in tensors.items()}
    return Cut(model, state, layer, observation.knows.shape)


def mixes_examples(observation: Observation) -> str:
    """Return why features of one example alone do not exist; empty where they do."""
    training = observation.knows.training
    normalised = any(isinstance(m, _NormBase) for m in observation.model.modules())
    if training is not None and training.batch_norm is BatchNorm.BATCH and normalised:
        return "normalisation by batch statistics mixes the examples before the layer"
    return ""


@contextmanager
def _hook(handle: torch.utils.hooks.RemovableHandle) -> Iterator[None]:
    try:
        yield
    finally:
        handle.remove()


def near(one: Tensor, other: Tensor) -> bool:
    """Return whether two results of double precision are the same but for rounding."""
    return bool((one - other).norm() <= ALONE * one.norm())
