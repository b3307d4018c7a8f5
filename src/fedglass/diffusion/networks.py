"""Networks that take noise out of images, on torch alone: a small U-Net, and a class-conditional transformer."""

from __future__ import annotations

import inspect
import math
from collections.abc import Sequence
from itertools import pairwise
from typing import Any, TypeVar, cast

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from fedglass.core.errors import UsageError
from fedglass.core.registry import register
from fedglass.models.network import Shape
from fedglass.models.vit import Attention

T = TypeVar("T", bound=nn.Module)
MOST_CHANNELS = 1024
PAPER = (
    "Gao, Zhou, Cheng, Yan: Masked Diffusion Transformer is a Strong Image Synthesizer, ICCV 2023, "
    "https://arxiv.org/abs/2303.14389"
)


def checked_shape(noun: str, shape: Sequence[int], *sizes: object) -> Shape:
    """Return the images' channels, height and width; refuse them, or sizes of the network, where they are no numbers.

    >>> checked_shape("A U-Net", [1, 28, 28], 8, 16)
    (1, 28, 28)
    """
    if not all(isinstance(number, int) for number in (*shape, *sizes)):
        raise UsageError(f"{noun} needs whole numbers as its shape and sizes, got {tuple(shape)} and {sizes}.")
    if len(shape) != 3 or not all(1 <= side <= 4096 for side in shape):
        raise UsageError(f"{noun} needs the images' channels, height and width, got {tuple(shape)}.")
    channels, height, width = shape
    return channels, height, width


def check_images(made: Shape, images: Shape, network: str, remedy: str) -> None:
    """Refuse images of another shape than a network makes; `network` begins the sentence, as "The GAN 'x' makes"."""
    if made != images:
        expected, got = (" x ".join(map(str, shape)) for shape in (made, images))
        raise UsageError(f"{network} images of {expected} (channels, height, width), these are {got}: {remedy}.")


class Configured(nn.Module):
    """A network that is built again from its options: the arguments that it was made with, by their names."""

    kind: str
    """Its registered name."""
    shape: Shape
    """Channels, height and width of the images."""

    def options(self) -> dict[str, Any]:
        """Return the options that it was made with, for its config.json."""
        return {name: getattr(self, name) for name in inspect.signature(type(self)).parameters}


def zeroed(layer: T) -> T:
    """Return the layer with zero weights, so that a block begins as the identity."""
    for parameter in layer.parameters():
        nn.init.zeros_(parameter)
    return layer


