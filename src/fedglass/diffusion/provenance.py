"""What a network has learned from, written beside its weights: whoever uses it in an attack has to say so."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from pathlib import Path

from fedglass.core.errors import ModelError
from fedglass.core.files import write_atomic
from fedglass.diffusion.folder import read_table

TRAINED_ON = "trained_on.json"
MOST_NAME = 200
"""Characters of a data set's name."""


@dataclass(frozen=True)
class TrainedOn:
    """A set of images.

    >>> TrainedOn("mnist", 1).words, TrainedOn("mnist", 6000).words
    ('1 image of mnist', '6000 images of mnist')
    """

    data: str
    images: int

    @property
    def words(self) -> str:
        return f"{self.images} image{'' if self.images == 1 else 's'} of {self.data}"

    def write(self, folder: Path) -> None:
        write_atomic(folder / TRAINED_ON, json.dumps(asdict(self), indent=2) + "\n")

    @classmethod
    def read(cls, folder: Path) -> TrainedOn:
        """What the folder says; one that does not say it is refused."""
        path = folder / TRAINED_ON
        told = read_table(path)
        data, images = told.get("data"), told.get("images")
        named = isinstance(data, str) and 0 < len(data) <= MOST_NAME and data.isprintable()
        if not named or not isinstance(images, int) or isinstance(images, bool) or not 0 < images < 10**12:
            raise ModelError(
                f"{path} must tell the name of the data that the network was trained on and the number of images, such "
                'as {"data": "mnist", "images": 6000}: without it nobody knows what the adversary has.'
            )
        return cls(str(data), images)
