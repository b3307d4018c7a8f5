"""The tables of Data Leakage in Federated Averaging [Dimitrov et al., 2022] as experiments."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace

from torch import nn

from fedglass.attack.attack import Attack
from fedglass.attack.labels.counts import CountsAfter, CountsBefore, InterpolatedCounts
from fedglass.attack.labels.given import OracleBatchLabels, OracleLabels
from fedglass.attack.parts import Labels
from fedglass.core.types import Training
from fedglass.defend.noise import GaussianNoise, LaplacianNoise
from fedglass.defend.per_example import PerExample, SameEachEpoch
from fedglass.defend.pruning import RandomDrop
from fedglass.federation.views import Knows
from fedglass.fl.release import Release
from fedglass.metrics.catalogue import DLFA_CIFAR100_DB, DLFA_FEMNIST_DB
from fedglass.models.catalogue import build
from fedglass.models.init import LeCunTruncatedNormal
from fedglass.reproduce.image_sources import KIND_OF, KINDS
from fedglass.reproduce.paper import Comparison, Experiment, Paper, Recreation, Setup, WarmUp, methods_of
from fedglass.reproduce.probes.reconstruct import CountLabels, Reconstruct, TryTrainings
from fedglass.reproduce.tables import Request, Row, Setting, Table

LR = 0.004
NETWORKS = {"femnist": "femnist_cnn", "cifar100": "cifar_cnn"}
RECOVERED = {"femnist": DLFA_FEMNIST_DB, "cifar100": DLFA_CIFAR100_DB}
METHODS = methods_of("dlfa")
"""The paper's, its cosine as printed, and a better solver."""
UNKNOWN = "unknown", "fast-unknown"
"""Methods that know the number of local steps only, and try the epochs that divide it."""
COUNTS: Mapping[str, Labels] = {
    "interpolated": InterpolatedCounts(),
    "before": CountsBefore(),
    "after": CountsAfter(),
}
DEFENCES: Mapping[str, Callable[[float], Release]] = {
    "Gaussian Noise": GaussianNoise,
    "Laplacian Noise": LaplacianNoise,
    "Random Pruning": RandomDrop,
}


def _attack(method: str, request: Request, labels: Labels, data: str) -> Attack:
    return METHODS[method].attack(request, labels=labels, setting=data)


def known_counts(row: Row, method: str, request: Request) -> Experiment:
    """Attack with known label counts, but unknown batches (Tables 1, 7, 10 and 11)."""
    return _reconstructed(row, method, request, OracleLabels(), Knows(labels=True))


def counted_labels(row: Row, method: str, request: Request) -> Experiment:
    """Count the labels without images (Table 2)."""
    return Experiment(_setup(row.setting, KIND_OF[row.setting["dataset"]]), CountLabels(COUNTS[method]))


def recovered_counts(row: Row, method: str, request: Request) -> Experiment:
    """Attack with label counts that are recovered first (Table 3)."""
    return _reconstructed(row, method, request, InterpolatedCounts(), Knows())


def priors(row: Row, method: str, request: Request) -> Experiment:
    """Attack with other priors (Table 4); the columns are the data sets."""
    chosen = {"summary": row.setting["summary"].replace(" + ", "_"), "distance": row.setting["distance"]}
    attack = METHODS["prior"].attack(request, labels=OracleLabels(), setting=method, **chosen)
    return Experiment(_setup(row.setting, method), _images(attack, method), Knows(labels=True))


def batch_counts(row: Row, method: str, request: Request) -> Experiment:
    """Attack with known labels of each batch (Table 8); methods without batches do not need them."""
    experiment = known_counts(row, method, request)
    training = replace(experiment.setup.training, shuffle=bool(row.setting["random"]))
    experiment = replace(experiment, setup=replace(experiment.setup, training=training))
    if not row.setting["batch_counts"] or method in ("fedsgd-epoch", "fedsgd", *UNKNOWN):
        return experiment
    data = experiment.setup.data
    attack = _attack(method, request, OracleBatchLabels(), data)
    return replace(experiment, probe=_images(attack, data), knows=Knows(labels=True, batch_labels=True))


