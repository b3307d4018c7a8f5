"""Division reads a single image whatever follows the first dense layer, and finds the length where the bias is off."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from fedglass.attack.exact.dense import decay_factor, dense_layers, first_dense
from fedglass.attack.exact.division import division
from fedglass.attack.exact.exact import ExactSolution, SearchBudget
from fedglass.attack.exact.update_matrix import entry_error, grid_step, row_ratios, stack_update
from fedglass.core.optimisers import SGD, Adam
from fedglass.core.rng import stream
from fedglass.core.types import Observation, Training
from fedglass.federation.federation import observe
from fedglass.federation.views import Knows, ServerView
from fedglass.models.names import with_fixed

Change = Callable[[Tensor], Tensor]
ONCE = Training(lr=0.1)


def seen(
    toy: Any, training: Training = ONCE, model: nn.Module | None = None, examples: int = 1
) -> tuple[Observation, Tensor]:
    """What the server sees of one client, and the client's images."""
    federation = toy.federation(training, model=model, examples=examples)
    like = next(federation.model.parameters())
    clients = [replace(each, images=each.images.to(like.dtype)) for each in federation.clients]
    observation, truth = observe(replace(federation, clients=clients), ServerView(), Knows())
    return observation, truth.images


def wide(toy: Any, activation: type[nn.Module] = nn.ReLU, bias: bool = True) -> nn.Module:
    layers = nn.Flatten(), nn.Linear(64, 100, bias=bias), activation(), nn.Linear(100, 5)
    model: nn.Module = toy.seeded(nn.Sequential(*layers))
    return model


def solved(observation: Observation) -> ExactSolution:
    found = answer(observation)
    assert not isinstance(found, str)
    return found


def answer(observation: Observation) -> ExactSolution | str:
    return division(observation, SearchBudget(stream(0, "test")))


def psnr(found: Tensor, truth: Tensor) -> float:
    return float(-10 * (found.double() - truth.double()).square().mean().log10())


def changed(observation: Observation, change: Change) -> Observation:
    return replace(observation, update={name: change(u) for name, u in observation.update.items()})


def undeclared(observation: Observation) -> Observation:
    return replace(observation, knows=replace(observation.knows, training=None))


@pytest.mark.parametrize("steps", [1, 20])
@pytest.mark.parametrize("optimiser", [SGD(), SGD(momentum=0.9), SGD(momentum=0.5, nesterov=True, weight_decay=0.05)])
@pytest.mark.parametrize("activation", [nn.ReLU, nn.Sigmoid])
def test_one_image_is_read_after_any_number_of_steps(
    toy: Any, activation: type[nn.Module], optimiser: SGD, steps: int
) -> None:
    training = Training(lr=0.02, epochs=steps, optimiser=optimiser)
    observation, truth = seen(toy, training, wide(toy, activation))
    found = solved(observation)
    assert found.explains
    assert psnr(found.images, truth) > 100
    assert found.residual < 1e-5


@pytest.mark.parametrize("activation", [nn.Tanh, nn.GELU, nn.Softplus])
def test_any_activation_will_do(toy: Any, activation: type[nn.Module]) -> None:
    observation, truth = seen(toy, model=wide(toy, activation))
    found = solved(observation)
    assert found.explains
    assert psnr(found.images, truth) > 100


def test_the_exact_recursion_of_the_decay_beats_the_naive_one(toy: Any) -> None:
    training = Training(lr=0.05, epochs=20, optimiser=SGD(momentum=0.9, weight_decay=0.01))
    observation, truth = seen(toy, training, wide(toy).double())
    layer = first_dense(observation)
    assert not isinstance(layer, str)
    assert layer.sent.biased
    weight, bias = layer.sent.matrix[:, :-1], layer.sent.matrix[:, -1]
    exact = weight.sum(0) / bias.sum()
    share = 20 * training.lr * 0.01  # as if the momentum did not gather the decay
    name = f"{layer.name}.weight"
    naive = (observation.update[name] + share * observation.before[name]).sum(0) / bias.sum()
    inputs = observation.knows.whitening.whiten(truth).flatten()
    assert psnr(exact, inputs) > 140
    assert psnr(naive, inputs) < 80


def test_the_decay_factor_is_that_of_the_optimiser(toy: Any) -> None:
    """Without gradients, torch's own SGD shrinks a weight by the same factor."""
    weight = torch.ones(1, dtype=torch.float64, requires_grad=True)
    torch_sgd = torch.optim.SGD([weight], lr=0.1, momentum=0.9, dampening=0.3, weight_decay=0.2)
    for _ in range(7):
        weight.grad = torch.zeros_like(weight)
        torch_sgd.step()
    training = Training(lr=0.1, steps=7, optimiser=SGD(momentum=0.9, dampening=0.3, weight_decay=0.2))
    observation, _ = seen(toy, training)
    assert decay_factor(observation) == pytest.approx(weight.item(), rel=1e-12)


