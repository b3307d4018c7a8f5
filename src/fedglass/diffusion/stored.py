"""Diffusion models as values: where one lies and what it is, without its weights."""

from __future__ import annotations

import functools
import json
from dataclasses import dataclass
from importlib import resources
from pathlib import Path

import torch
from torch import nn

from fedglass.core.errors import ModelError, UsageError
from fedglass.core.files import write_atomic
from fedglass.core.rng import stream
from fedglass.diffusion.denoiser import Denoiser
from fedglass.diffusion.folder import (
    CONFIG,
    TRAIN,
    WEIGHTS,
    check_unchanged,
    digest_of,
    digest_of_files,
    load_folder,
    load_network,
    network_folder,
    read_table,
)
from fedglass.models.init import PyTorchDefault

# What a network has learned from, written beside its weights: whoever uses it in an attack has to say so.


TRAINED_ON = "trained_on.json"
MOST_NAME = 200
"""Characters of a data set's name."""


def write_trained_on(folder: Path, data: str, images: int) -> None:
    """Write what the network in a folder was trained on: so many images of a data set."""
    write_atomic(folder / TRAINED_ON, json.dumps({"data": data, "images": images}, indent=2) + "\n")


def trained_on(folder: Path, noun: str) -> str:
    """Return what the network in a folder was trained on, as text; a folder that does not say so is refused."""
    path = folder / TRAINED_ON
    if not path.is_file():
        raise UsageError(
            f"The folder {str(folder)!r} does not say what its network was trained on ({TRAINED_ON} is missing). The "
            f"report must name it: {TRAIN[noun]}."
        )
    table = read_table(path)
    data, images = table.get("data"), table.get("images")
    named = isinstance(data, str) and 0 < len(data) <= MOST_NAME and data.isprintable()
    if not named or not isinstance(images, int) or isinstance(images, bool) or not 0 < images < 10**12:
        raise ModelError(
            f"{path} must tell the name of the data that the network was trained on and the number of images, such "
            'as {"data": "mnist", "images": 6000}: without it nobody knows what the adversary has.'
        )
    return f"{images} image{'' if images == 1 else 's'} of {data}"


@functools.lru_cache(maxsize=8)
def network_and_digest(name: str, kind: str, noun: str) -> tuple[nn.Module, str]:
    """Return the network of a folder, which is shared and must not be changed, and a digest of the folder's files.

    Args:
        name: The folder.
        kind: The kind of network in the registry.
        noun: What errors call the network.
    """
    folder = Path(name)
    where = network_folder(folder, noun)
    trained_on(folder, noun)
    digest = digest_of_files([where / CONFIG, where / WEIGHTS, folder / TRAINED_ON])
    return load_network(folder, kind, noun), digest


_HERE = Path(str(resources.files("fedglass.diffusion"))) / "embedded"


def embedded() -> tuple[str, ...]:
    """The models that come with the package.

    >>> embedded()
    ('glyphs',)
    """
    return tuple(sorted(path.name for path in _HERE.iterdir() if path.is_dir())) if _HERE.is_dir() else ()


@dataclass(frozen=True)
class Stored:
    """A folder's model, or an embedded one, with a digest of what it held when it was named."""

    name: str
    digest: str

    def load(self) -> Denoiser:
        """The model; one that has become another since is refused."""
        denoiser, digest = _loaded(self.name)
        check_unchanged(f"diffusion model {self.name!r}", digest, self.digest)
        return denoiser

    @property
    def title(self) -> str:
        return repr(self.name)

    def untrained(self) -> Untrained:
        return Untrained(self)


@dataclass(frozen=True)
class Untrained:
    """The same network with weights drawn at random: what the architecture alone does to a picture."""

    like: Stored

    def load(self) -> Denoiser:
        return _untrained(self)

    @property
    def title(self) -> str:
        return f"{self.like.title} (untrained)"

    def untrained(self) -> Untrained:
        return self


Model = Stored | Untrained
"""A diffusion model as a value."""


def stored(name: str) -> Stored:
    """The model of that name or in that folder."""
    return Stored(name, digest_of(_folder(name)))


def located_model(name: str, folder: Path) -> str:
    """An embedded model's name as it is; a path relative to the folder."""
    return name if name in embedded() else str(folder / Path(name).expanduser())


def _folder(name: str) -> Path:
    return _HERE / name if name in embedded() else Path(name)


@functools.lru_cache(maxsize=4)
def _loaded(name: str) -> tuple[Denoiser, str]:
    return load_folder(_folder(name)), digest_of(_folder(name))


@functools.lru_cache(maxsize=4)
def _untrained(spec: Untrained) -> Denoiser:
    spec.like.load()
    denoiser = load_folder(_folder(spec.like.name))  # one of its own, the other is shared
    assert isinstance(denoiser.network, nn.Module), "what a folder holds is a module"
    with torch.no_grad():
        PyTorchDefault().apply(denoiser.network, stream(0, "untrained"))
    return denoiser
