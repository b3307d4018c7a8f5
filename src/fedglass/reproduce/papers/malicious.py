"""The tables and figures of the maliciously curious client [Byzantine Outside, Curious Inside] as experiments."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from fedglass.attack.best_of import AnyAttack
from fedglass.attack.images.latent import OWN
from fedglass.attack.labels.given import OracleLabels
from fedglass.core.types import Training
from fedglass.defend.dpsgd import GhostDPSGD
from fedglass.federation.behaviour.behaviour import Behaviour, Honest
from fedglass.federation.behaviour.poison import Backdoor, Gaussian, SignFlip
from fedglass.federation.views import Knows
from fedglass.fl.aggregate.clustering import FreqFed
from fedglass.fl.aggregate.coordinates import Median
from fedglass.fl.aggregate.rule import Aggregator, WeightedMean
from fedglass.fl.aggregate.selection import DnC, Krum
from fedglass.fl.local import GradientFn, MeanGradient
from fedglass.models.init import Initialisation, KaimingUniform, LeCunTruncatedNormal, Orthogonal, PyTorchDefault
from fedglass.recipes.inverting_gradients import inverting_gradients_published
from fedglass.recipes.maliciously_curious_client import (
    maliciously_curious_client,
    maliciously_curious_client_published,
)
from fedglass.reproduce.cases import Cell
from fedglass.reproduce.paper import Course, Experiment, Method, Paper, Recreation, Setup, Trained, round_of
from fedglass.reproduce.populations import KIND_OF
from fedglass.reproduce.probes.peer import Accuracy, Read
from fedglass.reproduce.tables import Request, Row, Setting, Table

CLIENTS, STEPS, BATCH, LR, ALPHA = 10, 5, 100, 0.01, 0.1
"""Appendix C."""
ROUNDS, EXAMPLES, ITERATIONS = 20, 1000, 80
"""Of a federation, of each of its clients, and of an attack: chosen here."""
NETWORK = "lenet5"
DECODER = "autoencoder"
"""A folder among the trained networks that are given."""
LATENT_RATE = 0.1
"""Of Adam on codes: the paper's 0.01 and less need more iterations than a CPU can bear."""
CLIP, SIGMA = 4.0, 3.0
"""Of each example's gradient, and of the noise beside a robust rule."""
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
SUPPOSED = {"median": "median", "krum": "one_client"}
"""What the adversary takes the rule for, where not for a mean."""
INITS: Mapping[str, Initialisation] = {
    "default": PyTorchDefault(),
    "Kaiming": KaimingUniform(),
    "LeCun": LeCunTruncatedNormal(),
    "Orthogonal": Orthogonal(),
}


def poisoned(row: Row, method: str, request: Request) -> Experiment:
    """Table 1: a method is what the adversary sends."""
    return _tested({**row.setting, "poison": method}, request)


def noised(row: Row, method: str, request: Request) -> Experiment:
    """Table 2: a method is the noise of the others."""
    return _tested({**row.setting, "noise": float(method.removeprefix("dp"))}, request)


def combined(row: Row, method: str, request: Request) -> Experiment:
    """Tables 3 and 4: a method is the server's rule, alone or beside noise."""
    rule, _, noise = method.partition("-")
    return _tested({**row.setting, "rule": rule, "noise": SIGMA if noise else 0.0}, request)


def read(row: Row, method: str, request: Request) -> Experiment:
    """The figures and Table 5: a round as the adversary sees it.

    Each client has as many examples as a batch, and takes all of them in every local step: the attack has one such
    batch for each client.
    """
    setting = row.setting
    each, clients = request.images or int(setting.get("batch", BATCH)), int(setting.get("clients", CLIENTS))
    course = _course(setting, int(setting["round"]), setting.get("alpha", ALPHA))
    name, training = setting.get("network", NETWORK), Training(LR, epochs=STEPS)
    setup = round_of(KIND_OF[setting["dataset"]], name, training, (each,) * clients)
    setup = replace(setup, init=INITS[setting.get("init", "Kaiming")], gradient=_gradient(setting), course=course)
    probe = Read(_reader(method, setting, request), request.iterations or ITERATIONS)
    return Experiment(setup, probe, Knows(labels=True))


