"""What every part of an attack must keep to. A new part joins the table below.

Parts print as themselves, can be pickled and compared, repeat themselves from the same seed, let the gradient
through to the unknowns, and leave the observation as it is.
"""

from __future__ import annotations

import dataclasses
import importlib
import inspect
import pickle
import pkgutil
from collections.abc import Callable, Sequence
from types import ModuleType
from typing import Any

import pytest
import torch
from torch import Tensor

import fedglass.attack
from fedglass.attack.attack import Attack, Stage
from fedglass.attack.best_of import AnyAttack, BestOf, GuessEpochs, Guesses, GuessRule
from fedglass.attack.forward.gradients import (
    AlongSegment,
    BesideStatistics,
    ObservedResidual,
    OneGradient,
    OnSegment,
    RepeatedGradient,
)
from fedglass.attack.forward.messages import (
    GlobalModel,
    OneClient,
    SoftMedian,
    SupposedMean,
    SupposedMedian,
    SupposedTrimmedMean,
    Through,
    ThroughFilter,
)
from fedglass.attack.forward.unroll import EachClient, SuperClient, Unroll, UnrollEpochs
from fedglass.attack.hypotheses import (
    AcceptedClients,
    AllClients,
    AllOthers,
    GuessAccepted,
    OneOther,
    SearchByOwnImages,
    SomeOthers,
)
from fedglass.attack.images.latent import GanCodes, GeneratorWeights, Latent, OwnDecoder, StoredDecoder
from fedglass.attack.images.pixels import (
    BoundedEpochPixels,
    BoundedLowResolution,
    EpochPixels,
    FreePixels,
    LowResolution,
    OrderedEpochPixels,
    Pixels,
)
from fedglass.attack.labels.assigned import AssignedLabels, JointLabels
from fedglass.attack.labels.counts import (
    BiasCounts,
    CountsAfter,
    CountsBefore,
    InstanceCounts,
    InterpolatedCounts,
    LastLayerCounts,
    OwnCounts,
)
from fedglass.attack.labels.given import OracleBatchLabels, OracleLabels
from fedglass.attack.labels.targets import MinimumRule, RecoveredTargets, SignRule
from fedglass.attack.malicious_server import (
    BinReading,
    ClassLabel,
    ClassReading,
    Fishing,
    Imprint,
    MaliciousServer,
    TrapWeights,
)
from fedglass.attack.parts import (
    Evaluation,
    FirstEpoch,
    MatchAndAverage,
    Problem,
    Refinement,
    binding_of,
    needs_of,
    no_progress,
    uses_of,
)
from fedglass.attack.peer_knowledge import FixOwnImages, FixOwnLabels, KeepOwnUpdate, LabelsOfOthers, SubtractOwnUpdate
from fedglass.attack.refine.gan import GanEnhancement
from fedglass.attack.refine.masked_diffusion import (
    Flattening,
    MaskedDiffusion,
    OracleEpoch,
    StartSearch,
)
from fedglass.attack.refine.restoration import DDRM, MedianFilter
from fedglass.attack.solvers.adam import LBFGS, Adam, LookaheadAdam, Momentum, QuantisedAdam, SignedAdam
from fedglass.attack.solvers.schedules import (
    Constant,
    CosineDecay,
    ExponentialDecay,
    Last,
    Lowest,
    LowestFrom,
    StepDecay,
)
from fedglass.attack.terms.distance import (
    Cosine,
    GaussianKernel,
    GrowingCosine,
    LayeredCosine,
    LayeredSquaredError,
    PartialMatch,
    Ramp,
    SquaredError,
    SupportCosine,
)
from fedglass.attack.terms.priors import (
    AbsoluteEpochPrior,
    BatchDependence,
    CircularTotalVariation,
    ClassLoss,
    ClipPenalty,
    ConvMax,
    ConvMean,
    CriticScore,
    Max,
    Mean,
    PixelVariation,
    RelativeVariation,
    ReweightedL1,
    SquaredEpochPrior,
    SupportReweightedL1,
    TotalVariation,
    UsualContrast,
)
from fedglass.attack.terms.term import After, Scaled, ScaleRule, Sum, WithStatistics
from fedglass.core.facts import Fact
from fedglass.core.rng import stream
from fedglass.core.types import Candidate, Knowledge, Observation, Training, Unknown, Whitening
from fedglass.diffusion.autoencoders import ThreeLayers
from fedglass.diffusion.ddrm import Bicubic, BlockMean, Enlarged, Noise, RestorationChain
from fedglass.diffusion.denoiser import Denoiser
from fedglass.diffusion.gan import CodeGan, Enhancer
from fedglass.diffusion.networks import MaskedDiffusionTransformer
from fedglass.federation.views import Knows
from fedglass.models.init import PyTorchDefault