def test_clipping_of_the_whole_and_the_loss_factor_do_not_matter(toy: Any) -> None:
    observation, truth = seen(toy, Training(lr=0.1, epochs=3, clip=0.5), wide(toy))
    assert psnr(solved(observation).images, truth) > 100
    short = solved(changed(observation, lambda u: 0.01 * u))
    assert short.explains
    assert psnr(short.images, truth) > 100


def to_levels(u: Tensor) -> Tensor:
    step = u.abs().max() / 127
    return (u / step).round() * step


def halved(u: Tensor) -> Tensor:
    return torch.where(u.abs() > u.abs().flatten().median(), u, torch.zeros_like(u))


@pytest.mark.parametrize(
    ("change", "least"),
    [
        (to_levels, 40),
        (halved, 60),
        (lambda u: u * (torch.rand(u.shape, generator=stream(0, "drop")) < 0.5), 60),
        (lambda u: u.bfloat16().float(), 60),
        (lambda u: u.half(), 70),
    ],
    ids=["8 bits", "half pruned", "half dropped", "bfloat16", "float16"],
)
def test_coarse_messages_still_tell_the_image(toy: Any, change: Change, least: float) -> None:
    observation, truth = seen(toy, Training(lr=0.1, epochs=2), wide(toy))
    found = solved(changed(observation, change))
    assert psnr(found.images, truth) > least
    assert found.explains


def test_under_noise_the_singular_vector_beats_the_quotient(toy: Any) -> None:
    observation, truth = seen(toy, model=wide(toy))
    noisy = changed(observation, lambda u: u + 3e-3 * torch.randn(u.shape, generator=stream(1, "noise")))
    found = solved(noisy)
    layer = first_dense(noisy)
    assert not isinstance(layer, str)
    assert layer.sent.biased
    inputs = observation.knows.whitening.whiten(truth).flatten(1).double()
    weight, bias = layer.sent.matrix[:, :-1], layer.sent.matrix[:, -1]
    quotient = (bias @ weight) / bias.square().sum()  # least squares, as if the bias were exact
    ours = observation.knows.whitening.whiten(found.images).flatten(1)
    assert psnr(ours, inputs) > psnr(quotient, inputs) + 1
    assert not found.explains  # noise is no rounding


def test_without_a_bias_the_length_comes_from_the_replay(toy: Any) -> None:
    observation, truth = seen(toy, Training(lr=0.1, epochs=3), wide(toy, bias=False))
    found = solved(observation)
    assert found.explains
    assert psnr(found.images, truth) > 60
    assert "length" in str(found.details["how"])


def test_where_tensors_are_clipped_one_by_one_the_length_comes_from_the_replay(toy: Any) -> None:
    observation, truth = seen(toy, model=wide(toy))
    found = solved(changed(observation, lambda u: u * (0.01 / u.norm()).clamp(max=1.0)))
    assert found.explains
    assert psnr(found.images, truth) > 60


def test_where_biases_do_not_decay_the_image_is_read_all_the_same(toy: Any) -> None:
    training = Training(lr=0.1, optimiser=SGD(weight_decay=0.1))
    observation, truth = seen(toy, training, wide(toy))
    update = {
        name: u + 0.1 * 0.1 * observation.before[name] if name.endswith("bias") else u
        for name, u in observation.update.items()
    }
    found = solved(replace(observation, update=update))
    assert found.explains
    assert psnr(found.images, truth) > 60


def test_without_a_declared_training_one_step_is_verified_by_its_direction(toy: Any) -> None:
    observation, truth = seen(toy, model=wide(toy, nn.Sigmoid))
    found = solved(undeclared(observation))
    assert found.explains
    assert psnr(found.images, truth) > 100


def test_without_a_declared_training_the_active_units_verify_several_steps(toy: Any) -> None:
    observation, truth = seen(toy, Training(lr=0.02, epochs=4), wide(toy))
    found = solved(undeclared(observation))
    assert found.explains
    assert psnr(found.images, truth) > 100


def test_adam_is_named_as_the_reason(toy: Any) -> None:
    observation, _ = seen(toy, Training(lr=0.01, optimiser=Adam()), wide(toy))
    assert "Adam" in str(answer(observation))


@pytest.mark.parametrize("steps", [1, 3])
def test_of_undeclared_adam_nothing_is_claimed(toy: Any, steps: int) -> None:
    """After one step all rows are signs, which agree in every row: the replay is what refuses them."""
    observation, _ = seen(toy, Training(lr=0.01, epochs=steps, optimiser=Adam()), wide(toy))
    assert not solved(undeclared(observation)).explains


def test_of_wrongly_declared_sgd_nothing_is_claimed(toy: Any) -> None:
    observation, _ = seen(toy, Training(lr=0.01, optimiser=Adam()), wide(toy))
    found = solved(replace(observation, knows=replace(observation.knows, training=Training(lr=0.01))))
    assert not found.explains


