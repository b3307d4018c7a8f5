"""Trainings that people write and no tutorial has: what is told of them is true, or is said not to be known."""

from __future__ import annotations

import copy
import warnings
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.nn.utils import parameters_to_vector
from torch.optim.swa_utils import AveragedModel
from torch.utils.checkpoint import checkpoint

from fedglass.recorders.hooks import TrainingReader
from fedglass.recorders.training_facts import model_facts, training_facts

IMAGES = torch.rand(6, 1, 8, 8, generator=torch.Generator().manual_seed(1))
LABELS = torch.tensor([0, 1, 2, 0, 1, 2])
BATCHES = ([0, 1, 2], [3, 4, 5])
Train = Callable[[nn.Module], None]


class Net(nn.Module):
    """A class that a plan can name."""

    def __init__(self) -> None:
        super().__init__()
        self.features = nn.Sequential(nn.Conv2d(1, 2, 3), nn.BatchNorm2d(2), nn.Sigmoid(), nn.Flatten())
        self.head = nn.Linear(72, 3)

    def forward(self, images: Tensor) -> Tensor:
        found: Tensor = self.head(self.features(images))
        return found


def network() -> Net:
    torch.manual_seed(0)
    return Net()


def sgd(model: nn.Module, **options: Any) -> torch.optim.Optimizer:
    return torch.optim.SGD(model.parameters(), lr=0.1, **options)


def stepping(
    loss: Callable[[nn.Module, Tensor, Tensor], Tensor], make: Callable[[nn.Module], Any] = sgd, then: Any = None
) -> Train:
    def train(model: nn.Module) -> None:
        optimiser = make(model)
        for rows in BATCHES:
            optimiser.zero_grad()
            loss(model, IMAGES[rows], LABELS[rows]).backward()  # type: ignore[no-untyped-call] # of torch
            optimiser.step()
        if then is not None:
            then(model)

    return train


def plain(model: nn.Module, images: Tensor, labels: Tensor) -> Tensor:
    return F.cross_entropy(model(images), labels)


def heard(train: Train, model: nn.Module | None = None) -> tuple[dict[str, Any], dict[str, Any]]:
    """What is told of the training and of the model; that it is the same as if nobody listened is asked every time."""
    made = network() if model is None else model
    alone = copy.deepcopy(made)
    torch.manual_seed(5)
    train(alone)
    torch.manual_seed(5)
    with TrainingReader(keep_examples=True) as reader:
        train(made)
    assert all(map(torch.equal, made.state_dict().values(), alone.state_dict().values()))
    assert not reader.fault
    return training_facts(reader.steps), model_facts(reader.steps)


def doubts(train: Train, model: nn.Module | None = None) -> str:
    return " ".join(heard(train, model)[0].get("x-reservations", []))


class Proximal(nn.Module):
    """A penalty as a module: with the weights handed over, or with the network in it."""

    def __init__(self, model: nn.Module, within: bool) -> None:
        super().__init__()
        self.model = model if within else None
        self.first = [weight.detach() - 0.1 for weight in model.parameters()]

    def forward(self, *weights: Tensor) -> Tensor:
        now = weights if self.model is None else tuple(self.model.parameters())
        return torch.stack([(a - b).square().sum() for a, b in zip(now, self.first, strict=True)]).sum()


def by_hand(model: nn.Module, first: nn.Module) -> Tensor:
    pairs = zip(model.parameters(), first.parameters(), strict=True)
    return torch.stack([(a - b.detach()).norm() for a, b in pairs]).sum()


def as_a_vector(model: nn.Module, first: nn.Module) -> Tensor:
    return (parameters_to_vector(model.parameters()) - parameters_to_vector(first.parameters()).detach()).square().sum()


def as_a_module(model: nn.Module, first: nn.Module) -> Tensor:
    found: Tensor = Proximal(model, within=False)(*model.parameters())
    return found


def as_a_module_around_it(model: nn.Module, first: nn.Module) -> Tensor:
    found: Tensor = Proximal(model, within=True)()
    return found


@pytest.mark.parametrize("any_thread", [False, True])
@pytest.mark.parametrize("penalty", [by_hand, as_a_vector, as_a_module, as_a_module_around_it])
def test_a_proximal_term_is_noticed_however_it_is_written(penalty: Callable[..., Tensor], any_thread: bool) -> None:
    torch.manual_seed(1)
    first = Net()

    def loss(model: nn.Module, images: Tensor, labels: Tensor) -> Tensor:
        return plain(model, images, labels) + penalty(model, first)

    with TrainingReader(any_thread=any_thread) as reader:
        stepping(loss)(network())
    found = training_facts(reader.steps)

    assert found["loss"] == "cross_entropy penalty"
    assert found["examples"] == 6
    assert heard(stepping(loss))[0]["loss"] == "cross_entropy penalty"


