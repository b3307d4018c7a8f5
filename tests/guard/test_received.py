"""Crafted models are refused before they are trained, and honest ones are not."""

from __future__ import annotations

import copy
import logging
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from fedglass.attack.malicious_server import Fishing, Imprint, PublicSample, TrapWeights, imprint_rows
from fedglass.core import thresholds
from fedglass.core.types import Training
from fedglass.guard import REFUSED, Guard, Reason
from fedglass.guard.received import ReceivedRequest, predicts, signs, told_apart
from fedglass.guard.report import GuardMemory, ReceivedReport
from fedglass.guard.runners import InlineRunner

RECEIVED = (
    *(Reason.STRUCTURE, Reason.NOT_FINITE, Reason.ADDED_LAYERS, Reason.PARALLEL_ROWS, Reason.LONE_UNITS),
    *(Reason.CLASS_ROW, Reason.UNEXPLAINED_CHANGE, Reason.OUT_OF_TIME, Reason.FAULT),
)
PAGE = Path(__file__).parents[2] / "docs" / "received-models.md"
CRAFTED = [
    (Imprint(32), Reason.PARALLEL_ROWS),
    (TrapWeights(0.05, 64), Reason.LONE_UNITS),
    (Fishing(1), Reason.CLASS_ROW),
]


def check_received(
    received: Any, policy: Any, memory: GuardMemory, model: Any = None, inputs: Any = None, labels: Any = None
) -> ReceivedReport:
    return ReceivedRequest(received, policy, memory, model, inputs, labels).report()


@pytest.fixture
def model(toy: Any) -> nn.Module:
    layers = nn.Flatten(), nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 32), nn.ReLU(), nn.Linear(32, 5)
    found: nn.Module = nn.Sequential(*layers)
    with torch.random.fork_rng():
        torch.manual_seed(0)
        for layer in layers:
            if isinstance(layer, nn.Linear):
                layer.reset_parameters()
    return found


@pytest.fixture
def public(toy: Any) -> PublicSample:
    return PublicSample(toy.images(200, "public"), toy.federation(Training(0.1)).whitening)


@pytest.fixture
def inputs(toy: Any, public: PublicSample) -> Tensor:
    found: Tensor = public.whitening.whiten(toy.images(64, "own"))
    return found


def trained(model: nn.Module, inputs: Tensor, labels: Tensor, steps: int = 20) -> nn.Module:
    model = copy.deepcopy(model)
    rule = torch.optim.SGD(model.parameters(), lr=0.1)
    for step in range(steps):
        rows = torch.arange(8) + 8 * (step % 8)
        rule.zero_grad()
        F.cross_entropy(model(inputs[rows]), labels[rows]).backward()
        rule.step()
    return model


def reasons(model: nn.Module, inputs: Tensor | None = None, memory: GuardMemory | None = None) -> Any:
    state = {name: tensor.detach() for name, tensor in model.state_dict().items()}
    network = None if inputs is None else model
    return check_received(state, "block", memory or GuardMemory(), network, inputs).reasons


def test_honest_models_have_no_reason_against_them(model: nn.Module, inputs: Tensor) -> None:
    assert reasons(model, inputs) == ()
    later = trained(model, inputs, torch.arange(64) % 5)
    assert reasons(later, inputs) == ()
    moved = {name: later.state_dict()[name] - tensor for name, tensor in model.state_dict().items()}
    assert reasons(later, inputs, GuardMemory(accepted=model.state_dict(), moved=moved)) == ()


@pytest.mark.parametrize(("part", "reason"), CRAFTED)
def test_each_crafted_model_is_refused_for_its_own_sign(
    part: Any, reason: Reason, model: nn.Module, public: PublicSample, inputs: Tensor
) -> None:
    crafted = part.craft(model, public)
    assert reasons(crafted, inputs) == (reason,)
    moved = {name: torch.full_like(tensor, 1e-3) for name, tensor in model.state_dict().items()}
    memory = GuardMemory(accepted=model.state_dict(), moved=moved)
    assert set(reasons(crafted, inputs, memory)) == {reason, Reason.UNEXPLAINED_CHANGE}


