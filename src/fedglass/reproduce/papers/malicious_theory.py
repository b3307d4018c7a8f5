"""What the maliciously curious client's paper proves and promises, measured: Theorem 1, and the budgets of Table 2."""

from __future__ import annotations

from fedglass.attack.labels.given import OracleLabels
from fedglass.core.types import Training
from fedglass.defend import accounting as opacus
from fedglass.defend.accounting import Mechanism, clt_epsilon, clt_uniform_epsilon, prv_epsilon, rdp_epsilon
from fedglass.federation.behaviours import Behaviour, Honest, SignFlip
from fedglass.federation.views import Knows
from fedglass.recipes.maliciously_curious_client import maliciously_curious_client
from fedglass.reproduce.compare import number
from fedglass.reproduce.paper import Comparison, Experiment, Paper, Recreation, round_of
from fedglass.reproduce.populations import KIND_OF
from fedglass.reproduce.probes.theory import Theorem1
from fedglass.reproduce.tables import Request, Row, Table

LR, CLIP = 0.01, 4.0
"""Of Appendix C."""
SIZES = (2, 2, 2, 2)
"""Examples of each client: few enough for something to be read."""
AUDITED = (0, 1, 2, 4, 9, 19, 29)
ITERATIONS = 300
BATCH, LOCAL_STEPS, DELTA = 100, 5, 1e-5
BESIDE = (("RDP", rdp_epsilon), ("PRV", prv_epsilon), ("CLT of Poisson batches", clt_epsilon))
"""Accountants beside the one that gives the paper's values, the central limit theorem of batches of one size."""
OF_OPACUS = ("RDP", "PRV")
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


def budgets(of: Table) -> Comparison:
    """Table 2's epsilon beside four accountants', for sizes that the paper may have had; it states none."""
    heads = ["σ", "images of a client", "rounds", *(name for name, _ in BESIDE), "q√T"]
    return Comparison(heads, [_accounted(row) for row in of.rows])


def _accounted(row: Row) -> list[str]:
    noise, examples, rounds = (row.setting[field] for field in ("noise", "examples", "rounds"))
    mechanism = Mechanism(float(noise), BATCH / examples, LOCAL_STEPS * rounds)
    beside = [
        f"{of(mechanism, DELTA):.2f}" if name not in OF_OPACUS or opacus.opacus_installed() else "-"
        for name, of in BESIDE
    ]
    printed = number(row.values["clt"]["epsilon"], 1)
    here = f"{clt_uniform_epsilon(mechanism, DELTA):.1f}"
    share = f"{mechanism.sample_rate * mechanism.steps**0.5:.3f}"
    return [str(noise), str(examples), str(rounds), *beside, share, printed, here]


PAPER = Paper({"malicious-theorem1": Recreation(bound)}, compared={"malicious-budgets": budgets})
