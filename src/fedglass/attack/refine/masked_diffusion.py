"""The masked diffusion enhancer: a made-up picture of the right class that resembles the raw one."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from fedglass.attack.parts import Refinement
from fedglass.attack.refine.start_search import Sampling, StartSearch
from fedglass.attack.refine.stopping import Flattening, OracleEpoch
from fedglass.core.errors import UsageError
from fedglass.core.papers import CURIOUS_CLIENT
from fedglass.core.registry import register
from fedglass.core.types import Knowledge
from fedglass.diffusion.class_model import ClassModel
from fedglass.diffusion.stored import Model, stored

GREY = 0.5


@dataclass(frozen=True)
class MaskedDiffusion:
    """A sample of `model` for the recovered class, whose start was moved until it resembles the raw image.

    [Federated Learning Nodes Can Reconstruct Peers' Image Data, Section 3.3 and Eq. 4]. The paper takes 250 steps of
    sampling, guidance 4, Adam at 0.01 and up to 100 epochs; the class is typed in and the epoch chosen by eye. Here
    the class is the recovered label and `search.stop` chooses blindly. The picture shares class and rough shape with
    the private image. Its detail is the model's: it must not be taken for the private image's own.
    """

    model: Model
    search: StartSearch
    steps: int = 20
    guidance: float = 4.0

    def __post_init__(self) -> None:
        if self.steps < 1:
            raise UsageError(f"steps of mde must be at least 1, got {self.steps}.")
        if not 0 <= self.guidance < math.inf:
            raise UsageError(f"guidance of mde must be at least 0, got {self.guidance}.")

    def check(self, knows: Knowledge) -> None:
        """Refuse images or classes that the model does not make, without the model's work."""
        self._fitting(knows.shape, knows.classes)

    def refine(self, given: Refinement) -> Tensor:
        _, channels, height, width = given.images.shape
        if int(given.labels.min()) < 0:
            raise UsageError(f"Labels of mde are classes from 0 on, got {int(given.labels.min())}.")
        model = self._fitting((channels, height, width), int(given.labels.max()) + 1).to(given.images.device)
        raw = given.images.detach().nan_to_num(GREY, GREY, GREY)
        starts = torch.randn(len(raw), *model.network.shape, generator=given.generator).to(raw)
        sampling = Sampling(model.guided(self.guidance), model.decode, self.steps)
        taken, film = self.search.run(sampling, starts, given.labels, raw, given.progress)
        given.film(replace(film, frames=film.frames.clamp(0, 1)))
        return taken.clamp(0, 1)

    def untrained(self) -> MaskedDiffusion:
        """The control: the same with a network that has learned nothing."""
        return replace(self, model=self.model.untrained())

    def _fitting(self, shape: tuple[int, int, int], classes: int) -> ClassModel:
        model = ClassModel(self.model.load(), self.model.title)
        model.check(shape, classes)
        return model


@register(
    "refinements",
    "mde",
    summary="a diffusion model makes up a picture of the class that resembles",
    paper=CURIOUS_CLIENT,
)
def mde(model: str, epochs: int = 100, steps: int = 20, guidance: float = 4.0, lr: float = 0.01) -> MaskedDiffusion:
    """`model` is a folder of `fedglass train diffusion --kind transformer`; the epoch is chosen without the truth."""
    return MaskedDiffusion(stored(model), StartSearch(epochs, lr, Flattening()), steps, guidance)


@register(
    "refinements", "mde_oracle_epoch", summary="the same up to an epoch that was chosen by eye", paper=CURIOUS_CLIENT
)
def mde_oracle_epoch(
    model: str, epoch: int, steps: int = 20, guidance: float = 4.0, lr: float = 0.01
) -> MaskedDiffusion:
    """The paper's choice: somebody looks at the film and picks the epoch, knowing what the truth looks like."""
    return MaskedDiffusion(stored(model), StartSearch(epoch, lr, OracleEpoch(epoch)), steps, guidance)
