"""The figures of the curious client [Federated learning nodes can reconstruct peers' image data] as experiments."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from fedglass.attack.attack import Attack
from fedglass.attack.hypotheses import SearchByOwnImages
from fedglass.attack.labels.counts import InterpolatedCounts
from fedglass.attack.labels.given import OracleLabels
from fedglass.attack.parts import Labels
from fedglass.attack.refine.gan import gan
from fedglass.attack.refine.masked_diffusion import mde
from fedglass.attack.refine.restoration import ddrm_enlarged
from fedglass.attack.solvers.adam import Adam
from fedglass.core.types import Training
from fedglass.federation.views import Knows
from fedglass.reproduce.cases import Cell
from fedglass.reproduce.image_sources import KIND_OF, KINDS
from fedglass.reproduce.paper import Experiment, FederationRun, Method, Paper, Recreation, Setup, methods_of, peer_setup
from fedglass.reproduce.probes.divergence import Divergence, DivergenceSetting
from fedglass.reproduce.probes.peer import FACTOR, GUESSES, GuessedImages, PeerImages
from fedglass.reproduce.probes.reconstruct import SearchUnknowns
from fedglass.reproduce.tables import CURIOUS_SIDES, Request, Row, Setting, Table

LR = 0.003
"""Learning rate of the release and of Appendix A."""
IMAGES, STEPS = 16, 3
LISTED = 84
"""ImageNet images of the stand-in folder: larger rounds take enlarged ones of CIFAR-10."""
NETWORKS = {"LeNet": "curious_lenet", "ResNet9": "curious_resnet9", "ResNet18": "curious_resnet18"}
METHODS = methods_of("curious")
"""Their trained networks are folders: of `fedglass train diffusion` and of `fedglass train gan`."""
RATES, COUNTS = (0.1, 0.3, 1.0, 3.0, 10.0), (0.75, 1.0, 1.5, 2.0)
"""Values that a search tries, in units of the truth; the truth is among them, and not the first or last rate."""
INVERSIONS, ROUNDS, LATE_TRAINING = ("mi", "mi_hsic"), 50, Training(0.1, epochs=1, batch_size=10)
"""Methods that invert the global model, after so many rounds of the training that FedInverse's release has."""
LABELS: Mapping[str, Labels] = {"counted": InterpolatedCounts()}
"""Labels of methods that do not know them."""
FACTORS = {"fast": 1}
"""Reduction of the searched images, if it is not the paper's."""
YARDSTICKS = ("grey", "own", "reduced")
SMOOTH = {"LeNet, sigmoid": ("lenet", 0.0003), "LeNet, tanh": ("lenet_tanh", 0.003), "LeNet": ("curious_lenet", LR)}
"""Networks with a learning rate at which the neglected terms of the lemma are small."""
POOL = 256
"""Number of examples that the clients' are drawn from."""


def inverted(row: Row, method: str, request: Request) -> Experiment:
    """Attack a round as one of its clients by a method, or make a guess that needs no message."""
    setting, knows = row.setting, Knows(labels=method not in LABELS)
    setup = _setup(setting, request)
    if method in GUESSES:
        return Experiment(setup, GuessedImages(method), knows)
    factor, guess = FACTORS.get(method, FACTOR), setting.get("guess", 1.0)
    return Experiment(setup, PeerImages(_attack(method, setting, request), factor, guess), knows)


def refined(row: Row, method: str, request: Request) -> Experiment:
    """Refine the reconstructed images by a diffusion model or a GAN (Figures 7, 8 and 15)."""
    experiment = inverted(row, method if method in GUESSES else "ours", request)
    if not isinstance(experiment.probe, PeerImages):
        return experiment
    folder = request.weights[METHODS[method].weights]
    part = gan(folder) if method == "rog" else ddrm_enlarged(folder, FACTOR)
    return replace(experiment, probe=replace(experiment.probe, attack=replace(experiment.probe.attack, refine=(part,))))


def late(row: Row, method: str, request: Request) -> Experiment:
    """Attack the step of the first round, or invert the global model of a late one (Figure 9)."""
    rounds, training = 1, Training(LR, epochs=STEPS)
    if method in INVERSIONS:
        rounds, training = request.rounds or ROUNDS, LATE_TRAINING
    sizes = _sizes(row.setting, request)
    setup = peer_setup(KIND_OF[row.setting["dataset"]], NETWORKS["LeNet"], training, sizes)
    setup, knows = replace(setup, federation_run=FederationRun(rounds)), Knows(labels=True)
    if method in GUESSES:
        return Experiment(setup, GuessedImages(method), knows)
    folder, options = request.weights.get(METHODS[method].weights, ""), {"labels": OracleLabels()}
    if method in INVERSIONS:
        attack = METHODS[method].attack(request, generator=folder, **options)
    else:
        attack = METHODS[method].attack(request, factor=FACTORS.get(method, FACTOR), **options)
        attack = replace(attack, refine=(mde(folder),)) if method == "mde" else attack
    return Experiment(setup, PeerImages(attack, FACTOR), knows)


