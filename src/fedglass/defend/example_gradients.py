"""The gradient of each example of a local step, which private training clips and defences perturb."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import torch
from torch import Tensor
from torch.nn.modules.batchnorm import _BatchNorm

from fedglass.core.errors import ModelError, UsageError
from fedglass.fl.local import Step
from fedglass.models.network import Network

CHUNK_ENTRIES = 2**25
"""How many gradient entries are held at once: 128 MiB in single precision."""


def example_gradients(step: Step, only: Sequence[int] | None = None) -> Iterator[list[Tensor]]:
    """The gradients of the examples' own losses, some examples at a time.  # (chunk, *shape) each

    `only` names the parameters by position; without it all of them are differentiated.
    """
    refuse_batch_statistics(step)
    chosen = list(range(len(step.weights))) if only is None else list(only)
    entries = sum(step.weights[i].numel() for i in chosen)
    size = max(1, CHUNK_ENTRIES // max(1, entries))
    with torch.set_grad_enabled(step.differentiable):
        for first in range(0, len(step.inputs), size):
            rows = slice(first, first + size)
            yield _chunk(step, chosen, step.inputs[rows], step.targets[rows])


def _chunk(step: Step, chosen: Sequence[int], inputs: Tensor, targets: Tensor) -> list[Tensor]:
    def loss(moved: Sequence[Tensor], example: Tensor, target: Tensor) -> Tensor:
        weights = list(step.weights)
        for i, tensor in zip(chosen, moved, strict=True):
            weights[i] = tensor
        return step.loss(step.network(weights, example[None]), target[None])

    at = tuple(step.weights[i] for i in chosen)
    found = torch.func.vmap(torch.func.grad(loss), in_dims=(None, 0, 0))(at, inputs, targets)
    return list(found)


def refuse_batch_statistics(step: Step) -> None:
    """An example has no gradient of its own where the layers mix the examples of a batch."""
    if len(step.inputs) > 1 and _mixes_examples(step.network):
        raise ModelError(
            "The network normalises with the statistics of the batch, so an example has no gradient of its own, which "
            "this defence needs: set training.batch_norm to frozen, or choose a network without BatchNorm."
        )


def _mixes_examples(network: Network) -> bool:
    return any(isinstance(m, _BatchNorm) and (m.training or m.running_mean is None) for m in network._module.modules())


def noise_source(step: Step) -> torch.Generator:
    """The generator of a step whose gradient is random."""
    if step.generator is None:
        raise UsageError("This defence draws random numbers: give the local step a generator (Step.generator).")
    return step.generator
