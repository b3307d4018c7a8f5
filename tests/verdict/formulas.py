"""The truth about a message, by formulas: what reads it, what singles its records out, what bounds both.

Nothing here comes from the package. Formulas are evaluated on the message itself and on the private images, so that a
truth is demonstrated: `read` for a leak, `play` for singling out, `shifts` and `success` for a bound.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

import torch
from scipy.optimize import minimize_scalar
from scipy.stats import norm
from torch import Tensor, nn
from torch.func import functional_call, grad, vmap
from torch.nn import functional as F

THRESHOLD, MARGIN = 20.0, 1.0
"""In dB: the gate's default threshold, and by how much a reading must beat every blind guess."""
BORDER, DOUBT = (18.0, 22.0), 2.0
"""In dB: readings between these, or by less above the margin, could be judged either way by another implementation."""
PRIOR, MAX_SUCCESS = 1e-3, 0.05
"""The base rate of naming a record, and the largest success that is still clear: the gate's defaults."""
MU_LIMIT = float(norm.ppf(MAX_SUCCESS) - norm.ppf(PRIOR))  # 1.445
CANDIDATES = 200
"""Of the same label, from which a record is told in the candidate game."""
WINS, CONTROL, LOSES = 0.6, 0.1, 0.05
"""Rates of the game: at least so much with the record trained on, at most so much without; lost below the last."""
MATCHED = 1e-3
"""Squared distance of two unit gradients below which another start is not tried: images were then read in trials."""

Update = Mapping[str, Tensor]


# ---- how a client trains --------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Recipe:
    """A local training by SGD, with batches in file order."""

    lr: float
    epochs: int = 1
    batch_size: int = 10_000
    momentum: float = 0.0
    weight_decay: float = 0.0
    batch_statistics: bool = False
    """Whether normalisation layers use the statistics of the batch."""

    def steps(self, examples: int) -> int:
        return self.epochs * math.ceil(examples / self.batch_size)

    def kept(self, examples: int) -> float:
        """The factor of the first weights in the last ones: 1 without weight decay."""
        weight, buffer = 1.0, 0.0
        for step in range(self.steps(examples)):
            pull = self.weight_decay * weight
            buffer = pull if step == 0 else self.momentum * buffer + pull
            weight -= self.lr * buffer
        return weight


def train(
    model: nn.Module, inputs: Tensor, labels: Tensor, recipe: Recipe, weights: Tensor | None = None
) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
    """Return the update and the buffers after a training; `weights` multiply the examples' losses.  # (n,)"""
    trained = copy.deepcopy(model).train(recipe.batch_statistics)
    options = {"momentum": recipe.momentum, "weight_decay": recipe.weight_decay}
    optimiser = torch.optim.SGD(trained.parameters(), lr=recipe.lr, **options)
    for _ in range(recipe.epochs):
        for rows in torch.arange(len(labels)).split(recipe.batch_size):
            optimiser.zero_grad()
            losses = F.cross_entropy(trained(inputs[rows]), labels[rows], reduction="none")
            (losses if weights is None else weights[rows] * losses).mean().backward()
            optimiser.step()
    before = dict(model.named_parameters())
    update = {name: (after - before[name]).detach() for name, after in trained.named_parameters()}
    return update, {name: buffer.detach().clone() for name, buffer in trained.named_buffers()}


def flat(update: Update) -> Tensor:
    """Return all entries as one vector.  # (d,)"""
    return torch.cat([tensor.flatten() for tensor in update.values()])


def mean_of(updates: Sequence[Update], sizes: Sequence[int]) -> dict[str, Tensor]:
    """Return the mean of several clients' updates, weighted by their numbers of examples."""
    shares = [size / sum(sizes) for size in sizes]
    return {name: sum(s * u[name] for s, u in zip(shares, updates, strict=True)) for name in updates[0]}  # type: ignore[misc]  # not empty


