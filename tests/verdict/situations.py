"""Situations of which the true answer is known: how a message was made, how it is declared, and who attacks it.

Messages that are `recorded` come from a plain PyTorch loop, which shares no code with the package.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import cache, partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from fedglass.attack.attack import Attack
from fedglass.attack.best_of import AnyAttack
from fedglass.attack.labels.given import OracleLabels
from fedglass.attack.terms.distance import Cosine, GrowingCosine, Ramp
from fedglass.attack.terms.priors import TotalVariation
from fedglass.audit.public_data import Public
from fedglass.audit.recorded import Recorded
from fedglass.audit.simulated import Simulated, Source
from fedglass.core.optimisers import SGD, Adam, AdamW
from fedglass.core.rng import stream
from fedglass.core.tensors import buffers_of, weights_of
from fedglass.core.types import BatchNorm, Training, Whitening
from fedglass.data.catalogue import glyphs, photos
from fedglass.defend.dpsgd import DPSGD
from fedglass.defend.filters import FlowerFixedClipping, FlowerLocalDP, PercentilePrivacy, SVTPrivacy
from fedglass.defend.noise import Clip, GaussianNoise, LaplacianNoise, normal
from fedglass.defend.outpost import Outpost
from fedglass.defend.pruning import MagnitudePruning
from fedglass.federation.behaviours import SignFlip
from fedglass.federation.client import Client, train_sequentially
from fedglass.federation.federation import Federation
from fedglass.federation.peer import PeerView
from fedglass.federation.transcript import Message, Participant, Round, Terms, Transcript
from fedglass.federation.truth import Examples, Truths
from fedglass.federation.views import AggregateView, Knows, ServerView, Together
from fedglass.fl.aggregate.coordinates import Median, TrimmedMean
from fedglass.fl.aggregate.rule import Aggregator, WeightedMean
from fedglass.fl.aggregate.selection import DnC, Krum
from fedglass.fl.local import GradientFn
from fedglass.fl.release import Chain, Outgoing, Protection, Release
from fedglass.models.catalogue import build
from fedglass.models.init import KaimingUniform, Uniform
from fedglass.models.names import with_fixed
from fedglass.recipes import recipe
from fedglass.recipes.coarse_to_fine import coarse_to_fine_batchnorm, coarse_to_fine_statistics
from fedglass.verdict.doubts import DoubtKind

SHAPE, CLASSES = (3, 12, 12), 10
PLAIN = Whitening((0.5, 0.5, 0.5), (0.25, 0.25, 0.25))
ITERATIONS = 200
TOLD = Training(lr=0.01)
LEAK, EXPOSED, SAFE, OPEN = "leak", "exposed", "safe", "open"
"""The four truths, each by a stated reason:

- leak: a stated formula or attack reads the data from the message, this one or another row's on the same message;
- exposed: no attack reads them, but the candidate game with its control names the records;
- safe: the noise that is declared is in the message, and Phi(Phi^-1(1/1000) + mu) by scipy is below max_success;
- open, by rule: recorded without truth, a defence of the user's own or one that depends on the data, a defence or a
  training that is not as declared, or no noise and no attack that reads the message.
"""
FALSE = {
    LEAK: frozenset({"clear"}),
    EXPOSED: frozenset({"clear", "leak"}),
    SAFE: frozenset({"leak", "exposed"}),
    OPEN: frozenset({"clear", "leak", "exposed"}),
}
"""The verdicts that would be false."""
NOT_SO, REFUTED = DoubtKind.NOT_AS_DECLARED, DoubtKind.NOISE_REFUTED


@dataclass(frozen=True)
class Situation:
    """What is audited, by which attack, and which verdicts would be false."""

    name: str
    truth: str
    source: Callable[[], Source]
    attack: AnyAttack | None
    """None: what every audit does is all that is done."""
    doubt: DoubtKind | None = None
    """A doubt that must be raised."""

    @property
    def false(self) -> frozenset[str]:
        """The verdicts that would be false."""
        return FALSE[self.truth]


@cache
def data(count: int, first: int = 0) -> Examples:
    """Photographs, each of a class of its own."""
    chosen = photos().resized(SHAPE[1]).subset(range(first, first + count))
    return Examples(chosen.images, chosen.labels)


def lenet(seed: int = 0) -> nn.Module:
    return build("lenet", shape=SHAPE, classes=CLASSES, init=Uniform(), seed=seed)


def dense() -> nn.Module:
    """Dense layers with ReLU, of which many units are off."""
    return build("mlp", shape=SHAPE, classes=CLASSES)


def smooth_dense(seed: int = 0) -> nn.Module:
    """Dense layers with sigmoids: no entry of a gradient is zero, so that a percentile of them removes some."""
    torch.manual_seed(seed)
    return nn.Sequential(nn.Flatten(), nn.Linear(432, 64), nn.Sigmoid(), nn.Linear(64, CLASSES))


def fine_tuned() -> nn.Module:
    """The same, of which the first layer is not trained."""
    return with_fixed(lenet(), ["body.0.weight", "body.0.bias"])


def default() -> nn.Module:
    """The same with PyTorch's own initial weights, which is sure of nothing."""
    return build("lenet", shape=SHAPE, classes=CLASSES)


def pooled() -> nn.Module:
    """A model that sees nothing but means over squares: what is finer can not be in its gradient."""
    torch.manual_seed(0)
    return nn.Sequential(nn.AvgPool2d(6), nn.Flatten(), nn.Linear(12, CLASSES))


def normalised() -> nn.Module:
    """A LeNet of its kind with batch normalisation."""
    torch.manual_seed(0)
    features = (nn.Conv2d(3, 12, 5, 2, 2), nn.BatchNorm2d(12), nn.Sigmoid(), nn.Conv2d(12, 12, 5, 1, 2), nn.Sigmoid())
    model = nn.Sequential(*features, nn.Flatten(), nn.Linear(12 * 36, CLASSES))
    for parameter in (*model[0].parameters(), *model[3].parameters(), *model[6].parameters()):
        nn.init.uniform_(parameter, -0.5, 0.5)
    return model


def grouped() -> nn.Module:
    """The same with group normalisation, which takes the contrast out of the gradient."""
    model = normalised()
    model[0], model[1] = nn.Conv2d(3, 12, 5, 2, 2, bias=False), nn.GroupNorm(3, 12)
    nn.init.uniform_(model[0].weight, -0.5, 0.5)
    return model


def residual() -> nn.Module:
    """Convolutions without bias before normalisations: batch statistics take the contrast out of the gradient."""
    return build("resnet8", shape=SHAPE, classes=CLASSES, init=KaimingUniform())


@dataclass(frozen=True)
class Made:
    """How a message was really made, by a script that is not ours."""

    optimiser: Callable[..., torch.optim.Optimizer] = torch.optim.SGD
    options: dict[str, Any] = field(default_factory=dict)
    lr: float = 0.01
    epochs: int = 1
    batch_size: int = 64
    factor: float = 1.0
    whitening: Whitening = PLAIN
    smoothing: float = 0.0
    train_mode: bool = False
    norm: float | None = None
    """That the update is clipped to."""
    noise: float = 0.0
    half: bool = False
    frozen: int = 0
    """The number of parameters, from the first layer on, that are not trained, and have no noise either."""
    noisy: bool = True
    """False: the noise is on those alone."""
    opacus: bool = False
    """Each local step is that of Opacus, with noise multiplier 1 and clip 1."""

    def left(self, model: nn.Module) -> tuple[str, ...]:
        """Those parameters by name."""
        return tuple(name for name, _ in model.named_parameters())[: self.frozen]

    def update(self, model: nn.Module, images: Tensor, labels: Tensor) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
        """What is sent, and the running statistics after the training."""
        trained = copy.deepcopy(model).train(self.train_mode)
        for parameter in list(trained.parameters())[: self.frozen]:
            parameter.requires_grad_(False)
        optimiser = self.optimiser(trained.parameters(), lr=self.lr, **self.options)
        generator = stream(0, "situations", "opacus")
        for _ in range(self.epochs):
            for rows in torch.arange(len(labels)).split(self.batch_size):
                optimiser.zero_grad()
                outputs = trained(self.whitening.whiten(images[rows]))
                loss = F.cross_entropy(outputs, labels[rows], label_smoothing=self.smoothing)
                (self.factor * loss).backward()
                if self.opacus:
                    _as_opacus(trained, self.whitening.whiten(images[rows]), labels[rows], generator)
                optimiser.step()
        moved = {name: (after - before).detach() for (name, after), before in _pairs(trained, model)}
        size = float(torch.cat([change.flatten() for change in moved.values()]).norm())
        share = 1.0 if self.norm is None else min(1.0, self.norm / size)
        quiet = [name for name in moved if (name in self.left(model)) is self.noisy]
        return {name: self._sent(name, share * change, name in quiet) for name, change in moved.items()}, buffers_of(
            trained
        )

    def _sent(self, name: str, change: Tensor, quiet: bool) -> Tensor:
        noise = 0.0 if quiet else self.noise
        change = change + noise * torch.randn(change.shape, generator=stream(0, "situations", name))
        return change.half().float() if self.half else change