@dataclasses.dataclass(frozen=True)
class FlatModel:
    """A diffusion model that takes every image for grey."""

    title: str = "flat"

    def load(self) -> Denoiser:
        return Denoiser(lambda noisy, steps, labels: torch.zeros_like(noisy))

    def untrained(self) -> FlatModel:
        return self


@dataclasses.dataclass(frozen=True)
class FlatClassModel:
    """A class-conditional one that has learned nothing yet."""

    title: str = "flat"

    def load(self) -> Denoiser:
        return Denoiser(MaskedDiffusionTransformer((1, 8, 8), 5, patch=4, width=8, depth=2, decoder=1, heads=2))

    def untrained(self) -> FlatClassModel:
        return self


@dataclasses.dataclass(frozen=True)
class UntrainedDecoder:
    """One that has learned nothing, and is the same every time."""

    words: str = "nothing"

    def latent_shape(self, knows: Knowledge) -> tuple[int, int, int]:
        return self._network(knows).latent_shape

    def network(self, observation: Observation) -> ThreeLayers:
        return self._network(observation.knows)

    def _network(self, knows: Knowledge) -> ThreeLayers:
        network = ThreeLayers(knows.shape, latent=3, width=4).requires_grad_(False)
        with torch.no_grad():
            PyTorchDefault().apply(network, stream(3, "decoder"))
        return network


@dataclasses.dataclass(frozen=True)
class UntrainedGan:
    """One that has learned nothing, and is the same every time."""

    words: str = "nothing"

    def code_gan(self, shape: tuple[int, int, int]) -> CodeGan:
        return self._drawn(CodeGan(shape, code=3, width=4))

    def enhancer(self, shape: tuple[int, int, int]) -> Enhancer:
        return self._drawn(Enhancer(shape, factor=2, width=4))

    def _drawn(self, network: Any) -> Any:
        with torch.no_grad():
            for name, parameter in network.named_parameters():
                parameter.copy_(0.3 * torch.randn(parameter.shape, generator=stream(3, "gan", name)))
            for buffer in network.buffers():
                buffer.copy_(torch.ones_like(buffer) / buffer.numel() ** 0.5)
        return network.eval().requires_grad_(False)


