"""What torch tells of a training is what was done, and listening changes nothing."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from fedglass.core.errors import UsageError
from fedglass.guard.guard import observed_training as seen_by_guard
from fedglass.recorders.hooks import LOSSES, TrainingReader
from fedglass.recorders.training_facts import model_facts, training_facts

EXAMPLES = 10
IMAGES = torch.rand(EXAMPLES, 1, 8, 8, generator=torch.Generator().manual_seed(1))
LABELS = torch.arange(EXAMPLES) % 5
Loop = Callable[[nn.Module, torch.optim.Optimizer], None]


def network(*, dropout: float = 0.0) -> nn.Module:
    torch.manual_seed(0)
    layers = nn.Conv2d(1, 3, 3, padding=1), nn.BatchNorm2d(3), nn.Sigmoid(), nn.AvgPool2d(4), nn.Flatten()
    return nn.Sequential(*layers, nn.Dropout(dropout), nn.Linear(12, 5))


def momentum(model: nn.Module) -> torch.optim.Optimizer:
    return torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)


def loop(
    loss: Callable[[Tensor, Tensor], Tensor] = F.cross_entropy,
    *,
    epochs: int = 2,
    batch: int = 4,
    shuffle: bool = True,
    then: Callable[[nn.Module], None] = lambda model: None,
) -> Loop:
    """A training as anybody writes it; `then` comes between backward and the step."""

    def train(model: nn.Module, optimiser: torch.optim.Optimizer) -> None:
        torch.manual_seed(3)
        for _ in range(epochs):
            order = torch.randperm(EXAMPLES) if shuffle else torch.arange(EXAMPLES)
            for rows in order.split(batch):
                optimiser.zero_grad()
                loss(model(IMAGES[rows]), LABELS[rows]).backward()
                then(model)
                optimiser.step()

    return train


def heard(train: Loop, *, model: nn.Module | None = None, make: Any = momentum, **options: Any) -> dict[str, Any]:
    model = network() if model is None else model
    with TrainingReader(**options) as reader:
        train(model, make(model))
    return training_facts(reader.steps)


def test_a_plain_training_is_read_whole() -> None:
    found = heard(loop())

    options = found.pop("options")
    assert found == {
        "steps": 6,
        "examples": EXAMPLES,
        "batch_sizes": [4, 4, 2, 4, 4, 2],
        "epochs": 2,
        "batch_size": 4,
        "shuffle": True,
        "optimiser": "SGD",
        "lr": 0.1,
        "loss": "cross_entropy",
        "label_smoothing": 0.0,
        "batch_norm": "batch",
    }
    assert (options["momentum"], options["weight_decay"], options["nesterov"]) == (0.9, 0, False)


@pytest.mark.parametrize("any_thread", [False, True])
def test_listening_changes_no_bit(any_thread: bool) -> None:
    plain, watched = network(dropout=0.5), network(dropout=0.5)
    loop()(plain, momentum(plain))

    heard(loop(), model=watched, any_thread=any_thread, keep_examples=True)

    assert all(map(torch.equal, plain.state_dict().values(), watched.state_dict().values()))


def test_nothing_is_left_behind() -> None:
    losses = {loss: getattr(F, loss.__name__) for loss in LOSSES}
    model = network()
    with TrainingReader(any_thread=True) as reader:
        loop(epochs=1)(model, momentum(model))

    loop(epochs=1)(model, momentum(model))

    assert len(reader.steps) == 3
    assert all(getattr(F, loss.__name__) is loss for loss in losses)
    assert all(not p._post_accumulate_grad_hooks for p in model.parameters())  # type: ignore[attr-defined] # torch's own


@pytest.mark.parametrize("make", [torch.optim.Adam, torch.optim.AdamW, torch.optim.RMSprop, torch.optim.Adagrad])
def test_any_optimiser_is_read_with_its_options(make: Any) -> None:
    found = heard(loop(), make=lambda model: make(model.parameters(), lr=0.01, weight_decay=0.05))

    assert (found["optimiser"], found["lr"], found["options"]["weight_decay"]) == (make.__name__, 0.01, 0.05)


def test_a_shuffle_is_read_from_two_epochs_and_not_from_one() -> None:
    assert heard(loop(shuffle=False))["shuffle"] is False
    assert heard(loop(shuffle=True))["shuffle"] is True
    assert "shuffle" not in heard(loop(epochs=1, shuffle=True))
    assert "shuffle" not in heard(loop(epochs=1, shuffle=False))


@pytest.mark.parametrize("module", [True, False])
@pytest.mark.parametrize("any_thread", [False, True])
def test_the_loss_is_read_whether_it_is_a_module_or_a_function(module: bool, any_thread: bool) -> None:
    smoothed = nn.CrossEntropyLoss(label_smoothing=0.1)
    loss = smoothed if module else lambda found, labels: F.cross_entropy(found, labels, label_smoothing=0.1)

    found = heard(loop(loss), any_thread=any_thread)

    assert (found["loss"], found["label_smoothing"]) == ("cross_entropy", 0.1)
    assert "x-reservations" not in found


def test_log_probabilities_are_the_same_loss() -> None:
    assert heard(loop(lambda found, labels: F.nll_loss(F.log_softmax(found, 1), labels)))["loss"] == "cross_entropy"
    assert heard(loop(F.nll_loss))["loss"] == "nll_loss"


@pytest.mark.parametrize(
    ("loss", "said"),
    [
        (lambda found, labels: 100 * F.cross_entropy(found, labels), "100 x cross_entropy"),
        (lambda found, labels: F.cross_entropy(found, labels, reduction="sum"), "4 x cross_entropy"),
        (lambda found, labels: F.cross_entropy(found, labels, reduction="none").mean(), "cross_entropy"),
        (lambda found, labels: F.cross_entropy(found, labels, weight=torch.arange(1.0, 6)), "weighted cross_entropy"),
        (lambda found, labels: F.mse_loss(found, F.one_hot(labels, 5).float()), "mse_loss"),
    ],
)
def test_another_loss_is_not_called_cross_entropy(loss: Any, said: str) -> None:
    found = heard(loop(loss))

    assert found["loss"] == said
    assert ("x-reservations" in found) == (said not in ("cross_entropy", "mse_loss"))


def test_a_loss_that_nobody_sees_is_not_guessed() -> None:
    found = heard(loop(lambda found, labels: -found.log_softmax(1)[torch.arange(len(labels)), labels].mean()))

    assert "loss" not in found
    assert any("loss" in sentence for sentence in found["x-reservations"])


def test_a_proximal_term_is_noticed() -> None:
    model = network()
    start = [p.detach().clone() for p in model.parameters()]

    def proximal(found: Tensor, labels: Tensor) -> Tensor:
        apart = sum(((p - s) ** 2).sum() for p, s in zip(model.parameters(), start, strict=True))
        return F.cross_entropy(found, labels) + 0.5 * apart

    found = heard(loop(proximal), model=model)

    assert found["loss"] == "cross_entropy penalty"


def test_clipping_is_read_off_the_gradients() -> None:
    def clip(model: nn.Module) -> None:
        torch.nn.utils.clip_grad_norm_(model.parameters(), 0.05)

    assert heard(loop(then=clip))["clip"] == pytest.approx(0.05, rel=1e-3)
    assert "clip" not in heard(loop())


def test_noise_on_the_gradients_is_noticed() -> None:
    def noise(model: nn.Module) -> None:
        for parameter in model.parameters():
            assert parameter.grad is not None
            parameter.grad += 0.1

    found = heard(loop(then=noise))

    assert "clip" not in found
    assert any("noise" in sentence for sentence in found["x-reservations"])


def test_what_fedglass_can_not_train_is_said() -> None:
    assert any("Dropout" in s for s in heard(loop(), model=network(dropout=0.5))["x-reservations"])


def test_a_schedule_has_no_one_learning_rate() -> None:
    def train(model: nn.Module, optimiser: torch.optim.Optimizer) -> None:
        for _ in range(2):
            loop(epochs=1)(model, optimiser)
            optimiser.param_groups[0]["lr"] /= 2

    found = heard(train)

    assert "lr" not in found
    assert found["x-lrs"] == [0.1] * 3 + [0.05] * 3


def test_momentum_of_an_earlier_round_is_noticed() -> None:
    model = network()
    optimiser = momentum(model)
    loop()(model, optimiser)

    found = heard(loop(), model=model, make=lambda _: optimiser)

    assert any("carried" in sentence for sentence in found["x-reservations"])


def test_frozen_statistics_are_told_from_those_of_the_batch() -> None:
    assert heard(loop(), model=network().eval())["batch_norm"] == "frozen"
    plain = nn.Sequential(nn.Flatten(), nn.Linear(64, 5))
    assert heard(loop(), model=plain)["batch_norm"] == "none"


def test_validation_on_the_way_is_none_of_it() -> None:
    def train(model: nn.Module, optimiser: torch.optim.Optimizer) -> None:
        for _ in range(2):
            loop(epochs=1)(model, optimiser)
            F.cross_entropy(model.eval()(IMAGES + 1), LABELS)  # without no_grad, as many do
            model.train()

    found = heard(train)

    assert (found["examples"], found["batch_norm"], found["epochs"]) == (EXAMPLES, "batch", 2)


def test_accumulated_gradients_are_one_step() -> None:
    def train(model: nn.Module, optimiser: torch.optim.Optimizer) -> None:
        for rows in torch.arange(EXAMPLES).split(5):
            (F.cross_entropy(model(IMAGES[rows]), LABELS[rows]) / 2).backward()
        optimiser.step()

    found = heard(train)

    assert (found["steps"], found["batch_sizes"], found["loss"]) == (1, [EXAMPLES], "cross_entropy")
    assert any("accumulated" in sentence for sentence in found["x-reservations"])


def test_a_closure_is_a_step_too() -> None:
    def train(model: nn.Module, optimiser: torch.optim.Optimizer) -> None:
        def closure() -> Tensor:
            optimiser.zero_grad()
            loss = F.cross_entropy(model(IMAGES), LABELS)
            loss.backward()  # type: ignore[no-untyped-call] # of torch
            return loss

        optimiser.step(closure)  # type: ignore[arg-type] # a tensor is what closures return

    assert heard(train)["batch_sizes"] == [EXAMPLES]


def test_the_same_picture_twice_is_two_examples() -> None:
    def train(model: nn.Module, optimiser: torch.optim.Optimizer) -> None:
        F.cross_entropy(model(IMAGES[[0, 0, 1]]), LABELS[[0, 0, 1]]).backward()
        optimiser.step()

    assert heard(train)["examples"] == 3


def test_stretches_of_one_network_are_one_pass() -> None:
    def train(model: nn.Module, optimiser: torch.optim.Optimizer) -> None:
        assert isinstance(model, nn.Sequential)
        features = model[:5](IMAGES)
        F.cross_entropy(model[5:](features), LABELS).backward()
        optimiser.step()

    assert heard(train)["batch_sizes"] == [EXAMPLES]


def test_another_threads_training_is_not_heard_unless_asked_for() -> None:
    def elsewhere(model: nn.Module, optimiser: torch.optim.Optimizer) -> None:
        worker = threading.Thread(target=lambda: loop(nn.CrossEntropyLoss())(model, optimiser))
        worker.start()
        worker.join()

    assert heard(elsewhere) == {"steps": 0}
    found = heard(elsewhere, any_thread=True)
    assert (found["steps"], found["loss"], found["examples"]) == (6, "cross_entropy", EXAMPLES)


@pytest.mark.filterwarnings("ignore")
def test_a_compiled_model_is_read_as_well() -> None:
    model = torch.compile(network(), backend="eager")
    with TrainingReader() as reader:
        loop()(model, momentum(model))  # type: ignore[arg-type] # a module with the same parameters

    found = training_facts(reader.steps)

    assert (found["steps"], found["examples"], found["batch_norm"]) == (6, EXAMPLES, "batch")


def test_examples_are_kept_as_they_were_given_only_where_asked_for() -> None:
    for keep in (True, False):
        with TrainingReader(keep_examples=keep) as reader:
            model = network()
            loop(epochs=1, shuffle=False)(model, momentum(model))
        assert len(reader.inputs) == (EXAMPLES if keep else 0)
        assert reader.steps[0].labels == tuple(LABELS[:4].tolist())
        if keep:
            assert torch.equal(torch.stack(list(reader.inputs.values())), IMAGES)


class Net(nn.Module):
    """A class of somebody's own, which a plan can name."""

    def __init__(self) -> None:
        super().__init__()
        self.body = network()

    def forward(self, images: Tensor) -> Tensor:
        found: Tensor = self.body(images)
        return found