def _as_opacus(model: nn.Module, inputs: Tensor, labels: Tensor, generator: torch.Generator) -> None:
    """Put the noisy mean of clipped gradients in place, each by its own pass: clip 1 and noise multiplier 1."""
    weights = list(model.parameters())
    totals = [torch.zeros_like(weight) for weight in weights]
    for i in range(len(labels)):
        gradients = torch.autograd.grad(F.cross_entropy(model(inputs[i : i + 1]), labels[i : i + 1]), weights)
        share = min(1.0, 1.0 / (float(torch.cat([g.flatten() for g in gradients]).norm()) + 1e-6))
        totals = [total + share * gradient for total, gradient in zip(totals, gradients, strict=True)]
    for weight, total in zip(weights, totals, strict=True):
        weight.grad = (total + torch.randn(total.shape, generator=generator)) / len(labels)


def _pairs(trained: nn.Module, model: nn.Module) -> Iterator[tuple[tuple[str, Tensor], Tensor]]:
    return zip(trained.named_parameters(), model.parameters(), strict=True)


def recorded(
    made: Made,
    told: Training | None = TOLD,
    count: int = 1,
    *,
    model: Callable[[], nn.Module] = lenet,
    whitening: Whitening = PLAIN,
    defended: bool | None = None,
    defence: Release | GradientFn | None = None,
    truth: Callable[[Examples], Examples] | None = lambda examples: examples,
) -> Callable[[], Source]:
    """A message of `count` examples, declared as it is told; `defence` says by what it is defended."""

    def source() -> Source:
        net, behind = model(), data(count)
        said = None if truth is None else truth(behind)
        update, after = made.update(net, behind.images, behind.labels)
        before, buffers, name = weights_of(net), buffers_of(net), "recorded"
        still = tuple(each for each in made.left(net) if not update[each].any())
        people = (Participant(name, len((said or behind).labels), told, untrained=still),)
        past = Round(before, buffers, people, (Message(name, update, after),), update, after, (name,))
        words = ("Defended, as the plan says.",) if defended or defence is not None else ()
        protected = None if defended is None and defence is None else {name: words}
        terms = Terms(SHAPE, CLASSES, whitening, (name,), "not recorded", defences=protected)
        shields = {} if defence is None else {name: Protection.of([defence])}
        truths = None if said is None else Truths({name: said})
        return Recorded(Transcript(net, terms, {0: past}), truths, defences=shields)

    return source


Edit = Callable[[Transcript], Transcript]


def saved(
    source: Callable[[], Source],
    *,
    edit: Edit = lambda transcript: transcript,
    swap: Callable[[Truths], Truths] = lambda truths: truths,
    shields: Mapping[str, Protection] | None = None,
) -> Callable[[], Source]:
    """A simulation that was saved and loaded; what lies on the disk may be edited and exchanged in between."""

    def loaded() -> Source:
        made = source()
        assert isinstance(made, Simulated)
        with TemporaryDirectory() as folder:
            edit(made.transcript()).save(Path(folder) / "said")
            swap(made.truths()).save(Path(folder) / "private")
            transcript = Transcript.load(Path(folder) / "said", made.federation.model)
            truths = Truths.load(Path(folder) / "private")
        return Recorded(transcript, truths, made.views, defences=shields or {})

    return loaded


def with_more(source: Callable[[], Source], **told: Any) -> Callable[[], Source]:
    """The same recording, of which more is known."""

    def more() -> Source:
        found = source()
        assert isinstance(found, Recorded)
        return replace(found, **told)

    return more


def swapped(truths: Truths) -> Truths:
    """Other examples in the place of the true ones."""
    other = data(1, 7)
    return Truths(dict.fromkeys(truths.examples, other))


def edited(change: Callable[[Tensor], Tensor]) -> Edit:
    """The first client's message is another one."""

    def edit(said: Transcript) -> Transcript:
        past = said.rounds[0]
        first, *rest = past.messages
        update = {name: change(tensor) for name, tensor in first.update.items()}
        return replace(said, rounds={0: replace(past, messages=(replace(first, update=update), *rest))})

    return edit


def round_as_of(other: Callable[[], Source], index: int) -> Edit:
    """One round is played by the clients of another federation."""

    def edit(said: Transcript) -> Transcript:
        made = other()
        assert isinstance(made, Simulated)
        past = made.federation.repeat_round(index, said.rounds[index], train_sequentially)
        return replace(said, rounds={**said.rounds, index: past})

    return edit


def with_another(share: float) -> Edit:
    """Another picture's gradient beside the first client's, as long as a share of what it has sent."""

    def edit(said: Transcript) -> Transcript:
        past = said.rounds[0]
        first, *rest = past.messages
        other = data(1, 5)
        beside, _ = Made().update(said.model, other.images, other.labels)
        scale = share * _length(first.update) / _length(beside)
        update = {name: tensor + scale * beside[name] for name, tensor in first.update.items()}
        return replace(said, rounds={0: replace(past, messages=(replace(first, update=update), *rest))})

    return edit


def _length(update: Mapping[str, Tensor]) -> float:
    return float(torch.cat([tensor.flatten() for tensor in update.values()]).norm())


def buried(tensor: Tensor) -> Tensor:
    """Under noise that hides all."""
    return tensor + torch.randn(tensor.shape, generator=stream(1, "buried", str(tuple(tensor.shape))))


def simulated(
    *clients: dict[str, Any],
    count: int = 1,
    training: Training = TOLD,
    model: Callable[[], nn.Module] = lenet,
    view: Any = ServerView(),  # noqa: B008  # frozen
    examples: Examples | None = None,
    rule: Aggregator = WeightedMean(),  # noqa: B008  # frozen
    knows: Knows = Knows(),  # noqa: B008  # frozen
    rounds: int = 1,
) -> Callable[[], Source]:
    """Clients, each with what sets it apart."""

    def source() -> Source:
        members = []
        for i, parts in enumerate(clients or ({},)):
            own = examples or data(count, i * count)
            members.append(Client(f"client {i}", own.images, own.labels, **parts))
        federation = Federation(model(), members, training, CLASSES, PLAIN, aggregator=rule)
        return Simulated(federation, rounds, views=(view,), knows=knows)

    return source


def attack(iterations: int = ITERATIONS, tv: float = 0.001, name: str = "inverting_gradients") -> Attack:
    made: Attack = recipe(name, iterations=iterations, tv=tv)
    return made


def one_of(examples: Examples) -> Examples:
    return Examples(examples.images[:1], examples.labels[:1])


def mislabelled(examples: Examples) -> Examples:
    return Examples(examples.images, (examples.labels + 1) % CLASSES)


def nearly_flat() -> Examples:
    """A picture of so little contrast that a flat colour passes for it."""
    picture = data(1)
    return Examples(0.4 + 0.2 * picture.images, picture.labels)


def black_and_white() -> Examples:
    picture = data(1)
    return Examples((picture.images > picture.images.median()).float(), picture.labels)