DIFFUSION = (
    FlatModel,
    FlatClassModel,
    UntrainedDecoder,
    UntrainedGan,
    RestorationChain,
    BlockMean,
    Bicubic,
    Enlarged,
    Noise,
)
"""What a refinement by a diffusion model is made of, and a decoder."""
LABELS = [
    SignRule(),
    MinimumRule(),
    BiasCounts(),
    JointLabels(),
    JointLabels(rate=0.5),
    CountsBefore(),
    CountsAfter(),
    InterpolatedCounts(),
    InstanceCounts(),
    OwnCounts(),
    LastLayerCounts(),
    OracleLabels(),
    OracleBatchLabels(),
    RecoveredTargets(),
    RecoveredTargets(rate=0.5),
    FixOwnLabels(OracleLabels()),
    LabelsOfOthers(OracleLabels()),
    AssignedLabels(OracleLabels(), Unroll(), Cosine(), trials=20),
]
EPOCHS = [EpochPixels(), BoundedEpochPixels(), OrderedEpochPixels()]
LOW = [LowResolution(2), BoundedLowResolution(2), FixOwnImages(LowResolution(4))]
DECODERS = [OwnDecoder(), OwnDecoder(5, latent=2, width=4, seed=1), StoredDecoder("codes", "1f", "2 images of x")]
IMAGES = [Pixels(), FreePixels(), *EPOCHS, *LOW, GeneratorWeights(width=4, code=3), Latent(UntrainedDecoder())]
IMAGES += [GanCodes(UntrainedGan())]
COMBINATIONS = [SupposedMean(), SupposedMedian(), SupposedTrimmedMean(0), SoftMedian(), OneClient()]
FORWARDS = [
    OneGradient(),
    ObservedResidual(),
    RepeatedGradient(),
    OnSegment(),
    OnSegment(start=0.25, rate=0.01, every=3),
    AlongSegment(),
    AlongSegment(3),
    Unroll(),
    Unroll(budget_mib=0.2),
    UnrollEpochs(),
    SuperClient(),
    EachClient(),
    *(Through(each) for each in COMBINATIONS),
    BesideStatistics(OneGradient()),
    ThroughFilter(OneGradient()),
]
DISTANCES = [
    SquaredError(),
    Cosine(),
    SupportCosine(),
    ReweightedL1(),
    SupportReweightedL1(),
    GaussianKernel(),
    GaussianKernel(width=10.0),
    LayeredCosine(),
    LayeredCosine(first=2.0, last=0.5),
    GrowingCosine(),
    GrowingCosine(first=0.5, last=1.0, until=0.9, kept=0.5, seed=3),
    PartialMatch(),
    PartialMatch(dropped=0.2),
    LayeredSquaredError(),
    LayeredSquaredError(decay=0.5),
]
PRIORS = [
    TotalVariation(),
    TotalVariation(share=0.5),
    CircularTotalVariation(),
    RelativeVariation(),
    UsualContrast(),
    PixelVariation(),
    PixelVariation(exponent=1.0, eps=1e-6),
    ClipPenalty(low=0.3, high=0.6),
    SquaredEpochPrior(),
    AbsoluteEpochPrior(),
    SquaredEpochPrior(Max()),
    AbsoluteEpochPrior(ConvMean(channels=4, seed=2)),
    SquaredEpochPrior(ConvMax(channels=4)),
    BatchDependence(),
    BatchDependence(width=0.5),
]
INVERSION = [GlobalModel(), ClassLoss(), CriticScore(UntrainedGan())]
"""Parts of model inversion, which reads the model and not the message: tests/recipes/test_fedinverse.py."""
COMPOSED = [
    Sum((Cosine(), TotalVariation())),
    Scaled(0.5, Cosine()),
    2 * (Cosine() + 0.1 * (TotalVariation() + 3 * ClipPenalty())),
    2 * (0.5 * Cosine()),
    Ramp(Cosine() + SquaredError(), 1.0, 2.0, until=0.25),
    After(Cosine() + SquaredError(), 0.5),
    ScaleRule(PixelVariation()),
    ScaleRule(TotalVariation(), offset=0.1, slope=0.2),
    WithStatistics(Cosine() + TotalVariation(), 0.5),
]
SCHEDULES = [Constant(), StepDecay(), StepDecay(at=(0.5,), by=0.2), ExponentialDecay(0.99, 10), CosineDecay(0.2, 0.1)]
KEEPS = [Last(), Lowest(), LowestFrom(0.6)]
SOLVERS = [
    Adam(iterations=3),
    Adam(0.2, 3, StepDecay(), Lowest(), (0.8, 0.9), 1e-6),
    Adam(iterations=3, keep=LowestFrom(0.5)),
    SignedAdam(iterations=3, schedule=CosineDecay(0.3)),
    QuantisedAdam(iterations=3),
    LookaheadAdam(iterations=3),
    LookaheadAdam(0.1, 3, CosineDecay(), Lowest(), (0.8, 0.9), 1e-6, 0.5),
    LBFGS(iterations=2),
    LBFGS(rate=0.5, iterations=2, inner=3, history=4),
    Momentum(iterations=3),
    Momentum(0.1, 3, 0.0),
]
SUMMARIES = [Mean(), Max(), ConvMean(channels=4), ConvMax(channels=4, seed=1)]
MERGES = [MatchAndAverage(), FirstEpoch()]
REFINEMENTS = [
    MedianFilter(),
    MedianFilter(size=3),
    DDRM(FlatModel(), BlockMean(2), chain=RestorationChain(steps=3)),
    DDRM(FlatModel(), Bicubic(4), 0.0, RestorationChain(2, eta=0.5, eta_b=0.9)),
    DDRM(FlatModel(), Enlarged(2)),
    DDRM(FlatModel(), Noise(), 0.2),
    GanEnhancement(UntrainedGan()),
    MaskedDiffusion(FlatClassModel(), StartSearch(2, 0.01, Flattening(over=1)), steps=2),
    MaskedDiffusion(FlatClassModel(), StartSearch(1, 0.1, OracleEpoch(1)), steps=3, guidance=1.0),
]
STOPPINGS = [Flattening(), Flattening(over=3), OracleEpoch(4)]
SEARCHES = [StartSearch(9, 0.01, stopping) for stopping in STOPPINGS]
STAGE = Stage(Unroll(), EpochPixels(), Cosine() + 0.1 * TotalVariation(), Adam(iterations=2))
CLIENTS: list[AcceptedClients] = [AllClients(), AllOthers(), OneOther(), SomeOthers()]
GUESSES: list[Guesses[AnyAttack]] = [
    GuessEpochs(),
    SubtractOwnUpdate(),
    KeepOwnUpdate(),
    *map(GuessAccepted, CLIENTS),
    SearchByOwnImages(Attack(OracleLabels(), (STAGE,)), (0.1,), (5, 6), 1),
]
WHOLES = [
    STAGE,
    Attack(OracleLabels(), (STAGE, STAGE), FirstEpoch(), (), 2),
    Attack(OracleLabels(), (STAGE,), FirstEpoch(), (MedianFilter(),)),
    *GUESSES,
    *(BestOf(Attack(OracleLabels(), (STAGE,)), guesses) for guesses in GUESSES),
    BestOf(BestOf(Attack(OracleLabels(), (STAGE,)), SubtractOwnUpdate()), GUESSES[-1]),
    BestOf(
        (
            ("mean", Attack(OracleLabels(), (STAGE,))),
            ("other", BestOf(Attack(OracleLabels(), (STAGE,)), KeepOwnUpdate())),
        ),
        GuessRule(),
    ),
    GuessRule(finalists=2, share=0.5),
    *CLIENTS,
]