@pytest.mark.parametrize("any_thread", [False, True])
def test_a_penalty_that_is_only_looked_at_is_none(any_thread: bool) -> None:
    def loss(model: nn.Module, images: Tensor, labels: Tensor) -> Tensor:
        by_hand(model, network())
        return plain(model, images, labels)

    with TrainingReader(any_thread=any_thread) as reader:
        stepping(loss)(network())

    assert training_facts(reader.steps)["loss"] == "cross_entropy"


class Dropping(Net):
    def forward(self, images: Tensor) -> Tensor:
        return super().forward(F.dropout(images, 0.3, self.training))


def test_dropout_is_noticed_wherever_it_is_called() -> None:
    torch.manual_seed(0)
    model = Dropping()

    assert "random numbers" in doubts(stepping(plain), model)
    assert "random numbers" not in doubts(stepping(plain), model.eval())


def test_dropout_between_two_parts_of_a_network_is_noticed() -> None:
    def loss(model: nn.Module, images: Tensor, labels: Tensor) -> Tensor:
        assert isinstance(model, Net)
        return F.cross_entropy(model.head(nn.Dropout(0.3)(model.features(images))), labels)

    assert "Dropout was active." in doubts(stepping(loss))


def scaled(model: nn.Module) -> None:
    with torch.no_grad():
        for weight in model.parameters():
            weight.mul_(0.5)


def averaged(model: nn.Module) -> None:
    average = AveragedModel(network())
    average.update_parameters(model)
    model.load_state_dict(average.module.state_dict())


def sharpness_aware(model: nn.Module) -> None:
    optimiser = sgd(model)
    for rows in BATCHES:
        optimiser.zero_grad()
        plain(model, IMAGES[rows], LABELS[rows]).backward()  # type: ignore[no-untyped-call] # of torch
        moves = [0.05 * weight.grad for weight in model.parameters() if weight.grad is not None]
        for sign in (1, -1):
            with torch.no_grad():
                for weight, move in zip(model.parameters(), moves, strict=True):
                    weight.add_(sign * move)
            if sign > 0:
                optimiser.zero_grad()
                plain(model, IMAGES[rows], LABELS[rows]).backward()  # type: ignore[no-untyped-call] # of torch
        optimiser.step()


@pytest.mark.parametrize("train", [stepping(plain, then=scaled), stepping(plain, then=averaged), sharpness_aware])
def test_weights_that_are_written_to_beside_the_steps_are_noticed(train: Train) -> None:
    assert "Weights were changed outside of optimiser steps" in doubts(train)


def test_a_teacher_that_follows_is_none_of_what_was_trained() -> None:
    teacher = network()

    def loss(model: nn.Module, images: Tensor, labels: Tensor) -> Tensor:
        teacher(images)  # with gradients, which nobody asks for
        with torch.no_grad():
            for own, weight in zip(teacher.parameters(), model.parameters(), strict=True):
                own.lerp_(weight, 0.1)
        return plain(model, images, labels)

    assert doubts(stepping(loss)) == ""


def test_steps_alone_are_no_other_writing() -> None:
    assert doubts(stepping(plain)) == ""


def lbfgs(model: nn.Module) -> None:
    optimiser = torch.optim.LBFGS(model.parameters(), lr=0.5, max_iter=3)
    for rows in BATCHES:

        def closure(rows: list[int] = rows) -> Any:
            optimiser.zero_grad()
            loss = plain(model, IMAGES[rows], LABELS[rows])
            loss.backward()  # type: ignore[no-untyped-call] # of torch
            return loss

        optimiser.step(closure)


@pytest.mark.parametrize("train", [lbfgs, sharpness_aware])
def test_a_batch_that_is_looked_at_again_is_not_more_examples(train: Train) -> None:
    with TrainingReader(keep_examples=True) as reader:
        train(network())

    found = training_facts(reader.steps)

    assert (found["examples"], found["batch_sizes"], len(reader.inputs)) == (6, [3, 3], 6)
    assert [step.labels for step in reader.steps] == [(0, 1, 2), (0, 1, 2)]


