"""Rounds one by one, at once, or both, as `adversary.together` says."""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from typing import Literal, TypeVar

from fedglass.rounds.views.together import Together
from fedglass.rounds.views.view import View

People = TypeVar("People", bound=Hashable)


def joined(views: Sequence[tuple[View, People]], together: bool | Literal["also"]) -> list[tuple[View, People]]:
    """The views, each with whose messages it sees; those of the same people as one where that is asked for."""
    if together is False:
        return list(views)
    groups: dict[People, list[View]] = {}
    for view, people in views:
        groups.setdefault(people, []).append(view)
    least = 2 if together == "also" else 0  # who asks for nothing else is told if there is only one
    found: list[tuple[View, People]] = [
        (Together(tuple(alike)), people) for people, alike in groups.items() if len(alike) >= least
    ]
    return [*views, *found] if together == "also" else found