@register("denoisers", "FedglassUNet", summary="a U-Net of two or three resolutions with attention at the coarsest")
class UNet(Configured):
    """(noisy images, steps) -> an answer of the images' shape; labels are not looked at.

    The network of [Ho et al., 2020, Appendix B] at a size that a processor trains in minutes: residual blocks of two
    convolutions with group normalisation, told the step by a sinusoidal embedding, on levels of halved resolution, with
    attention at the coarsest.

    >>> net = UNet((1, 28, 28), widths=(8, 16))
    >>> net(torch.zeros(2, 1, 28, 28), torch.tensor([0, 999])).shape
    torch.Size([2, 1, 28, 28])
    """

    kind = "FedglassUNet"

    def __init__(
        self, shape: Sequence[int], widths: Sequence[int] = (32, 64, 64), blocks: int = 1, patch: int = 1
    ) -> None:
        super().__init__()
        self.shape = checked_shape("A U-Net", shape, *widths, blocks, patch)
        if not 1 <= len(widths) <= 6 or not all(4 <= width <= MOST_CHANNELS and width % 2 == 0 for width in widths):
            raise UsageError(f"A U-Net needs 1 to 6 even widths from 4 to {MOST_CHANNELS}, got {tuple(widths)}.")
        if not (1 <= blocks <= 8 and 1 <= patch <= 8):
            raise UsageError(f"A U-Net needs 1 to 8 blocks a level and patches of 1 to 8, got {blocks} and {patch}.")
        self.widths, self.blocks, self.patch = tuple(widths), blocks, patch
        channels, embedding_width = self.shape[0] * patch**2, 4 * self.widths[0]
        self.embed = nn.Sequential(
            nn.Linear(self.widths[0], embedding_width), nn.SiLU(), nn.Linear(embedding_width, embedding_width)
        )
        self.first = nn.Conv2d(channels, self.widths[0], 3, padding=1)
        self.last = nn.Sequential(
            _norm(self.widths[0]), nn.SiLU(), zeroed(nn.Conv2d(self.widths[0], channels, 3, padding=1))
        )
        steps_down = list(pairwise(self.widths))
        self.down = nn.ModuleList(Level(width, width, embedding_width, blocks) for width in self.widths[:-1])
        self.coarser = nn.ModuleList(nn.Conv2d(a, b, 3, stride=2, padding=1) for a, b in steps_down)
        deepest = self.widths[-1]
        self.middle = nn.ModuleList(
            [
                Residual(deepest, deepest, embedding_width),
                PixelAttention(deepest),
                Residual(deepest, deepest, embedding_width),
            ]
        )
        self.finer = nn.ModuleList(nn.Conv2d(b, a, 3, padding=1) for a, b in steps_down)
        self.up = nn.ModuleList(Level(2 * width, width, embedding_width, blocks) for width in self.widths[:-1])

    def forward(self, images: Tensor, steps: Tensor, labels: Tensor | None = None) -> Tensor:
        height, width = images.shape[-2:]
        unit = self.patch * 2 ** (len(self.widths) - 1)
        padded = F.pad(images, (0, -width % unit, 0, -height % unit), mode="replicate")
        embedding = self.embed(sinusoids(steps, self.widths[0]).to(images.dtype))
        x = self.first(F.pixel_unshuffle(padded, self.patch))
        skips = []
        for level, coarser in zip(self.down, self.coarser, strict=True):
            skips.append(level(x, embedding))
            x = coarser(skips[-1])
        for part in self.middle:
            x = part(x, embedding)
        for level, finer in reversed(list(zip(self.up, self.finer, strict=True))):
            larger = F.interpolate(finer(x), scale_factor=2.0, mode="nearest")
            x = level(torch.cat([larger, skips.pop()], 1), embedding)
        answer = F.pixel_shuffle(self.last(x), self.patch)
        return answer[..., :height, :width]


def sinusoids(steps: Tensor, width: int) -> Tensor:
    """The step as sines and cosines of many wave lengths [Vaswani et al., 2017, Section 3.5].  # (n, width)"""
    half = width // 2
    rates = torch.exp(-math.log(10_000) * torch.arange(half, device=steps.device) / half)
    angles = steps[:, None].float() * rates
    return torch.cat([angles.sin(), angles.cos()], 1)


class Residual(nn.Module):
    """Two convolutions with a shortcut; the step scales and shifts the values between them."""

    def __init__(self, before: int, after: int, embedding_width: int) -> None:
        super().__init__()
        self.norm1, self.norm2 = _norm(before), _norm(after)
        self.conv1 = nn.Conv2d(before, after, 3, padding=1)
        self.conv2 = zeroed(nn.Conv2d(after, after, 3, padding=1))
        self.tell = nn.Linear(embedding_width, 2 * after)
        self.skip = nn.Identity() if before == after else nn.Conv2d(before, after, 1)

    def forward(self, x: Tensor, embedding: Tensor) -> Tensor:
        scale, shift = self.tell(F.silu(embedding))[:, :, None, None].chunk(2, 1)
        y = self.norm2(self.conv1(F.silu(self.norm1(x)))) * (1 + scale) + shift
        result: Tensor = self.skip(x) + self.conv2(F.silu(y))
        return result


