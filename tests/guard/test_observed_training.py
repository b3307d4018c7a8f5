"""What a guard sees of a training is enough to play it again, or it says that it is not."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from fedglass.guard import Guard, GuardReport, Reason
from fedglass.guard.guard import observed_training
from fedglass.guard.outbound import under_model_names
from fedglass.guard.runners import InlineRunner
from fedglass.models.names import names_of, unwrap

HERE: dict[str, Any] = {"runner": InlineRunner(), "budget_seconds": 600.0, "attacks": {}, "false_alarms": 0.0}
Optimiser = Callable[[Any], torch.optim.Optimizer]


def watched(
    toy: Any,
    optimiser: Optimiser,
    model: nn.Module | None = None,
    loss: Callable[[Tensor, Tensor], Tensor] = F.cross_entropy,
    guard: Guard | None = None,
) -> GuardReport:
    """Two epochs over five examples in batches of two, as anybody would write them."""
    guard, net = guard or Guard(**HERE), toy.dense() if model is None else model
    before = {name: t.clone() for name, t in net.state_dict().items()}
    images, labels = toy.images(5, "watched"), torch.arange(5)
    moving = optimiser(net.parameters())
    with guard.watch() as reader:
        for epoch in range(2):
            for rows in torch.randperm(5, generator=torch.Generator().manual_seed(epoch)).split(2):
                moving.zero_grad()
                loss(net(images[rows]), labels[rows]).backward()
                moving.step()
        with torch.no_grad():
            net(images)  # a validation is none of it
    return guard.check_watched(reader, before, after=dict(net.state_dict()))


def scheduled(optimiser: torch.optim.Optimizer) -> torch.optim.Optimizer:
    """A scheduler that is stepped between rounds writes `initial_lr` into the optimiser's options."""
    torch.optim.lr_scheduler.StepLR(optimiser, step_size=10)
    return optimiser


@pytest.mark.parametrize(
    "optimiser",
    [
        lambda p: torch.optim.SGD(p, lr=0.1),
        lambda p: torch.optim.SGD(p, lr=0.1, momentum=0.9, nesterov=True, weight_decay=0.01),
        lambda p: torch.optim.Adam(p, lr=0.01, betas=(0.8, 0.99)),
        lambda p: torch.optim.AdamW(p, lr=0.01),
        lambda p: torch.optim.Adam(p, lr=0.01, weight_decay=0.1, decoupled_weight_decay=True),
        lambda p: scheduled(torch.optim.SGD(p, lr=0.1)),
    ],
    ids=["sgd", "momentum", "adam", "adamw", "adam with decoupled decay", "sgd with a scheduler"],
)
def test_the_replay_of_what_was_seen_is_the_update(toy: Any, optimiser: Optimiser) -> None:
    report = watched(toy, optimiser)
    assert report.sound, report
    assert report.examples == 5
    assert report.examined.residual is not None
    assert report.examined.residual < 1e-3


def test_smoothed_labels_are_seen(toy: Any) -> None:
    smooth = nn.CrossEntropyLoss(label_smoothing=0.1)
    assert watched(toy, lambda p: torch.optim.SGD(p, lr=0.1), loss=smooth).sound


def test_running_statistics_that_leave_are_attacked_too(toy: Any) -> None:
    guard, net = Guard(**{**HERE, "attacks": None, "starts": 1}), toy.normalised()
    before = {name: t.clone() for name, t in net.state_dict().items()}
    moving = sgd(net.parameters())
    with guard.watch() as reader:
        F.cross_entropy(net.train()(toy.images(2, 1)), torch.tensor([0, 1])).backward()
        moving.step()
    report = guard.check_watched(reader, before, after=dict(net.state_dict()))
    assert report.reasons in ((), (Reason.RECOVERED,))
    assert report.examined.attack == "coarse_to_fine_statistics"


def sgd(parameters: Any) -> torch.optim.Optimizer:
    return torch.optim.SGD(parameters, lr=0.1)


@pytest.mark.parametrize(
    ("model", "loss", "optimiser"),
    [
        (lambda: nn.Sequential(nn.Flatten(), nn.Linear(64, 5), nn.Dropout(0.5)), F.cross_entropy, sgd),
        (lambda: None, lambda logits, labels: F.huber_loss(logits, F.one_hot(labels, 5).float()), sgd),
        (lambda: None, lambda logits, labels: 2 * F.cross_entropy(logits, labels), sgd),
        (lambda: None, F.cross_entropy, lambda p: torch.optim.RMSprop(p, lr=0.01)),
        (lambda: None, F.cross_entropy, lambda p: torch.optim.Adam(p, lr=0.01, amsgrad=True)),
    ],
    ids=["dropout", "other loss", "scaled loss", "other optimiser", "amsgrad"],
)
def test_what_can_not_be_played_again_is_refused(toy: Any, model: Any, loss: Any, optimiser: Optimiser) -> None:
    assert watched(toy, optimiser, model(), loss).reasons == (Reason.UNWATCHED,)


