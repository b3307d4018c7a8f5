"""Independent noise passes, and noise that only looks like it is refuted by a test that names the reason."""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial

import numpy as np
import pytest
import torch
from scipy.stats import binom, kstest, laplace, norm
from torch import Tensor

from fedglass.checks import residual_tests
from fedglass.checks.residual import NoiseResidual, refutations, rounding_of, spread_of
from fedglass.checks.rounding_cells import Law, cell, draw_in_cell, normal_scores
from fedglass.core.errors import UsageError
from fedglass.core.rng import stream
from fedglass.core.tensors import flatten, subtract, unflatten
from fedglass.core.thresholds import REPLAY_SPREAD

STD = 0.01
FIRST = "0.weight"
MLP = {FIRST: (128, 256), "0.bias": (128,), "2.weight": (10, 128), "2.bias": (10,)}
SMALL = {"conv": (12, 3, 5, 5), "first": (6, 1, 3, 3), "scale": (8, 1, 1, 1), "row": (1, 64), "bias": (10,)}
Noise = dict[str, Tensor]


def drawn(shapes: dict[str, tuple[int, ...]], generator: torch.Generator, size: float = STD) -> Noise:
    return {name: size * torch.randn(shape, generator=generator) for name, shape in shapes.items()}


def left_of(
    noise: Noise, generator: torch.Generator, dtype: torch.dtype = torch.float32, **more: object
) -> NoiseResidual:
    """What is left of a message: an update and noise, sent in a type, minus the update."""
    update = drawn({name: tuple(tensor.shape) for name, tensor in noise.items()}, generator, 0.02)
    message = {name: (update[name] + noise[name]).to(dtype) for name in noise}
    residual = {name: message[name].double() - update[name].double() for name in noise}
    return NoiseResidual(residual, STD, message=message, **more)  # type: ignore[arg-type]


def left_of_weights(noise: Noise, generator: torch.Generator, dtype: torch.dtype) -> NoiseResidual:
    """The same of weights, whose rounding is coarser than that of an update."""
    shapes = {name: tuple(tensor.shape) for name, tensor in noise.items()}
    update, before = drawn(shapes, generator, 0.02), drawn(shapes, generator, 0.1)
    before = {name: tensor.to(dtype).float() for name, tensor in before.items()}
    message = {name: (before[name] + update[name] + noise[name]).to(dtype).float() for name in noise}
    residual = {name: message[name].double() - before[name].double() - update[name].double() for name in noise}
    return NoiseResidual(residual, STD, message=message, before=before, weights_sent=True)


def alarms(given: Callable[[torch.Generator], NoiseResidual], draws: int, name: str) -> int:
    generator = stream(0, "noise", name)
    return sum(bool(refutations(given(generator))) for _ in range(draws))


def allowed(draws: int) -> int:
    """Alarms below which a true rate of 3 % would stay in one of 50 runs only; the declared rate is 0.1 %."""
    return int(binom.ppf(0.02, draws, 0.03))


# --- independent noise passes


@pytest.mark.parametrize("name", SMALL)
def test_noise_of_a_small_tensor_passes(name: str) -> None:
    shapes = {name: SMALL[name]}
    assert alarms(lambda generator: left_of(drawn(shapes, generator), generator), 120, name) <= allowed(120)


def test_noise_of_a_network_passes() -> None:
    assert alarms(lambda generator: left_of(drawn(MLP, generator), generator), 10, "network") == 0


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
@pytest.mark.parametrize("left", [left_of, left_of_weights])
def test_rounding_after_the_noise_passes(left: Callable[..., NoiseResidual], dtype: torch.dtype) -> None:
    shapes = {"w": (32, 64), **SMALL}
    name = f"{left.__name__} {dtype}"
    assert alarms(lambda generator: left(drawn(shapes, generator), generator, dtype), 15, name) == 0


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_noise_in_the_type_of_the_message_passes(dtype: torch.dtype) -> None:
    def given(generator: torch.Generator) -> NoiseResidual:
        update, noise = drawn({"w": (128, 128)}, generator, 0.02)["w"], drawn({"w": (128, 128)}, generator)["w"]
        message = update.to(dtype) + noise.to(dtype)
        return NoiseResidual({"w": message.double() - update.to(dtype).double()}, STD, message={"w": message})

    assert alarms(given, 15, f"native {dtype}") == 0