CRAFTED = [
    Imprint(bins=32),
    TrapWeights(rate=0.1, units=64),
    Fishing(target=1),
    BinReading(),
    ClassLabel(1),
    ClassReading(Attack(ClassLabel(1), (STAGE,))),
    MaliciousServer(Imprint(), BinReading()),
]

PARTS: list[Any] = [
    *LABELS,
    *IMAGES,
    *DECODERS,
    *FORWARDS,
    *DISTANCES,
    *PRIORS,
    *COMPOSED,
    *INVERSION,
    *SCHEDULES,
    *KEEPS,
    *SOLVERS,
    *SUMMARIES,
    *MERGES,
    *REFINEMENTS,
    *STOPPINGS,
    *SEARCHES,
    *WHOLES,
    *COMBINATIONS,
    *CRAFTED,
]

FEDAVG = Training(0.3, epochs=2, batch_size=2)


def modules(package: ModuleType) -> list[ModuleType]:
    names = [m.name for m in pkgutil.walk_packages(package.__path__, package.__name__ + ".")]
    return [importlib.import_module(name) for name in names]


def specs() -> dict[str, type]:
    """All parts that the package defines: frozen dataclasses that compare by value, catalogues left out."""
    return {
        name: thing
        for module in modules(fedglass.attack)
        if not module.__name__.endswith("catalogue") and ".exact." not in module.__name__  # they have no solver
        for name, thing in inspect.getmembers(module, inspect.isclass)
        if thing.__module__ == module.__name__
        and dataclasses.is_dataclass(thing)
        and thing.__dataclass_params__.frozen  # type: ignore[attr-defined]  # set by the decorator
        and thing.__dataclass_params__.eq  # type: ignore[attr-defined]  # set by the decorator
    }