def test_layers_that_are_not_trained_are_played_again_as_constants(toy: Any) -> None:
    report = watched(toy, lambda p: torch.optim.SGD(list(p)[:1], lr=0.1))
    assert report.sound, report
    assert report.examined.residual is not None
    assert report.examined.residual < 1e-3


def test_a_message_of_some_layers_is_read_too(toy: Any) -> None:
    """That a bias stays where it is hides no image."""
    guard, net = Guard(**{**HERE, "attacks": None, "starts": 2, "min_examples": 1}), toy.dense()
    before = {name: t.clone() for name, t in net.state_dict().items()}
    moving = sgd([p for name, p in net.named_parameters() if name != next(n for n in before if "bias" in n)])
    with guard.watch() as reader:
        F.cross_entropy(net(toy.images(1, 1)), torch.tensor([0])).backward()
        moving.step()
    report = guard.check_watched(reader, before, after=dict(net.state_dict()))
    assert report.reasons == (Reason.RECOVERED,)


def head_alone(toy: Any, clip: float | dict[str, float] | None = None, **more: Tensor) -> GuardReport:
    """What a guard says of a message with the last layer, and with more, where the last layer alone came."""
    guard, net = Guard(**HERE, clip=clip), toy.dense()
    layers = list(net.state_dict())[-2:]
    before = {name: net.state_dict()[name].clone() for name in layers}
    moving = sgd([p for name, p in net.named_parameters() if name in layers])
    with guard.watch() as reader:
        F.cross_entropy(net(toy.images(2, 1)), torch.tensor([0, 1])).backward()
        moving.step()
    return guard.check_watched(reader, before, after={**{name: net.state_dict()[name] for name in layers}, **more})


def test_a_message_of_the_last_layer_alone_is_checked(toy: Any) -> None:
    report = head_alone(toy)
    assert report.sound, report
    assert report.examined.residual is not None
    assert report.examined.residual < 1e-3


def test_what_does_not_leave_needs_no_bound(toy: Any) -> None:
    weight, bias = list(toy.dense().state_dict())[-2:]
    assert head_alone(toy, clip={weight: 9.0, bias: 9.0}).sound
    assert head_alone(toy, clip={weight: 9.0}).reasons == (Reason.CLIPPING,)


def test_more_than_came_does_not_leave(toy: Any) -> None:
    net = toy.dense()
    rest = {name: tensor for name, tensor in net.state_dict().items() if name not in list(net.state_dict())[-2:]}
    assert head_alone(toy, **rest).reasons == (Reason.STRUCTURE,)
    first = next(iter(rest))
    assert head_alone(toy, **{first: rest[first]}).reasons == (Reason.STRUCTURE,)


def test_what_is_not_trained_and_moves_is_not_explained(toy: Any) -> None:
    guard, net = Guard(**HERE), toy.dense()
    before = {name: t.clone() for name, t in net.state_dict().items()}
    moving = sgd(list(net.parameters())[:1])
    with guard.watch() as reader:
        F.cross_entropy(net(toy.images(2, 1)), torch.tensor([0, 1])).backward()
        moving.step()
    after = dict(net.state_dict())
    last = list(after)[-1]
    report = guard.check_watched(reader, before, after={**after, last: after[last] + 0.01})
    assert report.reasons == (Reason.NOT_EXPLAINED,)


def test_nothing_seen_is_nothing_let_out(toy: Any) -> None:
    guard, net = Guard(**HERE), toy.dense()
    state = dict(net.state_dict())
    assert guard.check_watched(None, state, after=state).reasons == (Reason.UNWATCHED,)
    with guard.watch() as reader:
        pass
    assert guard.check_watched(reader, state, after=state).reasons == (Reason.UNWATCHED,)


def test_an_update_that_was_changed_after_the_training_is_not_explained(toy: Any) -> None:
    guard, net = Guard(**HERE), toy.dense()
    before = {name: t.clone() for name, t in net.state_dict().items()}
    moving = sgd(net.parameters())
    with guard.watch() as reader:
        F.cross_entropy(net(toy.images(2, 1)), torch.tensor([0, 1])).backward()
        moving.step()
    after = {name: t + 0.5 * (t - before[name]) for name, t in net.state_dict().items()}
    assert guard.check_watched(reader, before, after=after).reasons == (Reason.NOT_EXPLAINED,)


@pytest.mark.parametrize("policy", ["block", "log"])
def test_what_came_may_be_anything(toy: Any, policy: Any) -> None:
    guard, net = Guard(policy, **HERE), toy.dense()
    with guard.watch() as reader:
        F.cross_entropy(net(toy.images(2, 1)), torch.tensor([0, 1])).backward()
        sgd(net.parameters()).step()
    state: Any = dict(net.state_dict())
    assert guard.check_watched(reader, dict.fromkeys(state, "text"), after=state).reasons == (Reason.UNWATCHED,)
    assert guard.check_watched(reader, {}, after=state).reasons == (Reason.STRUCTURE,)
    assert guard.check_watched(reader, state).reasons == (Reason.STRUCTURE,)