def _published(rule: str, iterations: int, decoder: str) -> AnyAttack:
    """As published, but for a rate that suits fewer iterations; of its surrogates the one that fits the rule."""
    tried = maliciously_curious_client_published(OracleLabels(), decoder, LATENT_RATE, iterations)
    wanted = "soft_median" if rule == "median" else rule
    return replace(tried, attack=tuple((name, attack) for name, attack in tried.attack if name == wanted))


def _reader(method: str, setting: Setting, request: Request) -> AnyAttack:
    """The attack, told the labels of each client and what the rule is: the paper's tries several rules."""
    rule, iterations = SUPPOSED.get(setting.get("rule", "mean"), "mean"), request.iterations or ITERATIONS
    if method == "invertgrad":
        return inverting_gradients_published(OracleLabels(), iterations=iterations)
    if method == "published":
        return _published(rule, iterations, request.weights.get(DECODER, OWN))
    return maliciously_curious_client(OracleLabels(), rule=rule, iterations=iterations)


def _course(setting: Setting, rounds: int, alpha: float | None = ALPHA) -> Course:
    return Course(rounds, RULES[setting.get("rule", "mean")], POISONS[setting["poison"]], alpha)


def _gradient(setting: Setting) -> GradientFn:
    sigma = float(setting.get("noise", 0.0))
    return GhostDPSGD(CLIP, sigma) if sigma else MeanGradient()


def _tested(setting: Setting, request: Request) -> Experiment:
    setup = Setup(
        KIND_OF[setting["dataset"]],
        NETWORK,
        Training(LR, batch_size=BATCH, steps=STEPS),
        request.images or EXAMPLES,
        KaimingUniform(),
        CLIENTS,
        _gradient(setting),
        course=_course(setting, request.rounds or ROUNDS),
    )
    return Experiment(setup, Accuracy())


def network(setting: Setting) -> Trained | None:
    """An autoencoder, in place of one that the adversary trains on its own examples."""
    return Trained(DECODER, needed=False) if "round" in setting else None


def reduced(of: Table, cells: Sequence[Cell]) -> list[str]:
    """How the runs differ from the paper's in size."""
    courses = [setup.course for cell in cells if (setup := cell.experiment.setup).course is not None]
    rounds = sorted({course.rounds for course in courses if course is not None})
    read_ = [cell for cell in cells if cell.experiment.setup.sizes]
    if not read_:
        return [f"Rounds here: {_listed(rounds)}; the paper does not say how many it has."]
    sizes = sorted({cell.experiment.setup.sizes[0] for cell in read_})
    clients = sorted({len(cell.experiment.setup.sizes) for cell in read_})
    iterations = sorted({probe.iterations for cell in read_ if isinstance(probe := cell.experiment.probe, Read)})
    return [
        f"Here {_listed(clients)} clients with {_listed(sizes)} images each, where the paper has {CLIENTS} with "
        f"{BATCH}; {_listed(iterations)} iterations, a number that the paper does not give; seen in round "
        f"{_listed(rounds)}."
    ]


def _listed(numbers: Sequence[int]) -> str:
    return ", ".join(map(str, numbers))


BESIDE = {
    "published": Method("maliciously_curious_client_published", "Maliciously curious client (codes of an autoencoder)"),
    "ours": Method("maliciously_curious_client", "this package's maliciously_curious_client (pixels)"),
    "invertgrad": Method("inverting_gradients_published", "InvertGrad"),
}
READ = ["malicious-table5", *(f"malicious-figure{number}" for number in range(2, 7)), "malicious-rounds"]
PAPER = Paper(
    {
        "malicious-table1": Recreation(poisoned),
        "malicious-table2": Recreation(noised),
        "malicious-table3": Recreation(combined),
        "malicious-table4": Recreation(combined),
        **dict.fromkeys(READ, Recreation(read, BESIDE)),
    },
    network=network,
    remarks=reduced,
)