def test_every_part_is_in_the_table() -> None:
    found = specs()
    bases = {base.__name__ for thing in found.values() for base in thing.__mro__[1:]}
    assert set(found) - bases - {type(part).__name__ for part in PARTS} == set()


@pytest.mark.parametrize("part", PARTS, ids=repr)
def test_a_part_prints_as_itself(part: Any) -> None:
    again = eval(repr(part), specs() | {each.__name__: each for each in DIFFUSION})
    assert again == part
    assert hash(again) == hash(part)
    assert repr(again) == repr(part)


@pytest.mark.parametrize("part", PARTS, ids=repr)
def test_a_part_can_be_sent_to_a_worker(part: Any) -> None:
    assert pickle.loads(pickle.dumps(part)) == part


@pytest.mark.parametrize("part", PARTS, ids=repr)
def test_a_part_is_frozen_and_holds_no_tensor(part: Any) -> None:
    fields = dataclasses.fields(part)
    assert not any(isinstance(getattr(part, f.name), Tensor) for f in fields)
    for f in fields[:1]:
        with pytest.raises(dataclasses.FrozenInstanceError):
            setattr(part, f.name, None)


SIZE = {SquaredError, ReweightedL1, SupportReweightedL1, GaussianKernel, PartialMatch, LayeredSquaredError}
NEEDS: dict[type, set[Fact]] = {
    **{part: {Fact.SIZE} for part in SIZE},
    **{part: {Fact.SIZE} for part in (CountsBefore, CountsAfter, InterpolatedCounts, BiasCounts)},
    **{part: {Fact.SIZE} for part in (InstanceCounts, OwnCounts, LastLayerCounts)},
    Unroll: {Fact.TRAINING, Fact.CLIENT_SIZES},
    **{part: {Fact.TRAINING, Fact.EQUAL_CLIENTS} for part in (UnrollEpochs, RepeatedGradient)},
    **{part: {Fact.TRAINING} for part in (EpochPixels, BoundedEpochPixels)},
    OrderedEpochPixels: {Fact.TRAINING, Fact.BATCH_LABELS},
    OracleLabels: {Fact.LABELS},
    OracleBatchLabels: {Fact.BATCH_LABELS},
    GuessEpochs: {Fact.STEPS, Fact.LR},
    SuperClient: {Fact.STEPS, Fact.LR},
    EachClient: {Fact.TRAINING, Fact.GROUPS},
    Through: {Fact.TRAINING, Fact.EXAMPLES},
    OracleEpoch: {Fact.EYE},
    OwnDecoder: {Fact.OWN_EXAMPLES},
    SearchByOwnImages: {Fact.STEPS},
}
"""What parts can not do without; those that are not here need nothing."""


@pytest.mark.parametrize("part", PARTS, ids=repr)
def test_a_part_says_what_it_needs(part: Any) -> None:
    own = getattr(part, "needs", frozenset())
    assert own == NEEDS.get(type(part), set())
    assert isinstance(own, frozenset)
    assert isinstance(needs_of(part), frozenset)
    assert all(isinstance(fact, Fact) for fact in needs_of(part) | uses_of(part))
    assert own <= needs_of(part)


