"""The list of parts leaves nobody out."""

from __future__ import annotations

from dataclasses import fields, is_dataclass

from fedglass.attack.attack import Attack, Stage
from fedglass.attack.defaults import PACKAGES, inventory
from fedglass.attack.parts import parts_of
from fedglass.core.registry import built_in


def names_in(value: object) -> set[str]:
    if isinstance(value, tuple):
        return set().union(*map(names_in, value)) if value else set()
    if not is_dataclass(value):
        return set()
    within = set().union(*(names_in(getattr(value, f.name)) for f in fields(value)))
    return within | {type(value).__name__}


def test_every_part_of_every_recipe_is_listed_with_words() -> None:
    listed = {part.name: part for part in inventory()}
    used: set[str] = set()
    for recipe in built_in("attacks").values():
        attack = recipe.value()
        for whole in (part for part in parts_of(attack) if isinstance(part, Attack)):
            stages = [stage for stage in whole.stages if isinstance(stage, Stage)]
            used |= {name for stage in stages for name in names_in(stage)} - {"Stage"}
            used |= {name for part in whole.refine for name in names_in(part)}
    assert used <= set(listed)
    assert all(part.summary and part.kind in PACKAGES for part in listed.values())
    assert listed["SupportCosine"].paper == "K. Zhu et al., 2025, Eq. 1"