def test_labels_are_seen_beside_a_teacher_s_word() -> None:
    teacher = network()

    def loss(model: nn.Module, images: Tensor, labels: Tensor) -> Tensor:
        logits = model(images)
        with torch.no_grad():
            taught = teacher(images).softmax(1)
        return F.cross_entropy(logits, labels) + F.kl_div(logits.log_softmax(1), taught, reduction="batchmean")

    with TrainingReader() as reader:
        stepping(loss)(network())

    assert [step.labels for step in reader.steps] == [(0, 1, 2), (0, 1, 2)]
    assert training_facts(reader.steps)["loss"] != "cross_entropy"


def test_mixed_labels_are_no_classes() -> None:
    def loss(model: nn.Module, images: Tensor, labels: Tensor) -> Tensor:
        return F.cross_entropy(model(images), 0.7 * F.one_hot(labels, 3) + 0.3 * F.one_hot(labels.flip(0), 3))

    found, _ = heard(stepping(loss))

    assert found["loss"] != "cross_entropy"
    assert "The targets of the loss are not one class for each example." in found["x-reservations"]


@pytest.mark.parametrize("change", [lambda out: out / 0.5, lambda out: out[:, :3] - torch.tensor([0.0, 1.0, 0.5])])
def test_logits_that_are_changed_before_the_loss_are_noticed(change: Callable[[Tensor], Tensor]) -> None:
    """As by a temperature, or by margins of classes."""
    found, _ = heard(stepping(lambda model, images, labels: F.cross_entropy(change(model(images)), labels)))

    assert found["loss"] == "cross_entropy of changed outputs"


@pytest.mark.parametrize(
    "loss",
    [
        lambda out, labels: F.nll_loss(out.log_softmax(1), labels),
        lambda out, labels: F.cross_entropy(out.view(-1, 3).float(), labels),
        lambda out, labels: F.cross_entropy(out - out.max(), labels),
    ],
)
def test_what_a_softmax_takes_out_again_is_no_change(loss: Callable[[Tensor, Tensor], Tensor]) -> None:
    found, _ = heard(stepping(lambda model, images, labels: loss(model(images), labels)))

    assert found["loss"] == "cross_entropy"


def test_a_batch_that_is_overwritten_before_the_step_is_kept_as_it_was() -> None:
    def train(model: nn.Module) -> None:
        optimiser = sgd(model)
        for rows in BATCHES:
            batch = IMAGES[rows].clone()
            optimiser.zero_grad()
            plain(model, batch, LABELS[rows]).backward()  # type: ignore[no-untyped-call] # of torch
            batch.zero_()
            optimiser.step()

    with TrainingReader(keep_examples=True) as reader:
        train(network())

    assert torch.equal(torch.stack(list(reader.inputs.values())), IMAGES)


def test_a_step_without_gradients_is_none() -> None:
    def train(model: nn.Module) -> None:
        optimiser = sgd(model)
        optimiser.step()  # as people do to silence a scheduler
        plain(model, IMAGES, LABELS).backward()  # type: ignore[no-untyped-call] # of torch
        optimiser.step()

    found, _ = heard(train)

    assert (found["steps"], found["batch_sizes"], found["loss"]) == (1, [6], "cross_entropy")


def test_another_network_beside_it_is_noticed() -> None:
    other = network()

    def train(model: nn.Module) -> None:
        ways = [(each, sgd(each)) for each in (model, copy.deepcopy(other))]
        for rows in BATCHES:
            for each, optimiser in ways:
                optimiser.zero_grad()
                plain(each, IMAGES[rows], LABELS[rows]).backward()  # type: ignore[no-untyped-call] # of torch
                optimiser.step()

    assert "Several networks were trained" in doubts(train)


class SGD(torch.optim.Optimizer):
    """Somebody's own, which goes by signs."""

    def __init__(self, weights: Any, lr: float) -> None:
        super().__init__(weights, {"lr": lr})

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:
        for weight in self.param_groups[0]["params"]:
            weight.sub_(self.param_groups[0]["lr"] * weight.grad.sign())


def test_somebody_s_own_optimiser_is_not_torch_s() -> None:
    found, _ = heard(stepping(plain, lambda model: SGD(model.parameters(), lr=0.1)))

    assert found["optimiser"] == f"{__name__}.SGD"