def test_all_parts_of_a_kind_differ() -> None:
    assert len({repr(part) for part in PARTS}) == len(set(PARTS))


@pytest.fixture(scope="module")
def seen(toy: Any) -> Observation:
    found: Observation = toy.observation(FEDAVG, Knows(labels=True, batch_labels=True))
    return found


@pytest.fixture
def unchanged(seen: Observation) -> Any:
    """Fails the test that changes a tensor of the observation, or its model."""

    def tensors() -> list[Tensor]:
        state = seen.model.state_dict().values()
        told = [] if seen.knows.labels is None else [seen.knows.labels]
        return [*seen.before.values(), *seen.buffers.values(), *seen.update.values(), *state, *told]

    kept = [t.clone() for t in tensors()]
    yield
    assert all(map(torch.equal, kept, tensors()))
    assert not any(t.requires_grad for t in (*seen.before.values(), *seen.update.values()))
    assert all(p.grad is None for p in seen.model.parameters())


def decoded(bound: Any) -> Tensor:
    found: Tensor = bound.decode([u.start for u in bound.unknowns])
    return found


def repeats(make: Callable[[int], Tensor], random: bool) -> None:
    one, again, other = make(0), make(0), make(1)
    assert torch.equal(one, again)
    assert random != torch.equal(one, other)


@pytest.mark.parametrize("part", LABELS, ids=repr)
def test_labels_repeat_themselves(seen: Observation, unchanged: None, part: Any) -> None:
    random = not isinstance(part, SignRule | MinimumRule | OracleBatchLabels)
    repeats(lambda seed: decoded(part.bind(seen, stream(seed, "x"))), random)


@pytest.mark.parametrize("part", IMAGES, ids=repr)
def test_images_repeat_themselves(seen: Observation, unchanged: None, part: Any) -> None:
    repeats(lambda seed: decoded(part.bind(seen, stream(seed, "x"), None)), random=True)


@pytest.mark.parametrize("part", IMAGES, ids=repr)
def test_the_nearest_image_is_one_that_can_be_represented(toy: Any, seen: Observation, part: Any) -> None:
    bound = part.bind(seen, stream(0, "x"), None)
    given = 5 * torch.randn(decoded(bound).shape, generator=stream(0, "given"))
    nearest = bound.nearest(given)
    assert nearest.shape == given.shape
    torch.testing.assert_close(bound.nearest(nearest), nearest)  # it is its own nearest
    inside = decoded(bound).detach()
    torch.testing.assert_close(bound.nearest(inside), inside)


@pytest.mark.parametrize("part", [*LABELS, *IMAGES], ids=repr)
def test_the_gradient_passes_from_images_and_labels_to_their_unknowns(seen: Observation, part: Any) -> None:
    more = (None,) if part in IMAGES else ()
    bound = part.bind(seen, stream(0, "x"), *more)
    tensors = [u.start.clone().requires_grad_() for u in bound.unknowns]
    if tensors:
        value = bound.decode(tensors)
        for g in torch.autograd.grad((value * torch.linspace(1, 2, value.numel()).view_as(value)).sum(), tensors):
            assert g.abs().max() > 0


def candidate(toy: Any, epochs: int) -> Candidate:
    images = torch.stack([toy.images(4, "candidate", e) for e in range(epochs)]).requires_grad_()
    return Candidate(images * 3 - 1, torch.tensor([0, 1, 2, 3]))


