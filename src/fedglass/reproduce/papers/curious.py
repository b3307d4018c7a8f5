"""The figures of the curious client [Federated learning nodes can reconstruct peers' image data] as experiments."""

from __future__ import annotations

from collections.abc import Mapping

from fedglass.core.types import Training
from fedglass.reproduce.experiment import Experiment, Setup
from fedglass.reproduce.paper import Paper, Recreation
from fedglass.reproduce.populations import KIND_OF
from fedglass.reproduce.probes.divergence import Divergence, Place, Sweep
from fedglass.reproduce.request import Request
from fedglass.reproduce.tables import Row

SMOOTH = {"LeNet, sigmoid": ("lenet", 0.0003), "LeNet, tanh": ("lenet_tanh", 0.003)}
"""Small networks with a rate at which the lemma's neglected terms are small: steep networks need a smaller one."""
POOL = 256
"""Examples that the clients' are drawn from."""


def lemma(row: Row, method: str, request: Request) -> Experiment:
    """Lemma 1: the distance over one quantity, the others as in the paper's experiments where they can be."""
    network, lr = SMOOTH[row.setting["network"]]
    setup = Setup(KIND_OF[row.setting["dataset"]], network, Training(lr), POOL)
    return Experiment(setup, Divergence(_sweeps(lr)[row.setting["over"]]))


def _sweeps(lr: float) -> Mapping[str, Sweep]:
    """By what changes; each in the quantity that the lemma has a power of."""
    rates = tuple(lr * share for share in (0.1, 0.3, 1.0))
    steps, clients, examples = (2, 3, 4, 6, 8), (2, 4, 8, 16), (16, 32, 64)
    return {
        "η": Sweep("η", rates, tuple(Place(rate, 3, 4, 32) for rate in rates)),
        "τ": Sweep("τ(τ-1)", tuple(float(t * (t - 1)) for t in steps), tuple(Place(lr, t, 4, 32) for t in steps)),
        "K": Sweep("K-1", tuple(float(k - 1) for k in clients), tuple(Place(lr, 3, k, 32) for k in clients)),
        "N": Sweep("N", tuple(map(float, examples)), tuple(Place(lr, 3, 4, n) for n in examples)),
    }


PAPER = Paper({"curious-lemma1": Recreation(lemma)})