def found_out(row: Row, method: str, request: Request) -> Experiment:
    """Search for learning rate, number of images or both with the adversary's own images (Appendix B)."""
    setup, unknown = _setup(row.setting, request), row.setting["unknown"]
    attack = _attack("ours", row.setting, request)
    total = sum(setup.sizes)
    counts = tuple(round(total * share) for share in COUNTS)
    search = SearchByOwnImages(attack, tuple(LR * share for share in RATES), counts, zooms=0)
    knows = Knows(labels=True, steps=True, lr=unknown == "images", examples=unknown == "learning rate")
    return Experiment(setup, SearchUnknowns(attack, search, setup.training.lr), knows)


def _setup(setting: Setting, request: Request) -> Setup:
    sizes = _sizes(setting, request)
    kind = "imagenet" if sum(sizes) <= LISTED else "imagenet-many"
    training = Training(setting.get("lr", LR), epochs=setting.get("steps", STEPS))
    network = NETWORKS[setting.get("network", "LeNet")]
    return peer_setup(f"{kind}@{request.side}-plain", network, training, sizes)


def _sizes(setting: Setting, request: Request) -> tuple[int, ...]:
    """Return the number of images of each client; if uneven, every second one has two thirds of a pair's."""
    share = (IMAGES if request.images is None else request.images) / IMAGES
    images, clients = max(1, round(setting.get("batch", IMAGES) * share)), int(setting["clients"])
    if setting.get("spread", "even") == "even":
        return (images,) * clients
    larger = round(2 * images * 2 / 3)
    return tuple(larger if i % 2 == 0 else 2 * images - larger for i in range(clients))


def _attack(method: str, setting: Setting, request: Request) -> Attack:
    attack = METHODS[method].attack(
        request, labels=LABELS.get(method, OracleLabels()), factor=FACTORS.get(method, FACTOR)
    )
    (stage,) = attack.stages
    if "rate" in setting and isinstance(stage.solver, Adam):
        stage = replace(stage, solver=replace(stage.solver, rate=setting["rate"]))
    return replace(attack, stages=(stage,))


def lemma(row: Row, method: str, request: Request) -> Experiment:
    """Measure the distance of Lemma 1 over one quantity, the others as in the paper's experiments if possible."""
    network, lr = SMOOTH[row.setting["network"]]
    setup = Setup(KIND_OF[row.setting["dataset"]], network, Training(lr), POOL)
    return Experiment(setup, _sweeps(lr)[row.setting["over"]])


def _sweeps(lr: float) -> Mapping[str, Divergence]:
    """Return the sweeps by the quantity that changes; each is in the quantity that the lemma has a power of."""
    rates = tuple(lr * share for share in (0.1, 0.3, 1.0))
    steps, clients, examples = (2, 3, 4, 6, 8), (2, 4, 8, 16), (16, 32, 64)
    of_steps = tuple(float(t * (t - 1)) for t in steps)
    of_clients = tuple(float(k - 1) for k in clients)
    return {
        "η": Divergence("η", rates, tuple(DivergenceSetting(rate, 3, 4, 32) for rate in rates)),
        "τ": Divergence("τ(τ-1)", of_steps, tuple(DivergenceSetting(lr, t, 4, 32) for t in steps)),
        "K": Divergence("K-1", of_clients, tuple(DivergenceSetting(lr, 3, k, 32) for k in clients)),
        "N": Divergence("N", tuple(map(float, examples)), tuple(DivergenceSetting(lr, 3, 4, n) for n in examples)),
    }


def reduced(of: Table, cells: Sequence[Cell]) -> list[str]:
    """Say how the runs differ from the paper's in size."""
    setups = [case.subject.experiment.setup for cell in cells for case in cell.cases]
    rounds = [setup for setup in setups if setup.sizes]
    if not rounds:
        return []
    sides = sorted({KINDS[setup.data].shape[1] for setup in rounds if "@" in setup.data})
    images = {IMAGES if cell.request.images is None else cell.request.images for cell in cells}
    counts = {sum(cell.experiment.probe.stages()) for cell in cells if cell.method not in INVERSIONS} - {0}
    sizes_here = [
        *(f"{side} x {side} pixels instead of 128 x 128" for side in sides if side < CURIOUS_SIDES[-1]),
        *(f"{count} images for every {IMAGES} of the paper's" for count in sorted(images) if count != IMAGES),
        *(f"{count} iterations instead of 100" for count in sorted(counts) if count != 100),
        f"rounds: {max(len({case.subject.client for case in cell.cases}) for cell in cells)}",
    ]
    shared = "Rounds are drawn from the same images where these are few, so that their spread is that of the draw."
    return [f"Reduced here: {'; '.join(sizes_here)}. {shared}"]


def _chosen(*names: str) -> dict[str, Method]:
    """Return these methods, and what needs no message next to them."""
    return {name: METHODS[name] for name in (*names, *YARDSTICKS)}


FIGURES = [f"curious-figure{number}" for number in (5, 6, 11, 12, 13, 14)] + ["curious-release"]
PAPER = Paper(
    {
        "curious-lemma1": Recreation(lemma),
        **dict.fromkeys(FIGURES, Recreation(inverted, _chosen("ours", "counted", "fast", "bound"))),
        "curious-search": Recreation(found_out),
        "curious-figure7": Recreation(refined, _chosen("ddrm")),
        "curious-figure15": Recreation(refined, _chosen("ddrm", "rog")),
        "curious-figure9": Recreation(late, _chosen("mde", "mi", "mi_hsic", "raw", "fast")),
    },
    sides=CURIOUS_SIDES,
    remarks=reduced,
)
