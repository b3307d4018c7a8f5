"""A small vision transformer with a first block that leaks its input."""

from __future__ import annotations

from typing import cast

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from fedglass.core.registry import register
from fedglass.core.text import SME
from fedglass.models.network import Shape

PAPER = (
    "Lu, Zhang, Zhao, He, Cheng: APRIL: Finding the Achilles' Heel on Privacy for Vision Transformers, CVPR 2022, "
    "https://arxiv.org/abs/2112.14087"
)


class Attention(nn.Module):
    """softmax(q k' / sqrt(d)) v; `fused` takes PyTorch's kernel, which is faster but cannot be differentiated twice."""

    def __init__(self, width: int, heads: int, bias: bool = False, fused: bool = False) -> None:
        super().__init__()
        self.heads, self.fused = heads, fused
        self.qkv = nn.Linear(width, 3 * width, bias=bias)
        self.out_proj = nn.Linear(width, width)

    def forward(self, tokens: Tensor) -> Tensor:
        n, length, width = tokens.shape
        split = self.qkv(tokens).reshape(n, length, 3, self.heads, width // self.heads)
        q, k, v = split.permute(2, 0, 3, 1, 4)  # (n, heads, length, width / heads) each
        if self.fused:
            mixed = F.scaled_dot_product_attention(q, k, v)
        else:
            mixed = (q @ k.transpose(-2, -1) / q.shape[-1] ** 0.5).softmax(-1) @ v
        return cast(Tensor, self.out_proj(mixed.transpose(1, 2).reshape(n, length, width)))


class ViTBlock(nn.Module):
    """Attention and a feed-forward layer, each normalised first and with a shortcut.

    In a `bare` block, the first of type A, the attention takes the embedding itself and has no shortcut.
    """

    def __init__(self, width: int, heads: int, bare: bool = False) -> None:
        super().__init__()
        self.norm1 = None if bare else nn.LayerNorm(width)
        self.mha = Attention(width, heads)
        self.norm2 = nn.LayerNorm(width)
        self.mlp = nn.Sequential(nn.Linear(width, 2 * width), nn.GELU(), nn.Linear(2 * width, width))

    def forward(self, tokens: Tensor) -> Tensor:
        tokens = self.mha(tokens) if self.norm1 is None else tokens + self.mha(self.norm1(tokens))
        return tokens + cast(Tensor, self.mlp(self.norm2(tokens)))


class ViT(nn.Module):
    """Type A of APRIL [Lu et al., 2022, Figure 1]: width 384, 4 heads, 4 blocks, feed-forward ratio 2.

    As in the release of SME, only the first block is bare, the class token and the positions start at zero,
    and a hidden layer precedes the logits. Sides that the patch does not divide are padded with zeros.
    """

    def __init__(self, *, shape: Shape, classes: int, patch: tuple[int, int]) -> None:
        super().__init__()
        width, heads, depth = 384, 4, 4
        (height, across), (ph, pw) = shape[1:], patch
        self.patch = patch
        self.padding = (0, -across % pw, 0, -height % ph)
        patches = -(-height // ph) * -(-across // pw)
        self.patch_embedding = nn.Linear(shape[0] * ph * pw, width)
        self.cls_token = nn.Parameter(torch.zeros(1, 1, width))
        self.position_embedding = nn.Parameter(torch.zeros(1, patches + 1, width))
        later = [ViTBlock(width, heads) for _ in range(depth - 1)]
        self.blocks = nn.Sequential(ViTBlock(width, heads, bare=True), *later)
        self.norm = nn.LayerNorm(width)
        self.fc1 = nn.Linear(width, 2 * width)
        self.act = nn.GELU()
        self.fc2 = nn.Linear(2 * width, classes)

    def forward(self, inputs: Tensor) -> Tensor:
        ph, pw = self.patch
        padded = F.pad(inputs, self.padding)
        n, c, h, w = padded.shape
        grid = padded.reshape(n, c, h // ph, ph, w // pw, pw)
        patches = grid.permute(0, 2, 4, 3, 5, 1).reshape(n, -1, ph * pw * c)
        embedded = self.patch_embedding(patches)
        tokens = torch.cat([self.cls_token.expand(n, -1, -1), embedded], dim=1) + self.position_embedding
        hidden = self.norm(self.blocks(tokens)[:, 0])
        return cast(Tensor, self.fc2(self.act(self.fc1(hidden))))


@register("models", "vit", summary="small vision transformer of type A", paper=PAPER)
def vit(*, shape: Shape, classes: int) -> ViT:
    """Return the network with patches of 4x4, or of 16x16 if a side is longer than 64 pixels."""
    side = 4 if max(shape[1:]) <= 64 else 16
    return ViT(shape=shape, classes=classes, patch=(side, side))


@register("models", "vit_sme", summary="the same with one patch, as in the release of SME", paper=SME)
def vit_sme(*, shape: Shape, classes: int) -> ViT:
    """Return the network with one patch that covers the whole image, as in the release of SME [Zhu et al., 2023]."""
    return ViT(shape=shape, classes=classes, patch=shape[1:])
