"""Random situations with a known answer: a network, data, a training, defences and a declaration drawn from a seed.

Recorded messages come from the plain PyTorch loop of `formulas.py`, which also gives the answer: it is computed after
a situation is drawn, from the message that was sent. Draws whose answer is not clear, or not needed, are left out.
"""

from __future__ import annotations

import copy
import importlib.util
import math
import os
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cache, cached_property
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from fedglass.attack.best_of import AnyAttack
from fedglass.audit.public_data import Public
from fedglass.audit.recorded import Recorded
from fedglass.audit.simulated import Simulated, Source
from fedglass.core.optimisers import SGD
from fedglass.core.types import BatchNorm, Training, Whitening
from fedglass.data.catalogue import glyphs, photos
from fedglass.defend.dpsgd import DPSGD
from fedglass.defend.noise import Clip, GaussianNoise
from fedglass.defend.pruning import MagnitudePruning
from fedglass.federation.client import Client
from fedglass.federation.federation import Federation
from fedglass.federation.peer import PeerView
from fedglass.federation.transcript import Message, Participant, Round, Terms, Transcript
from fedglass.federation.truth import Examples, Truths
from fedglass.federation.views import AggregateView, ServerView, View
from fedglass.fl.aggregate.rule import WeightedMean
from fedglass.fl.release import Chain, Outgoing, Protection, Release
from fedglass.recipes import recipe


def _beside(name: str) -> Any:
    """Return the module in a file beside this one: tests are no package."""
    if name not in sys.modules:
        spec = importlib.util.spec_from_file_location(name, Path(__file__).with_name(f"{name}.py"))
        assert spec is not None
        assert spec.loader is not None
        sys.modules[name] = importlib.util.module_from_spec(spec)  # where its dataclasses look
        spec.loader.exec_module(sys.modules[name])
    return sys.modules[name]


formulas = _beside("formulas")
SHARED = Path(os.environ.get("FEDGLASS_SHARED", Path(__file__).resolve().parents[3] / "shared" / "data"))
FILES = {
    "cifar": "cifar10_10k.npz",
    "mnist": "mnist_10k.npz",
    "fashion": "fashion_mnist_10k.npz",
    "chest x-ray": "pneumoniamnist_reduced.npz",
}
SHARES = {"leak": 0.4, "exposed": 0.15, "safe": 0.25, "open": 0.2}
"""Of each truth among the situations."""
FALSE = {
    "leak": frozenset({"clear"}),
    "exposed": frozenset({"clear", "leak"}),
    "safe": frozenset({"leak", "exposed"}),
    "open": frozenset({"clear", "leak", "exposed"}),
}
"""The verdicts that would be false."""
SEARCH = recipe("inverting_gradients", iterations=200, tv=0.001)
"""Against networks that are read by a search alone."""
SAFE_MU, GONE_MU = 0.7, 0.4
"""Largest mu of a safe situation (success .008, so that few are singled out by chance), and where noise hides all."""
UNDETERMINED = 0.65
"""Numbers of a message for each pixel behind it, below which a search did not find the images in trials."""
MANY = 1000
"""Public examples of each label that a private record has."""
MAPPED = {"clip": Clip, "prune": MagnitudePruning, "noise": GaussianNoise}
"""Defences that the package has."""


class Draw:
    """Random choices from one key."""

    def __init__(self, *key: int) -> None:
        self.numbers = np.random.default_rng(key)

    def one(self, *options: Any) -> Any:
        return options[int(self.numbers.integers(len(options)))]

    def chance(self, share: float) -> bool:
        return bool(self.numbers.random() < share)

    def log(self, low: float, high: float) -> float:
        """Return a number of three digits, uniform on a logarithmic scale."""
        return float(f"{math.exp(self.numbers.uniform(math.log(low), math.log(high))):.3g}")

    def generator(self) -> torch.Generator:
        """Return a source of noise; its seed is none that anybody would try."""
        return torch.Generator().manual_seed(int(self.numbers.integers(10**6, 2**62)))


# ---- data -----------------------------------------------------------------------------------------------------------


@cache
def stored(name: str) -> tuple[Tensor, Tensor]:
    """Return all images and labels of a set.  # (n, c, h, w), uint8 or float; (n,)"""
    if name in FILES:
        with np.load(SHARED / FILES[name]) as file:
            images, labels = torch.from_numpy(file["train_images"]), torch.from_numpy(file["train_labels"])
        return images[:, None] if images.ndim == 3 else images.permute(0, 3, 1, 2), labels
    found = photos() if name == "photos" else glyphs()
    return (found.images * 255).round().byte(), found.labels