class PixelAttention(nn.Module):
    """Every pixel looks at every other, with one head."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.norm = _norm(width)
        self.ask = nn.Conv2d(width, 3 * width, 1)
        self.answer = zeroed(nn.Conv2d(width, width, 1))

    def forward(self, x: Tensor, embedding: Tensor) -> Tensor:
        n, _, height, width = x.shape
        q, k, v = self.ask(self.norm(x)).flatten(2).transpose(1, 2).chunk(3, -1)  # (n, pixels, channels) each
        attended = F.scaled_dot_product_attention(q, k, v).transpose(1, 2).reshape(n, -1, height, width)
        result: Tensor = x + self.answer(attended)
        return result


class Level(nn.Module):
    """Residual blocks of one resolution."""

    def __init__(self, before: int, width: int, embedding_width: int, blocks: int) -> None:
        super().__init__()
        self.parts = nn.ModuleList(Residual(before if i == 0 else width, width, embedding_width) for i in range(blocks))

    def forward(self, x: Tensor, embedding: Tensor) -> Tensor:
        for part in self.parts:
            x = part(x, embedding)
        return x


def _norm(width: int) -> nn.GroupNorm:
    return nn.GroupNorm(math.gcd(width, 8), width)


# A class-conditional transformer that denoises patches and learns to fill in hidden ones.


class ConditionedBlock(nn.Module):
    """Attention and a feed-forward layer whose normalisations and shortcuts are set by the condition (adaLN-Zero)."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.norm1 = nn.LayerNorm(width, elementwise_affine=False)
        self.attention = Attention(width, heads, bias=True, fused=True)
        self.norm2 = nn.LayerNorm(width, elementwise_affine=False)
        self.mlp = nn.Sequential(nn.Linear(width, 4 * width), nn.GELU(approximate="tanh"), nn.Linear(4 * width, width))
        self.condition = zeroed(nn.Linear(width, 6 * width))

    def forward(self, tokens: Tensor, condition: Tensor) -> Tensor:
        parts = self.condition(F.silu(condition))[:, None].chunk(6, dim=-1)  # (n, 1, width) each
        shift1, scale1, gate1, shift2, scale2, gate2 = parts
        tokens = tokens + gate1 * self.attention(self.norm1(tokens) * (1 + scale1) + shift1)
        return cast(Tensor, tokens + gate2 * self.mlp(self.norm2(tokens) * (1 + scale2) + shift2))


