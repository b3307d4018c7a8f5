"""The tables and figures of coarse-to-fine inversion [K. Zhu et al., 2025] as experiments."""

from __future__ import annotations

import functools
import hashlib
import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from fedglass.attack.attack import Attack
from fedglass.core.errors import DataError
from fedglass.core.files import follow_links, open_file
from fedglass.core.types import BatchNorm, Training
from fedglass.defend.accounting import gaussian_epsilon, noise_multiplier_for
from fedglass.defend.noise import Clip, GaussianNoise
from fedglass.defend.outpost import Outpost
from fedglass.defend.pruning import MagnitudePruning, Soteria
from fedglass.fl.local import GradientFn, MeanGradient
from fedglass.fl.release import AsIs, Chain, Release
from fedglass.models.init import FromFile, Initialisation, KaimingNormal, KaimingUniform, Orthogonal, Transfer
from fedglass.reproduce.cases import Cell
from fedglass.reproduce.compare import measures_of
from fedglass.reproduce.image_sources import KIND_OF, KINDS
from fedglass.reproduce.paper import Experiment, Method, Paper, Recreation, Setup, methods_of
from fedglass.reproduce.probes.geometry import pearson
from fedglass.reproduce.probes.reconstruct import Invert
from fedglass.reproduce.tables import PUBLISHED, REDUCED, Request, Row, Setting, Table
from fedglass.verdict.records import Record

STEP_LR = 0.0001
"""Learning rate of several local steps (Section 5.4)."""
SHARED_LR = 1.0
"""Learning rate of a single step, which stands for sharing the gradient: rounding then loses only tiny entries."""
DELTA = 1e-5
TRANSFER, UNTRAINED = "transfer", "untrained"
INITS: Mapping[str, Initialisation] = {
    "normal": KaimingNormal(),
    "uniform": KaimingUniform(),
    "orthogonal": Orthogonal(),
}
NETWORKS = {
    "ResNet-18": "resnet18",
    "ResNet-18 (sigmoid)": "resnet18_sigmoid",
    "ResNet-34": "resnet34",
    "DenseNet-121": "densenet121",
    "MobileNet-V2": "mobilenet_v2",
}
MODES = {"eval": BatchNorm.FROZEN, "train": BatchNorm.BATCH}
RETRIES = 5
METHODS = methods_of("c2f")
"""Those named `stated` have the weight of the total variation at 224 x 224 as Section 5.1 states it: 0.005, where
Equation 3 gives 0.00007."""
PRINTED = ("ours", "fedleak", "hfgradinv", "agic", "sapag", "invg", "idlg", "tv", "coarse")
"""Methods of the paper: 30,000 iterations, coarse-to-fine as many in each stage [K. Zhu et al., 2025, Sec. 5.1]."""
TWO_STAGES = ("ours", "ours-stated", "fast", "fast-stated", "fast-pruned")
MADE_FOR_LESS = (
    "Methods named `fast` are this package's coarse_to_fine, made for such budgets, at which the paper's own rates do "
    "not arrive."
)


def inverted(row: Row, method: str, request: Request) -> Experiment:
    """Invert one client's update with no more knowledge than the paper allows."""
    setting = row.setting
    steps = setting.get("steps", 1)
    gradient, release = _defence(setting)
    data = KIND_OF[setting["dataset"]]
    resized = request.side != PUBLISHED and KINDS[data].shape[1] >= PUBLISHED
    setup = Setup(
        f"{data}@{request.side}" if resized else data,
        NETWORKS[setting.get("network", "ResNet-18")],
        Training(SHARED_LR if steps == 1 else STEP_LR, epochs=steps, batch_norm=MODES[setting.get("mode", "eval")]),
        setting.get("batch", 1),
        _initialisation(setting, request),
        gradient=gradient,
        release=release,
    )
    return Experiment(setup, Invert(_attack(method, request)))


def retried(row: Row, method: str, request: Request) -> Experiment:
    """Run FedLeak on one message several times, with one way to reach the size of its pictures (Table 4)."""
    attack = Method("fedleak", options={"crop": method == "crop"}).attack(request)
    return replace(inverted(row, "fedleak", request), probe=Invert(attack, RETRIES))