def split() -> Examples:
    """A picture that is itself when it is inverted and mirrored."""
    image = torch.full((1, *SHAPE), 0.2)
    image[..., SHAPE[2] // 2 :] = 0.8
    return Examples(image, torch.tensor([3]))


def of_one_class() -> Examples:
    return Examples(data(2).images, torch.tensor([3, 3]))


def two_of_one_class() -> Examples:
    return Examples(data(4).images, torch.tensor([3, 5, 3, 1]))


def noisy(std: float) -> dict[str, Any]:
    return {"release": GaussianNoise(std=std)}


@dataclass(frozen=True)
class NoisyEnd:
    """A defence of a user's own: noise in the last layer, which is most of a gradient's length, and nowhere else."""

    std: float

    def release(self, outgoing: Outgoing) -> dict[str, Tensor]:
        *first, weight, bias = outgoing.update.items()
        noised = {name: t + self.std * normal(t, outgoing.generator) for name, t in (weight, bias)}
        return {**dict(first), **noised}


@dataclass(frozen=True)
class Kept:
    """Noise that is drawn once, from the same seed for everybody and always."""

    std: float

    def release(self, outgoing: Outgoing) -> dict[str, Tensor]:
        generator = stream(0, "kept")
        return {name: t + self.std * normal(t, generator) for name, t in outgoing.update.items()}


@dataclass(frozen=True)
class OneFilter:
    """Noise of one filter, the same for all of them: a difference of two is without it."""

    std: float

    def release(self, outgoing: Outgoing) -> dict[str, Tensor]:
        noise = {n: normal(t[0] if t.dim() > 1 else t, outgoing.generator) for n, t in outgoing.update.items()}
        return {name: t + self.std * noise[name] for name, t in outgoing.update.items()}


@dataclass(frozen=True)
class Signs:
    """Noise of two values, as long as any other: who subtracts the nearer one has what it should hide."""

    std: float

    def release(self, outgoing: Outgoing) -> dict[str, Tensor]:
        return {n: t + self.std * normal(t, outgoing.generator).sign() for n, t in outgoing.update.items()}


def faded(of: Attack) -> Attack:
    """Its first stage down to a faint total variation: batch statistics let it take the contrast at no cost."""
    objective = Cosine() + Ramp(TotalVariation(), 1.0, 0.001, until=0.85)
    return replace(of, stages=(replace(of.stages[0], objective=objective),))


def last_layers(of: AnyAttack) -> Attack:
    """Its objective leaves out the first half of the message, in which the details of the picture are."""
    assert isinstance(of, Attack)
    objective = GrowingCosine(first=0.5, last=0.5, kept=1.0) + 0.003 * TotalVariation()
    return replace(of, stages=(replace(of.stages[0], objective=objective),))


MOMENTUM, STRONG = {"momentum": 0.9}, attack(tv=10.0)
SHORT, LONG = attack(iterations=5), attack(iterations=400)
SMOOTH = attack(tv=0.1)
FIVE, ADAM = replace(TOLD, epochs=5), replace(TOLD, optimiser=Adam())
SHIFTED = Whitening((0.45,) * 3, (0.25,) * 3)
NONE = Whitening((0.0,) * 3, (1.0,) * 3)


def with_public(source: Callable[[], Source], made: Callable[[], Public]) -> Callable[[], Source]:
    """The same, against an adversary that has such data."""

    def public() -> Source:
        found = source()
        assert isinstance(found, Simulated | Recorded)
        return replace(found, public=made())

    return public


def other_photos() -> Public:
    """Photographs of all classes, none of them a client's."""
    chosen = photos().resized(SHAPE[1]).subset(range(10, 24))
    return Public.of(chosen.images, chosen.labels)


def nearly_the_same() -> Public:
    """The private picture itself, a little blurred by noise: it is no secret."""
    private = data(1)
    noise = 0.02 * torch.randn(private.images.shape, generator=stream(0, "situations", "public"))
    return Public.of((private.images + noise).clamp(0, 1), private.labels)


def row(
    name: str,
    truth: str,
    source: Callable[[], Source],
    by: AnyAttack | None = None,
    doubt: DoubtKind | None = None,
) -> Situation:
    return Situation(name, truth, source, by or attack(), doubt)


def _situations() -> Iterator[Situation]:
    adam, adamw = torch.optim.Adam, torch.optim.AdamW
    yield row("recorded: plain SGD, declared so", LEAK, recorded(Made()))
    yield row("recorded: plain SGD, said to be undefended", LEAK, recorded(Made(), defended=False))
    yield row("recorded: two images", LEAK, recorded(Made(), count=2), LONG)
    yield row("recorded: training not declared", LEAK, recorded(Made(), None))
    yield row("recorded: in half precision", LEAK, recorded(Made(half=True)))
    yield row("recorded: learning rate declared ten times too large", LEAK, recorded(Made(), Training(lr=0.1)))
    yield row("recorded: learning rate declared ten times too small", LEAK, recorded(Made(), Training(lr=0.001)))
    yield row("recorded: lr = 50, epochs = 40 declared by mistake", LEAK, recorded(Made(), Training(50.0, 40)))
    yield row("recorded: loss summed over two images", LEAK, recorded(Made(factor=2.0), count=2), LONG)
    yield row("recorded: loss times 100", LEAK, recorded(Made(factor=100.0)))
    yield row("recorded: labels smoothed, not declared", LEAK, recorded(Made(smoothing=0.1)))
    yield row("recorded: momentum in one step", LEAK, recorded(Made(options=MOMENTUM)))
    yield row(
        "recorded: momentum over five epochs, not declared", LEAK, recorded(Made(options=MOMENTUM, epochs=5), FIVE)
    )
    yield row(
        "recorded: momentum over five epochs, declared",
        LEAK,
        recorded(Made(options=MOMENTUM, epochs=5), replace(FIVE, optimiser=SGD(momentum=0.9))),
    )
    nesterov = Made(options={"momentum": 0.9, "nesterov": True}, epochs=5)
    yield row("recorded: Nesterov's momentum over five epochs, not declared", LEAK, recorded(nesterov, FIVE))
    decay = replace(TOLD, optimiser=SGD(weight_decay=0.1))
    yield row("recorded: weight decay of 0.1, declared", LEAK, recorded(Made(options={"weight_decay": 0.1}), decay))
    yield row("recorded: weight decay of 0.1, not declared", LEAK, recorded(Made(options={"weight_decay": 0.1})))
    yield row("recorded: plain SGD, declared with Adam", LEAK, recorded(Made(), ADAM))
    yield row("recorded: weight decay, not declared", LEAK, recorded(Made(options={"weight_decay": 5e-4})))
    yield row("recorded: five epochs, declared", LEAK, recorded(Made(epochs=5), FIVE))
    yield row("recorded: five epochs, declared as one", LEAK, recorded(Made(epochs=5)))
    yield row("recorded: one epoch, declared as five", LEAK, recorded(Made(), FIVE))
    one = replace(TOLD, batch_size=1)
    yield row("recorded: batches of one, declared", LEAK, recorded(Made(batch_size=1), one, 2), LONG)
    yield row("recorded: batches of one, declared as one batch", LEAK, recorded(Made(batch_size=1), count=2), LONG)
    yield row("recorded: one batch, declared as batches of one", LEAK, recorded(Made(), one, 2), LONG)
    yield row("recorded: Adam, declared as SGD", LEAK, recorded(Made(optimiser=adam, lr=0.001)))
    yield row(
        "recorded: Adam, declared", LEAK, recorded(Made(optimiser=adam, lr=0.001), Training(0.001, optimiser=Adam()))
    )
    yield row("recorded: AdamW, declared as SGD", LEAK, recorded(Made(optimiser=adamw, lr=0.001)))
    frozen, batch = replace(TOLD, batch_norm=BatchNorm.FROZEN), replace(TOLD, batch_norm=BatchNorm.BATCH)
    yield row("recorded: BatchNorm frozen, declared so", LEAK, recorded(Made(), frozen, model=normalised))
    train = Made(train_mode=True)
    yield row("recorded: BatchNorm in train mode, declared frozen", LEAK, recorded(train, frozen, model=normalised))
    yield row("recorded: BatchNorm in train mode, declared so", LEAK, recorded(train, batch, model=normalised))
    yield row("recorded: pixels not normalised, declared 0.5 / 0.25", LEAK, recorded(Made(whitening=NONE)))
    yield row("recorded: normalisation slightly off", LEAK, recorded(Made(whitening=SHIFTED)))
    yield row("recorded: truth lists one of two images", LEAK, recorded(Made(), count=2, truth=one_of))
    yield row("recorded: truth has other labels", LEAK, recorded(Made(), truth=mislabelled))
    yield row(
        "recorded: noise that hides nothing, said to be defended", LEAK, recorded(Made(noise=1e-9), defended=True)
    )
    yield row("recorded: heavy noise, said to be defended", OPEN, recorded(Made(noise=1.0), defended=True))
    loud, faint = GaussianNoise(std=1.0), GaussianNoise(std=1e-6)
    yield row("recorded: heavy noise, declared with its size", SAFE, recorded(Made(noise=1.0), defence=loud))
    yield row(
        "recorded: heavy noise on two images, declared", SAFE, recorded(Made(noise=1.0), count=2, defence=loud), LONG
    )
    yield row(
        "recorded: clipped and noised, declared",
        SAFE,
        recorded(Made(norm=0.1, noise=0.1), defence=Chain((Clip(norm=0.1), GaussianNoise(std=0.1)))),
    )
    yield row("recorded: faint noise, declared with its size", LEAK, recorded(Made(noise=1e-6), defence=faint))
    yield row("recorded: clipped, declared with its norm", LEAK, recorded(Made(norm=1e-3), defence=Clip(norm=1e-3)))
    yield row("recorded: heavy noise declared, none there", LEAK, recorded(Made(), defence=loud))
    yield row(
        "recorded: heavy noise declared, none there, other data said",
        LEAK,
        recorded(Made(), defence=loud, truth=lambda _: data(1, 7)),
        doubt=REFUTED,
    )
    yield row(
        "recorded: heavy noise declared, a tenth there",
        OPEN,
        recorded(Made(noise=0.1), defence=loud),
        doubt=REFUTED,
    )
    yield row("recorded: heavy noise that nobody mentions", OPEN, recorded(Made(noise=1.0)))
    yield row("recorded: model that sees means alone", OPEN, recorded(Made(), model=pooled), SMOOTH)
    yield row("recorded: the same, five epochs declared", OPEN, recorded(Made(), FIVE, model=pooled), SMOOTH)

    tuned = Made(frozen=2)
    yield row("recorded: the first layer is not trained", LEAK, recorded(tuned), LONG)
    five = recorded(replace(tuned, epochs=5), FIVE)
    yield row("recorded: the first layer is not trained in five epochs", LEAK, five, attack(1000))
    hidden = recorded(replace(tuned, noise=1.0), defence=loud)
    yield row("recorded: the first layer is not trained, heavy noise on the others", SAFE, hidden, LONG)
    alone = recorded(replace(tuned, noise=1.0, noisy=False), defence=loud)
    yield row("recorded: heavy noise on a layer alone that is not trained", LEAK, alone)
    strange = recorded(tuned, truth=lambda _: data(1, 7))
    yield row("recorded: the first layer is not trained, other data said", LEAK, strange, doubt=NOT_SO)
    yield row("the first layer is not trained", LEAK, simulated(model=fine_tuned), LONG)
    clipped = {"release": Clip(norm=1e-3)}
    yield row("the first layer is not trained, clipping as a defence", LEAK, simulated(clipped, model=fine_tuned), LONG)
    covered = simulated(noisy(1.0), model=fine_tuned)
    yield row("the first layer is not trained, heavy noise", SAFE, covered, LONG)
    private = simulated({"gradient": DPSGD(clip=1.0, noise_multiplier=5.0)}, model=fine_tuned)
    yield row("the first layer is not trained, DP-SGD", SAFE, private, LONG)
    thrice = simulated(training=replace(TOLD, epochs=3), model=fine_tuned)
    begun = replace(attack(1000), start=recipe("exact"))  # as an audit of a recorded folder begins
    yield row("the first layer is not trained in three local steps", LEAK, thrice, begun)
    mixed = simulated({}, {}, view=AggregateView(), model=fine_tuned)
    yield row("aggregate of two, the first layer is not trained", LEAK, mixed, attack(1500))

    silent: dict[str, Any] = {"truth": None}
    yield row("no truth: plain SGD, declared so", OPEN, recorded(Made(), **silent), SHORT)
    by_adam = Made(optimiser=adam, lr=0.001)
    yield row("no truth: Adam, declared as SGD", OPEN, recorded(by_adam, **silent), SHORT, NOT_SO)
    yield row("no truth: SGD, declared with Adam", OPEN, recorded(Made(), ADAM, model=default, **silent), SHORT, NOT_SO)
    batch_norm = {**silent, "model": normalised}
    yield row("no truth: statistics moved, declared frozen", OPEN, recorded(train, frozen, **batch_norm), SHORT, NOT_SO)
    yield row("no truth: statistics moved, declared so", OPEN, recorded(train, batch, **batch_norm), SHORT)
    still = recorded(Made(), batch, **batch_norm)
    yield row("no truth: statistics stayed, declared to move", OPEN, still, SHORT, NOT_SO)
    thrice = recorded(replace(train, epochs=3), batch, **batch_norm)
    yield row("no truth: three batches counted, one step declared", OPEN, thrice, SHORT, NOT_SO)
    tiny = recorded(Made(), Training(lr=1e-5), **silent)
    yield row("no truth: learning rate declared a thousand times too small", OPEN, tiny, SHORT, NOT_SO)
    large = recorded(Made(), Training(50.0, 40), model=default, **silent)
    yield row("no truth: lr = 50, epochs = 40 declared by mistake", OPEN, large, SHORT, NOT_SO)

    yield row("saved and loaded", LEAK, saved(simulated()))
    yield row("saved and loaded: aggregate of two", LEAK, saved(simulated({}, {}, view=AggregateView())), LONG)
    yield row("saved and loaded: a tenth pruned", LEAK, saved(simulated({"release": MagnitudePruning(share=0.1)})))
    yield row("saved and loaded: model that sees means alone", OPEN, saved(simulated(model=pooled)), SMOOTH)
    client = {"client 0": Protection(release=loud)}
    yield row("saved and loaded: heavy noise, declared", SAFE, saved(simulated(noisy(1.0)), shields=client))
    yield row("saved and loaded: heavy noise", OPEN, saved(simulated(noisy(1.0))))
    yield row("saved: truths swapped", LEAK, saved(simulated(), swap=swapped), doubt=NOT_SO)
    other = saved(simulated(noisy(1e-6)), swap=swapped, shields=client)
    yield row("saved: truths swapped, heavy noise declared for faint", LEAK, other, doubt=REFUTED)
    yield row("saved: message scaled", LEAK, saved(simulated(), edit=edited(lambda tensor: 3 * tensor)))
    yield row("saved: message buried afterwards", OPEN, saved(simulated(), edit=edited(buried)), doubt=NOT_SO)

    yield row("attack too short", LEAK, simulated(), SHORT)
    yield row("prior too strong", LEAK, simulated(), STRONG)
    flat = simulated(noisy(1.0), examples=nearly_flat())
    yield row("heavy noise, flat result beyond the threshold", SAFE, flat, attack(tv=1000.0))
    yield row("heavy noise, nearly flat picture", SAFE, flat)
    yield row("nearly flat picture, prior far too strong", LEAK, simulated(examples=nearly_flat()), attack(tv=1000.0))
    yield row("one image, one gradient", LEAK, simulated())
    yield row("two images, one gradient", LEAK, simulated(count=2), LONG)
    yield row("two images of one class", LEAK, simulated(examples=of_one_class()), LONG)
    yield row("three local steps", LEAK, simulated(training=replace(TOLD, epochs=3)))
    yield row("noise of 1e-12 as a defence", LEAK, simulated(noisy(1e-12)))
    yield row("noise of 1e-6 as a defence", LEAK, simulated(noisy(1e-6)))
    yield row("clipping as a defence", LEAK, simulated({"release": Clip(norm=1e-3)}))
    yield row("a tenth pruned as a defence", LEAK, simulated({"release": MagnitudePruning(share=0.1)}))
    yield row("picture that is its own mirrored negative", LEAK, simulated(examples=split()))
    some = simulated(noisy(1e-3), examples=split())
    yield row("some noise, picture that is its own mirrored negative", LEAK, some)
    yield row("the same, by a longer attack with a prior against noise", LEAK, some, attack(600, tv=0.1))
    yield row("another client's defence", LEAK, simulated({}, noisy(1.0)))
    yield row("another client's defence, attack too short", LEAK, simulated({}, noisy(1.0)), SHORT)
    yield row("heavy noise", SAFE, simulated(noisy(1.0)))
    yield row("heavier noise", SAFE, simulated(noisy(30.0)))
    yield row("heavy Laplacian noise", SAFE, simulated({"release": LaplacianNoise(scale=1.0)}))
    yield row("clipped and noised", SAFE, simulated({"release": Chain((Clip(norm=0.1), GaussianNoise(std=0.1)))}))
    yield row("DP-SGD", SAFE, simulated({"gradient": DPSGD(clip=1.0, noise_multiplier=5.0)}))
    yield row("heavy noise on two images", SAFE, simulated(noisy(1.0), count=2), LONG)
    yield row("heavy noise after three local steps", SAFE, simulated(noisy(1.0), training=replace(TOLD, epochs=3)))
    yield row("heavy noise, another client without", SAFE, simulated(noisy(1.0), {}))
    yield row("heavy noise, attack too short", SAFE, simulated(noisy(1.0)), SHORT)
    yield row("model that sees means alone", OPEN, simulated(model=pooled), SMOOTH)
    yield row("model that sees means alone, noise of 1e-12", OPEN, simulated(noisy(1e-12), model=pooled), SMOOTH)
    yield row("aggregate of two", LEAK, simulated({}, {}, view=AggregateView()), LONG)
    poison = simulated({}, {"behaviour": SignFlip(factor=2.0)}, view=AggregateView())
    yield row("aggregate with a poisoner's flipped sign", LEAK, poison, LONG)
    yield row("aggregate of two, heavy noise", SAFE, simulated(noisy(1.0), noisy(1.0), view=AggregateView()), LONG)
    yield row("a peer of one other", LEAK, simulated({}, {}, view=PeerView(1)), LONG)
    yield row("a peer of one other, heavy noise", SAFE, simulated(noisy(1.0), {}, view=PeerView(1)), LONG)

    yield row("one image, other public pictures of its class", LEAK, with_public(simulated(), other_photos))
    yield row("two images, other public pictures", LEAK, with_public(simulated(count=2), other_photos), LONG)
    yield row("heavy noise, other public pictures", SAFE, with_public(simulated(noisy(1.0)), other_photos))
    means = simulated(model=pooled)
    yield row("model that sees means alone, public pictures as decoys", OPEN, with_public(means, other_photos), SMOOTH)
    yield row("public data show the picture better than the attack", OPEN, with_public(simulated(), nearly_the_same))
    yield row("four images, two of one class", LEAK, simulated(examples=two_of_one_class()), recipe("invg", tv=1e-4))
    deep = simulated(training=batch, model=residual)
    brief = recipe("coarse_to_fine", iterations=100)
    yield row("batch statistics in a residual network, by coarse_to_fine", LEAK, deep, brief)
    shallow = simulated(training=batch, model=normalised)
    by_direction = coarse_to_fine_batchnorm(iterations=ITERATIONS)
    yield row("batch statistics, by coarse_to_fine_batchnorm", LEAK, shallow, by_direction)
    yield row("batch statistics, prior under which the contrast fades", LEAK, shallow, faded(by_direction))
    last = simulated({"release": NoisyEnd(std=1.0)})
    yield row("heavy noise in the last layer alone", LEAK, last, doubt=DoubtKind.DEFENCE_NOT_BOUNDED)
    tiny_steps = Training(lr=1e-8)
    yield row(
        "recorded: tiny learning rate, clipped, other data said",
        LEAK,
        recorded(Made(lr=1e-8), tiny_steps, defence=Clip(norm=1e-3), truth=lambda _: data(1, 7)),
        doubt=NOT_SO,
    )
    contrast = simulated(model=grouped, examples=black_and_white())
    yield row("group normalisation, black and white", LEAK, contrast, attack(tv=0.03), DoubtKind.TRANSFORMED_MATCH)
    yield row("attack that looks at the last layers alone", LEAK, simulated(), last_layers(attack(400)))
    yield from _over_rounds()
    yield from _statistics()
    yield from _among_peers()


def _over_rounds() -> Iterator[Situation]:
    """The same data in several rounds, which tell more together than each does."""
    more = DoubtKind.MORE_ROUNDS
    yield row("heavy noise, the data in 100,000 rounds", LEAK, simulated(noisy(0.1), rounds=100_000), doubt=more)
    four = Together(tuple(ServerView(0, index) for index in range(4)))
    yield row("some noise in four rounds, attacked together", LEAK, simulated(noisy(2e-4), rounds=4, view=four))
    yield row("one image in four rounds, attacked together", LEAK, simulated(rounds=4, view=four))
    yield row("heavy noise in four rounds, attacked together", SAFE, simulated(noisy(0.1), rounds=4, view=four))
    all_means = simulated(model=pooled, rounds=4, view=four)
    yield row("model that sees means alone, four rounds together", OPEN, all_means, SMOOTH)
    two, loud = Together((ServerView(0, 0), ServerView(0, 1))), {"client 0": Protection(release=GaussianNoise(std=0.1))}
    open_rounds, noisy_rounds = simulated(rounds=2, view=two), simulated(noisy(0.1), rounds=2, view=two)
    yield row("saved: two rounds together", LEAK, saved(open_rounds))
    faint = {"client 0": Protection(release=GaussianNoise(std=1e-6))}
    faint_rounds = simulated(noisy(1e-6), rounds=2, view=two)
    yield row("saved: two rounds together, faint noise", LEAK, saved(faint_rounds, shields=faint))
    both = Together((AggregateView(0), AggregateView(1)))
    yield row("saved: two rounds of an aggregate together", LEAK, saved(simulated({}, {}, rounds=2, view=both)), LONG)
    yield row("saved: two rounds together, heavy noise", SAFE, saved(noisy_rounds, shields=loud))
    hidden = saved(simulated(noisy(1.0)), shields={"client 0": Protection(release=GaussianNoise(std=1.0))})
    unread, unseen = DoubtKind.EXTRA_PAYLOAD, DoubtKind.CLIENTS_NOT_AUDITED
    control = with_more(hidden, extra_payload={(0, "client 0"): ("a control variate",)})
    yield row("saved: heavy noise, and more arrays beside it", OPEN, control, doubt=unread)
    later = with_more(saved(noisy_rounds, shields=loud), extra_payload={(1, "client 0"): ("a control variate",)})
    yield row("saved: heavy noise in two rounds together, more arrays beside the second", OPEN, later, doubt=unread)
    another = with_more(hidden, unaudited_clients=("client 1",))
    yield row("saved: heavy noise, and a client that nobody looks at", OPEN, another, doubt=unseen)
    yield from _repeated()
    mixed = saved(noisy_rounds, edit=round_as_of(open_rounds, 1), shields=loud)
    yield row("saved: two rounds together, heavy noise declared and none in the second", LEAK, mixed)


def _repeated() -> Iterator[Situation]:
    """Noise that is not drawn anew for every entry, client and round."""
    clients = ("client 0", "client 1")
    two = Together((ServerView(0, 0), ServerView(0, 1)))

    def declared(std: float) -> dict[str, Protection]:
        return dict.fromkeys(clients, Protection(release=GaussianNoise(std=std)))

    def of(release: Kept | Signs | OneFilter | GaussianNoise, **told: Any) -> Callable[[], Source]:
        return saved(simulated({"release": release}, {"release": release}, **told), shields=declared(release.std))

    yield row("saved: heavy noise, the same in two rounds", LEAK, of(Kept(0.1), rounds=2, view=two), doubt=REFUTED)
    lacking = saved(simulated(noisy(0.1)), edit=with_another(0.5), shields=declared(0.1))
    yield row("saved: heavy noise, and a picture that the truth lacks", OPEN, lacking, doubt=REFUTED)
    yield row("saved: heavy noise of two clients, each its own", SAFE, of(GaussianNoise(1.0)))
    yield row("saved: faint noise, the same of two clients", LEAK, of(Kept(1e-6)))
    yield row("saved: faint noise, the same in two rounds", LEAK, of(Kept(1e-6), rounds=2, view=two))
    anew = of(GaussianNoise(0.3), rounds=2, view=two)
    yield row("saved: heavy noise of two clients in two rounds, each its own", SAFE, anew)
    yield row("saved: heavy noise of two values, declared as Gaussian", LEAK, of(Signs(1.0)), doubt=REFUTED)
    yield row("saved: faint noise of two values, declared as Gaussian", LEAK, of(Signs(1e-6)))
    yield row("saved: faint noise, one filter's for all filters", LEAK, of(OneFilter(1e-6)))
    yield row("saved: heavier noise of two clients, each its own", SAFE, of(GaussianNoise(30.0)))
    yield row(
        "heavy noise, one filter's for all filters",
        LEAK,
        simulated({"release": OneFilter(1.0)}),
        doubt=DoubtKind.DEFENCE_NOT_BOUNDED,
    )
    yield row("faint noise, one filter's for all filters", LEAK, simulated({"release": OneFilter(1e-6)}))


def _statistics() -> Iterator[Situation]:
    """Running statistics, which travel beside the update."""
    batch, told = replace(TOLD, batch_norm=BatchNorm.BATCH), DoubtKind.STATISTICS_SENT
    by_both = coarse_to_fine_statistics(iterations=ITERATIONS)
    yield row("batch statistics, read with the update", LEAK, simulated(training=batch, model=normalised), by_both)
    hushed = simulated(noisy(1.0), training=batch, model=normalised)
    yield row("heavy noise, batch statistics in clear", LEAK, hushed, doubt=told)
    barely = coarse_to_fine_statistics(iterations=60, weight=0.01)
    yield row("heavy noise, batch statistics in clear, read and hardly weighed", LEAK, hushed, barely, told)
    two = simulated(noisy(1.0), noisy(1.0), training=batch, model=normalised, view=AggregateView())
    yield row("heavy noise, an aggregate's batch statistics in clear", LEAK, two, LONG, told)


def _among_peers() -> Iterator[Situation]:
    """Participants that read each other, through means and through other rules."""
    curious, peer, three = recipe("curious_client", iterations=ITERATIONS, tv=0.001), PeerView(0), ({}, {}, {})
    yield row("a server, by curious_client", LEAK, simulated(), curious)
    yield row("a peer of one other, by curious_client", LEAK, simulated({}, {}, view=peer), curious)
    yield row("a peer of two others, by curious_client", LEAK, simulated(*three, view=peer), curious)
    steps = simulated(*three, view=peer, training=replace(TOLD, epochs=3))
    yield row("a peer of two others after three local steps", LEAK, steps, curious)
    poison = simulated({"behaviour": SignFlip(factor=2.0)}, {}, {}, view=peer)
    yield row("a peer that sends poison", LEAK, poison, curious)
    yield row("secure aggregation, by curious_client", LEAK, simulated({}, {}, view=AggregateView()), curious)
    yield row("a peer of two that add heavy noise", SAFE, simulated({}, noisy(1.0), noisy(1.0), view=peer), curious)
    along = recipe("curious_client", own="along", iterations=ITERATIONS, tv=0.001)
    yield row("a peer that reconstructs its own images too", LEAK, simulated({}, {}, view=peer), along)
    held = recipe("curious_client", own="fixed", iterations=ITERATIONS, tv=0.001)
    yield row("a peer that holds its own images fixed", LEAK, simulated({}, {}, view=peer), held)
    yield row("a peer of three others", LEAK, simulated({}, {}, {}, {}, view=peer), curious)
    yield row("a peer of one other with two images", LEAK, simulated({}, {}, count=2, view=peer), curious)
    five_steps = simulated({}, {}, view=peer, training=replace(TOLD, epochs=5))
    yield row("a peer of one other after five local steps", LEAK, five_steps, curious)
    yield row("a peer that alone adds heavy noise", LEAK, simulated(noisy(1.0), {}, view=peer), curious)
    hushed = simulated(noisy(1.0), noisy(1.0), view=AggregateView())
    yield row("secure aggregation of two that add heavy noise", SAFE, hushed, curious)

    five = ({}, {}, {}, {}, {})
    yield row("a server with Krum", LEAK, simulated(*five, rule=Krum(1)), curious)
    yield row("a peer behind Krum", LEAK, simulated(*five, view=PeerView(1), rule=Krum(1)), curious)

    def through(rule: str) -> AnyAttack:
        return recipe("maliciously_curious_client", rule=rule, iterations=300, tv=0.01)

    median = simulated(*three, view=peer, rule=Median())
    yield row("a peer behind a median", LEAK, median, through("median"))
    flipped = simulated({"behaviour": SignFlip()}, {}, {}, view=peer, rule=Median())
    yield row("a peer that sends poison, behind a median", LEAK, flipped, through("median"))
    trimmed = simulated(*three, view=peer, rule=TrimmedMean(1))
    yield row("a peer behind a trimmed mean", LEAK, trimmed, through("trimmed_mean"))
    yield row("a peer behind a median that takes it for a mean", LEAK, median, curious)
    by_oracle = recipe("maliciously_curious_client", labels=OracleLabels(), rule="median", iterations=300, tv=0.01)
    told = simulated(*three, view=peer, rule=Median(), knows=Knows(labels=True))
    yield row(
        "a peer behind a median that is told the labels by an oracle", LEAK, told, by_oracle, DoubtKind.ORACLE_USED
    )
    unsure = Knows(kept=False)
    forwarded = simulated(*five, view=PeerView(1), rule=Krum(1), knows=unsure)
    yield row("a peer behind Krum that is not told whose update it sees", LEAK, forwarded, through("one_client"))
    dropped = simulated({"behaviour": SignFlip(5.0)}, {}, {}, view=peer, rule=DnC(1, passes=1))
    yield row("a peer whose poison was dropped", LEAK, dropped, through("mean"))
    loud = simulated({}, noisy(1.0), noisy(1.0), view=peer, rule=Median())
    yield row("a peer behind a median of two that add heavy noise", SAFE, loud, through("median"))


def mlp() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Flatten(), nn.Linear(432, 128), nn.ReLU(), nn.Linear(128, CLASSES))


