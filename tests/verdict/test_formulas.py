"""The truths of random situations: formulas on cases made by hand, and what is drawn."""

from __future__ import annotations

import ast
import importlib.util
import math
import sys
from collections import Counter
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F


def loaded(name: str) -> Any:
    if name not in sys.modules:
        spec = importlib.util.spec_from_file_location(name, Path(__file__).with_name(f"{name}.py"))
        assert spec is not None
        assert spec.loader is not None
        sys.modules[name] = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(sys.modules[name])
    return sys.modules[name]


formulas, situations = loaded("formulas"), loaded("random_situations")
SHAPE, PIXELS = (1, 12, 12), formulas.Pixels((0.4,), (0.3,))
COUNT = 40


@pytest.fixture(autouse=True)
def seeded() -> None:
    torch.manual_seed(0)


def smooth(count: int = 1, shape: tuple[int, int, int] = SHAPE) -> Tensor:
    """Pictures without noise.  # (n, c, h, w)"""
    return F.interpolate(torch.rand(count, shape[0], 4, 4), shape[1:], mode="bilinear", align_corners=True)


def dense(activation: type[nn.Module] = nn.ReLU, bias: bool = True, width: int = 64) -> nn.Sequential:
    first = nn.Linear(144, width, bias=bias)
    return nn.Sequential(nn.Flatten(), first, activation(), nn.Linear(width, 5)).eval()


def message(model: nn.Sequential, images: Tensor, recipe: Any = None, **more: Any) -> Any:
    how = recipe or formulas.Recipe(0.05)
    update, _ = formulas.train(model, PIXELS.inputs(images), torch.arange(len(images)) % 5, how)
    return formulas.Message(model, update, PIXELS, tuple(images.shape[1:]), len(images), **more)


def score(found: Tensor, image: Tensor) -> float:
    return max((formulas.psnr(each.clamp(0, 1), image) for each in found), default=0.0)


def test_formulas_import_nothing_of_the_package() -> None:
    tree = ast.parse(Path(formulas.__file__).read_text(encoding="utf-8"))
    names = [alias.name for node in ast.walk(tree) if isinstance(node, ast.Import) for alias in node.names]
    names += [node.module or "" for node in ast.walk(tree) if isinstance(node, ast.ImportFrom)]
    allowed = {"torch", "numpy", "scipy", *sys.stdlib_module_names}
    assert {name.split(".")[0] for name in names} <= allowed
    assert "torch" in {name.split(".")[0] for name in names}


# ---- readings -------------------------------------------------------------------------------------------------------


def test_division_gives_the_common_factor_of_all_rows() -> None:
    x, d = torch.randn(7), torch.randn(5)
    torch.testing.assert_close(formulas.divide(torch.outer(d, x), d), x)
    torch.testing.assert_close(formulas.principal(torch.outer(d, x), d), x)
    cut = torch.rand(5, 7) < 0.6
    torch.testing.assert_close(formulas.divide(torch.outer(d, x) * cut, d, cut), x * cut.any(0))


@pytest.mark.parametrize("activation", [nn.ReLU, nn.Sigmoid, nn.GELU])
def test_one_image_is_read_after_steps_with_momentum_and_decay(activation: type[nn.Module]) -> None:
    recipe = formulas.Recipe(0.05, epochs=4, momentum=0.9, weight_decay=0.05)
    image, model = smooth(), dense(activation)
    told, naive = message(model, image, recipe, kept=recipe.kept(1)), message(model, image, recipe)
    assert score(formulas.read(told), image[0]) > max(60, score(formulas.read(naive), image[0]) + 20)


def test_without_bias_the_scale_comes_from_the_next_layer() -> None:
    image, model = smooth(), dense(nn.Sigmoid, bias=False)
    assert score(formulas.read(message(model, image)), image[0]) > 40


def test_rows_of_one_image_alone_agree() -> None:
    x, y, d = torch.randn(9), torch.randn(9), torch.rand(5) + 0.5
    weight = torch.stack([d[0] * x, d[1] * x, d[2] * y, d[3] * y, d[4] * x + d[3] * y])
    bias = torch.stack([d[0], d[1], d[2], d[3], d[4] + d[3]])
    torch.testing.assert_close(formulas.agreeing(weight, bias), torch.stack([x, x, y, y]))


def test_of_four_images_behind_a_relu_some_are_read_and_behind_a_sigmoid_none() -> None:
    images = smooth(4)
    found = formulas.read(message(dense(nn.ReLU, width=200), images))
    assert max(score(found, image) for image in images) > 60
    assert len(formulas.read(message(dense(nn.Sigmoid, width=200), images))) == 0