def test_rows_of_a_table_can_not_be_checked() -> None:
    """Refused for what they are, and not as a fault of the guard."""
    guard, net = Guard(**HERE), nn.Linear(4, 2)
    before = {name: tensor.clone() for name, tensor in net.state_dict().items()}
    with guard.watch() as reader:
        F.cross_entropy(net(torch.rand(2, 4)), torch.tensor([0, 1])).backward()
        sgd(net.parameters()).step()
    assert guard.check_watched(reader, before, after=net.state_dict()).reasons == (Reason.UNWATCHED,)


def test_one_image_under_two_labels_is_two_examples(toy: Any) -> None:
    net, image = toy.dense(), toy.images(1, 1)
    with Guard(**HERE).watch() as reader:
        F.cross_entropy(net(image.expand(2, -1, -1, -1)), torch.tensor([0, 1])).backward()
        sgd(net.parameters()).step()
    _, _, seen = observed_training(reader)
    assert seen["labels"].tolist() == [0, 1]
    assert seen["batches"] == ((0, 1),)


def numbered(state: Mapping[str, Tensor]) -> dict[str, Tensor]:
    return {str(i): tensor for i, tensor in enumerate(state.values())}


def prefixed(prefix: str) -> Callable[[Mapping[str, Tensor]], dict[str, Tensor]]:
    return lambda state: {f"{prefix}{name}": tensor for name, tensor in state.items()}


def without_counters(state: Mapping[str, Tensor]) -> dict[str, Tensor]:
    return {name: tensor for name, tensor in state.items() if "num_batches" not in name}


WAYS: dict[str, Callable[[Mapping[str, Tensor]], dict[str, Tensor]]] = {
    "plain": dict,
    "reversed": lambda state: dict(reversed(state.items())),
    "numbered": numbered,
    "numbered without counters": lambda state: numbered(without_counters(state)),
    "without counters": without_counters,
    "compiled": prefixed("_orig_mod."),
    "parallel": prefixed("module."),
    "parallel and compiled": prefixed("module._orig_mod."),
    "per example": prefixed("_module."),
    "a common prefix": prefixed("net."),
}


@pytest.mark.parametrize("sent_as", WAYS.values(), ids=WAYS)
def test_guard_and_bundle_understand_the_same_names(toy: Any, sent_as: Any) -> None:
    net = toy.normalised()
    state = net.state_dict()
    arrays = sent_as(state)
    own = under_model_names(arrays, net)
    assert own is not None
    assert list(own) == [name for name in state if name in own]
    assert all(own[name] is state[name] for name in own)
    assert {**own, **without_counters(state)} == own
    of_bundle = names_of([(name, tuple(tensor.shape)) for name, tensor in arrays.items()], net, "a bundle")
    assert of_bundle.applied(arrays) == own


@pytest.mark.parametrize("sent_as", WAYS.values(), ids=WAYS)
def test_a_message_is_checked_under_whichever_names_it_leaves(toy: Any, sent_as: Any) -> None:
    guard, net = Guard(**HERE), toy.normalised()
    before = {name: tensor.clone() for name, tensor in net.state_dict().items()}
    moving = sgd(net.parameters())
    with guard.watch() as reader:
        F.cross_entropy(net.train()(toy.images(3, 1)), torch.arange(3)).backward()
        moving.step()
    report = guard.check_watched(reader, sent_as(before), after=sent_as(net.state_dict()))
    assert report.sound, report


def test_arrays_of_another_model_are_refused() -> None:
    net = nn.Linear(2, 1)
    state = net.state_dict()
    one = torch.zeros(1, 2)
    assert under_model_names({**state, "more": one}, net) is None
    assert under_model_names({"weight": one, "_orig_mod.weight": one}, net) is None
    assert under_model_names({"weight": one}, net) is None
    assert under_model_names({"weight": one}, net, untrained=["bias"]) == {"weight": one}
    assert under_model_names({"0": one}, net, untrained=["bias"]) == {"weight": one}


def test_some_running_statistics_alone_are_refused(toy: Any) -> None:
    net = toy.normalised()
    state = net.state_dict()
    assert under_model_names({name: t for name, t in state.items() if not name.endswith("running_var")}, net) is None
    parameters = {name: state[name] for name, _ in net.named_parameters()}
    assert under_model_names(parameters, net) == parameters


class _Network(nn.Module):
    """A network of one's own with a part called `module`."""

    def __init__(self) -> None:
        super().__init__()
        self.module = nn.Linear(1, 1)


def wrapped(net: nn.Module, package: str, attribute: str) -> nn.Module:
    """A wrapper as torch.compile and Opacus have them, which need not be installed or loaded for this."""
    wrapper: nn.Module = type("Wrapper", (nn.Module,), {"__module__": package})()
    setattr(wrapper, attribute, net)
    return wrapper


def test_wrappers_are_taken_off() -> None:
    net = nn.Linear(2, 1)
    assert unwrap(nn.DataParallel(net)) is net
    assert unwrap(nn.DataParallel(wrapped(net, "torch._dynamo.eval_frame", "_orig_mod"))) is net
    assert unwrap(wrapped(nn.DataParallel(net), "opacus.grad_sample", "_module")) is net
    own = _Network()
    assert unwrap(own) is own