# ---- how good a reading is ------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Pixels:
    """How pixels in [0, 1] become inputs, channel by channel."""

    mean: tuple[float, ...]
    std: tuple[float, ...]

    def inputs(self, pixels: Tensor) -> Tensor:
        return (pixels - torch.tensor(self.mean).view(-1, 1, 1)) / torch.tensor(self.std).view(-1, 1, 1)

    def of(self, inputs: Tensor) -> Tensor:
        return inputs * torch.tensor(self.std).view(-1, 1, 1) + torch.tensor(self.mean).view(-1, 1, 1)


def psnr(one: Tensor, other: Tensor) -> float:
    """Return the peak signal-to-noise ratio of two images with pixels in [0, 1]."""
    error = float((one.double() - other.double()).square().mean())
    return math.inf if error == 0 else -10 * math.log10(error)


def blind(image: Tensor, public: Tensor) -> float:
    """Return the PSNR of the better of two blind guesses: the best flat colour, the mean of public images."""
    colour = image.mean((1, 2), keepdim=True).expand_as(image)
    return max(psnr(colour, image), psnr(public.mean(0), image))


@dataclass(frozen=True)
class Reading:
    """The image that is read best."""

    state: str
    """read, unread, or border."""
    psnr: float
    blind: float


def judge(images: Tensor, private: Tensor, public: Tensor) -> Reading:
    """Compare what formulas give with the private images; one that is read is enough.  # (m, c, h, w), (n, c, h, w)"""
    found = images.clamp(0, 1)
    best = [(max((psnr(each, image) for each in found), default=0.0), blind(image, public)) for image in private]
    at = max(range(len(best)), key=lambda i: best[i][0] - max(THRESHOLD, best[i][1]))
    score, guess = best[at]
    nearest = max(psnr(each, private[at]) for each in public)  # no blind guess: who could know which one it is
    if score >= max(BORDER[1], guess + MARGIN + DOUBT, nearest + MARGIN):
        return Reading("read", score, guess)
    return Reading("unread" if score < BORDER[0] else "border", score, guess)


# ---- readings: formulas and attacks ---------------------------------------------------------------------------------


class Grey(nn.Module):
    """The mean of the channels."""

    def forward(self, images: Tensor) -> Tensor:
        return images.mean(1, keepdim=True)


