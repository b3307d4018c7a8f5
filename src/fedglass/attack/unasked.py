"""Attacks that are played on a recording of which nobody says by what.

A recipe says of itself that it is one, and of which messages it would tell no more than others do:

    @unasked(lambda seen: "" if seen.knows.examples == 1 else "it is for one example")
    @register("attacks", ...)
    def recipe(...): ...
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

from fedglass.core.types import Observation

Recipe = TypeVar("Recipe", bound=Callable[..., Any])
WhyNot = Callable[[Observation], str]
"""Why an attack that could be played on a message tells no more than another; empty where it may."""
PLACE = "fedglass_unasked"


def unasked(why_not: WhyNot) -> Callable[[Recipe], Recipe]:
    """Play this recipe without being asked, wherever there is no reason against it."""

    def note(recipe: Recipe) -> Recipe:
        setattr(recipe, PLACE, why_not)
        return recipe

    return note


def reasons_of(recipe: Any) -> WhyNot | None:
    """What a recipe says against itself; None where it is only played if somebody asks."""
    found: WhyNot | None = getattr(recipe, PLACE, None)
    return found