def test_a_pooled_image_is_filled_in_with_the_same_means() -> None:
    model = nn.Sequential(nn.AvgPool2d(2), nn.Flatten(), nn.Linear(36, 64), nn.Tanh(), nn.Linear(64, 5)).eval()
    image = smooth()
    found = formulas.read(message(model, image))[:1]
    torch.testing.assert_close(F.avg_pool2d(found, 2), F.avg_pool2d(image, 2), atol=1e-4, rtol=0)
    assert score(found, image[0]) > 22


@pytest.mark.parametrize("activation", [nn.Tanh, nn.ReLU])
def test_features_are_taken_back_through_a_convolution(activation: type[nn.Module]) -> None:
    layers = nn.Conv2d(1, 12, 3, 2, 1), activation(), nn.Flatten(), nn.Linear(432, 64), activation(), nn.Linear(64, 5)
    image = smooth()
    assert score(formulas.read(message(nn.Sequential(*layers).eval(), image)), image[0]) > 35


def test_gradient_matching_reads_a_small_lenet() -> None:
    layers = nn.Conv2d(1, 8, 5, 2, 2), nn.Tanh(), nn.Conv2d(8, 8, 5, 1, 2), nn.Tanh(), nn.Flatten(), nn.Linear(288, 5)
    image = smooth()
    assert score(formulas.read(message(nn.Sequential(*layers).eval(), image)), image[0]) > 30


FLAWS = {"half": 10, "rows": 10, "centred": 10, "opposite": 10, "rank": 10, "rounded": 50, "seed": 10, "bfloat16": 300}


@pytest.mark.parametrize("flaw", FLAWS)
def test_flawed_noise_is_read_and_honest_noise_of_that_size_is_not(flaw: str) -> None:
    image, generator = smooth(), torch.Generator().manual_seed(10**7 + 1)
    clean = message(dense(nn.Tanh), image)
    std = FLAWS[flaw] * float(formulas.flat(clean.update).norm())

    def sent(kind: str) -> Any:
        update = situations.changed((kind, std), dict(clean.update), generator)
        return formulas.Message(clean.model, update, PIXELS, SHAPE)

    assert score(formulas.read(sent(flaw), flaw, std), image[0]) > 22
    assert score(formulas.read(sent(flaw)), image[0]) < 18 or flaw == "rows"  # of which division weighs the loud ones
    assert score(formulas.read(sent("noise"), flaw, std), image[0]) < 18


def test_random_signs_are_no_secret() -> None:
    plain, image = formulas.Pixels((0.0,), (1.0,)), smooth()
    model = dense(nn.Tanh)
    update, _ = formulas.train(model, image, torch.tensor([1]), formulas.Recipe(0.05))
    update = situations.changed(("signs", 0.0), update, torch.Generator().manual_seed(5))
    assert score(formulas.read(formulas.Message(model, update, plain, SHAPE), "signs"), image[0]) > 60


def test_a_reading_counts_beyond_the_threshold_and_every_blind_guess() -> None:
    image, public = smooth(), smooth(50)
    near, far = (image + error for error in (0.02, 0.3))
    assert formulas.judge(near, image, public).state == "read"
    assert formulas.judge(far, image, public).state == "unread"
    assert formulas.judge(image + 0.1, image, public).state == "border"
    assert formulas.judge(image[:0], image, public).state == "unread"
    grey = torch.full((1, *SHAPE), 0.5)
    assert formulas.judge(grey + 0.02, grey, public).state == "border"
    assert formulas.blind(image[0], image) == math.inf


# ---- the game -------------------------------------------------------------------------------------------------------


def test_gradients_of_examples_add_up_to_a_step() -> None:
    model, images, labels = dense(nn.Tanh), smooth(3), torch.tensor([0, 1, 3])
    update, _ = formulas.train(model, PIXELS.inputs(images), labels, formulas.Recipe(0.5))
    each = formulas.gradients(model, PIXELS.inputs(images), labels)
    torch.testing.assert_close(formulas.flat(update), -0.5 * each.mean(0), atol=1e-6, rtol=1e-4)


def test_the_game_is_won_for_what_was_trained_on_alone() -> None:
    model = dense(nn.Tanh, width=12)
    labels = torch.arange(700) % 2
    drawn = formulas.Labelled((smooth(700) + 0.1 * torch.randn(700, *SHAPE)).clamp(0, 1), labels)
    one, other, pool, public = (drawn.part(slice(*ends)) for ends in ((0, 16), (16, 32), (32, 500), (500, 700)))

    def sent(part: Any) -> Any:
        update, _ = formulas.train(model, PIXELS.inputs(part.images), part.labels, formulas.Recipe(0.05))
        return formulas.Message(model, update, PIXELS, SHAPE, 16)

    assert formulas.play(sent(one), one, other, pool, public).state == "won"
    swapped = formulas.play(sent(other), one, other, pool, public)
    assert swapped.members <= formulas.CONTROL
    assert swapped.control >= formulas.WINS
    assert swapped.state != "won"
    with pytest.raises(ValueError, match="candidates of label"):
        formulas.play(sent(one), one, other, public, public)


