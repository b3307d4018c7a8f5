"""The published attacks by name, for plans and for the command line."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from fedglass.attack.hypotheses import AnyAttack
from fedglass.core.errors import UsageError, unknown_name
from fedglass.recipes.dlfa import (
    dlfa_fedsgd,
    dlfa_fedsgd_epoch,
    dlfa_no_prior,
    dlfa_printed,
    dlfa_published,
    dlfa_shared,
    dlfa_unknown_epochs,
)
from fedglass.recipes.dlfa_fast import dlfa
from fedglass.recipes.dlg import dlg
from fedglass.recipes.idlg import idlg
from fedglass.recipes.inverting_gradients import inverting_gradients, inverting_gradients_published
from fedglass.recipes.sme import sme, sme_baseline_ig, sme_published


@dataclass(frozen=True)
class Recipe:
    """A published attack: how to compose it, in one line, and where it comes from."""

    make: Callable[..., AnyAttack]
    summary: str
    paper: str


DLFA = (
    "Dimitrov, Balunović, Konstantinov, Vechev: Data Leakage in Federated Averaging, TMLR 2022, "
    "https://openreview.net/forum?id=e7A0B99zJf"
)
SME = "Zhu, Yao, Blaschko: Surrogate Model Extension (SME), ICML 2023, https://arxiv.org/abs/2306.00127"

GEIPING = "Geiping, Bauermeister, Dröge, Moeller: Inverting Gradients, NeurIPS 2020, https://arxiv.org/abs/2003.14053"

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
        inverting_gradients, "cosine distance and total variation, signed Adam, observed residual", GEIPING
    ),
    "inverting_gradients_published": Recipe(
        inverting_gradients_published, "cosine distance and total variation, signed Adam", GEIPING
    ),
    "dlfa": Recipe(dlfa, "simulates the local training, epoch prior; started from sme, fast", DLFA),
    "dlfa_published": Recipe(dlfa_published, "simulates the local training, epoch prior; as released", DLFA),
    "dlfa_printed": Recipe(dlfa_printed, "simulates the local training, epoch prior; as printed (cosine)", DLFA),
    "dlfa_no_prior": Recipe(dlfa_no_prior, "simulates the local training, no prior over epochs", DLFA),
    "dlfa_shared": Recipe(dlfa_shared, "simulates the local training, epochs share their images", DLFA),
    "dlfa_fedsgd_epoch": Recipe(dlfa_fedsgd_epoch, "simulates one full batch for each epoch", DLFA),
    "dlfa_fedsgd": Recipe(dlfa_fedsgd, "the whole update as one gradient", DLFA),
    "dlfa_unknown_epochs": Recipe(dlfa_unknown_epochs, "dlfa_published where epochs and batch size are unknown", DLFA),
    "sme": Recipe(sme, "one gradient at a point between the weights before and after; fast", SME),
    "sme_published": Recipe(sme_published, "one gradient at a point between the weights before and after", SME),
    "sme_baseline_ig": Recipe(sme_baseline_ig, "the same at the weights before: the IG of SME's tables", SME),
}


def recipe(name: str, **options: object) -> AnyAttack:
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