@register("denoisers", "FedglassMaskedTransformer", summary="a masked diffusion transformer with classes", paper=PAPER)
class MaskedDiffusionTransformer(Configured):
    """(noisy images, steps, classes) -> an answer of the images' shape.

    In training a part of the patches is hidden from the encoder, a small interpolater guesses their features from the
    others', and the decoder denoises all of them; a second loss denoises with nothing hidden. So the network learns how
    the parts of a picture belong together [Gao et al., 2023, Section 3]. Nothing is hidden when it is used.

    Sides that the patch does not divide are padded with zeros. Class `classes` stands for none, which guidance
    compares with. The defaults train on MNIST in minutes on one core; the paper's S, B and XL have width 384, 768 and
    1152, depth 12, 12 and 28, and 6, 12 and 16 heads, on latents of 32 x 32 in patches of 2. Left out of
    [Gao et al., 2023]: relative position biases, and learned variances, which deterministic sampling has no use for.

    >>> net = MaskedDiffusionTransformer((1, 28, 28), classes=10)
    >>> net(torch.zeros(2, 1, 28, 28), torch.tensor([0, 999]), torch.tensor([3, 7])).shape
    torch.Size([2, 1, 28, 28])
    """

    kind = "FedglassMaskedTransformer"

    def __init__(
        self,
        shape: Sequence[int],
        classes: int,
        patch: int = 7,
        width: int = 96,
        depth: int = 6,
        decoder: int = 2,
        heads: int = 4,
    ) -> None:
        """`depth` counts the blocks of encoder and decoder together, `decoder` those of the decoder."""
        super().__init__()
        self.shape = checked_shape("A transformer", shape, classes, patch, width, depth, decoder, heads)
        if not (1 <= classes <= 100_000 and 1 <= patch <= 64):
            raise UsageError(
                f"A transformer needs 1 to 100,000 classes and patches of 1 to 64, got {classes} and {patch}."
            )
        if not (1 <= heads <= width <= 4096) or width % (2 * heads):
            raise UsageError(f"A transformer's width must be a multiple of twice its heads, got {width} and {heads}.")
        if not 1 <= decoder < depth <= 64:
            raise UsageError(
                f"A transformer's decoder has 1 or more of its up to 64 blocks, not all, got {decoder} of {depth}."
            )
        self.classes, self.patch, self.width = classes, patch, width
        self.depth, self.decoder_depth, self.heads = depth, decoder, heads
        channels, height, across = self.shape
        self.padding = (0, -across % patch, 0, -height % patch)
        self.grid = -(-height // patch), -(-across // patch)
        self.patch_embedding = nn.Linear(channels * patch**2, width)
        self.positions = nn.Parameter(0.02 * torch.randn(1, self.tokens, width))
        self.time_embedding = nn.Sequential(nn.Linear(width, width), nn.SiLU(), nn.Linear(width, width))
        self.class_embedding = nn.Embedding(classes + 1, width)
        nn.init.normal_(self.class_embedding.weight, std=0.02)
        self.encoder = nn.ModuleList(ConditionedBlock(width, heads) for _ in range(depth - decoder))
        self.mask_token = nn.Parameter(torch.zeros(1, 1, width))
        self.interpolater = ConditionedBlock(width, heads)
        self.decoder_positions = nn.Parameter(0.02 * torch.randn(1, self.tokens, width))
        self.decoder = nn.ModuleList(ConditionedBlock(width, heads) for _ in range(decoder))
        self.norm = nn.LayerNorm(width, elementwise_affine=False)
        self.last_condition = zeroed(nn.Linear(width, 2 * width))
        self.out = zeroed(nn.Linear(width, channels * patch**2))

    def options(self) -> dict[str, Any]:
        return super().options() | {"decoder": self.decoder_depth}

    @property
    def tokens(self) -> int:
        """Return how many patches a picture is cut into."""
        return self.grid[0] * self.grid[1]

    def forward(self, noisy: Tensor, steps: Tensor, labels: Tensor | None, visible: Tensor | None = None) -> Tensor:
        """Denoise; if given, only the `visible` (n, k) patches are encoded.  # noisy (n, c, h, w), others (n,)"""
        classes = torch.full_like(steps, self.classes) if labels is None else labels
        waves = sinusoids(steps, self.width).to(noisy.dtype)
        condition = self.time_embedding(waves) + self.class_embedding(classes)
        tokens = self.patch_embedding(self._patches(noisy)) + self.positions
        if visible is not None:
            tokens = tokens.gather(1, visible[..., None].expand(-1, -1, tokens.shape[-1]))
        for block in self.encoder:
            tokens = block(tokens, condition)
        tokens = tokens + self.decoder_positions if visible is None else self._interpolated(tokens, visible, condition)
        for block in self.decoder:
            tokens = block(tokens, condition)
        shift, scale = self.last_condition(F.silu(condition))[:, None].chunk(2, dim=-1)
        return self._picture(self.out(self.norm(tokens) * (1 + scale) + shift))

    def _interpolated(self, encoded: Tensor, visible: Tensor, condition: Tensor) -> Tensor:
        """Return all tokens: the encoded ones as they are, the hidden ones guessed from them."""
        n, width = len(encoded), encoded.shape[-1]
        where = visible[..., None].expand(-1, -1, width)
        tokens = self.mask_token.to(encoded.dtype).expand(n, self.tokens, width).scatter(1, where, encoded)
        tokens = tokens + self.decoder_positions
        hidden = torch.ones(n, self.tokens, 1, dtype=torch.bool, device=encoded.device).scatter(
            1, visible[..., None], False
        )
        return torch.where(hidden, self.interpolater(tokens, condition), tokens)

    def _patches(self, pictures: Tensor) -> Tensor:
        """(n, c, h, w) -> (n, tokens, c patch patch)"""
        patch, (down, across) = self.patch, self.grid
        padded = F.pad(pictures, self.padding)
        grid = padded.reshape(len(padded), self.shape[0], down, patch, across, patch)
        return grid.permute(0, 2, 4, 1, 3, 5).reshape(len(padded), self.tokens, -1)

    def _picture(self, patches: Tensor) -> Tensor:
        """The inverse of `_patches`."""
        (channels, height, width), patch, (down, across) = self.shape, self.patch, self.grid
        grid = patches.reshape(len(patches), down, across, channels, patch, patch)
        padded_pictures = grid.permute(0, 3, 1, 4, 2, 5).reshape(len(patches), channels, down * patch, across * patch)
        return padded_pictures[..., :height, :width]


def some_tokens(examples: int, tokens: int, hidden: float, generator: torch.Generator) -> Tensor:
    """Return the visible patches, drawn for each example separately, in order.  # (n, k)

    >>> some_tokens(5, 10, 0.3, torch.Generator()).shape
    torch.Size([5, 7])
    """
    if not 0 <= hidden < 1:
        raise UsageError(f"The hidden share of a picture's patches must be in [0, 1), got {hidden}.")
    visible_count = max(1, tokens - round(hidden * tokens))
    order = torch.rand(examples, tokens, generator=generator).argsort(1)
    return order[:, :visible_count].sort(1).values