@dataclass(frozen=True, eq=False)
class Message:
    """What an adversary has; the model is a plain sequence of layers with the weights from before the training."""

    model: nn.Sequential
    update: Update
    pixels: Pixels
    shape: tuple[int, int, int]
    examples: int = 1
    kept: float = 1.0
    """The factor of the first weights in the last ones, as the declared training has it."""

    def dense(self) -> list[int]:
        """Return the positions of the dense layers."""
        return [i for i, layer in enumerate(self.model) if isinstance(layer, nn.Linear)]

    def changes(self, at: int) -> tuple[Tensor, Tensor | None]:
        """Return a dense layer's update of weight and bias, without what weight decay did.  # (h, d), (h,)"""
        layer, lost = self.model[at], 1 - self.kept
        weight = self.update[f"{at}.weight"] + lost * layer.weight.detach()
        bias = None if layer.bias is None else self.update[f"{at}.bias"] + lost * layer.bias.detach()
        return weight, bias

    def images(self, seen: Tensor) -> Tensor:
        """Return images of which the first dense layer sees this, for layers before it that average alone."""
        channels, height, width = self.shape
        before = list(self.model[: self.dense()[0]])
        pool = next((int(layer.kernel_size) for layer in before if isinstance(layer, nn.AvgPool2d)), 1)
        depth = 1 if any(isinstance(layer, Grey) for layer in before) else channels
        small = seen.view(-1, depth, height // pool, width // pool)
        smooth = F.interpolate(small, (height, width), mode="bilinear")
        smooth = smooth + F.interpolate(small - F.avg_pool2d(smooth, pool), (height, width))
        return self.pixels.of(smooth.expand(-1, channels, -1, -1))


def divide(weight: Tensor, bias: Tensor, known: Tensor | None = None) -> Tensor:
    """Return x of the update d x^T, d, by least squares over the known entries.  # (h, d), (h,) -> (d,)"""
    factors = bias.double()[:, None] * (1.0 if known is None else known.double())
    below = (factors * bias.double()[:, None]).expand_as(weight).sum(0)
    return ((factors * weight.double()).sum(0) / below.where(below != 0, 1.0)).float()


def principal(weight: Tensor, bias: Tensor) -> Tensor:
    """Return x from the first right singular vector of [weight | bias], as both are noisy.  # (d,)"""
    row = torch.linalg.svd(torch.cat([weight, bias[:, None]], 1), full_matrices=False)[2][0]
    return row[:-1] / row[-1]


def agreeing(weight: Tensor, bias: Tensor, tolerance: float = 1e-3) -> Tensor:
    """Return the quotients of rows that agree with another row: one example alone activates them.  # (m, d)"""
    alive = bias.abs() > 1e-4 * bias.abs().max()
    rows = weight[alive] / bias[alive][:, None]
    apart = torch.cdist(rows, rows).fill_diagonal_(math.inf) / rows.norm(dim=1)[:, None]
    return rows[apart.min(1).values < tolerance] if len(rows) > 1 else rows[:0]


def features(message: Message) -> Tensor:
    """Return what the first dense layer may have been given: quotients of all rows together, and of single rows."""
    weight, bias = message.changes(message.dense()[0])
    if bias is None:
        return weight[:0]
    sent = message.update[f"{message.dense()[0]}.weight"] != 0
    if message.examples > 1:  # elsewhere rows agree on mixtures of the examples
        alone = any(isinstance(layer, nn.ReLU) for layer in message.model) and len(message.model[-1].bias) > 2
        return agreeing(weight, bias) if alone else weight[:0]
    return torch.stack([divide(weight, bias), divide(weight, bias, sent), principal(weight, bias)])


def scaled_direction(message: Message) -> Tensor:
    """Return x of a first layer without bias: its direction, scaled such that it gives the next layer's inputs."""
    first, second = message.dense()[:2]
    weight, bias = message.changes(second)
    if bias is None:
        return message.changes(first)[0][:0]
    hidden = divide(weight, bias)
    direction = torch.linalg.svd(message.changes(first)[0], full_matrices=False)[2][0]

    def distance(scale: float) -> float:
        with torch.no_grad():
            return float((message.model[first:second](scale * direction[None]) - hidden).square().sum())

    length = math.sqrt(len(direction))
    found = [minimize_scalar(distance, bounds=(-3 * length, 0)), minimize_scalar(distance, bounds=(0, 3 * length))]
    best = min(found, key=lambda end: float(end.fun))
    return float(best.x) * direction[None]


INVERSES: Mapping[type[nn.Module], Callable[[Tensor], Tensor]] = {
    nn.Sigmoid: lambda y: torch.logit(y, 1e-6),
    nn.Tanh: lambda y: torch.atanh(y.clamp(-1 + 1e-6, 1 - 1e-6)),
    nn.LeakyReLU: lambda y: torch.where(y < 0, y / 0.01, y),
    nn.ReLU: lambda y: y,
}


def through_convolution(message: Message, outputs: Tensor) -> Tensor:
    """Return the images that a convolution and an activation turn into these, by a linear system.  # (m, d)"""
    convolution, activation = message.model[0], message.model[1]
    size = math.prod(message.shape)
    zero = torch.zeros(1, *message.shape)
    with torch.no_grad():
        offset = convolution(zero).flatten()
        columns = convolution(torch.eye(size).view(size, *message.shape)).flatten(1) - offset  # (size, d)
    found = []
    for output in outputs:
        wanted = INVERSES[type(activation)](output) - offset
        told = output > 1e-6 * output.abs().max() if isinstance(activation, nn.ReLU) else torch.ones_like(output) > 0
        matrix = columns[:, told].T.double()
        ridge = 1e-6 * matrix.square().sum() / size * torch.eye(size, dtype=torch.float64)
        found.append(torch.linalg.solve(matrix.T @ matrix + ridge, matrix.T @ wanted[told].double()).float())
    return message.pixels.of(torch.stack(found).view(-1, *message.shape)) if found else torch.zeros(0, *message.shape)


def match_gradient(message: Message, starts: int = 2, iterations: int = 60) -> Tensor:
    """Return the image whose gradient is most like the message, by L-BFGS; the head's bias tells the label."""
    label = flat(message.update)[-len(message.model[-1].bias) :].argmax()[None]
    target = -flat(message.update) / flat(message.update).norm()
    parameters = list(message.model.parameters())

    def distance(guess: Tensor) -> Tensor:
        loss = F.cross_entropy(message.model(guess), label)
        gradient = torch.cat([g.flatten() for g in torch.autograd.grad(loss, parameters, create_graph=True)])
        return (gradient / gradient.norm() - target).square().sum()

    def matched(start: int) -> tuple[float, Tensor]:
        image = torch.rand(1, *message.shape, generator=torch.Generator().manual_seed(start))
        guess = message.pixels.inputs(image).requires_grad_()
        solver = torch.optim.LBFGS([guess], max_iter=iterations, history_size=50, line_search_fn="strong_wolfe")

        def closure() -> float:
            value = distance(guess)
            (guess.grad,) = torch.autograd.grad(value, [guess])
            return value.item()

        solver.step(closure)
        return distance(guess).item(), guess.detach()

    best = matched(0)
    for start in range(1, starts):
        best = best if best[0] < MATCHED else min(best, matched(start), key=lambda pair: pair[0])
    return message.pixels.of(best[1])


# ---- readings behind noise that is not what it is said to be --------------------------------------------------------


def without_seed(update: Update, std: float, seed: int) -> dict[str, Tensor]:
    """Return the update without the noise of a generator of that seed, drawn tensor by tensor."""
    generator = torch.Generator().manual_seed(seed)
    return {name: tensor - std * torch.randn(tensor.shape, generator=generator) for name, tensor in update.items()}


def quiet_rows(weight: Tensor, bias: Tensor, std: float) -> Tensor:
    """Return x from the rows whose length is less than noise would give them."""
    quiet = weight.norm(dim=1) < 0.5 * std * math.sqrt(weight.shape[1])
    return divide(weight[quiet], bias[quiet])


def sum_of_rows(weight: Tensor, bias: Tensor) -> Tensor:
    """Return x where the noise of all rows together cancels."""
    return (weight.double().sum(0) / bias.double().sum()).float()


def most_repeated(weight: Tensor, bias: Tensor) -> Tensor:
    """Return for each column the quotient that most rows share, as where entries are left without noise."""
    quotients = (weight / bias[:, None]).sort(0).values  # (h, d)
    window = max(3, len(bias) // 8)
    widths = quotients[window - 1 :] - quotients[: len(bias) - window + 1]
    first = widths.argmin(0)
    return torch.stack([quotients[first + i, torch.arange(weight.shape[1])] for i in range(window)]).median(0).values


def smoothest(weight: Tensor, bias: Tensor, rank: int, shape: tuple[int, int, int]) -> Tensor:
    """Return the smoothest image among the rows' combinations, as where the noise has few directions."""
    basis = torch.linalg.svd(torch.cat([weight, bias[:, None]], 1).double(), full_matrices=False)[2][: rank + 1]
    pictures, ends = basis[:, :-1].view(rank + 1, *shape), basis[:, -1]
    steps = torch.cat([pictures.diff(dim=2).flatten(1), pictures.diff(dim=3).flatten(1)], 1)
    mix = torch.linalg.solve(steps @ steps.T, ends)
    return (mix @ basis[:, :-1] / (mix @ ends)).float()


def off_grid(weight: Tensor, bias: Tensor, step: float) -> Tensor:
    """Return x from what is beside the multiples of a step, which noise was rounded to."""
    rests = [tensor.double() - step * (tensor.double() / step).round() for tensor in (weight, bias)]
    return divide(rests[0], rests[1])


def off_bfloat16(weight: Tensor, bias: Tensor, std: float) -> Tensor:
    """Return x from what is beside the bfloat16 numbers, among which noise was drawn."""
    rests = [tensor - tensor.bfloat16().float() for tensor in (weight, bias)]
    large = [tensor.abs() > std / 4 for tensor in (weight, bias)]  # smaller numbers are too close to each other
    return divide(rests[0], rests[1] * large[1], large[0])


def magnitudes(weight: Tensor, bias: Tensor) -> Tensor:
    """Return x, where no input is negative, from magnitudes: random signs and random factors are no secret."""
    return weight.abs().sum(0) / bias.abs().sum()


def read(message: Message, trick: str = "", std: float = 0.0) -> Tensor:
    """Return the images that the formulas for this network, and for this trick, give.  # (m, c, h, w)"""
    first = message.dense()[0]
    if any(isinstance(layer, nn.Conv2d) for layer in message.model):
        hidden = len(message.dense()) > 1
        return through_convolution(message, features(message)) if hidden else match_gradient(message)
    if message.model[first].bias is None:
        return message.images(scaled_direction(message))
    if trick == "seed":
        clean = [without_seed(message.update, std, seed) for seed in SEEDS]
        return torch.cat([message.images(features(replace(message, update=update))) for update in clean])
    found = TRICKS[trick](*message.changes(first), std, message.shape)[None] if trick in TRICKS else features(message)
    return message.images(found)


SEEDS = (0, 1, 42, 1234)
"""Seeds that everybody tries first."""
RANK, STEPS = 8, 30
"""Of noise in few directions: how many; of rounded noise: how many steps to a standard deviation."""
TRICKS: Mapping[str, Callable[[Tensor, Tensor, float, tuple[int, int, int]], Tensor]] = {
    "half": lambda weight, bias, std, shape: most_repeated(weight, bias),
    "rows": lambda weight, bias, std, shape: quiet_rows(weight, bias, std),
    "centred": lambda weight, bias, std, shape: sum_of_rows(weight, bias),
    "opposite": lambda weight, bias, std, shape: sum_of_rows(weight, bias),
    "rank": lambda weight, bias, std, shape: smoothest(weight, bias, RANK, shape),
    "rounded": lambda weight, bias, std, shape: off_grid(weight, bias, std / STEPS),
    "bfloat16": lambda weight, bias, std, shape: off_bfloat16(weight, bias, std),
    "signs": lambda weight, bias, std, shape: magnitudes(weight, bias),
    "factors": lambda weight, bias, std, shape: magnitudes(weight, bias),
}
"""By name, the formula against noise, or an own defence, that is not what it seems."""


# ---- the candidate game ---------------------------------------------------------------------------------------------


def gradients(model: nn.Module, inputs: Tensor, labels: Tensor) -> Tensor:
    """Return each example's gradient, with the running statistics of normalisation layers.  # (n, d)"""
    held = {name: tensor.detach() for name, tensor in (*model.named_parameters(), *model.named_buffers())}
    names = [name for name, _ in model.named_parameters()]

    def loss(weights: dict[str, Tensor], image: Tensor, label: Tensor) -> Tensor:
        return F.cross_entropy(functional_call(model, {**held, **weights}, (image[None],)), label[None])

    model.eval()
    each = vmap(grad(loss), in_dims=(None, 0, 0), chunk_size=256)({name: held[name] for name in names}, inputs, labels)
    return torch.cat([each[name].flatten(1) for name in names], 1)


@dataclass(frozen=True, eq=False)
class Labelled:
    """Examples with pixels in [0, 1]."""

    images: Tensor  # (n, c, h, w)
    labels: Tensor  # (n,)

    def part(self, rows: slice | Tensor | list[int]) -> Labelled:
        return Labelled(self.images[rows], self.labels[rows])


@dataclass(frozen=True)
class Game:
    """How often a record is told from candidates of its label."""

    members: float
    control: float
    """The same for records of the same kind that were not trained on."""

    @property
    def state(self) -> str:
        """won, lost, or border."""
        if self.members >= WINS and self.control <= CONTROL:
            return "won"
        return "lost" if self.members <= LOSES else "border"


def play(
    message: Message,
    private: Labelled,
    control: Labelled,
    candidates: Labelled,
    public: Labelled,
    share: float = 0.5,  # as in the trials that the design rests on
) -> Game:
    """Play the candidate game by projected cosine; a share of the directions of `public` gradients is left out."""
    sets = private, control, candidates, public
    *each, known = [gradients(message.model, message.pixels.inputs(part.images), part.labels) for part in sets]
    values, vectors = torch.linalg.eigh((known @ known.T).double())
    kept = values > max(1e-6 * float(values[-1]), float(values[int((1 - share) * len(values))]))  # not rounding alone
    common = (vectors[:, kept] / values[kept].sqrt()).float().T @ known  # (k, d)

    def rest(rows: Tensor) -> Tensor:
        return F.normalize(rows - (rows @ common.T) @ common, dim=1)

    target = rest(-flat(message.update)[None])[0]
    mine, others, pool = (rest(rows) @ target for rows in each)
    first = [_first(s, p.labels, pool, candidates.labels) for s, p in ((mine, private), (others, control))]
    return Game(*first)


def _first(scores: Tensor, labels: Tensor, pool: Tensor, pool_labels: Tensor) -> float:
    """Return how often a record's score is above those of its own draw of candidates."""
    generator, wins = torch.Generator().manual_seed(0), 0
    for score, label in zip(scores, labels, strict=True):
        same = pool[pool_labels == label]
        if len(same) < CANDIDATES:
            raise ValueError(f"{len(same)} candidates of label {int(label)}, expected at least {CANDIDATES}")
        wins += bool(score > same[torch.randperm(len(same), generator=generator)[:CANDIDATES]].max())
    return wins / len(labels)


# ---- the bound of each record ---------------------------------------------------------------------------------------


def success(mu: float) -> float:
    """Return the largest success in naming a record, against a base rate of 1 in 1,000."""
    return float(norm.cdf(norm.ppf(PRIOR) + mu))


def clipped(update: Tensor, limit: float) -> Tensor:
    """Return the vector, scaled down to a length."""
    return update * min(1.0, limit / max(float(update.norm()), 1e-30))


def shifts(
    model: nn.Module, pixels: Pixels, private: Labelled, public: Labelled, recipe: Recipe, limit: float = math.inf
) -> list[float]:
    """Return how far each record moves the noise-free update: the farthest of three references in its place.

    The references: the record absent, the record without weight among as many, and public examples of its label.
    """
    inputs, count = pixels.inputs(private.images), len(private.labels)

    def sent(images: Tensor, labels: Tensor, weights: Tensor | None = None) -> Tensor:
        return clipped(flat(train(model, images, labels, recipe, weights)[0]), limit)

    whole, found = sent(inputs, private.labels), []
    for i in range(count):
        weights = torch.ones(count)
        weights[i] = 0
        references = [sent(inputs, private.labels, weights)]
        rows = weights.bool()
        references += [sent(inputs[rows], private.labels[rows])] if count > 1 else []
        same = public.images[public.labels == private.labels[i]][:3]
        if len(same):
            other = inputs.clone()
            swapped = []
            for image in pixels.inputs(same):
                other[i] = image
                swapped.append(sent(other, private.labels))
            references.append(torch.stack(swapped).mean(0))
        found.append(max(float((whole - reference).norm()) for reference in references))
    return found


def private_steps(model: nn.Module, pixels: Pixels, private: Labelled, public: Labelled, clip: float) -> list[float]:
    """Return how far each record moves the sum of clipped gradients: from nothing, or from a public example's."""
    ours, theirs = (gradients(model, pixels.inputs(part.images), part.labels) for part in (private, public))
    mean = torch.stack([clipped(row, clip) for row in theirs]).mean(0)
    return [max(float(clipped(row, clip).norm()), float((clipped(row, clip) - mean).norm())) for row in ours]
