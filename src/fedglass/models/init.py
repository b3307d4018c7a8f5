"""Initial weights: parts that fill a model's layers from a generator.

Unless they say otherwise, they set normalisation layers to the identity (weight 1, bias 0, running mean 0,
running variance 1) and leave parameters of other than dense, convolution and normalisation layers as they
are.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Protocol

from torch import Generator, Tensor, nn
from torch.nn.modules.batchnorm import _NormBase
from torch.nn.modules.conv import _ConvNd

from fedglass.core.errors import UsageError
from fedglass.core.papers import DLFA, DLG
from fedglass.core.registry import register
from fedglass.models.weights import load_weights

Weighted = nn.Linear | _ConvNd
Norm = _NormBase | nn.LayerNorm | nn.GroupNorm


KAIMING = "He, Zhang, Ren, Sun: Delving Deep into Rectifiers, ICCV 2015, https://arxiv.org/abs/1502.01852"


class Initialisation(Protocol):
    """Fills the weights of a model in place."""

    def apply(self, model: nn.Module, generator: Generator) -> None: ...


@register(
    "initialisations",
    "default",
    summary="what PyTorch's layers draw when they are made: U(-1/sqrt(fan in), 1/sqrt(fan in))",
)
@dataclass(frozen=True)
class PyTorchDefault:
    """What PyTorch's layers draw when they are made: weights and biases ~ U(-1/sqrt(fan in), 1/sqrt(fan in)).

    >>> layer = nn.Linear(4, 2)
    >>> PyTorchDefault().apply(layer, Generator().manual_seed(0))
    >>> bool(layer.weight.abs().max() <= 0.5)
    True
    """

    def apply(self, model: nn.Module, generator: Generator) -> None:
        for layer in _weighted(model):
            nn.init.kaiming_uniform_(layer.weight, a=math.sqrt(5), generator=generator)
            if layer.bias is not None:
                bound = 1 / math.sqrt(max(_fan_in(layer.weight), 1))
                nn.init.uniform_(layer.bias, -bound, bound, generator=generator)
        _reset_norms(model)


@register(
    "initialisations",
    "kaiming_uniform",
    summary="weights ~ U(-b, b) with b = sqrt(6 / fan in), biases zero",
    paper=KAIMING,
)
@dataclass(frozen=True)
class KaimingUniform:
    """Weights ~ U(-b, b) with b = sqrt(6 / fan in), biases zero [He et al., 2015]."""

    def apply(self, model: nn.Module, generator: Generator) -> None:
        for layer in _weighted(model):
            nn.init.kaiming_uniform_(layer.weight, nonlinearity="relu", generator=generator)
        _zero_biases(model)
        _reset_norms(model)


@register("initialisations", "kaiming_normal", summary="weights ~ N(0, 2 / fan), biases zero", paper=KAIMING)
@dataclass(frozen=True)
class KaimingNormal:
    """Weights ~ N(0, 2 / fan), biases zero [He et al., 2015].

    The fan of a convolution is what leaves it, as in torchvision's ResNet; that of a dense layer is what
    enters it, since with few classes the other choice gives logits in the tens. (torchvision leaves its one
    dense layer at PyTorch's default.)
    """

    def apply(self, model: nn.Module, generator: Generator) -> None:
        for layer in _weighted(model):
            std = math.sqrt(2 / (_fan_in(layer.weight) if isinstance(layer, nn.Linear) else _fan_out(layer.weight)))
            nn.init.normal_(layer.weight, 0.0, std, generator=generator)
        _zero_biases(model)
        _reset_norms(model)


@register(
    "initialisations",
    "lecun",
    summary="weights ~ N(0, s^2) cut at 2 s, variance 1 / fan in, biases zero; DLFA's",
    paper=DLFA,
)
@dataclass(frozen=True)
class LeCunTruncatedNormal:
    """Weights ~ N(0, s^2) cut at 2 s, variance 1 / fan in after the cut, biases zero [LeCun et al., 1998].

    The initial weights of DLFA [Dimitrov et al., 2022], with the constants of `lecun_normal` in JAX.
    """

    def apply(self, model: nn.Module, generator: Generator) -> None:
        for layer in _weighted(model):
            # 0.8796 is the deviation of a standard normal cut at two deviations.
            std = math.sqrt(1 / _fan_in(layer.weight)) / 0.87962566103423978
            nn.init.trunc_normal_(layer.weight, 0.0, std, -2 * std, 2 * std, generator=generator)
        _zero_biases(model)
        _reset_norms(model)


@register(
    "initialisations",
    "orthogonal",
    summary="semi-orthogonal weights, biases zero",
    paper="Saxe, McClelland, Ganguli: Exact Solutions to the Nonlinear Dynamics of Learning in Deep Linear "
    "Neural Networks, ICLR 2014, https://arxiv.org/abs/1312.6120",
)
@dataclass(frozen=True)
class Orthogonal:
    """Weights, flattened to (leaving, entering), are semi-orthogonal; biases zero [Saxe et al., 2014]."""

    def apply(self, model: nn.Module, generator: Generator) -> None:
        for layer in _weighted(model):
            nn.init.orthogonal_(layer.weight, generator=generator)
        _zero_biases(model)
        _reset_norms(model)


@register(
    "initialisations", "uniform", summary="all weights and biases ~ U(-0.5, 0.5), as in the release of DLG", paper=DLG
)
@dataclass(frozen=True)
class Uniform:
    """All weights and biases ~ U(-bound, bound), normalisation layers included, as in the release of DLG.

    Wide weights keep a sigmoid LeNet's gradient informative [Zhu et al., 2019].
    """

    bound: float = 0.5

    def __post_init__(self) -> None:
        if not 0 < self.bound < math.inf:
            raise UsageError(f"Uniform.bound must be a positive number, got {self.bound}.")

    def apply(self, model: nn.Module, generator: Generator) -> None:
        _reset_norms(model)
        for layer in model.modules():
            if isinstance(layer, Weighted | Norm):
                for tensor in layer.parameters(recurse=False):
                    nn.init.uniform_(tensor, -self.bound, self.bound, generator=generator)


@register("initialisations", "file", summary="weights and running statistics from a safetensors file")
@dataclass(frozen=True)
class FromFile:
    """Weights and running statistics from a safetensors file; the generator is not used."""

    path: str
    digest: str = ""
    """The file's SHA-256, where that is a part of an experiment's identity."""

    def apply(self, model: nn.Module, generator: Generator) -> None:
        load_weights(model, self.path)


def _weighted(model: nn.Module) -> Iterator[Weighted]:
    return (layer for layer in model.modules() if isinstance(layer, Weighted))


def _fan_in(weight: Tensor) -> int:
    return weight[0].numel()


def _fan_out(weight: Tensor) -> int:
    return weight.shape[0] * weight[0, 0].numel()


def _zero_biases(model: nn.Module) -> None:
    for layer in _weighted(model):
        if layer.bias is not None:
            nn.init.zeros_(layer.bias)


def _reset_norms(model: nn.Module) -> None:
    for layer in model.modules():
        if isinstance(layer, Norm):
            layer.reset_parameters()