@pytest.mark.parametrize(("part", "reason"), CRAFTED[:2])
def test_order_and_length_of_rows_play_no_part(
    part: Any, reason: Reason, model: nn.Module, public: PublicSample, inputs: Tensor
) -> None:
    crafted = part.craft(model, public)
    first, draws = crafted[1], torch.Generator().manual_seed(1)
    order = torch.randperm(64, generator=draws)
    lengths = 0.1 + torch.rand(64, 1, generator=draws)
    with torch.no_grad():
        first.weight.copy_(first.weight[order] * lengths)
        first.bias.copy_(first.bias[order] * lengths[:, 0])
    assert reason in reasons(crafted, inputs)


def test_the_order_of_the_message_hides_nothing(model: nn.Module, public: PublicSample, inputs: Tensor) -> None:
    crafted = Imprint(32).craft(model, public)
    backwards = dict(reversed(list(crafted.state_dict().items())))
    assert check_received(backwards, "block", GuardMemory(), crafted, inputs).reasons == (Reason.PARALLEL_ROWS,)


def test_global_random_numbers_and_the_model_stay_as_they_are(model: nn.Module, inputs: Tensor) -> None:
    state, weights = torch.random.get_rng_state(), {n: t.clone() for n, t in model.state_dict().items()}
    assert reasons(model.double(), inputs) == (), "other types than single precision are read too"
    assert torch.equal(state, torch.random.get_rng_state())
    assert all(torch.equal(weights[n], t.float()) for n, t in model.state_dict().items())


def test_a_first_model_that_predicts_may_have_lone_units_behind_its_first_layer(
    model: nn.Module, public: PublicSample, inputs: Tensor
) -> None:
    crafted = TrapWeights().craft(model, public)
    with torch.no_grad():
        for layer in list(crafted.children())[2:]:
            for tensor in layer.parameters():
                tensor.normal_(generator=torch.Generator().manual_seed(0)).mul_(tensor.ndim - 1)  # without biases
        classes = crafted(inputs).argmax(-1)
    assert len(classes.unique()) > 1
    same = nn.Linear(64, 64)
    same.load_state_dict({"weight": torch.eye(64), "bias": torch.zeros(64)})
    flat, *layers = crafted.children()
    behind = nn.Sequential(flat, same, *layers)

    def of(network: nn.Module, labels: Tensor, memory: GuardMemory | None = None) -> Any:
        return check_received(network.state_dict(), "block", memory or GuardMemory(), network, inputs, labels).reasons

    assert of(behind, classes) == ()
    assert of(behind, classes[torch.randperm(len(classes), generator=torch.Generator().manual_seed(0))]) != ()
    assert of(crafted, classes) == (Reason.LONE_UNITS,), "this layer sees whole examples"
    moved = {name: torch.full_like(tensor, 1e-3) for name, tensor in behind.state_dict().items()}
    later = of(behind, classes, GuardMemory(accepted=behind.state_dict(), moved=moved))
    assert later == (), "trained networks have no more of them than in the round before"
    fresh = nn.Sequential(flat, same, *list(model.children())[1:]).state_dict()
    assert Reason.LONE_UNITS in of(behind, classes, GuardMemory(accepted=fresh, moved=moved))


def test_trap_weights_in_a_part_of_the_first_layer_are_seen(
    model: nn.Module, public: PublicSample, inputs: Tensor
) -> None:
    """The other units predict as well as before."""
    trained_model = trained(model, inputs, torch.arange(64) % 5, 400)
    with torch.no_grad():
        crafted = TrapWeights(0.05).craft(model, public)
        trained_model[1].weight[:48] = crafted[1].weight[:48]
        trained_model[1].bias[:48] = crafted[1].bias[:48]
        trained_model[3].weight[:, :48] *= 0.01
        classes = trained_model(inputs).argmax(-1)
    state = trained_model.state_dict()
    report = check_received(state, "block", GuardMemory(), trained_model, inputs, classes)
    assert predicts(trained_model, state, inputs, classes)
    assert report.reasons == (Reason.LONE_UNITS,)


