"""The tables of Surrogate Model Extension [Zhu, Yao, Blaschko, 2023] as experiments."""

from __future__ import annotations

from fedglass.attack.labels.given import OracleLabels
from fedglass.core.types import Training
from fedglass.federation.views import Knows
from fedglass.reproduce.image_sources import KIND_OF
from fedglass.reproduce.paper import Experiment, Paper, Recreation, Setup, WarmUp, methods_of
from fedglass.reproduce.papers.dlfa import NETWORKS, RECOVERED
from fedglass.reproduce.probes.geometry import Geometry, SegmentBounds
from fedglass.reproduce.probes.reconstruct import Reconstruct
from fedglass.reproduce.tables import Request, Row, Setting

LR, LENET_LR = 0.004, 0.4
OTHER_NETWORKS = {"MLP": "mlp_sme", "LeNet": "lenet_tanh_sme", "ResNet8": "resnet8", "ViT": "vit_sme"}
"""The networks of Table 7 as released."""
VIT_RATE = 0.1
METHODS = methods_of("sme")
WARM_UP, SENT = Training(LR, epochs=10, batch_size=50), 0.1
"""The training before a later round, and the share of the clients that send their weights back (Appendix D)."""


def images(row: Row, method: str, request: Request) -> Experiment:
    """Attack with known labels, scored by mean PSNR and cosine (Tables 2, 3, 6 and 7 and Figure 6)."""
    data = KIND_OF[row.setting["dataset"]]
    options: dict[str, object] = {"setting": data} if "dlfa" in method else {}
    if row.setting.get("network") == "ViT" and method in ("ig", "sme"):
        options = {"rate": VIT_RATE, "decay": False}
    attack = METHODS[method].attack(request, labels=OracleLabels(), **options)
    return Experiment(_setup(row.setting), Reconstruct(attack, RECOVERED[data], "error"), Knows(labels=True))


def geometry(row: Row, method: str, request: Request) -> Experiment:
    """Measure the geometry of the training (Tables 1, 4 and 5 with Figures 3, 4 and 7 to 10)."""
    return Experiment(_setup(row.setting), Geometry())


def bounds(row: Row, method: str, request: Request) -> Experiment:
    """Compute both theorems' bounds along the training (Theorems 4.3 and 4.5)."""
    return Experiment(_setup(row.setting), SegmentBounds())


def _setup(setting: Setting) -> Setup:
    data, network = KIND_OF[setting["dataset"]], setting.get("network")
    lr = LENET_LR if network == "LeNet" else LR
    trained = setting.get("round", 1)
    return Setup(
        data,
        NETWORKS[data] if network is None else OTHER_NETWORKS[network],
        Training(lr, setting["epochs"], setting["batch"]),
        setting["examples"],
        # R = 1 is the untrained network, R = 5 the one saved at the end of round 5.
        warm_up=None if trained == 1 else WarmUp(trained, WARM_UP, share=SENT),
    )


PAPER = Paper(
    tables={
        **{f"sme-table{number}": Recreation(geometry) for number in (1, 4, 5)},
        **{f"sme-theorem{number}": Recreation(bounds) for number in (43, 45)},
        **{f"sme-{name}": Recreation(images, METHODS) for name in ("table2", "table3", "table6", "table7", "figure6")},
    }
)
