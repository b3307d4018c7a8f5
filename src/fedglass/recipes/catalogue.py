"""The published attacks by name, for plans and for the command line."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from fedglass.attack.attack import Attack
from fedglass.core.errors import UsageError, unknown_name
from fedglass.recipes.dlg import dlg
from fedglass.recipes.idlg import idlg
from fedglass.recipes.inverting_gradients import inverting_gradients


@dataclass(frozen=True)
class Recipe:
    """A published attack: how to compose it, in one line, and where it comes from."""

    make: Callable[..., Attack]
    summary: str
    paper: str


RECIPES: Mapping[str, Recipe] = {
    "dlg": Recipe(
        dlg,
        "images and labels together, squared error, L-BFGS",
        "Zhu, Liu, Han: Deep Leakage from Gradients, NeurIPS 2019, https://arxiv.org/abs/1906.08935",
    ),
    "idlg": Recipe(
        idlg,
        "label from the sign rule, squared error, L-BFGS",
        "Zhao, Mopuri, Bilen: iDLG: Improved Deep Leakage from Gradients, 2020, https://arxiv.org/abs/2001.02610",
    ),
    "inverting_gradients": Recipe(
        inverting_gradients,
        "cosine distance and total variation, signed Adam",
        "Geiping, Bauermeister, Dröge, Moeller: Inverting Gradients, NeurIPS 2020, https://arxiv.org/abs/2003.14053",
    ),
}


def recipe(name: str, **options: object) -> Attack:
    """The attack of that name with the given options of its recipe.

    >>> recipe("idlg", iterations=10).stages[0].solver
    LBFGS(rate=1.0, iterations=10, inner=20, history=100)
    """
    if name not in RECIPES:
        raise unknown_name("attack", name, RECIPES)
    known = inspect.signature(RECIPES[name].make).parameters
    for option in options:
        if option not in known:
            raise UsageError(f"Attack {name!r}: {unknown_name('option', option, known)}")
    return RECIPES[name].make(**options)
