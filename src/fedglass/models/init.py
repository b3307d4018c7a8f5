"""Initial weights: parts that fill a model's layers from a generator, and their names in plans and commands.

Unless stated otherwise, they set normalisation layers to the identity (weight 1, bias 0, running mean 0, running
variance 1). They do not change parameters of layers other than dense, convolution and normalisation layers.
"""

from __future__ import annotations

import copy
import math
import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import torch
from safetensors import SafetensorError
from torch import Generator, nn
from torch.nn.modules.batchnorm import _NormBase
from torch.nn.modules.conv import _ConvNd

from fedglass.core.errors import DataError, ModelError, UsageError
from fedglass.core.registry import located_at, make, register, split_path
from fedglass.core.tensors import COUNTER, open_tensors
from fedglass.core.text import DLFA, DLG

Weighted = nn.Linear | _ConvNd
Norm = _NormBase | nn.LayerNorm | nn.GroupNorm


Sizes = Mapping[str, tuple[int, ...]]
KIND = "initialisations"
MOST_CLASSES = 1 << 16
LARGEST_KERNEL = 31
_OLD_DENSE = re.compile(r"(denselayer\d+\.(?:norm|conv))\.([12]\.)")
"""Names in torchvision's published file of DenseNet-121, from when module names could hold dots."""
KAIMING = "He, Zhang, Ren, Sun: Delving Deep into Rectifiers, ICCV 2015, https://arxiv.org/abs/1502.01852"


class Initialisation(Protocol):
    """A part that fills the weights of a model in place."""

    def apply(self, model: nn.Module, generator: Generator) -> None: ...


@register(
    "initialisations",
    "default",
    summary="as PyTorch's layers draw them: U(-1/sqrt(fan in), 1/sqrt(fan in))",
)
@dataclass(frozen=True)
class PyTorchDefault:
    """The draws of PyTorch's own layers: weights and biases ~ U(-1/sqrt(fan in), 1/sqrt(fan in)).

    >>> layer = nn.Linear(4, 2)
    >>> PyTorchDefault().apply(layer, Generator().manual_seed(0))
    >>> bool(layer.weight.abs().max() <= 0.5)
    True
    """

    def apply(self, model: nn.Module, generator: Generator) -> None:
        for layer in _weighted(model):
            nn.init.kaiming_uniform_(layer.weight, a=math.sqrt(5), generator=generator)
            if layer.bias is not None:
                bound = 1 / math.sqrt(max(layer.weight[0].numel(), 1))
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
        _reset_others(model)


@register("initialisations", "kaiming_normal", summary="weights ~ N(0, 2 / fan), biases zero", paper=KAIMING)
@dataclass(frozen=True)
class KaimingNormal:
    """Weights ~ N(0, 2 / fan), biases zero [He et al., 2015].

    The fan of a convolution counts its outputs, as in torchvision's ResNet; that of a dense layer its inputs, since
    with few classes the other choice gives logits in the tens. (torchvision leaves its one dense layer at PyTorch's
    default.)
    """

    def apply(self, model: nn.Module, generator: Generator) -> None:
        for layer in _weighted(model):
            fan = layer.weight.numel() // layer.weight.shape[0 if isinstance(layer, nn.Linear) else 1]
            nn.init.normal_(layer.weight, 0.0, math.sqrt(2 / fan), generator=generator)
        _reset_others(model)


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
            std = math.sqrt(1 / layer.weight[0].numel()) / 0.87962566103423978
            nn.init.trunc_normal_(layer.weight, 0.0, std, -2 * std, 2 * std, generator=generator)
        _reset_others(model)


@register(
    "initialisations",
    "orthogonal",
    summary="semi-orthogonal weights, biases zero",
    paper="Saxe, McClelland, Ganguli: Exact Solutions to the Nonlinear Dynamics of Learning in Deep Linear "
    "Neural Networks, ICLR 2014, https://arxiv.org/abs/1312.6120",
)
@dataclass(frozen=True)
class Orthogonal:
    """Semi-orthogonal weights, flattened to (outputs, inputs), and zero biases [Saxe et al., 2014]."""

    def apply(self, model: nn.Module, generator: Generator) -> None:
        for layer in _weighted(model):
            nn.init.orthogonal_(layer.weight, generator=generator)
        _reset_others(model)


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
    """The file's SHA-256, if it is a part of an experiment's identity."""

    def apply(self, model: nn.Module, generator: Generator) -> None:
        load_weights(model, self.path)


