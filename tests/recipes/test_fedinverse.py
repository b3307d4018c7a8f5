"""Model inversion: it finds the class, and not the examples; and the refinement by a GAN, in plans' terms."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from fedglass.attack.attack import Attack, Stage
from fedglass.attack.forward.messages import GlobalModel
from fedglass.attack.images.latent import GanCodes
from fedglass.attack.labels.given import OracleLabels
from fedglass.attack.parts import Evaluation, Problem, Refinement, binding_of, no_progress
from fedglass.attack.refine.gan import gan
from fedglass.attack.solvers.adam import Momentum
from fedglass.attack.terms.priors import RIDGE, BatchDependence, ClassLoss, CriticScore
from fedglass.audit.assessment import IMAGINED, scored_guesses
from fedglass.core.errors import UsageError
from fedglass.core.rng import stream
from fedglass.core.types import Candidate, Knowledge, Observation, Training, Unknown, Whitening
from fedglass.data.dataset import Dataset
from fedglass.diffusion.training import TrainingOptions
from fedglass.federation.client import Client
from fedglass.federation.federation import Federation, observe
from fedglass.federation.truth import Truth
from fedglass.federation.views import Knows, ServerView
from fedglass.metrics.catalogue import match
from fedglass.recipes import recipe
from fedglass.train.image_models import train_gan

CLASSES = 5


def means_of_classes(toy: Any) -> Tensor:
    """A bold picture for each class, which all of its examples resemble.  # (classes, 1, 8, 8)"""
    smooth: Tensor = toy.images(CLASSES, "classes")
    return ((smooth - smooth.flatten(1).median(1).values.view(-1, 1, 1, 1)) * 6 + 0.5).clamp(0, 1)


def examples(toy: Any, labels: Tensor, name: str) -> Tensor:
    means = means_of_classes(toy)[labels]
    return (means + 0.15 * torch.randn(means.shape, generator=stream(0, name))).clamp(0, 1)


@dataclass(frozen=True)
class MixtureGan:
    """Draws mixtures of the classes' pictures, as a generator does that has seen public images of these classes."""

    toy: Any
    words: str = "public images"

    def code_gan(self, shape: tuple[int, int, int]) -> Any:
        return Mixture(means_of_classes(self.toy))


class Mixture(nn.Module):
    code = CLASSES

    def __init__(self, means: Tensor) -> None:
        super().__init__()
        self.register_buffer("means", 2 * means - 1)
        self.critic = nn.Conv2d(1, 1, 1).requires_grad_(False)

    def generate(self, codes: Tensor) -> Tensor:
        assert isinstance(self.means, Tensor)
        return torch.einsum("nk,kchw->nchw", (4 * codes).softmax(1), self.means)


@pytest.fixture(scope="module")
def late(toy: Any) -> tuple[Observation, Truth]:
    """The message of a late round: the model knows its classes."""
    labels = torch.arange(CLASSES).repeat(4)
    model = toy.dense()
    early = Federation(
        model,
        [Client("a", examples(toy, labels, "early"), labels)],
        Training(0.5, epochs=100),
        CLASSES,
        Whitening((0.4,), (0.3,)),
    )
    model.load_state_dict(dict(early.run().rounds[0].after), strict=False)
    private = torch.arange(CLASSES)
    client = Client("b", examples(toy, private, "private"), private)
    return observe(replace(early, clients=[client], training=Training(0.1)), ServerView(), Knows(labels=True))


def error(images: Tensor, truth: Tensor) -> float:
    return float((match(images, truth).apply(images) - truth).square().mean())


@pytest.mark.parametrize("hsic", [0.0, 0.05])
def test_it_finds_the_classes_and_not_the_examples(toy: Any, late: tuple[Observation, Truth], hsic: float) -> None:
    seen, truth = late
    generator = MixtureGan(toy)
    objective = CriticScore(generator) + 100 * ClassLoss()  # type: ignore[arg-type]  # a stand-in
    objective = objective + hsic * BatchDependence() if hsic else objective
    images = GanCodes(generator)  # type: ignore[arg-type]  # a stand-in
    attack = Attack(OracleLabels(), (Stage(GlobalModel(), images, objective, Momentum(0.002, 300)),))
    result = attack.run(seen)
    reached = error(result.images, truth.images)
    blind = scored_guesses(seen, truth, truth.labels, ("psnr",), attack=attack)
    assert IMAGINED in blind
    drawn = images.imagined(seen, CLASSES, stream(0, "imagined"))
    assert reached < 0.5 * min(error(drawn, truth.images), error(torch.full_like(drawn, 0.5), truth.images))
    # The class's own mean is as near: the examples themselves are not found.
    assert reached >= 0.9 * error(means_of_classes(toy), truth.images)
    distances = (result.images[:, None] - means_of_classes(toy)).square().flatten(2).mean(2)
    assert distances.argmin(1).tolist() == result.labels.tolist()


