"""Models by name: those of the papers, and a user's own as `package.module:factory`."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Protocol

import torch
from torch import nn

from fedglass.core.errors import ModelError, UsageError, unknown_name
from fedglass.core.rng import stream
from fedglass.models.cnn import cifar_cnn, femnist_cnn
from fedglass.models.densenet import densenet121
from fedglass.models.init import Initialisation, PyTorchDefault
from fedglass.models.lenet import LeNet
from fedglass.models.lenet_tanh import LeNetTanh
from fedglass.models.mlp import MLP
from fedglass.models.mobilenet import MobileNetV2
from fedglass.models.own import construct
from fedglass.models.resnet import resnet18, resnet34
from fedglass.models.resnet8 import ResNet8
from fedglass.models.stem import Shape, stem_for
from fedglass.models.vit import vit, vit_sme


class Factory(Protocol):
    def __call__(self, *, shape: Shape, classes: int) -> nn.Module: ...


@dataclass(frozen=True)
class _Stemmed:
    """A factory whose stem follows from the shape of the input."""

    make: Callable[..., nn.Module]

    def __call__(self, *, shape: Shape, classes: int) -> nn.Module:
        return self.make(shape=shape, classes=classes, stem=stem_for(shape))


@dataclass(frozen=True)
class _Entry:
    make: Factory
    about: str


def _sigmoid(make: Callable[..., nn.Module]) -> Factory:
    return _Stemmed(partial(make, activation=nn.Sigmoid))


_DEFAULT = PyTorchDefault()
_ENTRIES: dict[str, _Entry] = {
    "lenet": _Entry(LeNet, "LeNet with sigmoid of DLG and iDLG [Zhu et al., 2019]"),
    "lenet_tanh": _Entry(LeNetTanh, "classic LeNet with tanh [LeCun et al., 1998]"),
    "lenet_tanh_sme": _Entry(
        partial(LeNetTanh, output=partial(nn.Softmax, dim=1)),
        "the same, ending in a softmax as in the release of SME [Zhu et al., 2023]",
    ),
    "femnist_cnn": _Entry(femnist_cnn, "CNN 32/64/100 for FEMNIST [Dimitrov et al., 2022]"),
    "cifar_cnn": _Entry(cifar_cnn, "CNN 64/128/200 for CIFAR-100 [Dimitrov et al., 2022]"),
    "mlp": _Entry(MLP, "dense layers of 1000 and 1000 units with ReLU [Zhu et al., 2023]"),
    "mlp_sme": _Entry(
        partial(MLP, output=nn.ReLU),
        "the same, with a ReLU on the logits as in the release of SME [Zhu et al., 2023]",
    ),
    "resnet8": _Entry(_Stemmed(ResNet8), "three residual blocks of 32, 64, 128 channels [Zhu et al., 2023]"),
    "resnet8_sigmoid": _Entry(_sigmoid(ResNet8), "the same with sigmoid"),
    "resnet18": _Entry(_Stemmed(resnet18), "ResNet-18 [He et al., 2016]"),
    "resnet18_sigmoid": _Entry(_sigmoid(resnet18), "the same with sigmoid, as FedLeak uses it [Fan et al., 2025]"),
    "resnet34": _Entry(_Stemmed(resnet34), "ResNet-34 [He et al., 2016]"),
    "resnet34_sigmoid": _Entry(_sigmoid(resnet34), "the same with sigmoid"),
    "densenet121": _Entry(_Stemmed(densenet121), "DenseNet-121 [Huang et al., 2017]"),
    "densenet121_sigmoid": _Entry(_sigmoid(densenet121), "the same with sigmoid"),
    "mobilenet_v2": _Entry(_Stemmed(MobileNetV2), "MobileNetV2 with ReLU6 [Sandler et al., 2018]"),
    "mobilenet_v2_sigmoid": _Entry(_sigmoid(MobileNetV2), "the same with sigmoid"),
    "vit": _Entry(vit, "small vision transformer of type A [Lu et al., 2022]"),
    "vit_sme": _Entry(vit_sme, "the same with one patch, as in the release of SME [Zhu et al., 2023]"),
}


def build(
    name: str,
    *,
    shape: Shape,
    classes: int,
    init: Initialisation = _DEFAULT,
    seed: int = 0,
) -> nn.Module:
    """The model of that name for inputs of that shape, initialised from the seed alone.

    A name with a colon is a user's own factory; the default initialisation then keeps what the factory made.

    >>> model = build("lenet", shape=(3, 32, 32), classes=10)
    >>> sum(p.numel() for p in model.parameters())
    15826
    """
    _check_request(shape, classes)
    own = ":" in name
    if not own and name not in _ENTRIES:
        raise unknown_name("model", name, _ENTRIES)
    with torch.random.fork_rng(devices=[]):
        # Layers draw from the global generator when they are made: it is put back afterwards.
        model = construct(name, shape, classes, seed) if own else _known(name, shape, classes)
    if not (own and isinstance(init, PyTorchDefault)):
        init.apply(model, stream(seed, "init", name))
    return model


def names() -> dict[str, str]:
    """Name and one-line description of every model.

    >>> names()["resnet18"]
    'ResNet-18 [He et al., 2016]'
    """
    return {name: entry.about for name, entry in _ENTRIES.items()}


def _known(name: str, shape: Shape, classes: int) -> nn.Module:
    try:
        model = _ENTRIES[name].make(shape=shape, classes=classes)
        _dry_run(model, shape)
    except RuntimeError as error:
        raise ModelError(
            f"The model {name!r} can not take inputs of shape {shape} ({error}): give larger images "
            "or choose another model."
        ) from error
    return model


def _dry_run(model: nn.Module, shape: Shape) -> None:
    """A pass with shapes only, without any arithmetic."""
    state = {key: tensor.to("meta") for key, tensor in model.state_dict().items()}
    model.eval()
    torch.func.functional_call(model, state, (torch.empty(2, *shape, device="meta"),))
    model.train()


def _check_request(shape: Shape, classes: int) -> None:
    if len(shape) != 3 or min(shape) < 1:
        raise UsageError(f"shape must be three positive numbers (channels, height, width), got {shape}.")
    if classes < 2:
        raise UsageError(f"classes must be at least 2, got {classes}.")