@dataclass(frozen=True, eq=False)
class Data:
    """Which examples of a set are private, held out and public, as small images."""

    name: str
    side: int
    labels: Tensor
    """Of all examples of the set; -1 for those that are left out."""
    classes: int
    private: Tensor  # rows
    control: Tensor
    public: Tensor

    def of(self, rows: Tensor) -> Any:
        """Return these examples as `formulas.Labelled`."""
        pixels = stored(self.name)[0][rows].float() / 255
        small = F.interpolate(pixels, (self.side, self.side), mode="bilinear", antialias=True).clamp(0, 1)
        return formulas.Labelled(small, self.labels[rows])

    def some(self, most: int) -> Any:
        """Return public examples, as many of each label."""
        labels = self.labels[self.public]
        return self.of(torch.cat([self.public[labels == label][:most] for label in range(self.classes)]))

    def split(self, candidates: int, others: int) -> tuple[Any, Any]:
        """Return so many candidates of each label that a record has, and further public examples of all labels."""
        labels, needed = self.labels[self.public], self.labels[torch.cat([self.private, self.control])].unique()
        by_label = {label: self.public[labels == label] for label in range(self.classes)}
        taken = {label: candidates if label in needed else 0 for label in by_label}
        more = {label: others if label in needed else 20 for label in by_label}
        pool = torch.cat([rows[: taken[label]] for label, rows in by_label.items()])
        rest = torch.cat([rows[taken[label] :][: more[label]] for label, rows in by_label.items()])
        return self.of(pool), self.of(rest)

    @property
    def shape(self) -> tuple[int, int, int]:
        return stored(self.name)[0].shape[1], self.side, self.side


def data(draw: Draw, count: int, *, pool: bool = False, least: int = 2, sides: Sequence[int] = (12, 14, 16)) -> Data:
    """Draw a set, its classes, and rows; with `pool` there are enough public examples of each label for the game."""
    names = [name for name, file in FILES.items() if (SHARED / file).is_file()]
    names += ["glyphs"] if pool or count > 4 else ["glyphs", "photos"]
    name = draw.one(*[each for each in names if each != "chest x-ray" or (least == 2 and not pool)])
    labels = stored(name)[1]
    kinds = int(labels.max()) + 1
    few = 10 if pool or name == "photos" else draw.one(3, 4, 5, 10)
    classes = min(kinds, few, 8 if pool and name == "glyphs" else few)  # glyphs are not many
    new = torch.full((kinds,), -1)
    new[torch.from_numpy(draw.numbers.permutation(kinds)[:classes])] = torch.arange(classes)
    new = labels % classes if kinds > 10 else new[labels]
    rows = torch.from_numpy(draw.numbers.permutation(np.flatnonzero(new.numpy() >= 0)))
    own = rows[new[rows] < (4 if pool else classes)]  # a client of the game has a few of the labels, as many clients do
    private, control = own[:count], own[count : 2 * count if pool else count]
    rest = rows[~torch.isin(rows, torch.cat([private, control]))]
    needed = set(new[torch.cat([private, control])].tolist())
    public = torch.cat([rest[new[rest] == k][: MANY if k in needed else 50] for k in range(classes)])
    public = public[torch.from_numpy(draw.numbers.permutation(len(public)))]
    return Data(name, draw.one(*sides), new, classes, private, control, public)


# ---- networks -------------------------------------------------------------------------------------------------------

ACTIVATIONS = (nn.ReLU, nn.Sigmoid, nn.Tanh, nn.GELU, nn.LeakyReLU, nn.Softplus)
KINKED, SMOOTH = (nn.ReLU, nn.LeakyReLU), (nn.Tanh, nn.Sigmoid, nn.GELU)
"""With the first, a search for 16 images behind convolutions ended below 16 dB in 14 trials; with tanh it read some."""


def network(draw: Draw, kind: str, of: Data, activations: Sequence[type[nn.Module]]) -> tuple[nn.Sequential, str]:
    """Return a network of a kind, with weights from before any training, and its name."""
    usable = [each for each in activations if each in formulas.INVERSES] if kind == "features" else activations
    activation, seed = draw.one(*usable), int(draw.numbers.integers(2**31))
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        before, words = _front(draw, kind, of, activation)
        width = int(np.prod(nn.Sequential(*before).eval()(torch.zeros(1, *of.shape)).shape))
        widths = [draw.one(32, 48, 64, 100, 128) for _ in range(draw.one(1, 1, 2, 3))]
        widths = {"convolutions": [], "lenet": [], "narrow": [draw.one(10, 12)]}.get(kind, widths)
        layers = [*before]
        for i, size in enumerate(widths):
            layers.append(nn.Linear(width, size, bias=i > 0 or kind != "no bias"))
            layers += [nn.BatchNorm1d(size)] if i == 0 and kind == "normalised" else []
            layers.append(activation())
            width = size
        model = nn.Sequential(*layers, nn.Linear(width, of.classes)).eval()
        _settle(model, kind == "lenet" and activation is nn.Sigmoid)
    words += f" {'-'.join(map(str, widths))}" if widths else ""
    return model, f"{words} {activation.__name__}"