def laplacian(shapes: dict[str, tuple[int, ...]], generator: torch.Generator) -> Noise:
    pairs = {name: torch.empty(2, *shape).exponential_(generator=generator) for name, shape in shapes.items()}
    return {name: STD / math.sqrt(2) * (pair[0] - pair[1]) for name, pair in pairs.items()}


def test_laplacian_noise_passes_as_such_only() -> None:
    shapes = {"w": (64, 64), **SMALL}
    assert alarms(lambda g: left_of(laplacian(shapes, g), g, law="laplacian"), 15, "laplacian") == 0
    assert alarms(lambda g: left_of(laplacian(shapes, g), g), 5, "laplacian") == 5
    assert alarms(lambda g: left_of(drawn(shapes, g), g, law="laplacian"), 5, "gaussian") == 5


SINGLE = [
    residual_tests.std,
    residual_tests.distribution,
    residual_tests.largest_entry,
    residual_tests.small_entries,
    residual_tests.row_sums,
    residual_tests.neighbours,
    residual_tests.windows,
    lambda z: residual_tests.rows(residual_tests.slices(z)),
    residual_tests.singular_values,
    residual_tests.correlated_rows,
    lambda z: residual_tests.correlated_tensors({"one": z[:8], "other": z[8:]}),
    lambda z: residual_tests.principal_directions(z.reshape(-1), GRADIENTS),
    lambda z: residual_tests.signal_directions(z.reshape(-1), GRADIENTS),
]
GRADIENTS = torch.randn(12, 16 * 20, generator=stream(0, "gradients"))


@pytest.mark.parametrize("test", SINGLE)
def test_p_is_never_smaller_than_its_chance(test: Callable[..., residual_tests.TestOutcome]) -> None:
    noise = np.random.default_rng(1).standard_normal((1000, 16, 20))
    p = np.array([test(z).p for z in noise])
    for level in (0.2, 0.05, 0.01):
        assert (p < level).sum() <= binom.isf(1e-3, len(p), level)


@pytest.mark.parametrize("law", ["gaussian", "laplacian"])
def test_p_of_grids_is_never_smaller_than_its_chance(law: Law) -> None:
    generator = np.random.default_rng(2)
    draw = generator.standard_normal if law == "gaussian" else partial(generator.laplace, 0.0, math.sqrt(0.5))
    p = np.array([residual_tests.grid(draw(size=72), STD, law, 23).p for _ in range(400)])
    for level in (0.2, 0.05, 0.01):
        assert (p < level).sum() <= binom.isf(1e-3, len(p), level)


def test_chances_are_those_of_the_textbook() -> None:
    # On the sphere in three dimensions the share beyond a cosine is linear; two squares are exponential.
    assert residual_tests.correlation_p(0.3, 3) == pytest.approx(0.7)
    assert residual_tests.correlation_p(-0.5, 2) == pytest.approx(2 / 3)
    assert residual_tests.chi_square(np.array([2.0, 0.1]), 2) == pytest.approx(
        [2 * math.exp(-1), 2 * -math.expm1(-0.05)]
    )
    assert residual_tests.largest_entry(np.array([3.0, -1.0])).p == pytest.approx(
        2 * (1 - (1 - 2 * norm.sf(3)) ** 2), rel=1e-9
    )


# --- noise that is not as declared is found


def changed(noise: Noise, first: Tensor) -> Noise:
    return {**noise, FIRST: first}


def silent_rows(noise: Noise, generator: torch.Generator) -> Noise:
    return changed(noise, noise[FIRST].index_fill(0, torch.randperm(128, generator=generator)[:3], 0.0))


def silent_columns(noise: Noise, generator: torch.Generator) -> Noise:
    return changed(noise, noise[FIRST].index_fill(1, torch.randperm(256, generator=generator)[:3], 0.0))


def centred(noise: Noise, generator: torch.Generator) -> Noise:
    return {name: tensor - tensor.mean(0) for name, tensor in noise.items()}


def opposite_pairs(noise: Noise, generator: torch.Generator) -> Noise:
    half = noise[FIRST][::2]
    return changed(noise, torch.stack([half, -half], dim=1).reshape(128, 256))


def of_rank_8(noise: Noise, generator: torch.Generator) -> Noise:
    product = torch.randn(128, 8, generator=generator) @ torch.randn(8, 256, generator=generator)
    return changed(noise, STD * product / math.sqrt(8))