def test_shape_classes_and_architecture_are_read() -> None:
    model = Net()
    with TrainingReader() as reader:
        loop()(model, momentum(model))

    assert model_facts(reader.steps) == {"shape": [1, 8, 8], "classes": 5, "model": f"{__name__}:Net"}


def test_a_block_that_raises_takes_its_hooks_along() -> None:
    model = network()
    with pytest.raises(RuntimeError, match="on purpose"), TrainingReader() as reader:
        raise RuntimeError("on purpose")

    loop()(model, momentum(model))

    assert reader.steps == []


def scalar(model: nn.Module) -> Tensor:
    """A network that is given a number."""
    return model(torch.tensor(2.0)).sum()


def unbatched(model: nn.Module) -> Tensor:
    return F.nll_loss(model(torch.ones(3)).log_softmax(0), torch.tensor(1), reduction="sum")


def sparse(model: nn.Module) -> Tensor:
    return model(torch.eye(3).to_sparse()).sum()


def by_example(model: nn.Module) -> Tensor:
    """Gradients of single examples, as DP-SGD takes them."""
    weights = dict(model.named_parameters())

    def loss(weights: dict[str, Tensor], image: Tensor, label: Tensor) -> Tensor:
        return F.cross_entropy(torch.func.functional_call(model, weights, (image[None],)), label[None])

    each = torch.func.vmap(torch.func.grad(loss), (None, 0, 0))(weights, torch.eye(3), torch.arange(3))
    for name, weight in weights.items():
        weight.grad = each[name].mean(0)
    return torch.zeros((), requires_grad=True)


