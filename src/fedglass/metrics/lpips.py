"""Learned perceptual image patch similarity, version 0.1 [Zhang et al., 2018, Eq. 1].

The file holds the two feature stacks of LPIPS (AlexNet and VGG16, under torchvision's parameter names), the search for
their weights, and the metric. Weights are never downloaded.
"""

from __future__ import annotations

import functools
import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

import torch
from safetensors import SafetensorError
from torch import Tensor
from torch.nn.functional import conv2d, interpolate, max_pool2d, relu

from fedglass.core.errors import DataError
from fedglass.core.metric_scale import Scale
from fedglass.core.registry import register
from fedglass.core.tensors import open_tensors
from fedglass.metrics.images import Metric, fill_grey, pair, with_worst


@dataclass(frozen=True)
class FeatureConv:
    """A convolution followed by ReLU, after a max pooling of stride 2 if `pool` gives its size."""

    index: int
    """Its place in torchvision's `features`."""
    inputs: int
    outputs: int
    kernel: int = 3
    stride: int = 1
    padding: int = 1
    pool: int | None = None

    def __call__(self, x: Tensor, weights: Mapping[str, Tensor]) -> Tensor:
        x = x if self.pool is None else max_pool2d(x, self.pool, stride=2)
        kernel, bias = weights[f"features.{self.index}.weight"], weights[f"features.{self.index}.bias"]
        return relu(conv2d(x, kernel, bias, stride=self.stride, padding=self.padding))


@dataclass(frozen=True)
class Trunk:
    """A feature stack in blocks of convolutions; LPIPS compares the outputs of each block."""

    name: str
    blocks: tuple[tuple[FeatureConv, ...], ...]

    def features(self, x: Tensor, weights: Mapping[str, Tensor]) -> Iterator[Tensor]:
        """Yield the activations after each block, one at a time.  # (n, 3, h, w) -> (n, c_i, h_i, w_i)"""
        for block in self.blocks:
            for conv in block:
                x = conv(x, weights)
            yield x

    def shapes(self) -> dict[str, tuple[int, ...]]:
        """Return name and shape of every tensor that a weights file must hold.

        >>> ALEX.shapes()["lin0.weight"]
        (1, 64, 1, 1)
        """
        shapes: dict[str, tuple[int, ...]] = {}
        for i, block in enumerate(self.blocks):
            for c in block:
                shapes[f"features.{c.index}.weight"] = (c.outputs, c.inputs, c.kernel, c.kernel)
                shapes[f"features.{c.index}.bias"] = (c.outputs,)
            shapes[f"lin{i}.weight"] = (1, block[-1].outputs, 1, 1)
        return shapes


ALEX = Trunk(
    "alex",
    (
        (FeatureConv(0, 3, 64, kernel=11, stride=4, padding=2),),
        (FeatureConv(3, 64, 192, kernel=5, padding=2, pool=3),),
        (FeatureConv(6, 192, 384, pool=3),),
        (FeatureConv(8, 384, 256),),
        (FeatureConv(10, 256, 256),),
    ),
)
VGG = Trunk(
    "vgg",
    (
        (FeatureConv(0, 3, 64), FeatureConv(2, 64, 64)),
        (FeatureConv(5, 64, 128, pool=2), FeatureConv(7, 128, 128)),
        (FeatureConv(10, 128, 256, pool=2), FeatureConv(12, 256, 256), FeatureConv(14, 256, 256)),
        (FeatureConv(17, 256, 512, pool=2), FeatureConv(19, 512, 512), FeatureConv(21, 512, 512)),
        (FeatureConv(24, 512, 512, pool=2), FeatureConv(26, 512, 512), FeatureConv(28, 512, 512)),
    ),
)
TRUNKS = (ALEX, VGG)


