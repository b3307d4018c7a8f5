"""Distances between the observed message and the message of a candidate.

Some weigh the layers of the message differently, by depth, by size, or over the iterations.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from itertools import repeat
from typing import ClassVar

import torch
from torch import Tensor

from fedglass.attack.parts import Binding, BoundTerm, Evaluation
from fedglass.attack.terms.term import Term
from fedglass.core.errors import UsageError
from fedglass.core.facts import Fact
from fedglass.core.rng import stream
from fedglass.core.tensors import kth_smallest

Weights = Sequence[float] | None
"""A weight for each tensor of the message; None if all have the same."""


def products(predicted: Iterable[Tensor], target: Sequence[Tensor], weights: Weights = None) -> tuple[Tensor, Tensor]:
    """Return sum_l w_l <g_l, y_l> and sum_l w_l |g_l|^2 over the tensors of a message, given as vectors.

    This is the one loop behind every term that compares directions.

    >>> g, y = [torch.tensor([1.0, 2.0]), torch.tensor([3.0])], [torch.tensor([1.0, 1.0]), torch.tensor([2.0])]
    >>> products(g, y), products(g, y, [1.0, 0.5])
    ((tensor(9.), tensor(14.)), (tensor(6.), tensor(9.5000)))
    """
    product: Tensor | float = 0.0
    square: Tensor | float = 0.0
    # A dot product of vectors needs no temporary of their size.
    for g, y, w in zip(predicted, target, _weights_or_none(weights, len(target)), strict=True):
        if w is None:
            product = product + torch.dot(g, y)
            square = square + torch.dot(g, g)
        else:
            product = product + w * torch.dot(g, y)
            square = square + w * torch.dot(g, g)
    return torch.as_tensor(product), torch.as_tensor(square)


def norm(target: Sequence[Tensor], weights: Weights = None) -> Tensor:
    """Return the square root of sum_l w_l |y_l|^2, the tensors given as vectors."""
    rows = zip(target, _weights_or_none(weights, len(target)), strict=True)
    return torch.stack([torch.dot(y, y) if w is None else w * torch.dot(y, y) for y, w in rows]).sum().sqrt()


def cosine_distance(target: Sequence[Tensor], weights: Weights = None) -> Callable[[Iterable[Tensor]], Tensor]:
    """Return the distance 1 - <g, y>_w / (|g|_w |y|_w) as a function of g, all tensors given as vectors."""
    length = norm(target, weights)

    def distance(predicted: Iterable[Tensor]) -> Tensor:
        product, square = products(predicted, target, weights)
        return 1 - product / (torch.sqrt(square) * length)

    return distance


def _weights_or_none(weights: Weights, tensors: int) -> Iterable[float | None]:
    return repeat(None, tensors) if weights is None else weights


@dataclass(frozen=True)
class SquaredError(Term):
    """sum_l |g_l - y_l|^2 [Zhu et al., 2019, Eq. 4]."""

    needs: ClassVar[frozenset[Fact]] = frozenset({Fact.SIZE})

    def bind(self, binding: Binding) -> BoundTerm:
        target = binding.target

        def value(at: Evaluation) -> Tensor:
            pairs = zip(at.predicted, target, strict=True)
            return torch.stack([(g - y).square().sum() for g, y in pairs]).sum()

        return value


@dataclass(frozen=True)
class Cosine(Term):
    """1 - <g, y> / (|g| |y|) over the whole flattened message [Geiping et al., 2020, Eq. 4].

    It ignores the scale of the message, so that the learning rate and the number of steps need not be known.
    """

    def bind(self, binding: Binding) -> BoundTerm:
        distance = cosine_distance([y.reshape(-1) for y in binding.target])
        return lambda at: distance(g.flatten() for g in at.predicted)


@dataclass(frozen=True)
class SupportCosine(Term):
    """1 - cos(g_S, y_S) with S = {i: y_i != 0}, the support of the observed message [K. Zhu et al., 2025, Eq. 1].

    Outside of S the product with y vanishes anyway: this differs from `Cosine` only in the norm of g, which no longer
    counts entries of the candidate where nothing was observed.
    """

    def bind(self, binding: Binding) -> BoundTerm:
        target = [y.reshape(-1) for y in binding.target]
        # None for a tensor without zeros, which needs no mask.
        masks = [None if bool((y != 0).all()) else y != 0 for y in target]
        distance = cosine_distance(target)

        def value(at: Evaluation) -> Tensor:
            pairs = zip(at.predicted, masks, strict=True)
            return distance(g.reshape(-1) if mask is None else g.reshape(-1) * mask for g, mask in pairs)

        return value


@dataclass(frozen=True)
class LayeredSquaredError(Term):
    """sum_l e^(-decay l) |g_l - y_l|^2 / B, layers counted from the input, a bias with its weight.

    The distance of DLFA's release [Dimitrov et al., 2022]; the paper prints a cosine. B is the number of local batches
    that the candidate's images fill: all local steps if each epoch has its own images, those of one epoch if the epochs
    share them.
    """

    needs: ClassVar[frozenset[Fact]] = frozenset({Fact.SIZE})

    decay: float = 1.0

    def bind(self, binding: Binding) -> BoundTerm:
        target, batches = binding.target, binding.batches
        weights = [math.exp(-self.decay * depth) for depth in layer_depths(binding.names)]

        def value(at: Evaluation) -> Tensor:
            rows = zip(weights, at.predicted, target, strict=True)
            errors = [w * (g - y).square().sum() for w, g, y in rows]
            return torch.stack(errors).sum() / (batches * at.candidate.images.shape[0])

        return value


@dataclass(frozen=True)
class Ramp(Term):
    """A term with a weight that goes geometrically from `first` to `last` until the share `until` of the iterations."""

    term: Term
    first: float
    last: float
    until: float = 0.5

    def bind(self, binding: Binding) -> BoundTerm:
        term = self.term.bind(binding)

        def value(at: Evaluation) -> Tensor:
            share = min(1.0, at.progress / self.until)
            weight: float = self.first * (self.last / self.first) ** share
            return weight * term(at)

        return value


def layer_depths(names: tuple[str, ...]) -> list[int]:
    """Return the position of each parameter's layer.

    >>> layer_depths(("conv1.weight", "conv1.bias", "fc.weight", "fc.bias"))
    [0, 0, 1, 1]
    """
    owners = [name.rpartition(".")[0] for name in names]
    order = {owner: position for position, owner in enumerate(dict.fromkeys(owners))}
    return [order[owner] for owner in owners]


@dataclass(frozen=True)
class LayeredCosine(Term):
    """1 - <g, y>_w / (|g|_w |y|_w) with <a, b>_w = sum_l w_l <a_l, b_l>, the weights linear in depth.

    w goes from `first` at the input to `last` at the output. AGIC's weights increase with depth, according to its
    abstract [Xu et al., 2022]; the linear form and the two ends are our choice and could not be confirmed. Equal ends
    give `Cosine`.
    """

    first: float = 0.5
    last: float = 1.0

    def bind(self, binding: Binding) -> BoundTerm:
        depths = layer_depths(binding.names)
        step = (self.last - self.first) / max(1, max(depths))
        weights = [self.first + step * d for d in depths]
        distance = cosine_distance([y.reshape(-1) for y in binding.target], weights)
        return lambda at: distance(g.reshape(-1) for g in at.predicted)


@dataclass(frozen=True)
class GrowingCosine(Term):
    """1 - cos(g_P, y_P) over a part P of the message: its last tensors, and of their entries a random share `kept`.

    The subset selection of HFGradInv [Ye et al., 2024]: from the share `first` of the tensors, counted from the
    output, to the share `last` at the share `until` of the iterations. The defaults are those of the paper's release
    for ResNet-34, where 11 of 110 tensors become 86 over 4,000 of 15,000 iterations, in steps of ten; here they come
    one by one. Each iteration draws other random entries, from the seed and its share of the iterations.
    """

    first: float = 0.1
    last: float = 0.78
    until: float = 4 / 15
    kept: float = 0.7
    seed: int = 0

    def bind(self, binding: Binding) -> BoundTerm:
        target = [y.reshape(-1) for y in binding.target]

        def value(at: Evaluation) -> Tensor:
            last = target[-self.tensors(len(target), at.progress) :]
            draw = stream(self.seed, "growing cosine", repr(at.progress))
            masks = [
                torch.empty(len(y), dtype=torch.bool).bernoulli_(self.kept, generator=draw).to(y.device) for y in last
            ]
            masked = [y * mask for y, mask in zip(last, masks, strict=True)]
            predicted = zip(at.predicted[-len(last) :], masks, strict=True)
            product, square = products((g.reshape(-1) * mask for g, mask in predicted), masked)
            return 1 - product / torch.sqrt(square) / torch.sqrt(products(masked, masked)[1])

        return value

    def tensors(self, of: int, progress: float) -> int:
        """Return how many of the `of` tensors count at a share of the iterations.

        >>> [GrowingCosine().tensors(110, share) for share in (0.0, 4 / 15, 1.0)]
        [11, 86, 86]
        """
        share = self.first + (self.last - self.first) * min(1.0, progress / self.until)
        return min(of, max(1, math.ceil(share * of - 1e-9)))


@dataclass(frozen=True)
class PartialMatch(Term):
    """sum_l (mean|g - y| + 1 - cos(g, y)) over the entries of layer l in which |g| is not among its smaller share.

    The partial gradient matching of FedLeak [Fan et al., 2025], as in its release: the candidate's gradient g decides
    which entries count (those above its quantile `dropped`, in each tensor), the others are set to zero in both. The
    release cuts off another fifth of the smallest observed entries inside the cosine. After the first cut these are all
    zero, so this changes nothing and is left out. The 1 in front of the cosine is our addition.
    """

    needs: ClassVar[frozenset[Fact]] = frozenset({Fact.SIZE})

    dropped: float = 0.5

    def bind(self, binding: Binding) -> BoundTerm:
        target = [y.reshape(-1) for y in binding.target]

        def value(at: Evaluation) -> Tensor:
            pairs = zip(at.predicted, target, strict=True)
            return torch.stack([self._one(g.reshape(-1), y) for g, y in pairs]).sum()

        return value

    def _one(self, g: Tensor, y: Tensor) -> Tensor:
        size = g.detach().abs()
        mask = size >= kth_smallest(size, 1 + int(self.dropped * (len(size) - 1)))
        g, y = g * mask, y * mask
        # A layer that sends nothing has the norm zero, with a zero gradient; the 1e-8 is the release's.
        lengths = (torch.linalg.vector_norm(g) + 1e-8) * (torch.linalg.vector_norm(y) + 1e-8)
        distance: Tensor = (g - y).abs().mean() + 1 - torch.dot(g, y) / lengths
        return distance


@dataclass(frozen=True)
class GaussianKernel(Term):
    """sum_l q_l (1 - exp(-mean|g_l - y_l|^2 / (width Var y_l))) [Wang et al., 2020 and 2022, SAPAG].

    This distance saturates. q_l = 1 / (1 + depth): layers near the input weigh more. The bandwidth is the variance of
    the observed layer, so that it adapts to initialisation and training ("self-adaptive"). Confirmed from the papers'
    abstracts: a Gaussian kernel of the difference that adapts to the variance of the gradients and to the architecture.
    The mean over entries is our choice (with a sum the exponential, and its gradient, is zero in floating point for any
    start). The authors' code is not public: variance by layer and q_l are those of a re-implementation by others
    (github.com/NielsFuglsang/02460-advanced-machine-learning), and could not be confirmed.
    """

    needs: ClassVar[frozenset[Fact]] = frozenset({Fact.SIZE})

    width: float = 1.0

    def __post_init__(self) -> None:
        if not (math.isfinite(self.width) and self.width > 0):
            raise UsageError(f"kernel.width must be a finite number above 0, got {self.width!r}.")

    def bind(self, binding: Binding) -> BoundTerm:
        target = binding.target
        overall = torch.cat([y.reshape(-1) for y in target]).var(unbiased=False)
        spreads = [y.var(unbiased=False) for y in target]
        # A layer of equal entries has no width of its own.
        scales = [self.width * torch.where(v > 0, v, overall) for v in spreads]
        weights = [1 / (1 + depth) for depth in layer_depths(binding.names)]

        def value(at: Evaluation) -> Tensor:
            rows = zip(at.predicted, target, scales, weights, strict=True)
            return torch.stack([q * -torch.expm1(-(g - y).square().mean() / s) for g, y, s, q in rows]).sum()

        return value
