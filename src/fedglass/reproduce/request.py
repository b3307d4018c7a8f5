"""What the user asked of a re-creation, beside its table."""

from __future__ import annotations

from dataclasses import dataclass

from fedglass.attack.attack import Attack
from fedglass.core.errors import UsageError
from fedglass.recipes.catalogue import recipe


@dataclass(frozen=True)
class Request:
    """Changes to the published procedure; None keeps what the paper's release does."""

    iterations: int | None = None

    def attack(self, name: str, **options: object) -> Attack:
        """The recipe of that name, with as many iterations as were asked for."""
        if self.iterations is not None:
            options = {**options, "iterations": self.iterations}
        found = recipe(name, **options)
        if not isinstance(found, Attack):
            raise UsageError(f"The recipe {name!r} tries several attacks: a table takes one composition of parts.")
        return found