def _weighted(model: nn.Module) -> Iterator[Weighted]:
    return (layer for layer in model.modules() if isinstance(layer, Weighted))


def _reset_others(model: nn.Module) -> None:
    """Set all that is not drawn: biases to zero, normalisation layers to the identity."""
    for layer in _weighted(model):
        if layer.bias is not None:
            nn.init.zeros_(layer.bias)
    _reset_norms(model)


def _reset_norms(model: nn.Module) -> None:
    for layer in model.modules():
        if isinstance(layer, Norm):
            layer.reset_parameters()


def by_name(text: str) -> Initialisation:
    """Return the initialisation of that name; those that read a file have its path after a colon.

    >>> by_name("lecun"), by_name("file:resnet18.safetensors")
    (LeCunTruncatedNormal(), FromFile(path='resnet18.safetensors', digest=''))
    """
    name, path = split_path(KIND, text)
    if path == "":
        raise UsageError(f"init = {text!r} names no weights file: write {name}:PATH, such as {name}:w.safetensors.")
    part: Initialisation = make(KIND, text) if path is None else make(KIND, name, path=path)
    return part


def located(text: str, folder: Path) -> str:
    """Return the name of the same initialisation with its file's path taken from that folder.

    >>> located("transfer:w.safetensors", Path("plans")), located("lecun", Path("plans"))
    ('transfer:plans/w.safetensors', 'lecun')
    """
    return located_at(KIND, text, folder)


@register("initialisations", "transfer", summary="the same, but for a first or last layer of another size")
@dataclass(frozen=True)
class Transfer:
    """All weights and running statistics from a safetensors file, but for a first or last layer of another size.

    The last layer differs if the file was trained for other classes. The first one differs if it is a convolution with
    another kernel: networks made for 224 x 224 pixels begin with 7 x 7, those for 32 x 32 with 3 x 3. Such a layer is
    drawn at random [He et al., 2015]; all other layers must be of the same architecture.
    """

    path: str
    digest: str = ""
    """The file's SHA-256, if it is a part of an experiment's identity."""

    def apply(self, model: nn.Module, generator: Generator) -> None:
        resized = _resized_layers(model, self.path)
        if not resized:
            load_weights(model, self.path)
            return
        source = copy.deepcopy(model)
        for name, layer in resized.items():
            source.set_submodule(name, layer)
        load_weights(source, self.path)
        KaimingNormal().apply(model, generator)
        tensors = model.state_dict()
        with torch.no_grad():
            for key, tensor in source.state_dict().items():
                if key.rpartition(".")[0] not in resized:
                    tensors[key].copy_(tensor)


def _resized_layers(model: nn.Module, path: str) -> dict[str, nn.Module]:
    """Return the layers that the file has in another size, in that size; `load_weights` checks everything else."""
    dense = [(name, layer) for name, layer in model.named_modules() if isinstance(layer, nn.Linear)]
    convolutions = [(name, layer) for name, layer in model.named_modules() if isinstance(layer, nn.Conv2d)][:1]
    if not dense:
        raise ModelError("A transfer needs a model that ends in a dense layer, got one without any: use file: instead.")
    last, head = dense[-1]
    sizes = _sizes(path, [last, *(name for name, _ in convolutions)])
    resized: dict[str, nn.Module] = {}
    size = sizes.get(last, ())
    if len(size) == 2 and head.out_features != size[0] and 1 <= size[0] < MOST_CLASSES:
        resized[last] = nn.Linear(head.in_features, size[0], head.bias is not None, device="meta")
    for name, first in convolutions:
        size = sizes.get(name, ())
        if len(size) != 4 or size[:2] != first.weight.shape[:2] or size[2:] == first.kernel_size:
            continue
        if 1 <= min(size[2:]) <= max(size[2:]) <= LARGEST_KERNEL:
            channels, bias = (first.in_channels, first.out_channels), first.bias is not None
            resized[name] = nn.Conv2d(*channels, (size[2], size[3]), groups=first.groups, bias=bias, device="meta")
    return {name: layer.to_empty(device="cpu") for name, layer in resized.items()}


