"""The tables and figures of coarse-to-fine inversion [K. Zhu et al., 2025] as experiments."""

from __future__ import annotations

import functools
import hashlib
from collections.abc import Callable, Mapping
from pathlib import Path

from fedglass.attack.attack import Attack
from fedglass.core.errors import DataError
from fedglass.core.types import Training
from fedglass.defend.accounting import gaussian_epsilon, noise_multiplier_for
from fedglass.defend.clip import Clip
from fedglass.defend.gaussian_noise import GaussianNoise
from fedglass.defend.magnitude_pruning import MagnitudePruning
from fedglass.defend.outpost import Outpost
from fedglass.defend.soteria import Soteria
from fedglass.fl.local import GradientFn, MeanGradient
from fedglass.fl.release import AsIs, Chain, Release
from fedglass.models.init import FromFile, Initialisation, KaimingNormal, KaimingUniform, Orthogonal
from fedglass.models.transfer import Transfer
from fedglass.reproduce.experiment import Defended, Experiment
from fedglass.reproduce.populations import KIND_OF, KINDS, PUBLISHED
from fedglass.reproduce.probes.invert import Invert
from fedglass.reproduce.request import Request
from fedglass.reproduce.tables import Row, Setting

STEP_LR = 0.0001
"""Of several local steps (Section 5.4)."""
SHARED_LR = 1.0
"""Of a single step, which stands for sharing the gradient itself: rounding then spares all but the smallest entries."""
DELTA = 1e-5
TRANSFER, UNTRAINED = "transfer", "untrained"
INITS: Mapping[str, Initialisation] = {
    "normal": KaimingNormal(),
    "uniform": KaimingUniform(),
    "orthogonal": Orthogonal(),
}
NETWORKS = {
    "ResNet-18": "resnet18",
    "ResNet-34": "resnet34",
    "DenseNet-121": "densenet121",
    "MobileNet-V2": "mobilenet_v2",
}
RECIPES = {
    "ours": "coarse_to_fine_published",
    "fast": "coarse_to_fine",
    "fast-pruned": "coarse_to_fine_pruned",
    "fedleak": "fedleak",
    "hfgradinv": "hfgradinv",
    "agic": "agic",
    "sapag": "sapag",
    "invg": "invg",
    "idlg": "idlg_adam",
    "tv": "invg_scaled",
    "coarse": "coarse_stage_published",
    "fast-coarse": "coarse_stage",
}
"""Method of the tables -> recipe."""
TWO_STAGES = ("ours", "fast", "fast-pruned")
EXTRA = {
    "ours": "coarse-to-fine",
    "fast": "this package's coarse_to_fine",
    "fast-pruned": "this package's coarse_to_fine_pruned",
    "fedleak": "FedLeak",
    "hfgradinv": "HFGradInv",
    "agic": "AGIC",
    "sapag": "SAPAG",
    "invg": "InvG",
    "idlg": "iDLG with Adam",
    "tv": "InvG with the rescaled total variation",
    "coarse": "the coarse stage alone",
    "fast-coarse": "the coarse stage of this package's coarse_to_fine alone",
}


def inverted(row: Row, method: str, request: Request) -> Experiment:
    """One client's update, inverted with no more knowledge than the paper allows."""
    setting = row.setting
    steps = setting.get("steps", 1)
    gradient, release = _defence(setting)
    setup = Defended(
        _data(setting["dataset"], request.side),
        NETWORKS[setting.get("network", "ResNet-18")],
        Training(SHARED_LR if steps == 1 else STEP_LR, epochs=steps),
        setting.get("batch", 1),
        _initialisation(setting, request),
        gradient=gradient,
        release=release,
    )
    return Experiment(setup, Invert(_attack(method, request)))


def needed(setting: Setting) -> str | None:
    """The name of the trained network without which the setting can not be run.

    >>> needed({"init": "transfer"}), needed({"init": "normal", "stage": "50"}), needed({"init": "normal"})
    ('transfer', '50', None)
    """
    stage = setting.get("stage", UNTRAINED)
    if stage != UNTRAINED:
        return str(stage)
    return TRANSFER if setting.get("init") == TRANSFER else None


def available(setting: Setting, request: Request) -> bool:
    """Whether the setting needs no trained network, or it was given."""
    return (name := needed(setting)) is None or name in request.weights


def _data(title: str, side: int) -> str:
    name = KIND_OF[title]
    return name if side == PUBLISHED or KINDS[name].shape[1] < PUBLISHED else f"{name}@{side}"


def _attack(method: str, request: Request) -> Attack:
    """The iterations asked for are those of all stages together, so that methods are compared at one cost."""
    name = RECIPES[method]
    if request.iterations is None:
        return request.attack(name, restarts=request.restarts)
    share = max(1, request.iterations // 2) if method in TWO_STAGES else request.iterations
    return Request(share).attack(name, restarts=request.restarts)


def _initialisation(setting: Setting, request: Request) -> Initialisation:
    # Some figures have a trained network that an untrained one may stand in for.
    name = needed(setting) or setting.get("trained", "")
    if name in request.weights:
        path = request.weights[name]
        # A checkpoint is a stage of this very network: layers drawn anew would belie the accuracy it is given for.
        kind = Transfer if name == TRANSFER else FromFile
        return kind(path, _sha256(path))
    return INITS[setting["init"]]


@functools.cache
def _sha256(path: str) -> str:
    """A checkpoint that was made anew under the same name is another experiment."""
    if not Path(path).is_file():
        raise DataError(f"--weights: no such file: {path!r}.")
    with Path(path).open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _defence(setting: Setting) -> tuple[GradientFn, Release]:
    rate, name = setting.get("rate", 0.0), setting.get("defence", "none")
    gradients: dict[str, Callable[[float], GradientFn]] = {
        "Soteria": Soteria,
        "OUTPOST": lambda share: Outpost(pruned=share),
    }
    release: Release = AsIs()
    if name == "Magnitude":
        release = MagnitudePruning(rate)
    elif "clip" in setting:
        release = _private(setting["clip"], setting["epsilon"])
    return (gradients[name](rate) if name in gradients else MeanGradient()), release


def _private(clip: float, epsilon: float | str) -> Release:
    """Clipping and the noise of one Gaussian mechanism that spends epsilon; `inf` is clipping alone."""
    if epsilon == "inf":
        return Clip(clip)
    multiplier = noise_multiplier_for(float(epsilon), DELTA, 1.0, 1, gaussian_epsilon)
    return Chain((Clip(clip), GaussianNoise(multiplier * clip)))


C2F: Mapping[str, Callable[[Row, str, Request], Experiment]] = dict.fromkeys(
    [f"c2f-table{number}" for number in (1, 2, 3, 5, 6)]
    + [f"c2f-figure{number}" for number in (3, 9, 11, 13, 14, 15, 16)],
    inverted,
)