def _front(draw: Draw, kind: str, of: Data, activation: type[nn.Module]) -> tuple[list[nn.Module], str]:
    """Return the layers before the first dense one."""
    channels = of.shape[0]
    if kind == "pooled":
        grey = channels == 3 and draw.chance(0.3)
        front = [formulas.Grey()] if grey else [nn.AvgPool2d(2)]
        return [*front, nn.Flatten()], "channels averaged, dense" if grey else "2 x 2 pooling, dense"
    if kind == "features":
        wide = channels * draw.one(6, 8, 10)
        return [nn.Conv2d(channels, wide, 3, 2, 1), activation(), nn.Flatten()], f"convolution of {wide}, dense"
    if kind == "lenet":
        wide, norm = draw.one(8, 12), draw.chance(0.3)
        first = [nn.Conv2d(channels, wide, 5, 2, 2), *([nn.BatchNorm2d(wide)] if norm else []), activation()]
        rest = [nn.Conv2d(wide, wide, 5, 1, 2), activation(), nn.Flatten()]
        return [*first, *rest], f"LeNet-like of {wide}{' with BatchNorm' if norm else ''}"
    if kind == "convolutions":
        wide, norm = draw.one(8, 10) * (2 if channels == 3 else 1), draw.chance(0.2)
        first = [nn.Conv2d(channels, wide, 3, 2, 1), *([nn.BatchNorm2d(wide)] if norm else []), activation()]
        rest = [nn.Conv2d(wide, wide, 3, 2, 1), activation(), nn.Flatten()]
        return [*first, *rest], f"convolutions of {wide}{' with BatchNorm' if norm else ''}"
    names = {"no bias": "dense without bias", "normalised": "dense with BatchNorm"}
    return [nn.Flatten()], names.get(kind, "dense")


def _settle(model: nn.Module, wide: bool) -> None:
    """Give normalisation layers statistics of their own, and a sigmoid LeNet the wide weights that it needs."""
    for layer in model.modules():
        if isinstance(layer, nn.BatchNorm1d | nn.BatchNorm2d):
            nn.init.normal_(layer.running_mean, std=0.1)
            nn.init.uniform_(layer.running_var, 0.5, 1.5)
        elif wide and isinstance(layer, nn.Conv2d | nn.Linear):
            for parameter in layer.parameters():
                nn.init.uniform_(parameter, -0.5, 0.5)


# ---- what is done to an update that leaves --------------------------------------------------------------------------

Step = tuple[str, float]
"""A defence, or a flaw, by name, and its amount: a norm, a share, a standard deviation."""
WORDS = {
    "clip": "clipped to {:g}",
    "prune": "{:.0%} pruned",
    "quantise": "quantised to 8 bits",
    "noise": "Gaussian noise of {:g}",
    "own noise": "an own defence: Gaussian noise of {:g}",
    "relative": "an own defence: noise of {:g} times the update's root mean square",
    "half": "noise of {:g} on half of the entries",
    "rows": "noise of {:g}, three rows without",
    "centred": "noise of {:g}, centred over rows",
    "opposite": "noise of {:g}, opposite in pairs of rows",
    "rank": "noise of {:g} and rank 8",
    "rounded": "noise of {:g}, rounded",
    "seed": "noise of {:g} from a common seed",
    "bfloat16": "noise of {:g} drawn in bfloat16",
    "signs": "an own defence: random signs",
    "factors": "an own defence: random factors of {:g}",
    "as bfloat16": "sent in bfloat16",
    "as float16": "sent in float16",
}


def changed(step: Step, update: dict[str, Tensor], generator: torch.Generator) -> dict[str, Tensor]:
    """Return the update as one step leaves it."""
    kind, amount = step
    whole = formulas.flat(update)
    if kind == "clip":
        return {name: t * min(1.0, amount / float(whole.norm())) for name, t in update.items()}
    if kind == "prune":
        least = whole.abs().sort().values[round(amount * whole.numel()) - 1]
        return {name: t * (t.abs() > least) for name, t in update.items()}
    if kind == "quantise":
        scales = {name: float(t.abs().max()) / 127 or 1.0 for name, t in update.items()}
        return {name: (t / scales[name]).round() * scales[name] for name, t in update.items()}
    if kind in ("as bfloat16", "as float16"):
        kept = torch.bfloat16 if kind == "as bfloat16" else torch.float16
        return {name: t.to(kept).float() for name, t in update.items()}
    if kind == "rank":
        return _with_few_directions(update, amount, generator)
    size = float(whole.square().mean().sqrt()) if kind == "relative" else 1.0
    if kind == "seed":
        generator = torch.Generator().manual_seed(formulas.SEEDS[int(generator.initial_seed()) % len(formulas.SEEDS)])
    noises = {name: torch.randn(t.shape, generator=generator) for name, t in update.items()}
    if kind == "rows":
        quiet = torch.randperm(len(next(iter(update.values()))), generator=generator)[:3]
        for noise in list(noises.values())[:2]:  # weight and bias of the first layer
            noise[quiet] = 0
    if kind == "signs":
        return {name: t * noises[name].sign() for name, t in update.items()}
    if kind == "factors":
        return {name: t * amount * noises[name] for name, t in update.items()}
    return {
        name: t + _flawed(kind, size * amount * noises[name], size * amount, generator) for name, t in update.items()
    }


def _flawed(kind: str, noise: Tensor, std: float, generator: torch.Generator) -> Tensor:
    """Return noise with the flaw that its name says."""
    if kind == "half":
        return noise * (torch.rand(noise.shape, generator=generator) < 0.5)
    if kind == "centred":
        return noise - noise.mean(0)
    if kind == "opposite" and len(noise) % 2 == 0:
        noise[1::2] = -noise[::2]
    if kind == "rounded":
        return (noise / std * formulas.STEPS).round() * (std / formulas.STEPS)
    return noise.bfloat16().float() if kind == "bfloat16" else noise