def without_one_direction(noise: Noise, generator: torch.Generator) -> Noise:
    unit = torch.nn.functional.normalize(torch.randn(128, generator=generator), dim=0)
    return changed(noise, noise[FIRST] - torch.outer(unit, unit @ noise[FIRST]))


def rounded(noise: Noise, generator: torch.Generator) -> Noise:
    return {name: (tensor / (STD / 30)).round() * (STD / 30) for name, tensor in noise.items()}


def few_bits(noise: Noise, generator: torch.Generator) -> Noise:
    return {name: STD * (tensor / STD).bfloat16().float() for name, tensor in noise.items()}


def on_half(noise: Noise, generator: torch.Generator) -> Noise:
    kept = {name: torch.rand(tensor.shape, generator=generator) < 0.5 for name, tensor in noise.items()}
    return {name: math.sqrt(2) * tensor * kept[name] for name, tensor in noise.items()}


def smooth(noise: Noise, generator: torch.Generator) -> Noise:
    mean = torch.nn.functional.avg_pool2d(noise[FIRST][None], 3, stride=1, padding=1)[0]
    return changed(noise, mean / mean.std() * STD)


def louder(noise: Noise, generator: torch.Generator) -> Noise:
    return {name: 1.05 * tensor for name, tensor in noise.items()}


def quieter(noise: Noise, generator: torch.Generator) -> Noise:
    return {name: 0.95 * tensor for name, tensor in noise.items()}


def same_start(noise: Noise, generator: torch.Generator) -> Noise:
    first = noise[FIRST].reshape(-1)
    return {name: first[: tensor.numel()].view_as(tensor) for name, tensor in noise.items()}


def with_a_picture(noise: Noise, generator: torch.Generator) -> Noise:
    """A smooth picture of 16 x 16 pixels in the place of the noise, with its mean and its deviation."""
    coarse = torch.rand(1, 1, 5, 5, generator=generator)
    picture = torch.nn.functional.interpolate(coarse, (16, 16), mode="bilinear", align_corners=True).flatten()
    first = noise[FIRST].clone()
    first.view(-1)[5_000:5_256] = STD * (picture - picture.mean()) / picture.std()
    return changed(noise, first)


def with_pixels(noise: Noise, generator: torch.Generator) -> Noise:
    """A rough picture of 16 x 16 pixels in [0, 1], in units of the noise."""
    first = noise[FIRST].clone()
    first.view(-1)[5_000:5_256] = STD * torch.rand(256, generator=generator)
    return changed(noise, first)


CHANGES = {
    with_a_picture: "windows",
    with_pixels: "windows",
    silent_rows: "rows",
    silent_columns: "rows",
    centred: "row_sums",
    opposite_pairs: "correlated_rows",
    of_rank_8: "singular_values",
    without_one_direction: "singular_values",
    rounded: "grid",
    few_bits: "grid",
    on_half: "small_entries",
    smooth: "neighbours",
    louder: "std",
    quieter: "std",
    same_start: "correlated_tensors",
}


@pytest.mark.parametrize("change", CHANGES, ids=lambda change: change.__name__)
def test_dependent_noise_is_refuted(change: Callable[[Noise, torch.Generator], Noise]) -> None:
    generator = stream(0, "change", change.__name__)
    for _ in range(3):
        found = refutations(left_of(change(drawn(MLP, generator), generator), generator))
        assert CHANGES[change] in {each.test for each in found}
        assert all(0 <= each.p < 1e-3 for each in found)


def without(noise: Noise, directions: Tensor) -> Noise:
    basis = torch.linalg.qr(directions.double().T).Q
    flat = flatten(noise).double()
    return {name: t.float() for name, t in unflatten(flat - basis @ (basis.T @ flat), noise).items()}


def test_noise_that_leaves_out_public_directions_is_refuted() -> None:
    generator = stream(0, "public")
    entries = sum(math.prod(shape) for shape in MLP.values())
    directions = torch.randn(50, entries, generator=generator)
    noise = drawn(MLP, generator)
    silent = without(noise, directions)
    found = refutations(left_of(silent, generator, public=directions))
    assert [each.test for each in found] == ["principal_directions"]
    assert refutations(left_of(silent, generator)) == ()
    assert refutations(left_of(noise, generator, public=directions, signal=directions[:3])) == ()


