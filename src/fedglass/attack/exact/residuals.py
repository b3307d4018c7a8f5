"""Verification of images without the loss: some gradient at the network's outputs explains the whole message.

One step on images x moves the weights along J(x)'R, with J the derivative of the outputs by the weights and R the
gradient of the loss at the outputs. J depends on the images alone. R has as many numbers as there are outputs, and is
fitted by least squares: if what remains of the message is rounding, the images explain it under some loss, and R gives
the targets of a loss that is known.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor

from fedglass.attack.forward.target import is_gradient, network_of
from fedglass.core.losses import TargetKind, target_kind
from fedglass.core.types import Observation

MOST_NUMBERS = 2**27
"""Outputs times weights up to which the least squares are solved: a gibibyte in double precision."""
LEAST_EQUATIONS = 10
"""Equations for each unknown number below which an explanation proves nothing."""


def has_classes(observation: Observation) -> bool:
    """Return whether the loss has one class for each example, as the cross entropy has."""
    return target_kind(observation.knows.objective) is TargetKind.CLASSES


def needs_classes(observation: Observation) -> str:
    """Return why a method that computes the gradient of the cross entropy does not apply; empty if it does."""
    return "" if has_classes(observation) else "it distinguishes examples by the cross entropy, which is not the loss"


def fitted_residual(
    observation: Observation, sent: Sequence[Tensor], unpruned: Sequence[Tensor] | None, images: Tensor
) -> float:
    """Return the relative part of the message that no gradient at the outputs explains; infinite if it is not a step.

    # images (n, c, h, w), not whitened
    """
    knows, network = observation.knows, network_of(observation)
    if knows.local_steps not in (None, 1) or not is_gradient(observation) or len(images) != knows.examples:
        return math.inf
    weights = [observation.before[name].detach().double().requires_grad_() for name in network.names]
    network._module.double()  # a copy of the model, and its buffers
    inputs = knows.whitening.whiten(images.to(weights[0]))
    with torch.enable_grad():
        outputs = network(weights, inputs).flatten()
        size = sum(weight.numel() for weight in weights)
        if len(outputs) * size > MOST_NUMBERS or len(outputs) * LEAST_EQUATIONS > size:
            return math.inf
        rows = [torch.autograd.grad(o, weights, retain_graph=True, materialize_grads=True) for o in outputs]
    masked = [
        [t.cpu() if unpruned is None else torch.where(unpruned[i], t.cpu(), 0.0) for i, t in enumerate(row)]
        for row in rows
    ]
    jacobian = torch.stack([torch.cat([t.flatten() for t in row]) for row in masked])  # (outputs, weights)
    message = torch.cat([t.flatten() for t in sent])
    if not bool(message.any()):
        return math.inf
    shares = torch.linalg.lstsq(jacobian.T, message[:, None], driver="gelsd").solution
    return float((message - (jacobian.T @ shares)[:, 0]).norm() / message.norm())
