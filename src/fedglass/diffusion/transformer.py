"""A class-conditional transformer that denoises patches and learns to fill in hidden ones.

In training a part of the patches is hidden from the encoder, a small interpolater guesses their features from the
others', and the decoder denoises all of them; a second loss denoises with nothing hidden. So the network learns how the
parts of a picture belong together [Gao et al., 2023, Section 3]. Nothing is hidden when it is used.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, cast

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from fedglass.core.errors import UsageError
from fedglass.core.registry import register
from fedglass.diffusion.unet import sinusoids

PAPER = (
    "Gao, Zhou, Cheng, Yan: Masked Diffusion Transformer is a Strong Image Synthesizer, ICCV 2023, "
    "https://arxiv.org/abs/2303.14389"
)


class Attention(nn.Module):
    """Every token looks at every other; only differentiated once, so the fused kernel serves."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.qkv = nn.Linear(width, 3 * width)
        self.out_proj = nn.Linear(width, width)

    def forward(self, tokens: Tensor) -> Tensor:
        n, length, width = tokens.shape
        split = self.qkv(tokens).reshape(n, length, 3, self.heads, width // self.heads)
        q, k, v = split.permute(2, 0, 3, 1, 4)  # (n, heads, length, width / heads) each
        mixed = F.scaled_dot_product_attention(q, k, v).transpose(1, 2).reshape(n, length, width)
        return cast(Tensor, self.out_proj(mixed))


class Block(nn.Module):
    """Attention and a feed-forward layer whose normalisations and shortcuts are set by the condition (adaLN-Zero)."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.norm1 = nn.LayerNorm(width, elementwise_affine=False)
        self.attention = Attention(width, heads)
        self.norm2 = nn.LayerNorm(width, elementwise_affine=False)
        self.mlp = nn.Sequential(nn.Linear(width, 4 * width), nn.GELU(approximate="tanh"), nn.Linear(4 * width, width))
        self.condition = _silent(width, 6 * width)

    def forward(self, tokens: Tensor, condition: Tensor) -> Tensor:
        parts = self.condition(F.silu(condition))[:, None].chunk(6, dim=-1)  # (n, 1, width) each
        shift1, scale1, gate1, shift2, scale2, gate2 = parts
        tokens = tokens + gate1 * self.attention(self.norm1(tokens) * (1 + scale1) + shift1)
        return cast(Tensor, tokens + gate2 * self.mlp(self.norm2(tokens) * (1 + scale2) + shift2))


@register("denoisers", "FedglassMaskedTransformer", summary="a masked diffusion transformer with classes", paper=PAPER)
class MaskedDiffusionTransformer(nn.Module):
    """(noisy images, steps, classes) -> an answer of the images' shape.

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
        self.shape = _checked(shape, classes, patch, width, depth, decoder, heads)
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
        self.encoder = nn.ModuleList(Block(width, heads) for _ in range(depth - decoder))
        self.mask_token = nn.Parameter(torch.zeros(1, 1, width))
        self.interpolater = Block(width, heads)
        self.decoder_positions = nn.Parameter(0.02 * torch.randn(1, self.tokens, width))
        self.decoder = nn.ModuleList(Block(width, heads) for _ in range(decoder))
        self.norm = nn.LayerNorm(width, elementwise_affine=False)
        self.last_condition = _silent(width, 2 * width)
        self.out = _silent(width, channels * patch**2)

    def options(self) -> dict[str, Any]:
        """Return the options that it was made with, for its config.json."""
        size = {"patch": self.patch, "width": self.width, "depth": self.depth, "decoder": self.decoder_depth}
        return {"shape": self.shape, "classes": self.classes, **size, "heads": self.heads}

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
            tokens = _taken(tokens, visible)
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


def _taken(tokens: Tensor, visible: Tensor) -> Tensor:
    return tokens.gather(1, visible[..., None].expand(-1, -1, tokens.shape[-1]))


def _silent(inputs: int, outputs: int) -> nn.Linear:
    """A layer that starts as zero: every block starts as the identity, and the whole as no prediction."""
    layer = nn.Linear(inputs, outputs)
    nn.init.zeros_(layer.weight)
    nn.init.zeros_(layer.bias)
    return layer


def _checked(
    shape: Sequence[int], classes: int, patch: int, width: int, depth: int, decoder: int, heads: int
) -> tuple[int, int, int]:
    if not all(isinstance(number, int) for number in (*shape, classes, patch, width, depth, decoder, heads)):
        raise UsageError("A transformer's shape, classes and sizes must be whole numbers.")
    if len(shape) != 3 or not all(1 <= side <= 4096 for side in shape):
        raise UsageError(f"A transformer needs the images' channels, height and width, got {tuple(shape)}.")
    if not (1 <= classes <= 100_000 and 1 <= patch <= 64):
        raise UsageError(f"A transformer needs 1 to 100,000 classes and patches of 1 to 64, got {classes} and {patch}.")
    if not (1 <= heads <= width <= 4096) or width % (2 * heads):
        raise UsageError(f"A transformer's width must be a multiple of twice its heads, got {width} and {heads}.")
    if not 1 <= decoder < depth <= 64:
        raise UsageError(
            f"A transformer's decoder has 1 or more of its up to 64 blocks, not all, got {decoder} of {depth}."
        )
    channels, height, across = shape
    return channels, height, across