def test_noise_that_leaves_out_one_record_is_refuted() -> None:
    generator = stream(0, "signal")
    entries = sum(math.prod(shape) for shape in MLP.values())
    directions = torch.randn(8, entries, generator=generator)
    silent = without(drawn(MLP, generator), directions[5:6])
    (found,) = refutations(left_of(silent, generator, signal=directions))
    assert found.test == "signal_directions"
    assert found.details["record"] == 5


def test_one_noise_in_two_messages_is_refuted() -> None:
    generator = stream(0, "two messages")
    noise, fresh, update = drawn(MLP, generator), drawn(MLP, generator), drawn(MLP, generator, 0.02)
    again = {name: noise[name] + update[name] for name in noise}
    (found,) = refutations(left_of(noise, generator, others={"fresh": fresh, "again": again}))
    assert (found.test, found.details["message"]) == ("reused_noise", "again")
    assert refutations(left_of(noise, generator, others={"fresh": fresh})) == ()


def test_noise_along_the_model_is_refuted() -> None:
    generator = stream(0, "model")
    noise, before = drawn(MLP, generator), drawn(MLP, generator, 0.1)
    decayed = {name: noise[name] + 0.01 * before[name] for name in noise}
    assert "correlated_model" in {each.test for each in refutations(left_of(decayed, generator, before=before))}
    assert refutations(left_of(noise, generator, before=before)) == ()


def from_torch(seed: int, shapes: dict[str, tuple[int, ...]]) -> Noise:
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        return {name: torch.normal(0.0, STD, shape) for name, shape in shapes.items()}


def from_torch_flat(seed: int, shapes: dict[str, tuple[int, ...]]) -> Noise:
    like = {name: torch.empty(shape) for name, shape in shapes.items()}
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        return unflatten(STD * torch.randn(sum(t.numel() for t in like.values())), like)


def from_torch_anew(seed: int, shapes: dict[str, tuple[int, ...]]) -> Noise:
    return {name: from_torch(seed + i, {name: shape})[name] for i, (name, shape) in enumerate(shapes.items())}


def from_numpy_state(seed: int, shapes: dict[str, tuple[int, ...]]) -> Noise:
    state = np.random.RandomState(seed)
    return {name: torch.from_numpy(state.normal(0, STD, shape)).float() for name, shape in shapes.items()}


def from_numpy_generator(seed: int, shapes: dict[str, tuple[int, ...]]) -> Noise:
    state = np.random.default_rng(seed)
    return {name: torch.from_numpy(state.normal(0, STD, shape)).float() for name, shape in shapes.items()}


@pytest.mark.parametrize("draw", [from_torch, from_torch_flat, from_torch_anew, from_numpy_state, from_numpy_generator])
@pytest.mark.parametrize(("seed", "shapes"), [(31337, {"w": (40, 30), "b": (40,)}), (0, {"a": (5, 5), **SMALL})])
def test_predictable_noise_is_refuted(
    draw: Callable[..., Noise], seed: int, shapes: dict[str, tuple[int, ...]]
) -> None:
    found = [each for each in refutations(left_of(draw(seed, shapes), stream(0))) if each.test == "seed"]
    expected = range(seed, seed + len(shapes)) if draw is from_torch_anew else [seed]
    assert [each.details["seed"] in expected for each in found] == [True]


def test_predictable_laplacian_noise_is_refuted() -> None:
    scale = STD / math.sqrt(2)
    with torch.random.fork_rng():
        torch.manual_seed(42)
        noise = {"w": torch.distributions.Laplace(0.0, scale).sample((30, 30))}
    (found,) = refutations(left_of(noise, stream(0), law="laplacian"))
    assert (found.test, found.details["seed"]) == ("seed", 42)
    state = np.random.RandomState(42).laplace(scale=scale, size=(30, 30))
    assert refutations(left_of({"w": torch.from_numpy(state).float()}, stream(0), law="laplacian"))


def test_random_numbers_of_the_caller_are_left_alone() -> None:
    before = torch.get_rng_state(), np.random.get_state()[1].copy()  # noqa: NPY002
    refutations(left_of(drawn(SMALL, stream(0)), stream(1)))
    assert torch.equal(torch.get_rng_state(), before[0])
    assert (np.random.get_state()[1] == before[1]).all()  # noqa: NPY002