def test_few_trap_weights_show_in_all_examples_together(model: nn.Module, public: PublicSample, inputs: Tensor) -> None:
    """Hardly one of them is lone in any batch, but each fires rarely."""
    crafted, labels = copy.deepcopy(model), torch.arange(64) % 5
    traps = TrapWeights(0.05).craft(model, public)
    with torch.no_grad():
        crafted[1].weight[:16] = traps[1].weight[:16]
        crafted[1].bias[:16] = traps[1].bias[:16]
    report = check_received(crafted.state_dict(), "block", GuardMemory(), crafted, inputs, labels)
    assert report.reasons == (Reason.LONE_UNITS,)
    assert report.figures.lone_units is not None
    assert report.figures.lone_units < thresholds.LONE_UNITS
    assert report.figures.rare_units is not None
    assert report.figures.rare_units > thresholds.RARE_UNITS
    memory = GuardMemory(accepted=crafted.state_dict(), moved={})
    assert check_received(crafted.state_dict(), "block", memory, crafted, inputs, labels).reasons == ()


def test_parallel_rows_that_tell_no_examples_apart_are_no_sign(
    model: nn.Module, public: PublicSample, inputs: Tensor
) -> None:
    """A server's optimiser makes rows of a layer behind others parallel to its mean input."""
    with torch.no_grad():
        features = model[:3](inputs)
    direction = features.mean(0) / features.mean(0).norm()
    alike, imprint = copy.deepcopy(model), copy.deepcopy(model)
    weight, bias = imprint_rows(direction, features @ direction, 32)
    signs_of_rows = torch.tensor([1.0, -1.0]).repeat(16)
    with torch.no_grad():
        alike[3].weight.copy_(0.1 * signs_of_rows[:, None] * direction)
        alike[3].bias.copy_(0.01 * signs_of_rows)
        imprint[3].weight.copy_(weight)
        imprint[3].bias.copy_(bias)
    assert reasons(alike) == (Reason.PARALLEL_ROWS,), "tensors alone do not tell"
    assert reasons(alike, inputs) == ()
    assert Reason.PARALLEL_ROWS in reasons(imprint, inputs)
    with torch.no_grad():
        for part in imprint[3].parameters():  # half of the units fire for the others
            part.mul_(signs_of_rows.view(-1, *[1] * (part.ndim - 1)))
    assert Reason.PARALLEL_ROWS in reasons(imprint, inputs)
    with torch.no_grad():
        alike[1].weight.copy_(inputs.flatten(1).mean(0).expand(64, -1))
        alike[1].bias.zero_()
    assert Reason.PARALLEL_ROWS in reasons(alike, inputs), "the first layer sees whole examples"


def test_parallel_rows_like_those_of_the_own_update_are_left_to_the_check_with_the_network(
    model: nn.Module, public: PublicSample, inputs: Tensor
) -> None:
    crafted = Imprint(32).craft(model, public)
    memory = GuardMemory(accepted=crafted.state_dict(), moved={n: t * 0 + 1 for n, t in model.state_dict().items()})
    other = {n: torch.randn(t.shape, generator=torch.Generator().manual_seed(0)) for n, t in model.state_dict().items()}
    first, later, unlike = Guard(), Guard(memory=memory), Guard(memory=replace(memory, moved=other))
    assert not first.check_received(crafted.state_dict(), preliminary=True).allowed, "no round before"
    assert not later.check_received(crafted.state_dict()).allowed
    assert not unlike.check_received(crafted.state_dict(), preliminary=True).allowed
    assert later.check_received(crafted.state_dict(), preliminary=True).allowed
    assert Reason.PARALLEL_ROWS in reasons(crafted, inputs, memory), "before anything leaves"