def _with_few_directions(update: dict[str, Tensor], std: float, generator: torch.Generator) -> dict[str, Tensor]:
    """Return the update with noise whose matrix of weights and biases has rank 8."""
    found, rank = dict(update), formulas.RANK
    for name in [name for name in update if name.endswith("weight")]:
        bias = name.replace("weight", "bias")
        rows, columns = len(update[name]), update[name][0].numel() + 1
        left, right = (torch.randn(n, rank, generator=generator) for n in (rows, columns))
        noise = std / math.sqrt(rank) * left @ right.T
        found[name] = update[name] + noise[:, :-1].view_as(update[name])
        found |= {bias: update[bias] + noise[:, -1]} if bias in update else {}
    return found


@dataclass(frozen=True)
class Own:
    """A defence that the package does not know."""

    kind: str
    amount: float

    def release(self, leaving: Outgoing) -> dict[str, Tensor]:
        return changed((self.kind, self.amount), dict(leaving.update), leaving.generator)


def release_of(steps: Sequence[Step]) -> Release:
    """Return the same steps as the package, or a user of it, has them."""
    return Chain(tuple(MAPPED[kind](amount) if kind in MAPPED else Own(kind, amount) for kind, amount in steps))


# ---- a situation ----------------------------------------------------------------------------------------------------


@dataclass(frozen=True, eq=False)
class Scene:
    """All that was drawn."""

    data: Data
    model: nn.Sequential
    network: str
    recipe: Any
    pixels: Any
    seed: int
    steps: tuple[Step, ...] = ()
    """What is done to each client's update."""
    declared: tuple[Step, ...] | None = None
    """What a recording says of that; None where it says nothing."""
    told: Any = None
    """The training that a recording declares; None where it declares none."""
    simulated: bool = False
    known: bool = True
    """Whether a recording has the true examples."""
    clients: int = 1
    view: str = "server"
    dpsgd: DPSGD | None = None
    reach: float = math.inf
    """How far, at most, a record moves the noise-free message, in deviations of unit noise; not computed: no bound."""
    remark: str = ""

    @property
    def views(self) -> tuple[View, ...]:
        return ({"server": ServerView(0), "aggregate": AggregateView(), "peer": PeerView(0)}[self.view],)

    def parts(self) -> list[Any]:
        """Return each client's examples."""
        whole = self.data.of(self.data.private)
        return [whole.part(rows) for rows in torch.arange(len(whole.labels)).chunk(self.clients)]

    def behind(self) -> list[Any]:
        """Return the examples that are audited, client by client."""
        return {"server": self.parts()[:1], "aggregate": self.parts(), "peer": self.parts()[1:]}[self.view]

    def private(self) -> Any:
        parts = self.behind()
        return formulas.Labelled(torch.cat([p.images for p in parts]), torch.cat([p.labels for p in parts]))

    @cached_property
    def sent(self) -> tuple[list[dict[str, Tensor]], list[dict[str, Tensor]]]:
        """Return every client's message and buffers."""
        if self.simulated:
            messages = self.simulation(None).transcript().rounds[0].messages
            return [dict(m.update) for m in messages], [dict(m.buffers) for m in messages]
        generator, updates, buffers = torch.Generator().manual_seed(self.seed), [], []
        for part in self.parts():
            update, after = formulas.train(self.model, self.pixels.inputs(part.images), part.labels, self.recipe)
            for step in self.steps:
                update = changed(step, update, generator)
            updates.append(update)
            buffers.append(after)
        return updates, buffers

    def seen(self) -> dict[str, Tensor]:
        """Return what the adversary has: a message, a mean, or a mean without its own part."""
        updates, sizes = self.sent[0], [len(part.labels) for part in self.parts()]
        chosen = {"server": slice(1), "aggregate": slice(None), "peer": slice(1, None)}[self.view]
        found: dict[str, Tensor] = formulas.mean_of(updates[chosen], sizes[chosen])
        return found

    def message(self) -> Any:
        parts = self.behind()
        count, kept = (
            sum(len(part.labels) for part in parts),
            1.0 if self.told is None else self.told.kept(len(parts[0].labels)),
        )
        return formulas.Message(self.model, self.seen(), self.pixels, self.data.shape, count, kept)

    # -- as a source

    def source(self) -> Source:
        public = Public.given(self.public().images, self.public().labels)
        return self.simulation(public) if self.simulated else self.recording(public)

    def public(self) -> Examples:
        found = self.data.of(self.data.public)
        return Examples(found.images, found.labels)

    @property
    def _whitening(self) -> Whitening:
        return Whitening(self.pixels.mean, self.pixels.std)

    def simulation(self, public: Public | None) -> Simulated:
        protected: dict[str, Any] = {"release": release_of(self.steps)} if self.steps else {}
        protected |= {} if self.dpsgd is None else {"gradient": self.dpsgd}
        members = [Client(f"client {i}", part.images, part.labels, **protected) for i, part in enumerate(self.parts())]
        training = training_of(self.recipe)
        federation = Federation(copy.deepcopy(self.model), members, training, self.data.classes, self._whitening)
        return Simulated(federation, 1, self.views, public=public)

    def recording(self, public: Public) -> Recorded:
        updates, after = self.sent
        parts, model = self.parts(), copy.deepcopy(self.model)
        names = [f"client {i}" for i in range(len(parts))]
        told = None if self.told is None else training_of(self.told)
        people = tuple(Participant(name, len(p.labels), told) for name, p in zip(names, parts, strict=True))
        before = {name: tensor.detach().clone() for name, tensor in model.named_parameters()}
        buffers = {name: tensor.detach().clone() for name, tensor in model.named_buffers()}
        alone = self.view == "server"
        messages = tuple(map(Message, names, updates, after)) if alone else ()
        step = updates[0] if alone else self.seen()
        past = Round(before, buffers, people, messages, step, after[0] if alone else {}, tuple(names))
        words = None if self.declared is None else dict.fromkeys(names, tuple(_words(self.declared)))
        terms = Terms(
            self.data.shape,
            self.data.classes,
            self._whitening,
            tuple(names),
            repr(WeightedMean()),
            defences=words,
        )
        truths = Truths({n: Examples(p.images, p.labels) for n, p in zip(names, parts, strict=True)})
        shield = dict.fromkeys(names, Protection(release=release_of(self.declared))) if self.declared else {}
        transcript = Transcript(model, terms, {0: past})
        return Recorded(transcript, truths if self.known else None, self.views, public=public, defences=shield)