def supposed_training(row: Row, method: str, request: Request) -> Experiment:
    """Attack with wrong assumptions about the training (Table 9)."""
    experiment = known_counts(row, method, request)
    if method in UNKNOWN:
        return experiment
    supposed = Training(LR, row.setting["epochs_chosen"], row.setting["batch_chosen"])
    return replace(experiment, supposed=None if supposed == experiment.setup.training else supposed)


def defended(row: Row, method: str, request: Request) -> Experiment:
    """Attack defended clients (Table 6)."""
    experiment, name = known_counts(row, method, request), row.setting["defence"]
    if name not in DEFENCES:
        return experiment
    # The release draws the same noise in every epoch again.
    gradient = SameEachEpoch(PerExample(DEFENCES[name](row.setting["strength"])))
    return replace(experiment, setup=replace(experiment.setup, gradient=gradient))


def _setup(setting: Setting, data: str) -> Setup:
    training = Training(LR, setting["epochs"], setting["batch"])
    before = setting.get("round", 1) - 1
    return Setup(
        data,
        NETWORKS[data],
        training,
        setting["examples"],
        LeCunTruncatedNormal(),
        clients=setting.get("clients", 1),
        warm_up=WarmUp(before, training, setting["examples"]) if before else None,
    )


def _reconstructed(row: Row, method: str, request: Request, labels: Labels, knows: Knows) -> Experiment:
    """Return the method's attack on the row's clients; it knows their training, or tries several."""
    data = KIND_OF[row.setting["dataset"]]
    setup, probe = _setup(row.setting, data), _images(_attack(method, request, labels, data), data)
    if method in UNKNOWN:
        return Experiment(setup, TryTrainings(probe), replace(knows, training=False, steps=True))
    return Experiment(setup, probe, knows)


def _images(attack: Attack, data: str) -> Reconstruct:
    return Reconstruct(attack, RECOVERED[data], "psnr")


def networks(of: Table) -> Comparison:
    """Compare every printed layer with the one that is built (Table 5)."""
    lines, measured = list[tuple[str, str, str, str]](), dict[tuple[int, str], dict[str, float]]()
    for data, title in of.methods.items():
        kind = KINDS[data]
        built_layers = list(layers(build(NETWORKS[data], shape=kind.shape, classes=kind.classes)))
        for row in of.rows:
            printed, built = str(row.values[data]["layer"]), built_layers[row.number - 1]
            lines.append((title, str(row.number), printed, built))
            measured[row.number, data] = {"same_layer": float(printed == built)}
    return Comparison(("data set", "layer"), lines, measured)


def layers(model: nn.Module) -> Iterator[str]:
    """Yield the layers of a network in the paper's words, without flattening.

    >>> list(layers(nn.Sequential(nn.Conv2d(1, 2, 3, padding=1), nn.ReLU(), nn.Flatten(), nn.Linear(4, 2))))[0]
    'Conv2d(in_channels=1, out_channels=2, kernel_size=3, stride=1, padding=1)'
    """
    for layer in model.modules():
        if isinstance(layer, nn.Conv2d):
            size, stride, padding = layer.kernel_size[0], layer.stride[0], layer.padding
            yield (
                f"Conv2d(in_channels={layer.in_channels}, out_channels={layer.out_channels}, kernel_size={size}, "
                f"stride={stride}, padding={padding if isinstance(padding, str) else padding[0]})"
            )
        elif isinstance(layer, nn.Linear):
            yield f"Linear(in_features={layer.in_features}, out_features={layer.out_features})"
        elif isinstance(layer, nn.AvgPool2d):
            yield f"AvgPool2d(kernel_size={layer.kernel_size}, stride={layer.stride})"
        elif isinstance(layer, nn.ReLU):
            yield "ReLU()"


METHOD_TABLES = {
    "dlfa-table3": recovered_counts,
    "dlfa-table6": defended,
    "dlfa-table8": batch_counts,
    "dlfa-table9": supposed_training,
    **{f"dlfa-table{number}": known_counts for number in (1, 7, 10, 11)},
}
PAPER = Paper(
    tables={
        "dlfa-table2": Recreation(counted_labels),
        "dlfa-table4": Recreation(priors),
        **{name: Recreation(experiment, METHODS) for name, experiment in METHOD_TABLES.items()},
    },
    compared={"dlfa-table5": networks},
)
