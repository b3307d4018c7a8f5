"""What the masked diffusion transformer is taught: to denoise with all patches seen, and with some of them hidden."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor, nn

from fedglass.core.errors import UsageError
from fedglass.diffusion.training import Batch
from fedglass.diffusion.transformer import MaskedDiffusionTransformer, some_tokens


@dataclass(frozen=True)
class MaskedLoss:
    """The sum of the squared errors with nothing hidden and with a share of the patches hidden [Gao et al., 2023].

    Some examples are shown without their class, so that the network can be guided by the difference of its answers
    with and without one [Ho and Salimans, 2022].
    """

    hidden: float = 0.3
    unlabelled: float = 0.1

    def __post_init__(self) -> None:
        if not 0 <= self.hidden < 1 or not 0 <= self.unlabelled <= 1:
            raise UsageError(
                f"The hidden share must be in [0, 1) and the unlabelled one in [0, 1], got {self.hidden} and "
                f"{self.unlabelled}."
            )

    def __call__(self, network: nn.Module, batch: Batch) -> Tensor:
        assert isinstance(network, MaskedDiffusionTransformer), "the loss of one kind of network"
        labels = None if batch.labels is None else self._shown(batch.labels, network.classes, batch.generator)
        kept = some_tokens(len(batch.noisy), network.tokens, self.hidden, batch.generator).to(batch.noisy.device)
        whole: Tensor = network(batch.noisy, batch.steps, labels)
        masked: Tensor = network(batch.noisy, batch.steps, labels, kept)
        return (whole - batch.target).square().mean() + (masked - batch.target).square().mean()

    def _shown(self, labels: Tensor, none: int, generator: torch.Generator) -> Tensor:
        hidden = torch.rand(len(labels), generator=generator) < self.unlabelled
        return labels.masked_fill(hidden.to(labels.device), none)