def training_of(recipe: Any) -> Training:
    """Return the same training in the package's words."""
    return Training(
        recipe.lr,
        recipe.epochs,
        None if recipe.batch_size >= 10_000 else recipe.batch_size,
        BatchNorm.BATCH if recipe.batch_statistics else BatchNorm.FROZEN,
        SGD(momentum=recipe.momentum, weight_decay=recipe.weight_decay),
        shuffle=False,
    )


def _words(steps: Sequence[Step]) -> list[str]:
    return [WORDS[kind].format(amount) for kind, amount in steps]


def named(scene: Scene) -> str:
    """Return what a situation is, in words."""
    count, recipe = len(scene.data.private), scene.recipe
    words = ["simulated" if scene.simulated else "recorded" if scene.known else "recorded without truth"]
    words += [] if scene.clients == 1 else [f"{scene.view} of {scene.clients} clients"]
    words += [
        scene.network,
        f"{count} {scene.data.name.removesuffix('s')} image{'s' * (count > 1)} of {scene.data.side} pixels",
    ]
    words += [f"lr {recipe.lr:g}"] + ([f"{recipe.epochs} epochs"] if recipe.epochs > 1 else [])
    words += [f"batches of {recipe.batch_size}"] if recipe.batch_size < count else []
    words += [f"momentum {recipe.momentum:g}"] if recipe.momentum else []
    words += [f"weight decay {recipe.weight_decay:g}"] if recipe.weight_decay else []
    words += ["batch statistics"] if recipe.batch_statistics else []
    words += _words(scene.steps) + ([] if scene.dpsgd is None else [repr(scene.dpsgd)])
    return ", ".join(words) + (f"; {scene.remark}" if scene.remark else "")


# ---- the truth ------------------------------------------------------------------------------------------------------

FLAWS, OWN = (*formulas.TRICKS, "seed"), ("signs", "factors")
"""Noise, and own defences, that a formula reads behind."""
NOISES = ("noise", "own noise", "relative")
ROUNDED_OFF = ("centred", "opposite", "rounded", "seed")
"""Flawed noise that is on every entry, so that enough of it leaves nothing of an update in float32."""


def reach_of(scene: Scene, limit: float) -> float:
    """Return how far, at most, one record moves the noise-free message, in deviations of unit noise."""
    parts, public = scene.behind(), scene.data.some(3)
    sizes = [len(part.labels) for part in parts]
    unit = math.sqrt(sum(size**2 for size in sizes))
    moved = (
        size * max(formulas.shifts(scene.model, scene.pixels, part, public, scene.recipe, limit))
        for size, part in zip(sizes, parts, strict=True)
    )
    return max(moved) / unit


def mu_of(scene: Scene) -> float | None:
    """Return the largest mu of a record behind additive Gaussian noise; None without such noise."""
    if scene.dpsgd is not None:
        how = scene.dpsgd
        far = formulas.private_steps(scene.model, scene.pixels, scene.private(), scene.data.some(20), how.clip)
        return max(far) / (how.noise_multiplier * how.clip)
    kind, amount = next((step for step in scene.steps if step[0] in NOISES), ("", 0.0))
    if not kind:
        return None
    if kind == "relative":
        part = scene.parts()[0]
        update = formulas.train(scene.model, scene.pixels.inputs(part.images), part.labels, scene.recipe)[0]
        amount *= float(formulas.flat(update).square().mean().sqrt())
    return scene.reach / amount


def certifiable(scene: Scene) -> bool:
    """Return whether what is declared is the truth, and a mechanism with a bound."""
    honest = tuple(step for step in scene.steps if not step[0].startswith("as "))
    vouched = scene.simulated or (scene.known and scene.declared == honest and scene.told == scene.recipe)
    return vouched and all(kind in MAPPED for kind, _ in (scene.steps if scene.simulated else honest))


def reading_of(scene: Scene, message: Any) -> Any:
    """Return what the formulas read; nothing where none applies."""
    private, public = scene.private(), scene.data.some(40).images
    convolution = any(isinstance(layer, nn.Conv2d) for layer in scene.model)
    searched = convolution and len(message.dense()) == 1
    if searched and (message.examples > 1 or not scene.known or mu_of(scene) is not None):
        return formulas.judge(torch.zeros(0, *scene.data.shape), private.images, public)
    flaw, amount = next((step for step in scene.steps if step[0] in FLAWS), ("", 0.0))
    return formulas.judge(formulas.read(message, flaw, amount), private.images, public)