def two_by_two() -> nn.Module:
    """A dense network that sees means over squares of two pixels."""
    torch.manual_seed(0)
    return nn.Sequential(nn.AvgPool2d(2), nn.Flatten(), nn.Linear(108, 64), nn.ReLU(), nn.Linear(64, CLASSES))


class Grey(nn.Module):
    """A layer that averages the channels."""

    def forward(self, images: Tensor) -> Tensor:
        return images.mean(1, keepdim=True)


def grey() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(Grey(), nn.Flatten(), nn.Linear(144, 64), nn.ReLU(), nn.Linear(64, CLASSES))


Noise = Callable[[Tensor, torch.Generator], Tensor]
"""What is added to a tensor of the update: noise of size 1 that somebody takes for Gaussian."""


def some_rows(like: Tensor, generator: torch.Generator) -> Tensor:
    """Three rows of a matrix, and of a bias, are left out: dividing these reads the picture."""
    noise = normal(like, generator)
    noise[:3] = 0
    return noise


def centred(like: Tensor, generator: torch.Generator) -> Tensor:
    """It cancels in the sum over rows."""
    noise = normal(like, generator)
    return noise - noise.mean(0, keepdim=True)


def paired(like: Tensor, generator: torch.Generator) -> Tensor:
    """Every second row has the opposite noise of the one before: their sum has none."""
    noise = normal(like, generator)
    noise[1::2] = -noise[: 2 * (len(noise) // 2) : 2]
    return noise


def of_low_rank(like: Tensor, generator: torch.Generator) -> Tensor:
    """Of a matrix, noise in eight directions alone."""
    if like.dim() < 2:
        return normal(like, generator)
    left, right = (torch.randn(n, 8, generator=generator) for n in (like.shape[0], like[0].numel()))
    return (left @ right.T / 8**0.5).view_as(like)


def rounded(like: Tensor, generator: torch.Generator) -> Tensor:
    """Multiples of a thirtieth of its size: what is left beside them is the update."""
    return (30 * normal(like, generator)).round() / 30


def of_few_bits(like: Tensor, generator: torch.Generator) -> Tensor:
    """Drawn in bfloat16, and added in single precision."""
    return normal(like, generator).bfloat16().float()


def half_of_it(like: Tensor, generator: torch.Generator) -> Tensor:
    """On every second entry."""
    noise = normal(like, generator)
    noise.view(-1)[::2] = 0
    return noise


def without_columns(like: Tensor, generator: torch.Generator) -> Tensor:
    noise = normal(like, generator)
    if like.dim() > 1:
        noise[:, : max(1, like.shape[1] // 8)] = 0
    return noise


def seeded(like: Tensor, generator: torch.Generator) -> Tensor:
    """Everybody can draw it again."""
    return torch.randn(like.shape, generator=torch.Generator().manual_seed(0))


@dataclass(frozen=True)
class Shaped:
    """Noise that is not what somebody takes it for."""

    draw: Noise
    std: float

    def release(self, outgoing: Outgoing) -> dict[str, Tensor]:
        return {n: t + self.std * self.draw(t, outgoing.generator) for n, t in outgoing.update.items()}


@dataclass(frozen=True)
class Multiplied:
    """Every entry times a random number, which leaves every zero and every ratio of signs."""

    std: float

    def release(self, outgoing: Outgoing) -> dict[str, Tensor]:
        return {n: t * self.std * normal(t, outgoing.generator) for n, t in outgoing.update.items()}


@dataclass(frozen=True)
class RandomSigns:
    """Every entry keeps its size."""

    def release(self, outgoing: Outgoing) -> dict[str, Tensor]:
        return {n: t * normal(t, outgoing.generator).sign() for n, t in outgoing.update.items()}


def _false_passes() -> Iterator[Situation]:
    """Messages that were once called clear, each of which a calculation reads."""
    declared = {"client 0": Protection(release=GaussianNoise(std=1.0))}
    noises: dict[str, Noise] = {
        "three rows without noise": some_rows,
        "noise that is centred over rows": centred,
        "rows in pairs of opposite noise": paired,
        "noise of rank 8": of_low_rank,
        "noise rounded to a thirtieth of its size": rounded,
        "noise drawn in bfloat16": of_few_bits,
        "noise on half of the entries": half_of_it,
        "columns without noise": without_columns,
        "noise of seed 0": seeded,
    }
    for name, draw in noises.items():
        noised = simulated({"release": Shaped(draw, 1.0)}, model=mlp)
        yield row(f"saved: {name}, declared as Gaussian", LEAK, saved(noised, shields=declared), SHORT, REFUTED)
    unbounded = DoubtKind.DEFENCE_NOT_BOUNDED
    half = simulated({"release": Shaped(half_of_it, 1.0)}, model=mlp)
    yield row("a defence of one's own: noise on half of the entries", LEAK, half, SHORT, unbounded)
    times = simulated({"release": Multiplied(30.0)}, model=mlp)
    yield row("a defence of one's own: entries times random numbers", LEAK, times, SHORT, unbounded)
    yield row(
        "a defence of one's own: random signs", LEAK, simulated({"release": RandomSigns()}, model=mlp), SHORT, unbounded
    )
    slow = Training(lr=0.001)
    yield row(
        "undefended, a dense network behind pooling of 2 x 2", LEAK, simulated(model=two_by_two, training=slow), SHORT
    )
    halved = saved(simulated(model=two_by_two), edit=edited(lambda tensor: tensor.bfloat16().float()))
    yield row("saved: the same in bfloat16", LEAK, halved, SHORT)
    in_grey = saved(simulated(model=grey), edit=edited(lambda tensor: tensor.bfloat16().float()))
    yield row("saved: a dense network that averages the channels, in bfloat16", LEAK, in_grey, SHORT)
    yield row("undefended, a dense network", LEAK, simulated(model=mlp), SHORT)
    momentum = replace(TOLD, epochs=20, optimiser=SGD(momentum=0.9))
    yield row(
        "undefended, a dense network, twenty steps with momentum", LEAK, simulated(model=mlp, training=momentum), SHORT
    )
    yield row("undefended, a dense network, four images", LEAK, simulated(model=mlp, count=4), SHORT)


KINDS = 3
"""Classes of characters, of which there are then enough candidates of each."""


@cache
def characters() -> Examples:
    drawn = glyphs().resized((14, 14))
    return Examples(drawn.images, drawn.labels % KINDS)


def convolutions() -> nn.Module:
    """Without a hidden dense layer, and without one that is fed the pixels."""
    torch.manual_seed(0)
    body = (nn.Conv2d(1, 32, 3, 2, 1), nn.ReLU(), nn.Conv2d(32, 64, 3, 2, 1), nn.ReLU())
    return nn.Sequential(*body, nn.Flatten(), nn.Linear(1024, KINDS))


def of_characters(
    rows: slice,
    *,
    training: Training = TOLD,
    candidates: slice = slice(200, 3000),
    change: Callable[[Tensor], Tensor] = lambda images: images,
    label: int | None = None,
    **parts: Any,
) -> Callable[[], Source]:
    """A client with some characters, to an adversary that has others, which may be changed."""

    def source() -> Source:
        known = characters()
        kept = torch.arange(len(known.labels)) if label is None else (known.labels == label).nonzero().flatten()
        own, other = kept[rows], torch.arange(len(known.labels))[candidates]
        other = other[~torch.isin(other, own)]
        client = Client("client 0", known.images[own], known.labels[own], **parts)
        federation = Federation(convolutions(), [client], training, KINDS, Whitening((0.5,), (0.5,)))
        public = Public.of(change(known.images[other]), known.labels[other])
        return Simulated(federation, public=public)

    return source


def of_others(source: Callable[[], Source]) -> Callable[[], Source]:
    """The same message, of which records are said to be behind it that nobody trained on."""

    def swapped_records() -> Source:
        made = source()
        assert isinstance(made, Simulated)
        known = characters()
        count = len(made.federation.clients[0].labels)
        other = Examples(known.images[100 : 100 + count], known.labels[100 : 100 + count])
        return Recorded(made.transcript(), Truths({"client 0": other}), public=made.public)

    return swapped_records


PUBLIC = slice(200, 500)
"""Characters that everybody has, where there are few."""


def crops(images: Tensor) -> Tensor:
    """Pieces of photographs in grey, as many as there are images.  # (n, 1, h, w)"""
    scenes = photos().images.mean(1, keepdim=True)
    count, (height, width) = len(images), images.shape[-2:]
    draws = stream(0, "crops")
    which = torch.randint(len(scenes), (count,), generator=draws).tolist()
    tops, lefts = (torch.randint(n - m, (count,), generator=draws).tolist() for n, m in
                   zip(scenes.shape[-2:], (height, width), strict=True))  # fmt: skip
    return torch.stack(
        [scenes[i, :, t : t + height, u : u + width] for i, t, u in zip(which, tops, lefts, strict=True)]
    )


def near_copies(images: Tensor) -> Tensor:
    """The first 900 are nearly the client's own characters."""
    own, noise = characters().images[:16], torch.randn(900, *images.shape[1:], generator=stream(0, "copies"))
    return torch.cat([(own.repeat(57, 1, 1, 1)[:900] + 0.01 * noise).clamp(0, 1), images[900:]])


def moved_by(model: nn.Module, images: Tensor, labels: Tensor) -> Tensor:
    """The gradient of the mean loss, as plain PyTorch computes it.  # (weights,)"""
    loss = F.cross_entropy(model((images - 0.5) / 0.5), labels)
    return torch.cat([g.flatten() for g in torch.autograd.grad(loss, [*model.parameters()])])


def one_that_stands_out() -> Source:
    """31 dark pictures of one class and one bright one of another, which moves the message by three times its noise."""
    known = characters()
    images, labels = 0.02 * known.images[:32], torch.zeros(32, dtype=torch.int64)
    images[0], labels[0] = known.images[0], 1
    with_it, without = (moved_by(convolutions(), images[first:], labels[first:]) for first in (0, 1))
    std = TOLD.lr * float((with_it - without).norm()) / 3
    client = Client("client 0", images, labels, release=GaussianNoise(std=std))
    public = Public.of(0.02 * known.images[200:1500], 0 * known.labels[200:1500])
    return Simulated(Federation(convolutions(), [client], TOLD, KINDS, Whitening((0.5,), (0.5,))), public=public)


def among_faint() -> Source:
    """A character that moves the message by three times its noise, among candidates of hardly any contrast."""
    known = characters()
    std = TOLD.lr * float(moved_by(convolutions(), known.images[:1], known.labels[:1]).norm()) / 3
    release = {"release": GaussianNoise(std=std)}
    return of_characters(slice(1), change=lambda images: 0.5 + 0.01 * (images - 0.5), **release)()


@dataclass(frozen=True)
class SparesDirections:
    """Gaussian noise without the first principal directions of public gradients, in which the message is clear."""

    count: int
    std: float

    def release(self, outgoing: Outgoing) -> dict[str, Tensor]:
        noise = torch.cat([normal(t, outgoing.generator).flatten() for t in outgoing.update.values()])
        spared = common_directions()[: self.count]  # (k, weights)
        sizes = [t.numel() for t in outgoing.update.values()]
        parts = (noise - spared.T @ (spared @ noise)).split(sizes)
        return {n: t + self.std * part.view_as(t) for (n, t), part in zip(outgoing.update.items(), parts, strict=True)}


@cache
def common_directions() -> Tensor:
    """Of the gradients of public characters.  # (100, weights)"""
    known = characters()
    rows = [
        moved_by(convolutions(), known.images[i : i + 1], known.labels[i : i + 1])
        for i in range(PUBLIC.start, PUBLIC.stop)
    ]
    return torch.linalg.svd(torch.stack(rows), full_matrices=False).Vh[:100]


def said_to_be(source: Callable[[], Source], release: Release) -> Callable[[], Source]:
    """The message as it was recorded, with another defence declared."""

    def declared() -> Source:
        made = source()
        assert isinstance(made, Simulated)
        shields = {"client 0": Protection(release=release)}
        return Recorded(made.transcript(), made.truths(), public=made.public, defences=shields)

    return declared


def mixture() -> Source:
    """Four photographs of two classes that switch on every unit: all rows show one and the same mixture of them."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Flatten(), nn.Linear(432, 32), nn.ReLU(), nn.Linear(32, 2))
    nn.init.constant_(model[1].bias, 20.0)
    client = Client("client 0", data(4).images, torch.tensor([0, 0, 1, 1]))
    return Simulated(Federation(model, [client], TOLD, 2, PLAIN))


def _traps() -> Iterator[Situation]:
    """What must not pass, must not be called exposed, or must not be called a leak."""
    yield Situation(
        "one of 32 records stands out of the noise", OPEN, one_that_stands_out, None, DoubtKind.WEAK_CERTIFICATE
    )
    yield Situation(
        "a character among faint candidates, little noise", OPEN, among_faint, None, DoubtKind.WEAK_CERTIFICATE
    )
    for count in (20, 50, 100):
        spared = of_characters(slice(1), candidates=PUBLIC, release=SparesDirections(count, 0.1))
        name = f"recorded: noise that spares {count} directions of public gradients"
        yield Situation(name, LEAK, said_to_be(spared, GaussianNoise(std=0.1)), None, REFUTED)
    bits = simulated(model=mlp, training=Training(lr=1e-7))
    yield row("a message of differences in the last bit", LEAK, bits, SHORT)
    copies = of_characters(slice(16), change=near_copies)
    yield Situation("candidates of which 900 are nearly the records", EXPOSED, copies, None)
    faded = {"bright": lambda images: 0.5 + images / 2, "dark": lambda images: images / 2, "photographed": crops}
    for name, change in faded.items():
        never = of_others(of_characters(slice(16), change=change))
        yield Situation(f"characters that nobody trained on, {name} candidates", OPEN, never, None, NOT_SO)
    foreign = of_characters(slice(16), change=crops)
    yield Situation("characters among pieces of photographs", OPEN, foreign, None, DoubtKind.OTHER_DOMAIN)
    twenty = of_characters(slice(16), candidates=slice(200, 200 + 20 * KINDS))
    yield Situation("twenty candidates of each class", OPEN, twenty, None, DoubtKind.FEW_CANDIDATES)
    yield Situation("four images of two classes, one mixture in every row", OPEN, mixture, SHORT)
    extreme = {"gradient": Outpost(noise=3.4e6, pruned=0.2, perturbed=0.3, decay=0.0)}
    yield row("outpost with extreme options", LEAK, simulated(extreme, model=mlp), SHORT, DoubtKind.DEFENCE_NOT_BOUNDED)


def _games() -> Iterator[Situation]:
    """Whether a message names its records among others, and must not name those that it was not made with."""
    yield Situation("forty-eight characters, one step", EXPOSED, of_characters(slice(48)), None)
    loud = {"release": GaussianNoise(std=1.0)}
    yield Situation("sixteen characters, heavy noise", SAFE, of_characters(slice(16), **loud), None)
    yield Situation("characters that nobody trained on", OPEN, of_others(of_characters(slice(16))), None, NOT_SO)
    few = of_characters(slice(16), candidates=slice(200, 215))
    yield Situation("fifteen candidates", OPEN, few, None, DoubtKind.NO_CANDIDATES)
    one = of_others(of_characters(slice(16), label=1))
    yield Situation("a client of one class, records that nobody trained on", OPEN, one, None)


def _filters() -> Iterator[Situation]:
    """Filters of NVFlare, mods of Flower and Opacus's DP-SGD, as hospitals run them."""
    false = DoubtKind.EPSILON_NOT_AS_DECLARED
    flip = {"release": FlowerLocalDP(clipping_norm=1.0, sensitivity=1e-4, epsilon=10.0, delta=1e-5)}
    percentile, honest = {"release": PercentilePrivacy(10, 0.01)}, {"release": FlowerLocalDP(0.1, 0.1, 1.0, 1e-5)}
    yield row("Flower's local DP with FLIP's defaults, dense network", LEAK, simulated(flip, model=dense), LONG, false)
    yield row("Flower's local DP with FLIP's defaults, LeNet", LEAK, simulated(flip), LONG, false)
    idle = simulated(percentile, model=dense)
    yield row("NVFlare's PercentilePrivacy(10, 0.01), dense network", LEAK, idle, LONG, DoubtKind.IDLE_FILTER)
    yield row("NVFlare's PercentilePrivacy(10, 0.01), LeNet", LEAK, simulated(percentile), LONG)
    cut_off = Training(lr=0.1)
    for seed in (1, 2):
        weights = f"weights of seed {seed}"
        for network, named in ((lenet, "LeNet"), (smooth_dense, "dense sigmoid network")):
            for training in (TOLD, cut_off):
                name = f"NVFlare's PercentilePrivacy(10, 0.01), {named}, {weights}, learning rate {training.lr:g}"
                made = simulated(percentile, model=partial(network, seed), training=training)
                yield row(name, LEAK, made, LONG)
    for training in (TOLD, cut_off):
        name = f"NVFlare's PercentilePrivacy(10, 0.01), LeNet, PyTorch's own weights, learning rate {training.lr:g}"
        made = simulated(percentile, model=default, training=training)
        yield row(name, LEAK, made, attack(iterations=400, tv=1e-6))
    for part in (PercentilePrivacy(0, 0.001), Chain((MagnitudePruning(0.5), PercentilePrivacy(10, 0.01)))):
        made = simulated({"release": part}, training=cut_off)
        yield row(f"{part!r}, LeNet, learning rate 0.1", LEAK, made, LONG)
    yield row("Flower's local DP with its sensitivity as clip, epsilon 1", SAFE, simulated(honest))
    kept = {"release": Chain((FlowerLocalDP(0.1, 0.1, 1.0, 1e-5), PercentilePrivacy()))}
    yield row("the same, and PercentilePrivacy after it", SAFE, simulated(kept))
    yield row("NVFlare's SVTPrivacy with its defaults", OPEN, simulated({"release": SVTPrivacy()}))
    once, declared = Made(opacus=True), DPSGD(clip=1.0, noise_multiplier=1.0)
    yield row("recorded: Opacus, one full batch, mu = 1", SAFE, recorded(once, count=4, defence=declared))
    ten, told = Made(opacus=True, epochs=10), replace(TOLD, epochs=10)
    weak = DoubtKind.WEAK_CERTIFICATE
    yield row(
        "recorded: Opacus, ten full batches, mu = 3.2", OPEN, recorded(ten, told, 4, defence=declared), doubt=weak
    )


class WithScale(nn.Module):
    """Dense layers whose outputs a 0-d parameter scales: its own gradient is large."""

    def __init__(self) -> None:
        super().__init__()
        self.body, self.scale = smooth_dense(), nn.Parameter(torch.tensor(30.0))

    def forward(self, images: Tensor) -> Tensor:
        outputs: Tensor = self.scale * self.body(images)
        return outputs


class Shared(nn.Module):
    """A layer without weights that adds the mean of the batch to every example."""

    def forward(self, features: Tensor) -> Tensor:
        return features + 10 * features.mean(0, keepdim=True)


def mixing() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Flatten(), nn.Linear(432, 64), nn.Sigmoid(), Shared(), nn.Linear(64, CLASSES))


def copied(times: int) -> Examples:
    """A picture so many times, and another one."""
    rows = [0] * times + [1]
    return Examples(data(2).images[rows], data(2).labels[rows])


def _beyond_one_record() -> Iterator[Situation]:
    """Bounds of one record that do not hold: copies of it, layers that mix it with others, parameters left out."""
    private = {"gradient": DPSGD(clip=1.0, noise_multiplier=1.0)}
    many = simulated(private, examples=copied(256), model=smooth_dense)
    weak = DoubtKind.WEAK_CERTIFICATE
    yield Situation("DP-SGD with mu = 1 on 256 copies of a picture", LEAK, many, None, weak)
    six = simulated(*[noisy(0.02)] * 6, examples=data(1), view=AggregateView())
    yield Situation("aggregate of six clients with the same picture, some noise", OPEN, six, None, weak)
    clipped = {"release": Chain((FlowerFixedClipping(0.1), GaussianNoise(0.1)))}
    scaled = simulated(clipped, count=2, model=WithScale, training=Training(lr=1.0))
    unbounded = DoubtKind.DEFENCE_NOT_BOUNDED
    yield Situation("Flower's clipping beside a 0-d parameter, and noise on all", OPEN, scaled, None, unbounded)
    mixed = recorded(Made(opacus=True), count=8, model=mixing, defence=DPSGD(clip=1.0, noise_multiplier=1.0))
    yield Situation("recorded: Opacus, a layer that mixes the examples", OPEN, mixed, None)
    for optimiser, of_torch in ((Adam(), torch.optim.Adam), (AdamW(), torch.optim.AdamW)):
        made, name = Made(optimiser=of_torch, lr=0.001), type(optimiser).__name__
        told = Training(0.001, optimiser=optimiser)
        yield Situation(f"recorded: {name}, declared, a dense network", LEAK, recorded(made, told, model=dense), None)


SITUATIONS = (*_situations(), *_false_passes(), *_games(), *_traps(), *_filters(), *_beyond_one_record())
