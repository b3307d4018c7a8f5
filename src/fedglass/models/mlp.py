"""A network of dense layers only."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import cast

from torch import Tensor, nn

from fedglass.core.papers import SME
from fedglass.core.registry import register
from fedglass.models.stem import Shape


@register("models", "mlp", summary="dense layers of 1000 and 1000 units with ReLU", paper=SME)
class MLP(nn.Module):
    """Hidden layers of 1000 and 1000 units with ReLU [Zhu et al., 2023, Appendix G].

    In the release of SME the logits pass a ReLU too: `output=nn.ReLU`.
    """

    def __init__(
        self,
        *,
        shape: Shape,
        classes: int,
        hidden: tuple[int, ...] = (1000, 1000),
        activation: type[nn.Module] = nn.ReLU,
        output: Callable[[], nn.Module] = nn.Identity,
    ) -> None:
        super().__init__()
        layers: list[nn.Module] = []
        size = math.prod(shape)
        for units in hidden:
            layers += [nn.Linear(size, units), activation()]
            size = units
        self.body = nn.Sequential(*layers)
        self.fc = nn.Linear(size, classes)
        self.output = output()

    def forward(self, inputs: Tensor) -> Tensor:
        return cast(Tensor, self.output(self.fc(self.body(inputs.flatten(1)))))


@register("models", "mlp_sme", summary="the same, with a ReLU on the logits as in the release of SME", paper=SME)
def mlp_sme(*, shape: Shape, classes: int) -> MLP:
    """The logits pass a ReLU."""
    return MLP(shape=shape, classes=classes, output=nn.ReLU)