def truth_of(scene: Scene) -> tuple[str, str] | None:
    """Return the truth and what shows it; None where it is not clear."""
    message = scene.message()
    reading = reading_of(scene, message)
    if reading.state == "border":
        return None
    if reading.state == "read":
        return "leak", f"read at {reading.psnr:.1f} dB, blind guess {reading.blind:.1f} dB"
    mu = mu_of(scene)
    if mu is not None and certifiable(scene) and mu <= SAFE_MU:
        return "safe", f"mu {mu:.3f}, success at most {formulas.success(mu):.4f}"
    if mu is not None and not certifiable(scene) and mu <= GONE_MU:
        return "open", f"hidden (mu {mu:.3f}), and nothing certifies it"
    if mu is not None and mu < 30:
        return None  # a record may be singled out by chance, or by a better statistic
    return _flawed_truth(scene) or _game_truth(scene, message)


def _flawed_truth(scene: Scene) -> tuple[str, str] | None:
    """Return that nothing is left of an update beneath noise so large that rounding removes it."""
    flaw, amount = next((step for step in scene.steps if step[0] in FLAWS), ("", 0.0))
    lost = flaw in ROUNDED_OFF and scene.reach <= GONE_MU * amount * 2**-24
    return ("open", "lost to rounding, and the noise is not as declared") if lost else None


def _game_truth(scene: Scene, message: Any) -> tuple[str, str] | None:
    """Return what the candidate game shows."""
    if message.examples < 16 or any(step[0] in FLAWS for step in scene.steps) or not len(scene.data.control):
        return None
    if not (scene.known or scene.simulated):
        return "open", "no true examples, and no formula reads it"
    if len(formulas.flat(message.update)) > UNDETERMINED * scene.private().images.numel():
        return None
    game = played(scene, message, 150)
    if game.state == "won":
        return "exposed", f"named {game.members:.2f} of the time, {game.control:.2f} without training"
    if game.state == "lost" and message.examples >= 64:
        game = played(scene, message, 250, 0.95)  # the more that is known of gradients, the better is the statistic
        return ("open", f"named {game.members:.2f} of the time") if game.state == "lost" else None
    return None


def played(scene: Scene, message: Any, others: int, share: float = 0.5) -> Any:
    """Return the game with so many further public examples of each label."""
    pool, public = scene.data.split(formulas.CANDIDATES, others)
    return formulas.play(message, scene.private(), scene.data.of(scene.data.control), pool, public, share)


# ---- what is drawn --------------------------------------------------------------------------------------------------


def scene_of(
    draw: Draw, kind: str, count: int, activations: Sequence[type[nn.Module]] = ACTIVATIONS, **of: Any
) -> Scene:
    """Draw data, a network, a normalisation and a training of a few steps."""
    chosen = data(draw, count, **of)
    model, words = network(draw, kind, chosen, activations)
    channels = chosen.shape[0]
    mean, std = draw.one((0.5, 0.25), (0.4, 0.3), (0.0, 1.0))
    recipe = formulas.Recipe(
        draw.log(0.005, 0.2),
        epochs=draw.one(1, 1, 1, 2, 3, 5),
        momentum=draw.one(0.0, 0.0, 0.0, 0.5, 0.9),
        weight_decay=draw.one(0.0, 0.0, 0.0, 5e-4, 0.01),
    )
    pixels = formulas.Pixels((mean,) * channels, (std,) * channels)
    seed = int(draw.numbers.integers(10**6, 2**62))
    return Scene(chosen, model, words, recipe, pixels, seed, told=recipe, simulated=draw.chance(0.4))


def size_of(scene: Scene) -> float:
    """Return the length of the first client's noise-free update."""
    part = scene.parts()[0]
    update = formulas.train(scene.model, scene.pixels.inputs(part.images), part.labels, scene.recipe)[0]
    return float(formulas.flat(update).norm())


def lossy(draw: Draw, scene: Scene) -> Scene:
    """Draw what is lost on the way, and is no obstacle to a formula."""
    size, count = size_of(scene), sum(p.numel() for p in scene.model.parameters())
    kind = draw.one("", "", "clip", "prune", "quantise", "noise")
    amounts = {
        "clip": float(f"{draw.log(0.01, 0.5) * size:.3g}"),
        "prune": round(float(draw.numbers.uniform(0.1, 0.9)), 2),
        "noise": float(f"{draw.log(0.003, 0.3) * size / math.sqrt(count):.3g}"),
    }
    steps = [(kind, amounts.get(kind, 0.0))] if kind else []
    cast = draw.one("", "", "", "as bfloat16", "as float16")
    recipe = replace(scene.recipe, weight_decay=0.0) if kind == "clip" else scene.recipe
    return replace(scene, steps=(*steps, *([(cast, 0.0)] if cast else [])), recipe=recipe, told=recipe)