def test_units_that_one_example_tells_apart_are_counted_once_for_each() -> None:
    weight = torch.tensor([[1.0, 0.0], [2.0, 0.1], [-1.0, 0.0], [0.0, 1.0]])
    fires = torch.zeros(8, 4, dtype=torch.bool)
    fires[3, 0] = True  # the first two differ by this example; the third fires for all but the examples of the first
    fires[:, 2] = ~fires[:, 0]
    fires[5, 3] = True  # parallel to none
    assert told_apart(weight, fires) == 1 / 8
    fires[:, 1] = fires[:, 0]
    assert told_apart(weight, fires) == 0
    fires[6, 2] = ~fires[6, 2]
    assert told_apart(weight, fires) == 1 / 8


def test_a_frozen_layer_must_not_move(model: nn.Module, public: PublicSample) -> None:
    before = model.state_dict()
    moved = {
        name: 0.1 * tensor if name.startswith("5") else torch.zeros_like(tensor) for name, tensor in before.items()
    }
    memory = GuardMemory(accepted=before, moved=moved)
    assert reasons(model, memory=memory) == ()
    assert Reason.UNEXPLAINED_CHANGE in reasons(TrapWeights().craft(model, public), memory=memory)


@pytest.mark.parametrize("server", ["mean", "adam"])
def test_large_clients_and_a_servers_optimiser_are_no_reason(server: str, model: nn.Module, inputs: Tensor) -> None:
    """One of 51 parts of the examples is the client's own; or the server takes a step of FedAdam with large eta."""
    labels, received = torch.arange(64) % 5, [{n: t.clone() for n, t in model.state_dict().items()}]
    first, second = ({n: torch.zeros_like(t) for n, t in received[0].items()} for _ in range(2))
    largest = []
    for _ in range(6):
        came = copy.deepcopy(model)
        came.load_state_dict(received[-1])
        own, large = trained(came, inputs[:8].repeat(8, 1, 1, 1), labels, 1), trained(came, inputs, labels, 50)
        others = large if server == "mean" else own
        moved = {n: t - received[-1][n] for n, t in own.state_dict().items()}
        mean = {n: (t + 50 * others.state_dict()[n]) / 51 - received[-1][n] for n, t in own.state_dict().items()}
        if server == "adam":
            first = {n: 0.9 * first[n] + 0.1 * t for n, t in mean.items()}
            second = {n: 0.99 * second[n] + 0.01 * t.square() for n, t in mean.items()}
            mean = {n: 0.1 * first[n] / (second[n].sqrt() + 1e-3) for n in mean}
        memory = GuardMemory(accepted=received[-1], moved=moved)
        received.append({n: t + mean[n] for n, t in received[-1].items()})
        assert check_received(received[-1], "block", memory).reasons == ()
        largest.append(max(float(mean[n].norm() / moved[n].norm()) for n in mean))
    assert max(largest) > thresholds.UNEXPLAINED_CHANGE, "its own update alone does not explain the step"


def test_a_round_without_an_own_update_is_no_measure(model: nn.Module) -> None:
    still = {name: torch.zeros_like(tensor) for name, tensor in model.state_dict().items()}
    assert signs(model.state_dict(), GuardMemory(accepted=model.state_dict(), moved=still)).unexplained_change is None


def test_added_layers_are_seen_once_a_model_was_accepted(toy: Any, public: PublicSample) -> None:
    plain = toy.dense()
    memory = GuardMemory(accepted=plain.state_dict(), moved={n: t * 0 + 0.1 for n, t in plain.state_dict().items()})
    assert Reason.ADDED_LAYERS in reasons(TrapWeights(0.05, 64).craft(plain, public), memory=memory)
    assert reasons(plain, memory=memory) == ()
    fewer = {name: tensor for name, tensor in plain.state_dict().items() if "bias" not in name}
    assert check_received(fewer, "block", memory).reasons == ()