@pytest.mark.parametrize("epochs", [1, 2])
@pytest.mark.parametrize("part", FORWARDS, ids=repr)
def test_the_gradient_passes_through_operators(
    toy: Any, seen: Observation, unchanged: None, part: Any, epochs: int
) -> None:
    bound = part.bind(seen)
    at = candidate(toy, epochs)
    own = [u.start.clone().requires_grad_() for u in bound.unknowns]

    def predict() -> Sequence[Tensor]:
        found: Sequence[Tensor] = bound.predict(at, own)
        return found

    predicted = predict()
    assert [p.shape for p in predicted] == [y.shape for y in bound.target]
    assert bound.names == tuple(name for name, _ in seen.model.named_parameters())
    assert all(u.name for u in bound.unknowns)
    assert len({u.name for u in bound.unknowns}) == len(bound.unknowns)
    assert all(map(torch.equal, predicted, predict()))
    loss = torch.stack([p.square().sum() for p in predicted]).sum()
    to_images, *to_own = torch.autograd.grad(loss, [at.images, *own])
    one_step = isinstance(
        part.forward if isinstance(part, BesideStatistics | ThroughFilter) else part,
        OneGradient | ObservedResidual | RepeatedGradient | OnSegment | AlongSegment | SuperClient,
    )
    assert all(bool(row.any()) for row in (to_images[:1] if one_step else to_images).flatten(0, 1))
    assert all(bool(g.any()) for g in to_own)


@pytest.mark.parametrize("part", [*DISTANCES, *PRIORS, *COMPOSED], ids=repr)
def test_the_gradient_passes_through_terms(toy: Any, seen: Observation, unchanged: None, part: Any) -> None:
    bound = Unroll().bind(seen)
    at = candidate(toy, 2)
    predicted = bound.predict(at, ())
    here = Evaluation(predicted, at, 0.5)
    term = part.bind(binding_of(bound, seen.knows))
    value = term(here)
    assert value.shape == ()
    assert value > 0
    assert torch.equal(value, term(here))
    (gradient,) = torch.autograd.grad(value, at.images)
    assert torch.isfinite(gradient).all()
    assert gradient.any()


@pytest.mark.parametrize("part", SOLVERS, ids=repr)
def test_solvers_repeat_themselves_and_lower_the_energy(part: Any) -> None:
    start = torch.randn(3, 2, generator=stream(0, "x"))
    kept = start.clone()

    def energy(tensors: Sequence[Tensor], share: float) -> Tensor:
        return (tensors[0] - 1).square().sum()

    problem = Problem((Unknown(start),), energy)
    one, again = (part.minimise(problem, no_progress) for _ in range(2))
    assert torch.equal(one.tensors[0], again.tensors[0])
    assert torch.equal(one.trace, again.trace)
    assert one.energy < float(energy([start], 0.0))
    assert len(one.trace) == part.iterations + 1
    assert torch.equal(start, kept)


@pytest.mark.parametrize("part", REFINEMENTS, ids=repr)
def test_refinements_repeat_themselves_and_leave_their_input_alone(toy: Any, part: Any) -> None:
    images = toy.images(3, "refine")
    kept = images.clone()
    knows = Knowledge((1, 8, 8), 5, 3, Whitening((0.0,), (1.0,)))
    one, again = (part.refine(Refinement(images, torch.arange(3), knows, stream(0, "x"))) for _ in range(2))
    assert torch.equal(one, again)
    assert one.shape == images.shape
    assert torch.equal(images, kept)


@pytest.mark.parametrize("labels", LABELS, ids=repr)
@pytest.mark.parametrize("images", IMAGES, ids=repr)
@pytest.mark.parametrize("forward", [OneGradient(), OnSegment(), Unroll(), UnrollEpochs()], ids=repr)
def test_parts_of_every_kind_fit_together(
    seen: Observation, unchanged: None, labels: Any, images: Any, forward: Any
) -> None:
    attack = Attack(labels, (Stage(forward, images, Cosine() + 0.1 * TotalVariation(), Adam(iterations=1)),))
    found = attack.run(seen)
    assert found.images.shape == (4, 1, 8, 8)
    assert found.labels.shape == (4,)
    assert found.images.isfinite().all()
    assert not found.images.requires_grad
