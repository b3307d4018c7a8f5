"""Attacks of a server that crafts the model: they need `adversary.view = "malicious_server"`, a simulation."""

from __future__ import annotations

from fedglass.attack.attack import Attack, Stage
from fedglass.attack.exact.exact import ExactAttack
from fedglass.attack.forward.gradients import OneGradient
from fedglass.attack.images.pixels import Pixels
from fedglass.attack.malicious_server import (
    BinReading,
    ClassLabel,
    ClassReading,
    Fishing,
    Imprint,
    MaliciousServer,
    TrapWeights,
)
from fedglass.attack.solvers.adam import SignedAdam
from fedglass.attack.solvers.schedules import StepDecay
from fedglass.attack.terms.distance import Cosine
from fedglass.attack.terms.priors import TotalVariation
from fedglass.core.registry import register


@register(
    "attacks",
    "imprint",
    summary="crafted rows that measure one number of an image, read by differences of rows",
    paper=(
        "Fowl, Geiping, Czaja, Goldblum, Goldstein: Robbing the Fed: Directly Obtaining Private Data in Federated "
        "Learning with Modified Models, ICLR 2022, https://arxiv.org/abs/2110.13057"
    ),
)
def imprint(bins: int = 256) -> MaliciousServer:
    """Return the attack with the mean input as the measured number; `bins` counts the units of an added block.

    A network that begins with a dense layer and ReLU gets no block: all units of that layer are bins.
    """
    return MaliciousServer(Imprint(bins), BinReading())


@register(
    "attacks",
    "trap_weights",
    summary="crafted rows that few images fire, read by dividing each row by its bias",
    paper=(
        "Boenisch, Dziedzic, Schuster, Shahin Shamsabadi, Shumailov, Papernot: When the Curious Abandon Honesty: "
        "Federated Learning Is Not Private, EuroS&P 2023, https://arxiv.org/abs/2112.02918"
    ),
)
def trap_weights(rate: float = 0.05, units: int = 512, gain: float = 100.0) -> MaliciousServer:
    """Return the attack with units that fire for `rate` of the public images; `units` counts those of an added block.

    An image is read where at least two rows agree on it. `gain` is the factor of the block's second layer.
    """
    return MaliciousServer(TrapWeights(rate, units, gain), ExactAttack(("division",)))


@register(
    "attacks",
    "fishing",
    summary="a crafted last layer that lets one class through, then gradient inversion of one image",
    paper=(
        "Wen, Geiping, Fowl, Goldblum, Goldstein: Fishing for User Data in Large-Batch Federated Learning via Gradient "
        "Magnification, ICML 2022, https://arxiv.org/abs/2202.00580"
    ),
)
def fishing(target: int = 0, tv: float = 0.01, iterations: int = 1000, restarts: int = 1) -> MaliciousServer:
    """Return the attack on the example of the class `target`; of several such examples it reads one mixture.

    REDUCED: the paper separates several examples of one class in further rounds; here there is one round.
    """
    solver = SignedAdam(rate=0.1, iterations=iterations, schedule=StepDecay())
    stage = Stage(OneGradient(), Pixels(), Cosine() + tv * TotalVariation(share=0.5), solver)
    return MaliciousServer(Fishing(target), ClassReading(Attack(ClassLabel(target), (stage,), restarts=restarts)))
