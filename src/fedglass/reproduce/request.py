"""What the user asked of a re-creation, beside its table."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from fedglass.attack.attack import Attack
from fedglass.core.errors import UsageError
from fedglass.recipes.catalogue import recipe
from fedglass.reproduce.populations import REDUCED


@dataclass(frozen=True)
class Request:
    """Changes to the published procedure; None keeps what the paper's release does."""

    iterations: int | None = None
    restarts: int = 1
    """Of each attack on coarse-to-fine's tables."""
    side: int = REDUCED
    """Of pictures that the coarse-to-fine paper has at 224 x 224."""
    weights: Mapping[str, str] = field(default_factory=dict)
    """Trained networks: `transfer`, or a test accuracy -> safetensors file."""
    own_labels: bool = False
    """Whether stand-ins keep their labels."""

    def attack(self, name: str, **options: object) -> Attack:
        """The recipe of that name, with as many iterations as were asked for."""
        if self.iterations is not None:
            options = {**options, "iterations": self.iterations}
        found = recipe(name, **options)
        if not isinstance(found, Attack):
            raise UsageError(f"The recipe {name!r} tries several attacks: a table takes one composition of parts.")
        return found