def misdeclared(draw: Draw, scene: Scene) -> Scene:
    """Draw what a recording declares, rightly or wrongly."""
    told, said = scene.recipe, tuple(step for step in scene.steps if not step[0].startswith("as "))
    wrong = draw.one("", "", "lr", "epochs", "no training")
    told = {
        "lr": replace(told, lr=told.lr * draw.one(0.1, 10.0)),
        "epochs": replace(told, epochs=told.epochs + draw.one(1, 4)),
        "no training": None,
    }.get(wrong, told)
    noise = float(f"{draw.log(1.5, 10) * size_of(scene):.3g}")
    declared = draw.one(None, said, said, (("noise", noise),))
    words = {"lr": "another lr declared", "epochs": "more epochs declared", "no training": "no training declared"}
    remarks = [words[wrong]] if wrong else []
    remarks += ["nothing said of defences"] if declared is None else []
    remarks += [f"declared: Gaussian noise of {noise:g}"] if declared and declared != said else []
    return replace(scene, told=told, declared=declared, remark=", ".join(remarks))


def leak(draw: Draw) -> Scene:
    """Draw a message that a formula should read."""
    family = draw.one(*["dense"] * 5, *["flawed"] * 3, *["several"] * 2, "no bias", "pooled", "pooled", "normalised")
    family = draw.one(*[family] * 9, *["features"] * 2, "lenet", "own")
    if family in ("dense", "no bias", "pooled", "normalised", "features"):
        made = lossy(draw, scene_of(draw, family, 1))
        if family == "dense" and draw.chance(0.15):
            return replace(made, steps=(), declared=(), simulated=False, known=False)
        return made if made.simulated else misdeclared(draw, made)
    if family == "flawed":
        flaw = draw.one(*(name for name in FLAWS if name not in OWN))
        return flawed(draw, flaw, *{"rounded": (10.0, 100.0), "bfloat16": (100.0, 1000.0)}.get(flaw, (1.5, 30.0)))
    if family == "own":
        made = replace(scene_of(draw, "dense", 1), steps=((draw.one("signs", "factors", "half"), 30.0),))
        pixels = formulas.Pixels((0.0,) * made.data.shape[0], (1.0,) * made.data.shape[0])
        return replace(made, pixels=pixels, declared=made.steps)
    if family == "lenet":
        made = scene_of(draw, "lenet", 1, (nn.Sigmoid, nn.Tanh), sides=(12,))
        made = replace(made, recipe=formulas.Recipe(made.recipe.lr), told=formulas.Recipe(made.recipe.lr))
        return made if made.simulated else misdeclared(draw, made)
    return several(draw)


def several(draw: Draw) -> Scene:
    """Draw a message of several images behind a ReLU layer, of one client or of more."""
    view, clients = draw.one(("server", 1), ("server", 1), ("aggregate", 2), ("aggregate", 4), ("peer", 2), ("peer", 3))
    count = clients if view == "peer" else draw.one(*[n for n in (2, 4, 8) if n >= clients])
    made = scene_of(draw, draw.one("dense", "dense", "pooled", "features"), count, (nn.ReLU,), least=3)
    recipe = replace(made.recipe, epochs=1, weight_decay=0.0)
    made = replace(made, recipe=recipe, told=recipe, clients=clients, view=view)
    made = replace(made, simulated=made.simulated or view == "peer")
    return made if made.simulated else replace(made, declared=draw.one(None, ()))


def flawed(draw: Draw, flaw: str, low: float, high: float) -> Scene:
    """Draw a recording of one image with noise, in lengths of its update, that is not what it is said to be."""
    made = replace(scene_of(draw, "dense", 1), simulated=False)
    recipe = replace(made.recipe, weight_decay=0.0)
    size = size_of(replace(made, recipe=recipe))
    std = float(f"{draw.log(low, high) * size:.3g}")
    said, remark = (("noise", std),), f"declared: Gaussian noise of {std:g}"
    return replace(made, recipe=recipe, told=recipe, steps=((flaw, std),), declared=said, reach=size, remark=remark)


def noisy(draw: Draw, made: Scene, kind: str, least: float, most: float, limit: float = math.inf) -> Scene:
    """Draw the size of the noise, by the largest mu of a record."""
    reach, steps = reach_of(made, limit), []
    if math.isfinite(limit):
        steps.append(("clip", limit))
    std = float(f"{reach / draw.log(least, most):.3g}")
    if kind == "relative":
        count = sum(p.numel() for p in made.model.parameters())
        std = float(f"{std / size_of(made) * math.sqrt(count):.3g}")
    return replace(made, steps=(*steps, (kind, std)), reach=reach)


def safe(draw: Draw) -> Scene:
    """Draw a message behind noise that is as heavy as it is declared."""
    kind = draw.one("dense", "dense", "no bias", "pooled", "features", "lenet", "convolutions", "normalised")
    view, clients = draw.one(*[("server", 1)] * 5, ("aggregate", 2), ("aggregate", 3), ("peer", 3))
    count = clients * draw.one(1, 1, 2, 4) if clients > 1 else draw.one(1, 1, 2, 4, 8, 16)
    made = scene_of(draw, kind, count)
    recipe = replace(made.recipe, epochs=1 if count > 4 else made.recipe.epochs)
    made = replace(made, recipe=recipe, told=recipe, clients=clients, view=view)
    made = replace(made, simulated=made.simulated or clients > 1)
    if clients == 1 and draw.chance(0.15):
        recipe = formulas.Recipe(recipe.lr)
        how = DPSGD(clip=draw.log(0.1, 3.0), noise_multiplier=draw.log(3.0, 30.0))
        return replace(made, recipe=recipe, told=recipe, dpsgd=how, simulated=True)
    limit = float(f"{draw.log(0.1, 2) * size_of(made):.3g}") if draw.chance(0.3) else math.inf
    made = noisy(draw, made, "noise", 0.02, SAFE_MU, limit)
    if made.simulated:
        after = (("clip", float(f"{size_of(made):.3g}")),) if limit == math.inf and draw.chance(0.15) else ()
        return replace(made, steps=(*made.steps, *after))
    cast = draw.one((), (), (("as bfloat16", 0.0),))
    return replace(made, declared=made.steps, steps=(*made.steps, *cast))


