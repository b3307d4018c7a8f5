"""Attacks by name."""

from __future__ import annotations

from fedglass.attack.best_of import AnyAttack
from fedglass.core.registry import make


def recipe(name: str, **options: object) -> AnyAttack:
    """Return the attack of that name with the given options of its recipe.

    >>> recipe("idlg", iterations=10).stages[0].solver
    LBFGS(rate=1.0, iterations=10, inner=20, history=100)
    """
    attack: AnyAttack = make("attacks", name, **options)
    return attack