def _sizes(path: str, layers: Sequence[str]) -> Sizes:
    """Return the shapes of these layers' weights, as far as the file has them."""
    if not Path(path).exists():
        return {}
    with _weights_file(path) as file:
        present = [name for name in layers if f"{name}.weight" in file.keys()]  # noqa: SIM118 (no mapping)
        return {name: tuple(file.get_slice(f"{name}.weight").get_shape()) for name in present}


# Weights from safetensors files, which hold arrays and cannot run code.


def load_weights(model: nn.Module, path: str) -> None:
    """Fill the model's parameters and buffers from a file with the same names and shapes.

    Files with torchvision's names fit the networks that torchvision has; the counters of batches may be
    missing.
    """
    if not Path(path).is_file():
        raise DataError(f"The weights file {path!r} does not exist: give the path of a safetensors file.")
    with _weights_file(path) as file:
        name_in_file = {_OLD_DENSE.sub(r"\1\2", name): name for name in sorted(file.keys())}
        sizes = {name: tuple(file.get_slice(old).get_shape()) for name, old in name_in_file.items()}
        _check(model, sizes, path)
        tensors = {name: file.get_tensor(old) for name, old in name_in_file.items()}
    state = model.state_dict()
    for name, tensor in tensors.items():
        if tensor.is_floating_point() and not torch.isfinite(tensor).all():
            raise ModelError(
                f"The weights file {path!r} holds NaN or infinity in {name!r}: its training diverged. "
                "Take another checkpoint."
            )
    with torch.no_grad():
        for name, tensor in tensors.items():
            state[name].copy_(tensor)


@contextmanager
def _weights_file(path: str) -> Iterator[Any]:
    """Open a safetensors file; files of PyTorch, such as torchvision's, must be converted."""
    try:
        with open_tensors(Path(path)) as file:
            yield file
    except (SafetensorError, OSError) as error:
        if Path(path).suffix in (".pt", ".pth"):
            raise DataError(
                f"The weights file {path!r} is one of PyTorch's, which may hold code: if you trust it, convert it once "
                "with safetensors.torch.save_file(torch.load(path, weights_only=True), 'weights.safetensors')."
            ) from error
        raise DataError(
            f"The weights file {path!r} cannot be read as safetensors ({error}): it is damaged or of another format. "
            "Save it again with safetensors.torch.save_file(model.state_dict(), path)."
        ) from error


def _check(model: nn.Module, sizes: Sizes, path: str) -> None:
    expected = {name: tuple(tensor.shape) for name, tensor in model.state_dict().items()}
    unique = {name for name, _ in model.named_parameters()} | {name for name, _ in model.named_buffers()}
    counters = {name for name in expected if name.endswith(COUNTER)}
    missing = [name for name in expected if name in unique - counters and name not in sizes]
    extra = [name for name in sizes if name not in expected]
    if missing or extra:
        problems = [f"lacks {missing[0]!r} ({len(missing)} in all)"] if missing else []
        problems += [f"has the unknown {extra[0]!r} ({len(extra)} in all)"] if extra else []
        raise ModelError(
            f"The weights file {path!r} belongs to another architecture: it {' and '.join(problems)}. "
            "Name the model that the file was saved from."
        )
    wrong = [name for name in sizes if sizes[name] != expected[name]]
    if wrong:
        raise _misfit(model, wrong, sizes, expected, path)


def _misfit(model: nn.Module, wrong: list[str], sizes: Sizes, expected: Sizes, path: str) -> ModelError:
    head = [name for name, layer in model.named_modules() if isinstance(layer, nn.Linear)][-1:]
    if (
        head
        and set(wrong) <= {f"{head[0]}.weight", f"{head[0]}.bias"}
        and sizes[wrong[0]][1:] == expected[wrong[0]][1:]
    ):
        return ModelError(
            f"The weights file {path!r} has a classifier of {sizes[wrong[0]][0]} classes, expected "
            f"{expected[wrong[0]][0]}: set the number of classes to that of the file, or replace its "
            f"{' and '.join(map(repr, wrong))}."
        )
    return ModelError(
        f"The weights file {path!r} belongs to another architecture: its {wrong[0]!r} has shape "
        f"{sizes[wrong[0]]}, expected {expected[wrong[0]]} ({len(wrong)} such in all). Name the model and the "
        "input shape that the file was saved from."
    )