def test_the_model_after_the_message_is_asked(late: tuple[Observation, Truth]) -> None:
    seen, truth = late
    bound = GlobalModel().bind(seen)
    whitened = seen.knows.whitening.whiten(truth.images)[None]
    (losses,) = bound.predict(Candidate(whitened, truth.labels), ())
    weights = {name: seen.before[name] + seen.update[name] for name in seen.before}
    logits = torch.func.functional_call(seen.model, weights, (whitened[0],))
    torch.testing.assert_close(losses, nn.functional.cross_entropy(logits, truth.labels, reduction="none"))
    assert (bound.target[0].shape, bound.names) == (losses.shape, ("loss",))
    soft = nn.functional.one_hot(truth.labels, CLASSES).float()
    torch.testing.assert_close(bound.predict(Candidate(whitened, soft), ())[0], losses)


def test_dependence_is_that_of_a_slow_loop_and_grows_with_likeness(toy: Any, late: tuple[Observation, Truth]) -> None:
    seen, _ = late
    binding = binding_of(GlobalModel().bind(seen), seen.knows)

    def value(pixels: Tensor) -> float:
        candidate = Candidate(seen.knows.whitening.whiten(pixels)[None], torch.zeros(len(pixels), dtype=torch.int64))
        return float(BatchDependence(0.5).bind(binding)(Evaluation((), candidate)))

    def ratio(pixels: Tensor) -> Tensor:
        m, d = len(pixels), pixels[0].numel()
        kernel = torch.tensor([[float((-(a - b).square().sum() / (0.5 * d)).exp()) for b in pixels] for a in pixels])
        centred = kernel @ (torch.eye(m) - 1 / m)
        return centred @ torch.linalg.inv(centred + RIDGE * m * torch.eye(m))

    images = toy.images(9, "x")
    slow = float(torch.trace(ratio(images[:4]) @ ratio(images[4:8])))
    assert value(images) == pytest.approx(slow, rel=1e-3)
    assert value(images[:3]) == value(images[:1]) == 0.0


def test_momentum_is_that_of_the_release_and_stays_in_its_box() -> None:
    start, rate, momentum = torch.tensor([3.0, -2.0]), 0.05, 0.9

    def energy(tensors: Any, share: float) -> Tensor:
        return (tensors[0] - torch.tensor([0.5, 4.0])).square().sum()

    z, v = start.clone(), torch.zeros(2)
    for _ in range(5):
        before, v = v, momentum * v - rate * 2 * (z - torch.tensor([0.5, 4.0]))
        z = (z - momentum * before + (1 + momentum) * v).clamp(max=1.0)
    solution = Momentum(rate, 5).minimise(Problem((Unknown(start, high=torch.tensor(1.0)),), energy), no_progress)
    torch.testing.assert_close(solution.tensors[0], z)
    with pytest.raises(UsageError, match=r"momentum must be at least 0 and below 1, got 1"):
        Momentum(momentum=1.0)


def pictures(toy: Any) -> Dataset:
    return Dataset("toy", toy.images(9, "gan"), torch.zeros(9, dtype=torch.int64), 1, Whitening((0.0,), (1.0,)))


def test_a_trained_folder_serves_the_recipe_and_the_refinement(
    toy: Any, late: tuple[Observation, Truth], tmp_path: Path
) -> None:
    few = TrainingOptions(steps=2, batch_size=4)
    for kind in ("codes", "enhancer"):
        train_gan(pictures(toy), kind, 2, few, tmp_path / kind)
    attack = recipe("fedinverse", generator=str(tmp_path / "codes"), labels=OracleLabels(), iterations=2)
    assert isinstance(attack, Attack)
    result = attack.run(late[0])
    assert result.images.shape == (CLASSES, 1, 8, 8)
    assert float(result.images.min()) >= 0
    assert float(result.images.max()) <= 1
    assert attack.stages[0].images.learned_from == "a GAN that was trained on 9 images of toy"  # type: ignore[attr-defined]
    with pytest.raises(UsageError, match="cannot start from the images of a previous stage"):
        attack.stages[0].images.bind(late[0], stream(0, "x"), torch.zeros(1, 5, 1, 8, 8))
    sharpened = recipe("rog", enhancer=str(tmp_path / "enhancer"), factor=2, iterations=2, labels=OracleLabels())
    found = sharpened.run(late[0])
    assert found.raw is not None
    assert not torch.equal(found.raw, found.images)
    part = gan(str(tmp_path / "enhancer"))
    knows = Knowledge((1, 8, 8), CLASSES, 3, Whitening((0.0,), (1.0,)))
    shown = Refinement(toy.images(3, "raw"), torch.arange(3), knows, stream(0, "x"))
    assert not torch.equal(part.refine(shown), part.untrained().refine(shown))
    part.check(knows)
    with pytest.raises(UsageError, match="makes images of 1 x 8 x 8"):
        part.check(replace(knows, shape=(1, 12, 12)))
