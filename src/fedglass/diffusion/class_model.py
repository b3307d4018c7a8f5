"""A class-conditional diffusion model as a folder, with the autoencoder in whose latent space it works, if any.

The autoencoder lies in `autoencoder/` inside the model's folder, as config.json and weights of its own.
"""

from __future__ import annotations

import functools
from dataclasses import dataclass, replace
from pathlib import Path

import torch
from torch import Tensor

from fedglass.core.errors import ModelError, UsageError
from fedglass.diffusion.autoencoder import Autoencoder
from fedglass.diffusion.denoiser import Denoiser
from fedglass.diffusion.folder import AUTOENCODER, digest_of, load_folder, load_network
from fedglass.diffusion.guidance import Guided
from fedglass.diffusion.transformer import MaskedDiffusionTransformer

TRAIN = "train one with `fedglass train diffusion DATA -o DIR --kind transformer`"


@dataclass(frozen=True, eq=False)
class ClassModel:
    """A network that is told the class, with its schedule."""

    network: MaskedDiffusionTransformer
    denoiser: Denoiser
    """The same network, without guidance."""
    autoencoder: Autoencoder | None = None

    @property
    def shape(self) -> tuple[int, int, int]:
        """Channels, height and width of the images."""
        return self.network.shape if self.autoencoder is None else self.autoencoder.shape

    def guided(self, scale: float) -> Denoiser:
        """The denoiser with classifier-free guidance."""
        return replace(self.denoiser, network=Guided(self.network, self.network.classes, scale))

    def decode(self, denoised: Tensor) -> Tensor:
        """What the network denoises as images in [-1, 1].  # (n, *network.shape) -> (n, *shape)"""
        return denoised if self.autoencoder is None else self.autoencoder.decode(denoised)

    def to(self, device: torch.device) -> ClassModel:
        """Itself on that device."""
        for part in (self.network, self.autoencoder):
            if part is not None:
                part.to(device)
        return self

    def check_shape(self, shape: tuple[int, int, int], where: str) -> None:
        """Refuse a model of other images than these."""
        if self.shape != shape:
            made, here = (" x ".join(map(str, each)) for each in (self.shape, shape))
            raise UsageError(
                f"The diffusion model {where} makes images of {made} (channels, height, width), these are {here}: "
                f"{TRAIN}."
            )

    def check_classes(self, classes: int, where: str) -> None:
        """Refuse a model that does not know so many classes."""
        if classes > self.network.classes:
            raise UsageError(
                f"The diffusion model {where} knows the classes 0 to {self.network.classes - 1}, labels go up to "
                f"{classes - 1} here: {TRAIN}, on data with the same classes."
            )


def load_class_model(folder: Path) -> ClassModel:
    """The class-conditional model of a folder."""
    denoiser = load_folder(folder)
    network = denoiser.network
    if not isinstance(network, MaskedDiffusionTransformer):
        raise UsageError(f"The diffusion model {str(folder)!r} can not be told a class: {TRAIN}.")
    if not (folder / AUTOENCODER).is_dir():
        return ClassModel(network, denoiser)
    autoencoder = load_network(folder / AUTOENCODER, "autoencoders")
    assert isinstance(autoencoder, Autoencoder), "the one kind of autoencoder"
    if autoencoder.latent_shape != network.shape:
        raise ModelError(
            f"The autoencoder in {folder / AUTOENCODER} has latents of {autoencoder.latent_shape}, the network beside "
            f"it is for {network.shape}: they do not belong together."
        )
    return ClassModel(network, denoiser, autoencoder)


@dataclass(frozen=True)
class StoredClassModel:
    """A folder's class-conditional model, with a digest of what it held when it was named."""

    name: str
    digest: str

    def load(self) -> ClassModel:
        """The model; one that has become another since is refused."""
        model, found = _loaded(self.name)
        if found != self.digest:
            raise UsageError(
                f"The diffusion model {self.name!r} is not the one that was named (digest {found}, expected "
                f"{self.digest}): run the command again."
            )
        return model


def stored_class_model(name: str) -> StoredClassModel:
    """The model in that folder."""
    return StoredClassModel(name, digest_of(Path(name)))


@functools.lru_cache(maxsize=4)
def _loaded(name: str) -> tuple[ClassModel, str]:
    return load_class_model(Path(name)), digest_of(Path(name))