class Factor(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(3))

    def forward(self, number: Tensor) -> Tensor:
        return self.weight * number


@pytest.mark.parametrize(
    ("make", "loss"),
    [(Factor, scalar), *((lambda: nn.Linear(3, 3), each) for each in (unbatched, sparse, by_example))],
    ids=["a number", "unbatched", "sparse", "by example"],
)
@pytest.mark.parametrize("any_thread", [False, True])
def test_a_training_of_another_kind_goes_on_and_nothing_is_said_of_it(
    make: Callable[[], nn.Module], loss: Callable[[nn.Module], Tensor], any_thread: bool
) -> None:
    """Listening may fail, and must neither end the training nor pass for having heard all of it."""

    def trained(model: nn.Module) -> list[Tensor]:
        optimiser = momentum(model)
        for _ in range(2):
            loss(model).backward()
            optimiser.step()
        return [parameter.detach() for parameter in model.parameters()]

    torch.manual_seed(0)
    expected = trained(make())
    torch.manual_seed(0)
    with TrainingReader(keep_examples=True, any_thread=any_thread) as reader:
        found = trained(make())

    assert all(map(torch.equal, found, expected))
    if reader.fault:
        with pytest.raises(UsageError, match="cannot be replayed"):
            seen_by_guard(reader)
    else:
        assert training_facts(reader.steps).get("loss") != "cross_entropy"


