"""The defences by name, for plans and for the command line.

A defence is either a `Release` (what is done to the update as it leaves) or a `GradientFn` (how the gradient
inside a local step is taken). `fl.release.Chain` puts releases one after another.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from fedglass.core.errors import UsageError, unknown_name
from fedglass.defend.clip import Clip
from fedglass.defend.dpsgd import DPSGD
from fedglass.defend.gaussian_noise import GaussianNoise
from fedglass.defend.laplacian_noise import LaplacianNoise
from fedglass.defend.magnitude_pruning import LayerMagnitudePruning, MagnitudePruning
from fedglass.defend.outpost import Outpost, OutputMean
from fedglass.defend.per_example import PerExample
from fedglass.defend.random_pruning import LayerRandomPruning, RandomDrop, RandomPruning
from fedglass.defend.same_each_epoch import SameEachEpoch
from fedglass.defend.soteria import Soteria, SoteriaReleased
from fedglass.fl.local import GradientFn
from fedglass.fl.release import Release


@dataclass(frozen=True)
class Defence:
    """A defence: how to make it, in one line, and where it comes from."""

    make: Callable[..., Release | GradientFn]
    summary: str
    paper: str


def gaussian_noise_per_example(std: float) -> PerExample:
    """Gaussian noise on each example's gradient."""
    return PerExample(GaussianNoise(std))


def gaussian_noise_released(std: float) -> SameEachEpoch:
    """The same, repeated in every epoch as in the release of DLFA."""
    return SameEachEpoch(PerExample(GaussianNoise(std)))


def laplacian_noise_per_example(scale: float) -> PerExample:
    """Laplacian noise on each example's gradient."""
    return PerExample(LaplacianNoise(scale))


def laplacian_noise_released(scale: float) -> SameEachEpoch:
    """The same, repeated in every epoch as in the release of DLFA."""
    return SameEachEpoch(PerExample(LaplacianNoise(scale)))


def random_drop_per_example(probability: float) -> PerExample:
    """Entries of each example's gradient dropped at random."""
    return PerExample(RandomDrop(probability))


def random_drop_released(probability: float) -> SameEachEpoch:
    """The same, repeated in every epoch as in the release of DLFA."""
    return SameEachEpoch(PerExample(RandomDrop(probability)))


def outpost_released(noise: float = 0.8, pruned: float = 0.8, perturbed: float = 0.4, decay: float = 0.125) -> Outpost:
    """OUTPOST with the Fisher information as plato computes it."""
    return Outpost(noise, pruned, perturbed, decay, OutputMean())


ABADI = (
    "Abadi, Chu, Goodfellow, McMahan, Mironov, Talwar, Zhang: Deep Learning with Differential Privacy, CCS 2016, "
    "https://arxiv.org/abs/1607.00133"
)
DLFA = (
    "Dimitrov, Balunović, Konstantinov, Vechev: Data Leakage in Federated Averaging, TMLR 2022, "
    "https://openreview.net/forum?id=e7A0B99zJf"
)
DLG = "Zhu, Liu, Han: Deep Leakage from Gradients, NeurIPS 2019, https://arxiv.org/abs/1906.08935"
SOTERIA = (
    "Sun, Li, Wang, Yang, Li, Chen: Soteria: Provable Defense against Privacy Leakage in Federated Learning from "
    "Representation Perspective, CVPR 2021, https://arxiv.org/abs/2012.06043"
)
OUTPOST = (
    "Wang, Hugh, Li: More than Enough is Too Much: Adaptive Defenses against Gradient Leakage in Production "
    "Federated Learning, INFOCOM 2023, https://github.com/TL-System/plato"
)

DEFENCES: Mapping[str, Defence] = {
    "clip": Defence(Clip, "the update scaled down to a maximal L2 norm", ABADI),
    "gaussian_noise": Defence(GaussianNoise, "Gaussian noise on the update", DLFA),
    "laplacian_noise": Defence(LaplacianNoise, "Laplacian noise on the update", DLFA),
    "magnitude_pruning": Defence(MagnitudePruning, "the update's smallest entries set to zero", DLG),
    "layer_magnitude_pruning": Defence(LayerMagnitudePruning, "each layer's smallest entries set to zero", DLG),
    "random_pruning": Defence(RandomPruning, "an exact share of the update's entries set to zero at random", DLFA),
    "layer_random_pruning": Defence(LayerRandomPruning, "an exact share of each layer set to zero at random", DLFA),
    "random_drop": Defence(RandomDrop, "each entry of the update set to zero with a probability", DLFA),
    "gaussian_noise_per_example": Defence(
        gaussian_noise_per_example, "Gaussian noise on each example's gradient in every local step", DLFA
    ),
    "gaussian_noise_released": Defence(
        gaussian_noise_released, "the same with noise that repeats in every epoch, as released", DLFA
    ),
    "laplacian_noise_per_example": Defence(
        laplacian_noise_per_example, "Laplacian noise on each example's gradient in every local step", DLFA
    ),
    "laplacian_noise_released": Defence(
        laplacian_noise_released, "the same with noise that repeats in every epoch, as released", DLFA
    ),
    "random_drop_per_example": Defence(
        random_drop_per_example, "random entries of each example's gradient set to zero in every local step", DLFA
    ),
    "random_drop_released": Defence(
        random_drop_released, "the same with choices that repeat in every epoch, as released", DLFA
    ),
    "dpsgd": Defence(DPSGD, "examples' gradients clipped, Gaussian noise, in every local step", ABADI),
    "soteria": Defence(Soteria, "each example's representation pruned where it tells most", SOTERIA),
    "soteria_released": Defence(SoteriaReleased, "the same with one mask for the batch, as released", SOTERIA),
    "outpost": Defence(Outpost, "pruning and selective noise, fading with the local steps", OUTPOST),
    "outpost_released": Defence(outpost_released, "the same with plato's Fisher information", OUTPOST),
}


def defence(name: str, **options: object) -> Release | GradientFn:
    """The defence of that name with the given options.

    >>> defence("magnitude_pruning", share=0.7)
    MagnitudePruning(share=0.7)
    """
    if name not in DEFENCES:
        raise unknown_name("defence", name, DEFENCES)
    known = inspect.signature(DEFENCES[name].make).parameters
    for option in options:
        if option not in known:
            raise UsageError(f"Defence {name!r}: {unknown_name('option', option, known)}")
    missing = [o for o, p in known.items() if p.default is p.empty and o not in options]
    if missing:
        raise UsageError(f"Defence {name!r} needs the option {missing[0]!r}: give it a number.")
    return DEFENCES[name].make(**options)


def names() -> dict[str, str]:
    """Name, one-line summary and source of every defence.

    >>> names()["clip"]
    'the update scaled down to a maximal L2 norm [Abadi, Chu, ...'
    """
    return {name: f"{entry.summary} [{entry.paper}]" for name, entry in DEFENCES.items()}