# --- rounding cells


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32])
def test_cells_end_where_rounding_changes(dtype: torch.dtype) -> None:
    values = torch.randn(2000, generator=stream(0, "cells"), dtype=torch.float64) * torch.logspace(-9, 3, 2000).double()
    sent = torch.cat([values, torch.tensor([1.0, -1.0, 2.0, -0.5, 0.0])]).to(dtype)
    below, above = (torch.from_numpy(side) for side in cell(sent, dtype))
    for sign, side in ((-1, below), (1, above)):
        assert torch.equal((sent.double() + sign * side * 0.99).to(dtype), sent)
        assert not ((sent.double() + sign * side * 1.01).to(dtype) == sent).any()


@pytest.mark.parametrize("width", [5e-4, 0.5, 4.0])
def test_a_draw_inside_of_cells_follows_the_law(width: float) -> None:
    generator = stream(0, "laws")
    for law, known in (("gaussian", norm), ("laplacian", laplace(scale=math.sqrt(0.5)))):
        exact = known.rvs(size=4000, random_state=np.random.default_rng(3))
        sent = np.round(exact / width) * width
        half = np.full_like(sent, width / 2)
        again = draw_in_cell(sent, half, half, law, generator)
        assert (np.abs(again - sent) <= width / 2 * (1 + 1e-9)).all()
        assert kstest(again, known.cdf).pvalue > 0.01
        assert kstest(normal_scores(again, law), norm.cdf).pvalue > 0.01


def test_far_entries_stay_finite() -> None:
    far = np.array([-1e5, -60.0, 60.0, 1e5])
    half = np.full_like(far, 0.1)
    for law in ("gaussian", "laplacian"):
        again = draw_in_cell(far, half, half, law, stream(0))
        assert np.abs(again - far).max() <= 0.1 + 1e-9
        assert np.isfinite(normal_scores(again, law)).all()
    assert {"std", "largest_entry"} <= {r.test for r in refutations(NoiseResidual({"w": torch.full((70,), 1e30)}, 1.0))}


def test_the_width_of_cells_tells_whether_rounding_hides_the_noise() -> None:
    weights = {"w": torch.full((100,), 1.5)}
    coarse = NoiseResidual({"w": torch.zeros(100)}, 1e-3, message=weights, sent_dtype=torch.bfloat16, weights_sent=True)
    assert rounding_of(coarse) == pytest.approx(2**-7 / 1e-3)
    assert rounding_of(NoiseResidual({"w": torch.zeros(100)}, 1e-3)) == 0


# --- what is given


def test_replays_that_differ_are_measured_in_deviations() -> None:
    replays = [drawn(SMALL, stream(0, i), 1e-6) for i in range(5)]
    assert spread_of(replays, STD) < REPLAY_SPREAD < spread_of(replays, 1e-6)
    assert spread_of(replays[:2], 1.0) == pytest.approx(
        max(float(t.abs().max()) for t in subtract(replays[0], replays[1]).values())
    )


def test_a_residual_that_is_not_finite_is_refuted() -> None:
    (found,) = refutations(NoiseResidual({"w": torch.ones(3), "b": torch.tensor([math.nan])}, STD))
    assert (found.test, found.tensor, found.p) == ("finite", "b", 0.0)


@pytest.mark.parametrize("law", ["gaussian", "laplacian"])
def test_what_is_no_noise_at_all_is_refuted(law: Law) -> None:
    shapes = {"w": (20, 20), "b": (10,), "scalar": ()}
    for value in (0.0, STD, 1e300):
        silent = {name: torch.full(shape, value, dtype=torch.float64) for name, shape in shapes.items()}
        for message in (None, {name: tensor.bfloat16() for name, tensor in silent.items()} if value < 1 else None):
            found = refutations(NoiseResidual(silent, STD, law, message=message))
            assert {"small_entries" if value == 0 else "row_sums", "distribution"} <= {each.test for each in found}
            assert not any(math.isnan(each.p) for each in found)


def test_what_does_not_fit_is_refused() -> None:
    noise = {"w": torch.ones(3)}
    for wrong in ({"std": 0.0}, {"std": math.inf}, {"public": torch.ones(2, 4)}, {"signal": torch.ones(3)}):
        with pytest.raises(UsageError):
            NoiseResidual(noise, **{"std": STD, **wrong})  # type: ignore[arg-type]
    for message in (None, {}, {"w": torch.ones(4)}):
        with pytest.raises(UsageError, match="message"):
            NoiseResidual(noise, STD, message=message, weights_sent=True)
    with pytest.raises(UsageError, match="no entries"):
        NoiseResidual({"w": torch.ones(0)}, STD)
