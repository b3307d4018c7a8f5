"""The published attacks by name, for plans and for the command line."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from fedglass.attack.hypotheses import AnyAttack
from fedglass.core.errors import UsageError, unknown_name
from fedglass.recipes.agic import agic
from fedglass.recipes.coarse_to_fine import (
    coarse_stage,
    coarse_stage_published,
    coarse_to_fine,
    coarse_to_fine_pruned,
    coarse_to_fine_published,
    invg_scaled,
)
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
from fedglass.recipes.fedleak import fedleak
from fedglass.recipes.hfgradinv import hfgradinv
from fedglass.recipes.idlg import idlg
from fedglass.recipes.idlg_adam import idlg_adam
from fedglass.recipes.inverting_gradients import inverting_gradients, inverting_gradients_published
from fedglass.recipes.invg import invg
from fedglass.recipes.sapag import sapag
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

IDLG = "Zhao, Mopuri, Bilen: iDLG: Improved Deep Leakage from Gradients, 2020, https://arxiv.org/abs/2001.02610"
COARSE_TO_FINE = (
    "Zhu, Yang, Guo, Qin, Wang, Wang, Nan, Zheng: Cracking Federated Privacy, 2025, "
    "https://doi.org/10.5281/zenodo.17979356"
)

RECIPES: Mapping[str, Recipe] = {
    "dlg": Recipe(
        dlg,
        "images and labels together, squared error, L-BFGS",
        "Zhu, Liu, Han: Deep Leakage from Gradients, NeurIPS 2019, https://arxiv.org/abs/1906.08935",
    ),
    "idlg": Recipe(idlg, "label from the sign rule, squared error, L-BFGS", IDLG),
    "idlg_adam": Recipe(idlg_adam, "idlg with Adam and GradInversion's labels, for deep networks", IDLG),
    "inverting_gradients": Recipe(
        inverting_gradients, "cosine distance and total variation, signed Adam, observed residual", GEIPING
    ),
    "inverting_gradients_published": Recipe(
        inverting_gradients_published, "cosine distance and total variation, signed Adam", GEIPING
    ),
    "invg": Recipe(
        invg, "inverting_gradients_published with GradInversion's labels, iterate of lowest energy", GEIPING
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
    "sapag": Recipe(
        sapag,
        "Gaussian kernel of each layer's difference, bandwidth from the message",
        "Wang, Deng, Guo, Wang, Meng, Liu, Ding, Rajasekaran: SAPAG, 2020, https://arxiv.org/abs/2009.06228",
    ),
    "agic": Recipe(
        agic,
        "cosine distance with weights that increase with depth, local steps taken as one",
        "Xu, Hong, Huang, Chen, Decouchant: AGIC, SRDS 2022, https://arxiv.org/abs/2204.13784",
    ),
    "hfgradinv": Recipe(
        hfgradinv,
        "cosine distance on a growing, random part of the message, quantised Adam",
        "Ye, Luo, Zhou, Tang: High-Fidelity Gradient Inversion in Distributed Learning, AAAI 2024, "
        "https://github.com/MiLab-HITSZ/2023YeHFGradInv",
    ),
    "fedleak": Recipe(
        fedleak,
        "weights of a generator, the larger entries of each layer, a look one step ahead",
        "Fan, Wang, Chen, Zhou: Boosting Gradient Leakage Attacks (FedLeak), USENIX Security 2025, "
        "https://arxiv.org/abs/2506.08435",
    ),
    "coarse_to_fine": Recipe(
        coarse_to_fine, "direction, then direction and the size of each entry; resists initialisations", COARSE_TO_FINE
    ),
    "coarse_to_fine_published": Recipe(
        coarse_to_fine_published, "coarse_to_fine with the paper's rates and operator", COARSE_TO_FINE
    ),
    "coarse_to_fine_pruned": Recipe(
        coarse_to_fine_pruned, "coarse_to_fine on what was sent alone, for messages that were pruned", COARSE_TO_FINE
    ),
    "coarse_stage": Recipe(coarse_stage, "the first stage of coarse_to_fine alone", COARSE_TO_FINE),
    "coarse_stage_published": Recipe(
        coarse_stage_published, "direction, overall and on the support of the message", COARSE_TO_FINE
    ),
    "invg_scaled": Recipe(invg_scaled, "invg with total variation that follows the pictures' size", COARSE_TO_FINE),
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
