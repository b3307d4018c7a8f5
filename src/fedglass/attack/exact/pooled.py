"""Images of networks that see less than the pixels: pooled, grey or resized ones, by a fixed linear map A.

The input z of the first dense layer is read exactly; the smoothest image with A x = z within the pixel bounds fills in
what the network never saw. Its replay is the message itself: no attack can tell more without knowing more.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import ClassVar

from fedglass.attack.exact.cut import cut_at
from fedglass.attack.exact.dense import DenseUpdate, first_dense
from fedglass.attack.exact.features import dense_fronts, linear_front, read_features, solved_by
from fedglass.attack.exact.linear import smoothest
from fedglass.attack.exact.method import Search, Solved
from fedglass.core.registry import register
from fedglass.core.types import Observation


@register(
    "exact",
    "pooled_input",
    summary="the smoothest image that a network which pools, resizes or greys its input cannot tell from the true one",
)
@dataclass(frozen=True)
class PooledInput:
    """Read what the network sees, and fill in the smoothest image."""

    name: str = "pooled_input"
    paper: str = ""
    cost: ClassVar[float] = 1.5
    """Seconds that it takes about."""

    def applies(self, observation: Observation) -> str:
        """Return why the method does not apply; empty where it does."""
        found = _layers(observation)
        return found if isinstance(found, str) else ""

    def solve(self, observation: Observation, search: Search) -> Solved | None:
        """Return the images, of as many examples as could be told."""
        layers = _layers(observation)
        found = None if isinstance(layers, str) else read_features(observation, layers, search)
        if isinstance(layers, str) or found is None:
            return None
        # Bounds cost a little of A x = z; where the message does not forgive that, they are let go.
        cut = cut_at(observation, layers[0].name)
        solved = solved_by(observation, found, smoothest(observation.knows, cut.front, found.inputs))
        share = min(1.0, found.inputs.shape[1] / solved.images[0].numel())
        # Fewer numbers than pixels leave a choice: such an image explains the message, and need not be the true one.
        explains = solved.explains and share == 1
        return replace(solved, explains=explains, details={**solved.details, "share_seen": share})


def _layers(observation: Observation) -> list[DenseUpdate] | str:
    """The dense layers, where the first is fed a linear map of the image other than the pixels themselves."""
    if not isinstance(first_dense(observation), str):
        return "the first dense layer sees the pixels themselves"
    layers = dense_fronts(observation)
    if isinstance(layers, str):
        return layers
    return layers if linear_front(observation) else "what comes before the first dense layer is not linear"