def test_a_network_that_is_called_by_keywords_is_seen() -> None:
    found, model = heard(stepping(lambda model, images, labels: F.cross_entropy(model(images=images), labels)))

    assert (found["examples"], found["batch_sizes"]) == (6, [3, 3])
    assert "x-reservations" not in found
    assert model == {"shape": [1, 8, 8], "classes": 3, "model": f"{__name__}:Net"}


class WithLoss(Net):
    """As networks are that compute their loss themselves."""

    def forward(self, images: Tensor, labels: Tensor | None = None) -> Any:
        logits = super().forward(images)
        return logits if labels is None else {"loss": F.cross_entropy(logits, labels), "logits": logits}


def test_a_loss_inside_of_a_network_is_seen() -> None:
    found, model = heard(stepping(lambda m, images, labels: m(labels=labels, images=images)["loss"]), WithLoss())

    assert (found["loss"], found["examples"], model["classes"]) == ("cross_entropy", 6, 3)


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
@pytest.mark.parametrize("any_thread", [False, True])
def test_a_network_can_be_traced_while_somebody_listens(any_thread: bool) -> None:
    """The tracer traces twice and compares: names that only a listener's functions give to values ended it."""
    model = network().eval()
    with TrainingReader(any_thread=any_thread) as reader:
        stepping(plain)(torch.jit.trace(model, IMAGES))

    assert training_facts(reader.steps)["examples"] == 6


def test_the_classes_are_those_of_the_last_part() -> None:
    def loss(model: nn.Module, images: Tensor, labels: Tensor) -> Tensor:
        assert isinstance(model, Net)
        return F.cross_entropy(model.head(checkpoint(model.features, images, use_reentrant=False)), labels)

    assert heard(stepping(loss))[1] == {"shape": [1, 8, 8], "classes": 3}


def test_classes_are_told_of_a_classifier_alone() -> None:
    """A map of 6 x 6 pixels, and one number for each image, have no classes in their last dimension."""
    dense = stepping(lambda model, images, labels: model(images).square().mean())

    assert "classes" not in heard(dense, nn.Conv2d(1, 3, 3))[1]
    assert "classes" not in heard(dense, nn.Sequential(nn.Flatten(), nn.Linear(64, 1), nn.Flatten(0)))[1]


def test_a_parallel_model_is_named_by_what_it_holds() -> None:
    assert heard(stepping(lambda *given: plain(nn.DataParallel(given[0]), *given[1:])))[1]["model"] == f"{__name__}:Net"


def test_inputs_that_are_no_images_are_told_as_such() -> None:
    def loss(model: nn.Module, images: Tensor, labels: Tensor) -> Tensor:
        return F.cross_entropy(model(images.flatten(1)), labels)

    assert heard(stepping(loss), nn.Linear(64, 3))[1] == {"x-inputs": [64], "classes": 3}


def test_further_inputs_are_noticed() -> None:
    class WithAge(Net):
        def forward(self, images: Tensor, age: Tensor | None = None) -> Tensor:
            return super().forward(images) * (1 if age is None else age)

    def loss(model: nn.Module, images: Tensor, labels: Tensor) -> Tensor:
        return F.cross_entropy(model(images, labels[:, None] + 1.0), labels)

    assert "several input tensors" in doubts(stepping(loss), WithAge())


def test_a_last_batch_that_is_dropped_is_told() -> None:
    def train(model: nn.Module) -> None:
        optimiser = sgd(model)
        for rows in ([0, 1], [2, 3], [4, 0], [1, 2]):  # of five, the last of each epoch left out
            optimiser.zero_grad()
            plain(model, IMAGES[rows], LABELS[rows]).backward()  # type: ignore[no-untyped-call] # of torch
            optimiser.step()

    found, _ = heard(train)

    assert (found["examples"], found["batch_sizes"]) == (5, [2, 2, 2, 2])
    assert any("whole epochs" in said for said in found["x-reservations"])


def test_listening_does_not_enter_what_is_compiled() -> None:
    """Else a compiler makes other kernels, and other bits, of a network that is listened to."""
    graphs: list[int] = []

    def counting(graph: Any, inputs: Any) -> Any:
        graphs.append(len(list(graph.graph.nodes)))
        return graph.forward

    def train() -> None:
        torch._dynamo.reset()
        stepping(lambda model, images, labels: F.cross_entropy(compiled(images), labels))(compiled)

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        compiled: Any = torch.compile(network(), backend=counting)
        train()
        alone = graphs.copy()
        graphs.clear()
        with TrainingReader() as reader:
            train()

    assert graphs == alone
    assert training_facts(reader.steps)["batch_norm"] == "batch"
