"""The tables and figures of the maliciously curious client [Byzantine Outside, Curious Inside] as experiments."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from fedglass.core.types import Training
from fedglass.defend.ghost import GhostDPSGD
from fedglass.fl.aggregate.coordinates import Median
from fedglass.fl.aggregate.dnc import DnC
from fedglass.fl.aggregate.freqfed import FreqFed
from fedglass.fl.aggregate.krum import Krum
from fedglass.fl.aggregate.mean import WeightedMean
from fedglass.fl.aggregate.rule import Aggregator
from fedglass.fl.local import GradientFn, MeanGradient
from fedglass.models.init import KaimingUniform
from fedglass.reproduce.cases import Cell
from fedglass.reproduce.experiment import Course, Experiment, Setup
from fedglass.reproduce.paper import Paper, Recreation
from fedglass.reproduce.populations import KIND_OF
from fedglass.reproduce.probes.accuracy import Accuracy
from fedglass.reproduce.request import Request
from fedglass.reproduce.tables import Row, Table
from fedglass.rounds.behaviour.backdoor import Backdoor
from fedglass.rounds.behaviour.behaviour import Behaviour
from fedglass.rounds.behaviour.gaussian import Gaussian
from fedglass.rounds.behaviour.honest import Honest
from fedglass.rounds.behaviour.sign_flip import SignFlip

CLIENTS, STEPS, BATCH, LR, ALPHA = 10, 5, 100, 0.01, 0.1
"""Appendix C."""
ROUNDS, EXAMPLES = 20, 1000
"""Of a federation, and of each of its clients: chosen here."""
NETWORK = "lenet5"
CLIP = 4.0
SIGMA = 3.0
"""Of the noise beside a robust rule."""
POISONS: Mapping[str, Behaviour] = {
    "passive": Honest(),
    "backdoor": Backdoor(),
    "gaussian": Gaussian(),
    "flip": SignFlip(),
}
RULES: Mapping[str, Aggregator] = {
    "mean": WeightedMean(),
    "dnc": DnC(),
    "freqfed": FreqFed(),
    "median": Median(),
    "krum": Krum(),
}
NOISE: Mapping[str, GradientFn] = {
    "none": MeanGradient(),
    **{f"dp{sigma:g}": GhostDPSGD(CLIP, sigma) for sigma in (3.0, 5.0, 7.0)},
}


def poisoned(row: Row, method: str, request: Request) -> Experiment:
    """Table 1: a method is what the adversary sends."""
    return _tested(row, request, Course(_rounds(request), behaviour=POISONS[method], alpha=ALPHA))


def noised(row: Row, method: str, request: Request) -> Experiment:
    """Table 2: a method is the noise of the others."""
    course = Course(_rounds(request), behaviour=POISONS[row.setting["poison"]], alpha=ALPHA)
    return _tested(row, request, course, NOISE[method])


def combined(row: Row, method: str, request: Request) -> Experiment:
    """Tables 3 and 4: a method is the server's rule, alone or beside noise."""
    name, _, noise = method.partition("-")
    course = Course(_rounds(request), RULES[name], POISONS[row.setting["poison"]], ALPHA)
    return _tested(row, request, course, GhostDPSGD(CLIP, SIGMA) if noise else MeanGradient())


def _rounds(request: Request) -> int:
    return request.rounds or ROUNDS


def _tested(row: Row, request: Request, course: Course, gradient: GradientFn | None = None) -> Experiment:
    setup = Setup(
        KIND_OF[row.setting["dataset"]],
        NETWORK,
        Training(LR, batch_size=BATCH, steps=STEPS),
        request.images or EXAMPLES,
        KaimingUniform(),
        CLIENTS,
        gradient or MeanGradient(),
        course=course,
    )
    return Experiment(setup, Accuracy())


def reduced(of: Table, cells: Sequence[Cell]) -> list[str]:
    """How the runs differ from the paper's in size."""
    rounds = sorted({cell.experiment.setup.course.rounds for cell in cells if cell.experiment.setup.course})
    return [f"Rounds here: {', '.join(map(str, rounds))}; the paper does not say how many it has."]


PAPER = Paper(
    {
        "malicious-table1": Recreation(poisoned),
        "malicious-table2": Recreation(noised),
        "malicious-table3": Recreation(combined),
        "malicious-table4": Recreation(combined),
    },
    remarks=reduced,
)
