"""What the maliciously curious client's paper proves and promises, measured: Theorem 1, and the budgets of Table 2."""

from __future__ import annotations

from fedglass.attack.labels.given import OracleLabels
from fedglass.core.types import Training
from fedglass.recipes.maliciously_curious_client import maliciously_curious_client
from fedglass.reproduce.experiment import Experiment, round_of
from fedglass.reproduce.paper import Paper, Recreation
from fedglass.reproduce.populations import KIND_OF
from fedglass.reproduce.probes.theorem1 import Theorem1
from fedglass.reproduce.request import Request
from fedglass.reproduce.tables import Row
from fedglass.rounds.behaviour.behaviour import Behaviour
from fedglass.rounds.behaviour.honest import Honest
from fedglass.rounds.behaviour.sign_flip import SignFlip
from fedglass.rounds.views.view import Knows

LR, CLIP = 0.01, 4.0
"""Of Appendix C."""
SIZES = (2, 2, 2, 2)
"""Examples of each client: few enough for something to be read."""
AUDITED = (0, 1, 2, 4, 9, 19, 29)
ITERATIONS = 300
BEHAVIOURS: dict[str, Behaviour] = {"honest": Honest(), "sign flip": SignFlip(5.0)}
"""Flipped five times over, one of four clients turns the mean around."""


def bound(row: Row, method: str, request: Request) -> Experiment:
    """Theorem 1 on federated SGD of four clients, the network smooth as the proof demands."""
    iterations = request.iterations or ITERATIONS
    reader = maliciously_curious_client(OracleLabels(), rule="mean", iterations=iterations)
    setup = round_of(KIND_OF[row.setting["dataset"]], "lenet_tanh", Training(LR), SIZES)
    behaviour = BEHAVIOURS[row.setting["adversary"]]
    probe = Theorem1(reader, iterations, AUDITED, float(row.setting["noise"]), CLIP, behaviour)
    return Experiment(setup, probe, Knows(labels=True))


PAPER = Paper({"malicious-theorem1": Recreation(bound)})