def network(setting: Setting) -> str | None:
    """Return the trained network of a setting.

    >>> network({"init": "transfer"}), network({"init": "normal", "stage": "50"}), network({"init": "normal"})
    ('transfer', '50', None)
    """
    stage = setting.get("stage", UNTRAINED)
    if stage != UNTRAINED:
        return str(stage)
    return TRANSFER if setting.get("init") == TRANSFER else setting.get("trained")


def reduced(of: Table, cells: Sequence[Cell]) -> list[str]:
    """Say how the runs differ from the paper's in size."""
    setups = [case.subject.experiment.setup for cell in cells for case in cell.cases]
    sides = sorted({KINDS[setup.data].shape[1] for setup in setups})
    counts = sorted({sum(cell.experiment.probe.stages()) for cell in cells})
    sizes_here = [
        f"{' or '.join(map(str, counts))} iterations in all, which coarse-to-fine halves between its stages",
        f"restarts: {max(cell.request.restarts for cell in cells)}",
        f"trials: {max(len({case.subject.client for case in cell.cases}) for cell in cells)}",
        *(f"{side} x {side} pixels instead of 224 x 224" for side in sides if 32 < side < PUBLISHED),
    ]
    paper = f"30,000 iterations (coarse-to-fine 30,000 + 30,000), the best of 5 restarts, {of.clients} trials"
    has_fast_methods = any(cell.method.startswith("fast") for cell in cells)
    text = f"Reduced here: {'; '.join(sizes_here)}. The paper: {paper}."
    return [text, MADE_FOR_LESS] if has_fast_methods else [text]


def _attack(method: str, request: Request) -> Attack:
    """Return the attack; requested iterations are of all stages together, so that methods compare at one cost."""
    halved = request.iterations is not None and method in TWO_STAGES
    share = max(1, (request.iterations or 0) // 2) if halved else request.iterations
    return METHODS[method].attack(replace(request, iterations=share), restarts=request.restarts)


def _initialisation(setting: Setting, request: Request) -> Initialisation:
    trained = network(setting)
    if trained is None or trained not in request.weights:
        return INITS[setting["init"]]
    path = request.weights[trained]
    # A checkpoint is a stage of this very network: with newly drawn layers its stated accuracy would be wrong.
    return (Transfer if trained == TRANSFER else FromFile)(path, _sha256(path))


@functools.cache
def _sha256(path: str) -> str:
    """Return the hash of a checkpoint: a new one under the same name is another experiment."""
    if not Path(path).is_file():
        raise DataError(f"--weights: no such file: {path!r}.")
    with open_file(follow_links(Path(path))) as file:
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
    """Return clipping with the noise of one Gaussian mechanism that spends epsilon; `inf` is clipping alone."""
    if epsilon == "inf":
        return Clip(clip)
    multiplier = noise_multiplier_for(float(epsilon), DELTA, 1.0, 1, gaussian_epsilon)
    return Chain((Clip(clip), GaussianNoise(multiplier * clip)))


def correlation(cell: Cell, records: Mapping[str, Record]) -> float | None:
    """Return Pearson's coefficient of sparsity and PSNR over the settings of a cell, averaged over its clients."""
    points: dict[int, list[tuple[float, float]]] = {}
    for case in cell.cases:
        measures = measures_of(records[case.key]) if case.key in records else {}
        if "sparsity" in measures and "psnr" in measures:
            points.setdefault(case.subject.client, []).append((measures["sparsity"], measures["psnr"]))
    complete = [pairs for pairs in points.values() if len(pairs) > 2]  # two points always lie on a line
    coefficients = [pearson([x for x, _ in pairs], [y for _, y in pairs]) for pairs in complete]
    values = [value for value in coefficients if value is not None]
    return statistics.fmean(values) if values else None


NAMES = [f"c2f-table{number}" for number in (1, 2, 3, 5, 6)] + [
    f"c2f-figure{number}" for number in (3, 4, 9, 10, 11, 13, 14, 15, 16, 19, 20, 25)
]
PAPER = Paper(
    {**dict.fromkeys(NAMES, Recreation(inverted, METHODS)), "c2f-table4": Recreation(retried)},
    network=network,
    optional_networks=("53",),
    sides=(REDUCED, PUBLISHED),
    restarts=True,
    iterations={method: 60_000 if method == "ours" else 30_000 for method in PRINTED} | {"ours-stated": 60_000},
    derived={"pearson": correlation},
    remarks=reduced,
)