VARIABLE = "FEDGLASS_LPIPS"
PLACE = "~/.cache/fedglass/lpips_alex_v0.1.safetensors"
HOW_TO_PROVIDE = f"LPIPS needs network weights: put them at {PLACE}, or name the file in {VARIABLE}."
CONTENTS = (
    "A safetensors file with torchvision's AlexNet features (features.0.weight, features.0.bias, ... features.10.bias) "
    "and the linear layers of LPIPS v0.1 (lin0.weight ... lin4.weight, each (1, c, 1, 1)) is needed. VGG16 with its "
    "linear layers works as well."
)
MOST_BYTES = 256 * 2**20  # VGG16 in float32 takes 59 MB


def find_weights() -> Path | None:
    """Return the weights file named in FEDGLASS_LPIPS, or the one in the user's cache, or None."""
    named = os.environ.get(VARIABLE)
    if named:
        path = Path(os.path.expanduser(named))
        if not path.is_file():
            raise DataError(f"Expected the environment variable {VARIABLE} to name a file, got {named!r}.")
        return path
    path = Path(os.path.expanduser(PLACE))
    return path if path.is_file() else None


def read_weights(path: Path) -> tuple[Trunk, dict[str, Tensor]]:
    """Read a safetensors file; return the feature stack that it belongs to, and its tensors as float32."""
    if not path.is_file():
        raise DataError(f"Expected LPIPS weights in {str(path)!r}, got no such file. {HOW_TO_PROVIDE}")
    if path.stat().st_size > MOST_BYTES:
        raise DataError(
            f"Expected LPIPS weights of at most {MOST_BYTES} bytes in {str(path)!r}, got "
            f"{path.stat().st_size}: this is another file."
        )
    try:
        with open_tensors(path) as file:
            shapes = {name: tuple(file.get_slice(name).get_shape()) for name in list(file.keys())}
            trunk = _trunk_of(path, shapes)
            tensors = {name: file.get_tensor(name) for name in shapes}
    except (SafetensorError, OSError) as error:
        raise DataError(
            f"Expected a safetensors file of LPIPS weights in {str(path)!r}, got a damaged or unreadable one "
            f"({error}). Copy it again."
        ) from error
    return trunk, {name: _checked_floats(path, name, t) for name, t in tensors.items()}


def _trunk_of(path: Path, shapes: dict[str, tuple[int, ...]]) -> Trunk:
    for trunk in TRUNKS:
        if shapes.keys() == trunk.shapes().keys():
            for name, expected in trunk.shapes().items():
                if shapes[name] != expected:
                    raise DataError(
                        f"Expected {name!r} of LPIPS ({trunk.name}) with shape {expected} in {str(path)!r}, got "
                        f"{shapes[name]}: the weights belong to another network."
                    )
            return trunk
    nearest = max(TRUNKS, key=lambda trunk: len(trunk.shapes().keys() & shapes.keys()))
    lacking = sorted(nearest.shapes().keys() - shapes.keys())
    extra = sorted(shapes.keys() - nearest.shapes().keys())
    raise DataError(
        f"Expected the {len(nearest.shapes())} tensors of LPIPS ({nearest.name}) in {str(path)!r}, got "
        f"{len(lacking)} missing (first: {lacking[:1]}) and {len(extra)} unknown (first: {extra[:1]}). "
        f"{CONTENTS}"
    )


def _checked_floats(path: Path, name: str, tensor: Tensor) -> Tensor:
    if not tensor.is_floating_point() or not torch.isfinite(tensor.float()).all():
        raise DataError(
            f"Expected finite floats for {name!r} in {str(path)!r}, got "
            f"{'NaN or infinity' if tensor.is_floating_point() else tensor.dtype}: copy the file again."
        )
    return tensor.float()


SMALLEST = 64
"""Smaller images are enlarged until their shorter side has this many pixels: AlexNet's fifth block sees nothing of
28 x 28 pixels."""
WORST_LPIPS = 1.0
"""The score of an image that is missing or completely broken: not a bound, but above plain grey and noise."""
BATCH = 16
"""Images per pass, so that memory does not grow with the batch."""
SHIFT, SCALE = (-0.030, -0.088, -0.188), (0.458, 0.448, 0.450)