# ---- bounds ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("mu", "expected"), [(0.5, 0.004796), (1.0, 0.018298), (2.0, 0.137805), (4.0, 0.818527)])
def test_success_as_published(mu: float, expected: float) -> None:
    assert formulas.success(mu) == pytest.approx(expected, abs=1e-6)


def test_the_limit_of_mu_is_where_success_is_too_large() -> None:
    assert formulas.success(formulas.MU_LIMIT) == pytest.approx(formulas.MAX_SUCCESS)
    assert pytest.approx(1.445, abs=1e-3) == formulas.MU_LIMIT
    assert situations.SAFE_MU < 0.9 * formulas.MU_LIMIT


def test_shifts_are_the_lengths_that_gradients_give() -> None:
    model, recipe = dense(nn.Tanh), formulas.Recipe(0.1)
    private = formulas.Labelled(smooth(2), torch.tensor([0, 1]))
    public = formulas.Labelled(smooth(3), torch.tensor([0, 0, 4]))
    g = formulas.gradients(model, PIXELS.inputs(private.images), private.labels)
    like = formulas.gradients(model, PIXELS.inputs(public.images[:2]), public.labels[:2]).mean(0)
    first = [0.05 * float(far.norm()) for far in (g[0], g[0] - g[1], g[0] - like)]
    second = [0.05 * float(far.norm()) for far in (g[1], g[0] - g[1])]
    found = formulas.shifts(model, PIXELS, private, public, recipe)
    assert found == pytest.approx([max(first), max(second)], rel=1e-3)
    assert max(formulas.shifts(model, PIXELS, private, public, recipe, limit=1e-3)) <= 2e-3


def test_a_private_step_is_moved_by_twice_the_clip_at_most() -> None:
    model = dense(nn.Tanh)
    private = formulas.Labelled(smooth(3), torch.tensor([0, 1, 2]))
    far = formulas.private_steps(model, PIXELS, private, private, clip=0.01)
    assert all(0.01 * (1 - 1e-4) <= each <= 0.02 for each in far)


# ---- what is drawn --------------------------------------------------------------------------------------------------


@cache
def drawn(seed: int) -> list[Any]:
    found: list[Any] = situations.random_situations(seed, COUNT)
    return found


@pytest.mark.parametrize("seed", [0, 1])
def test_the_truths_come_in_fixed_shares(seed: int) -> None:
    assert Counter(each.truth for each in drawn(seed)) == {"leak": 16, "exposed": 6, "safe": 10, "open": 8}
    assert len({each.name for each in drawn(seed)}) == COUNT
    for each in drawn(seed):
        source = each.source()
        assert len(source.identity()) == 64
        (seen,) = source.rehearse()
        assert tuple(seen.observation.knows.shape) == each.scene.data.shape
        assert each.truth in situations.SHARES
        assert each.truth not in each.false


def test_the_two_seeds_differ() -> None:
    assert not {each.name.split(": ", 1)[1] for each in drawn(0)} & {each.name.split(": ", 1)[1] for each in drawn(1)}


def test_no_public_example_is_private() -> None:
    for each in drawn(0):
        data = each.scene.data
        assert not torch.isin(data.public, torch.cat([data.private, data.control])).any()
        assert len(each.public.labels) == len(data.public)
        assert len(data.public) >= 20


def test_a_seed_gives_the_same_messages_again() -> None:
    one, other = (situations.random_situations(3, 8) for _ in range(2))
    assert [(each.name, each.truth, each.evidence) for each in one] == [(e.name, e.truth, e.evidence) for e in other]
    for left, right in zip(one, other, strict=True):
        assert torch.equal(formulas.flat(left.scene.seen()), formulas.flat(right.scene.seen()))


def test_the_plain_loop_gives_what_the_package_simulates() -> None:
    checked = 0
    for each in drawn(0) + drawn(1):
        scene = each.scene
        if scene.simulated and not scene.steps and scene.dpsgd is None and not scene.recipe.batch_statistics:
            part = scene.parts()[0]
            plain, _ = formulas.train(scene.model, scene.pixels.inputs(part.images), part.labels, scene.recipe)
            ours, theirs = formulas.flat(plain), formulas.flat(scene.sent[0][0])
            assert float((ours - theirs).norm()) <= 1e-3 * float(ours.norm())
            checked += 1
    assert checked >= 3