def exposed(draw: Draw) -> Scene:
    """Draw a message of many images that no formula reads."""
    made = scene_of(draw, "convolutions", 16, KINKED, pool=True, sides=(18, 20))
    if made.data.name == "cifar" and draw.chance(0.4):
        made = scene_of(draw, "convolutions", 32, KINKED, pool=True, sides=(18, 20))
    clients = draw.one(1, 1, 1, 2, 4)
    epochs, size = draw.one((1, 10_000), (1, 10_000), (1, 10_000), (2, 10_000), (1, 8), (2, 8))
    recipe = replace(made.recipe, lr=draw.log(0.005, 0.05), epochs=epochs, batch_size=size, weight_decay=0.0)
    recipe = replace(recipe, batch_statistics="BatchNorm" in made.network and draw.chance(0.3))
    made = replace(made, recipe=recipe, told=recipe, clients=clients, view="server" if clients == 1 else "aggregate")
    lost = draw.one((), (), (), (("as bfloat16", 0.0),), (("prune", 0.3),), (("quantise", 0.0),))
    return replace(made, steps=lost, declared=tuple(step for step in lost if not step[0].startswith("as ")))


def unclear(draw: Draw) -> Scene:
    """Draw a message of which nobody can tell."""
    family = draw.one(*["hidden"] * 6, "no truth", "no truth", "many", "many", "lost")
    if family == "lost":
        return flawed(draw, draw.one(*ROUNDED_OFF), 1e8, 1e9)
    if family == "no truth":
        made = exposed(draw) if draw.chance(0.5) else scene_of(draw, "narrow", draw.one(16, 32), SMOOTH, pool=True)
        return replace(made, simulated=False, known=False, clients=1, view="server", steps=(), declared=())
    if family == "many":
        made = scene_of(draw, "convolutions", 64, SMOOTH, pool=True, sides=(12, 14))
        recipe = replace(made.recipe, epochs=draw.one(5, 10), batch_size=8, weight_decay=0.0)
        return replace(made, recipe=recipe, told=recipe, clients=4, view="aggregate", declared=())
    return hidden(draw)


def hidden(draw: Draw) -> Scene:
    """Draw a message behind heavy noise that nothing vouches for."""
    kind = draw.one("dense", "pooled", "features", "lenet", "convolutions", "normalised")
    made = scene_of(draw, kind, draw.one(1, 1, 2, 4))
    why = draw.one("own noise", "relative", "undeclared", "wrong std", "no truth")
    made = noisy(draw, made, why if why in NOISES else "noise", 0.02, GONE_MU)
    if why in ("own noise", "relative"):
        return replace(made, declared=made.steps)
    made = replace(made, simulated=False)
    if why == "undeclared":
        return replace(made, declared=draw.one(None, ()), remark="the noise is not declared")
    if why == "no truth":
        return replace(made, declared=made.steps, known=False)
    std = made.steps[-1][1] * draw.one(0.2, 5.0)
    return replace(made, declared=(("noise", std),), remark=f"declared: Gaussian noise of {std:g}")


AIMS: dict[str, Callable[[Draw], Scene]] = {"leak": leak, "exposed": exposed, "safe": safe, "open": unclear}


@dataclass(frozen=True, eq=False)
class RandomSituation:
    """What is audited, and the true answer."""

    name: str
    truth: str
    """leak, exposed, safe or open."""
    source: Callable[[], Source]
    evidence: str
    """What shows the truth, in figures."""
    scene: Scene
    attack: AnyAttack | None = None
    """None: what every audit does is all that is done."""

    @property
    def false(self) -> frozenset[str]:
        """Return the verdicts that would be false."""
        return FALSE[self.truth]

    @property
    def public(self) -> Examples:
        """Return examples of the same kind that no client has; the source's own adversary has them too."""
        return self.scene.public()


def random_situations(seed: int, count: int) -> list[RandomSituation]:
    """Return situations in fixed shares of the four truths; the same for the same seed."""
    left = {truth: round(share * count) for truth, share in SHARES.items()}
    left["leak"] += count - sum(left.values())
    found: list[RandomSituation] = []
    attempt = 0
    while len(found) < count:
        draw = Draw(seed, attempt)
        attempt += 1
        aim = draw.one(*[truth for truth, missing in left.items() for _ in range(missing)])
        scene = AIMS[aim](draw)
        told = truth_of(scene)
        if told is not None and left[told[0]]:
            left[told[0]] -= 1
            name = f"{len(found) + 1}: {named(scene)}"
            search = SEARCH if "LeNet" in name and told[0] == "leak" else None
            found.append(RandomSituation(name, told[0], scene.source, told[1], scene, search))
    return found