def test_of_an_image_that_each_step_changes_nothing_is_claimed(toy: Any) -> None:
    """Augmentation: the message is the sum of steps on shifted images."""
    federation = toy.federation(Training(lr=0.02), model=wide(toy), examples=1)
    client = federation.clients[0]
    moved = replace(client, images=client.images.roll(2, dims=3))
    one, other = (
        observe(replace(federation, clients=[each]), ServerView(), Knows())[0].update for each in (client, moved)
    )
    observation, _ = seen(toy, Training(lr=0.02, epochs=2), wide(toy))
    found = solved(replace(observation, update={name: u + other[name] for name, u in one.items()}))
    assert not found.explains


class Reshaped(nn.Module):
    """Flattens by a view, behind a module that does nothing."""

    def __init__(self, factor: float = 1.0) -> None:
        super().__init__()
        self.factor = factor
        self.same = nn.Identity()
        self.one, self.two = nn.Linear(64, 20), nn.Linear(20, 5)

    def forward(self, inputs: Tensor) -> Tensor:
        flat = self.same(inputs).view(len(inputs), -1) * self.factor
        out: Tensor = self.two(self.one(flat).relu())
        return out


def test_the_first_layer_is_found_behind_wrappers_and_views(toy: Any) -> None:
    observation, _ = seen(toy, model=toy.seeded(Reshaped()))
    layer = first_dense(observation)
    assert not isinstance(layer, str)
    assert layer.name == "one"
    assert layer.relu
    assert [each.name for each in dense_layers(observation)] == ["one", "two"]
    assert not dense_layers(observation)[1].relu


def test_a_layer_that_is_fed_other_numbers_than_the_pixels_is_none(toy: Any) -> None:
    observation, _ = seen(toy, model=toy.seeded(Reshaped(factor=0.5)))
    assert first_dense(observation) == "no dense layer is fed the pixels as they are"
    convolutional, _ = seen(toy, model=toy.normalised())
    assert answer(convolutional) == "no dense layer is fed the pixels as they are"


@pytest.mark.parametrize(("activation", "relu"), [(nn.ReLU, True), (nn.LeakyReLU, False), (nn.Sigmoid, False)])
def test_relu_is_told_by_what_it_does(toy: Any, activation: type[nn.Module], relu: bool) -> None:
    layer = first_dense(seen(toy, model=wide(toy, activation))[0])
    assert not isinstance(layer, str)
    assert layer.relu is relu


def test_a_layer_that_is_not_trained_is_the_reason(toy: Any) -> None:
    observation, _ = seen(toy, model=wide(toy))
    names = ["1.weight", "1.bias"]
    fixed = replace(
        observation,
        model=with_fixed(observation.model, names),
        before={n: t for n, t in observation.before.items() if n not in names},
        update={n: t for n, t in observation.update.items() if n not in names},
        buffers={n: observation.before[n] for n in names},
    )
    assert "not trained" in str(answer(fixed))


def test_rows_that_one_example_alone_activates_agree(toy: Any) -> None:
    observation, truth = seen(toy, model=wide(toy), examples=2)
    layer = first_dense(observation)
    assert not isinstance(layer, str)
    assert layer.sent.biased
    rows = row_ratios(layer.sent)
    inputs = observation.knows.whitening.whiten(truth).flatten(1)
    for image in inputs:
        assert min(float((image - found).abs().max()) for found in rows.inputs) < 1e-3
    assert solved(observation).explains


def test_the_precision_of_a_message_is_seen_in_its_values() -> None:
    update = torch.randn(50, 40, generator=stream(0, "u"))
    before = torch.zeros(50, 40)
    assert float(entry_error(update, before).max()) < 1e-6
    assert float(entry_error(update.bfloat16().float(), before).max()) > 1e-3
    assert grid_step(update) == 0
    step = float(update.abs().max()) / 127
    assert grid_step((update / step).round() * step) == pytest.approx(step, rel=1e-4)
    # Weights of size 1 round their difference to 1e-7, whatever its own size.
    assert float(entry_error(1e-5 * update, before + 1).min()) > 1e-8


def test_pruned_entries_are_told_from_rounded_ones() -> None:
    update = torch.randn(50, 1, generator=stream(0, "u")) * torch.randn(40, generator=stream(1, "u"))
    error = torch.full_like(update, 1e-7)
    assert bool(stack_update([update], [error]).unpruned().observed.all())
    pruned = halved(update)
    kept = stack_update([pruned], [error]).unpruned().observed
    gone = (pruned == 0).all(0) | (pruned == 0).all(1, keepdim=True)  # a pixel of zero, or a unit that is off
    assert torch.equal(kept, (pruned != 0) | gone)
    assert not bool(kept.all())
    quantised = to_levels(update)
    assert bool((quantised == 0).any())
    assert bool(stack_update([quantised], [error]).unpruned().observed.all())