def test_what_is_no_model_is_refused(model: nn.Module) -> None:
    state: dict[str, Any] = dict(model.state_dict())
    assert check_received({}, "block", GuardMemory()).reasons == (Reason.STRUCTURE,)
    assert check_received({**state, "x": "code"}, "block", GuardMemory()).reasons == (Reason.STRUCTURE,)
    broken = {**state, "1.bias": torch.full((64,), torch.nan)}
    assert check_received(broken, "block", GuardMemory()).reasons == (Reason.NOT_FINITE,)


def test_it_fails_closed(model: nn.Module, caplog: pytest.LogCaptureFixture) -> None:
    report = check_received(model.state_dict(), "block", GuardMemory(), model, torch.zeros(8, 3))
    assert report.reasons == (Reason.FAULT,)
    assert (report.allowed, report.answer) == (False, REFUSED)
    assert report.fault
    assert "shapes" not in caplog.text


@pytest.mark.parametrize(("policy", "allowed", "level"), [("warn", True, "WARNING"), ("log", True, "INFO")])
def test_policies_that_do_not_block_log_the_reasons(
    policy: Any, allowed: bool, level: str, model: nn.Module, public: PublicSample, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, logger="fedglass.guard")
    report = Guard(policy=policy).check_received(Imprint().craft(model, public).state_dict())
    assert (report.allowed, report.answer) == (allowed, "")
    assert report.as_json()["reasons"] == ["parallel rows"]
    assert [(entry.levelname, entry.getMessage()) for entry in caplog.records] == [
        (level, "accepted a received model: ['parallel rows']")
    ]
    assert Guard(distrust_server=False).check_received({}).sound


def checked(guard: Guard, model: nn.Module, inputs: Tensor) -> tuple[Reason, ...]:
    labels, before = torch.arange(len(inputs)) % 5, {n: t.clone() for n, t in model.state_dict().items()}
    with guard.watch() as reader:
        rule = torch.optim.SGD(model.parameters(), lr=0.1)
        F.cross_entropy(model(inputs), labels).backward()
        rule.step()
    return guard.check_watched(reader, before, after=model.state_dict()).reasons


def test_an_update_to_a_crafted_model_does_not_leave(model: nn.Module, public: PublicSample, inputs: Tensor) -> None:
    images, whitening = inputs[:16], public.whitening
    guard = Guard(runner=InlineRunner(), budget_seconds=600, false_alarms=0, attacks={}, whitening=whitening)
    assert checked(guard, model, images) == ()
    accepted = guard.memory.accepted
    assert accepted is not None
    assert Reason.RECEIVED in checked(guard, TrapWeights().craft(model, public), images)
    assert guard.memory.accepted is accepted, "a crafted model is never the measure of the next one"


def test_figures_are_none_where_they_cannot_be_computed(model: nn.Module, inputs: Tensor) -> None:
    assert signs(model.state_dict(), GuardMemory()).lone_units is None
    assert signs(model.state_dict(), GuardMemory()).rare_units is None
    assert signs(model.state_dict(), GuardMemory(), model, inputs[:7]).lone_units is None
    assert signs(model.state_dict(), GuardMemory()).unexplained_change is None


def test_the_example_of_the_page_runs(capsys: pytest.CaptureFixture[str]) -> None:
    (program,) = re.findall(r"^```python\n(.*?)^```", PAGE.read_text(encoding="utf-8"), flags=re.DOTALL | re.MULTILINE)
    program = program.replace('policy="block"', 'policy="block", budget_seconds=3600')  # on a busy machine too
    exec(compile(program, PAGE.name, "exec"), {"__name__": "page"})
    assert capsys.readouterr().out.splitlines() == re.findall(r"print.*  # (.*)$", program, flags=re.MULTILINE)


def test_the_page_names_every_reason_and_threshold() -> None:
    page = PAGE.read_text(encoding="utf-8")
    for reason in RECEIVED:
        assert f"`{reason.value}`" in page
    names = ("PARALLEL_ROWS", "TOLD_APART", "LONE_UNITS", "RARE_UNITS", "CLASS_ROW", "CLASS_BIAS", "UNEXPLAINED_CHANGE")
    assert all(f"{getattr(thresholds, name):g}" in page for name in names)