@dataclass(frozen=True, eq=False)
class Lpips:
    """sum_i mean_hw w_i . (f_i(a) - f_i(b))^2 with f_i the unit-length activations of block i.

    Images have pixels in [0, 1] and are mapped to [-1, 1] here. Grey images are repeated to three channels. If the
    shorter side has less than 64 pixels, images are enlarged bilinearly until it has 64. Their figures compare with
    each other, but not with figures of work that enlarges differently.
    """

    trunk: Trunk
    weights: Mapping[str, Tensor]

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> Lpips:
        """Load the weights of a safetensors file; the names inside decide between AlexNet and VGG16."""
        return cls(*read_weights(Path(path)))

    @torch.no_grad()
    def __call__(self, reconstructed: Tensor, original: Tensor) -> Tensor:
        """Return the distance of each pair, 0 for equal images.  # (n, c, h, w) twice -> (n,)"""
        guess, truth = pair(reconstructed, original)
        reason = why_no_lpips(tuple(truth.shape[1:]))
        if reason:
            raise DataError(reason)
        parts = zip(torch.split(fill_grey(guess), BATCH), torch.split(truth, BATCH), strict=True)
        distances = torch.cat([self._distance(_prepare(a), _prepare(b)) for a, b in parts]).double()
        return with_worst(distances, guess, WORST_LPIPS)

    def _distance(self, a: Tensor, b: Tensor) -> Tensor:
        total = torch.zeros(len(a))
        layers = zip(self.trunk.features(a, self.weights), self.trunk.features(b, self.weights), strict=True)
        for i, (fa, fb) in enumerate(layers):
            differences = (_unit(fa) - _unit(fb)).square()
            total += conv2d(differences, self.weights[f"lin{i}.weight"]).mean((1, 2, 3))
        return total


def why_no_lpips(shape: tuple[int, ...]) -> str | None:
    """Return why images (c, h, w) have no LPIPS, or None if they have."""
    if shape[0] in (1, 3):
        return None
    return f"Expected images of 1 or 3 channels for LPIPS, got {shape[0]}: use PSNR, SSIM or RMSE for them."


def _prepare(images: Tensor) -> Tensor:
    """Map pixels in [0, 1] to the inputs of the networks.  # (n, 1 or 3, h, w) -> (n, 3, >= 64, >= 64)"""
    images = images.float().expand(-1, 3, -1, -1)
    shorter = min(images.shape[2:])
    if shorter < SMALLEST:
        size = [round(side * SMALLEST / shorter) for side in images.shape[2:]]
        images = interpolate(images, size=size, mode="bilinear", align_corners=False)
    shift, scale = (torch.tensor(v).view(3, 1, 1) for v in (SHIFT, SCALE))
    return (2 * images - 1 - shift) / scale


def _unit(features: Tensor) -> Tensor:
    """Scale activations to length 1 over the channels; zeros stay zeros."""
    return features / (features.square().sum(1, keepdim=True).sqrt() + 1e-10)


def _compute(reconstructed: Tensor, original: Tensor) -> Tensor:
    path = find_weights()
    if path is None:
        raise DataError(HOW_TO_PROVIDE)
    return _loaded(path, path.stat().st_mtime_ns)(reconstructed, original)


def _why_not(shape: tuple[int, ...]) -> str | None:
    return why_no_lpips(shape) if find_weights() else HOW_TO_PROVIDE


@functools.lru_cache(maxsize=1)
def _loaded(path: Path, changed: int) -> Lpips:
    """Read the weights once; `changed` makes sure that a replaced file is read again."""
    return Lpips.load(path)


register(
    "metrics",
    "lpips",
    summary="learned perceptual distance",
    paper=(
        "Zhang, Isola, Efros, Shechtman, Wang: The Unreasonable Effectiveness of Deep Features as a Perceptual Metric, "
        "CVPR 2018, https://arxiv.org/abs/1801.03924"
    ),
)(Metric(_compute, Scale("LPIPS", higher_leaks=False, range=(0.0, 2.0), sure=(0.5, 0.15)), _why_not))