def test_mixed_precision_is_noticed_though_the_step_is_taken_outside_of_it() -> None:
    def train(model: nn.Module, optimiser: torch.optim.Optimizer) -> None:
        with torch.autocast("cpu", dtype=torch.bfloat16):
            loss = F.cross_entropy(model(IMAGES), LABELS)
        loss.backward()
        optimiser.step()

    assert "Automatic mixed precision was on." in heard(train)["x-reservations"]


@pytest.mark.parametrize("clip", [None, 0.05])
def test_the_scale_of_mixed_precision_is_no_clipping(clip: float | None) -> None:
    def train(model: nn.Module, optimiser: torch.optim.Optimizer) -> None:
        scaler = torch.amp.GradScaler("cpu", init_scale=1024.0)
        with torch.autocast("cpu", dtype=torch.bfloat16):
            loss = F.cross_entropy(model(IMAGES), LABELS)
        scaler.scale(loss).backward()
        if clip is not None:
            scaler.unscale_(optimiser)
            nn.utils.clip_grad_norm_(model.parameters(), clip)
        scaler.step(optimiser)

    assert heard(train).get("clip") == (None if clip is None else pytest.approx(clip, rel=1e-2))


def test_parameters_without_a_gradient_were_not_trained() -> None:
    """Whether the optimiser holds them or not."""
    model = network()
    for parameter in list(model.parameters())[:-2]:
        parameter.requires_grad_(False)

    frozen = heard(loop(), model=model)
    others = heard(loop(), make=lambda m: torch.optim.SGD(m[6].parameters(), lr=0.1))

    assert frozen["untrained"] == others["untrained"] == [name for name, _ in model.named_parameters()][:-2]
    assert "x-reservations" not in frozen
    assert "untrained" not in heard(loop())


def test_layers_that_are_unfrozen_on_the_way_are_said() -> None:
    def train(model: nn.Module, optimiser: torch.optim.Optimizer) -> None:
        model[0].requires_grad_(False)  # type: ignore[index] # a sequence of layers
        loop(epochs=1)(model, optimiser)
        model[0].requires_grad_(True)  # type: ignore[index] # as above
        loop(epochs=1)(model, optimiser)

    found = heard(train)

    assert "untrained" not in found
    assert found["x-reservations"] == ["Not all steps trained the same parameters."]
