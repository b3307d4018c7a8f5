"""The guard lets out what it can clear and nothing else, and says the same fixed sentence of all that it refuses."""

from __future__ import annotations

import importlib
import json
import logging
import re
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from fedglass.attack.labels.given import OracleLabels
from fedglass.audit.play import OutOfTime
from fedglass.core.errors import DataError, UsageError
from fedglass.core.rng import stream
from fedglass.core.types import Training, Whitening
from fedglass.data.catalogue import photos
from fedglass.defend.dpsgd import DPSGD
from fedglass.defend.noise import GaussianNoise
from fedglass.fl.local import schedule, train
from fedglass.fl.release import Outgoing
from fedglass.guard import REFUSED, Guard, GuardRefusal, GuardReport, Reason, checks
from fedglass.guard.checks import EXACT, shown_images
from fedglass.guard.outbound import Outbound, Protected
from fedglass.guard.runners import InlineRunner, SubprocessRunner
from fedglass.models.catalogue import build
from fedglass.models.init import Uniform
from fedglass.models.network import Network
from fedglass.recipes import recipe
from fedglass.verdict.gate import Gate
from fedglass.verdict.images import ImageScores

HERE: dict[str, Any] = {"runner": InlineRunner(), "budget_seconds": 600.0, "starts": 1, "min_examples": 1}
"""No process and no clock: a busy machine must not fail a law."""
STEP = Training(lr=0.1)
CLIP, MULTIPLIER = 0.5, 1.0


class Scaled(nn.Module):
    """A dense network with a parameter that has no axis, as frameworks were seen to forget."""

    def __init__(self) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.tensor(1.5))
        self.body = nn.Sequential(nn.Flatten(), nn.Linear(64, 32), nn.Sigmoid(), nn.Linear(32, 5))

    def forward(self, inputs: Tensor) -> Tensor:
        out: Tensor = self.scale * self.body(inputs)
        return out


class World:
    """One client, its examples and what it would send."""

    def __init__(self, toy: Any, examples: int = 2, training: Training = STEP, seed: int = 0) -> None:
        self.model = toy.seeded(Scaled())
        self.before = {name: t.detach().clone() for name, t in self.model.named_parameters()}
        self.inputs, self.training = toy.images(examples, seed), training
        self.labels = torch.arange(examples) % 5
        self.batches = [list(range(examples))[s] for s in training.batches(examples)] * training.epochs

    def trained(self, gradient: Any = None, noise: torch.Generator | None = None) -> dict[str, Tensor]:
        network = Network(self.model, {}, self.training.batch_norm)
        batches = schedule(self.training, len(self.labels), None)
        start = [self.before[name] for name in network.names]
        after = train(network, start, self.inputs, self.labels, batches, self.training, gradient, noise)
        return dict(zip(network.names, after, strict=True))

    def released(self, protected: Protected, seed: int = 1) -> dict[str, Tensor]:
        update = {name: t - self.before[name] for name, t in self.trained().items()}
        sent = protected.protection.release.release(Outgoing(update, stream(seed, "release")))
        return {name: self.before[name] + t for name, t in sent.items()}

    def report(self, guard: Guard, after: dict[str, Any], **told: Any) -> GuardReport:
        facts: dict[str, Any] = {"batches": self.batches, "others": None, **told}
        given = {"examples": self.inputs, "labels": self.labels, "training": self.training, **facts}
        return guard.check(self.model, self.before, after=after, **given)


@pytest.fixture
def world(toy: Any) -> World:
    return World(toy)


def test_reports_are_lines_of_the_clients_log(world: World, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    guard = Guard(**HERE, attacks={}, log=tmp_path / "own" / "guard.jsonl")
    with caplog.at_level(logging.INFO, "fedglass.guard"):
        assert world.report(guard, world.trained()).allowed
        guard.refused(Reason.UNWATCHED)
        Guard(log=tmp_path / "own").refused(Reason.FAULT)  # a folder
    assert [record.getMessage() for record in caplog.records if "level" not in record.getMessage()] == [
        "allowed",
        "refused: ['unwatched']",
        "refused: ['fault']",
        "the guard's log cannot be written: check Guard.log",
    ]
    lines = [json.loads(line) for line in (tmp_path / "own" / "guard.jsonl").read_text().splitlines()]
    assert [(line["update"], line["allowed"], line["reasons"]) for line in lines] == [
        (1, True, []),
        (2, False, ["unwatched"]),
    ]


def test_the_noise_of_a_fixed_divisor(toy: Any) -> None:
    """Opacus divides every sum by the expected size of a batch."""
    world, rule = World(toy, 4), DPSGD(clip=0.5, noise_multiplier=20.0, expected_batch_size=2.0)
    after = world.trained(rule, stream(1, "noise"))
    assert world.report(Guard(dpsgd=rule, attacks={}, **HERE), after).allowed
    other = replace(rule, expected_batch_size=None)
    assert world.report(Guard(dpsgd=other, attacks={}, **HERE), after).reasons == (Reason.NOISE,)


@pytest.mark.parametrize(("multiplier", "reasons"), [(1e-4, (Reason.OUT_OF_TIME,)), (2.0, ())])
def test_a_short_search_suffices_only_behind_noise_that_hides(
    world: World, monkeypatch: pytest.MonkeyPatch, multiplier: float, reasons: tuple[Reason, ...]
) -> None:
    runs = iter([None])

    def once(*given: object) -> None:
        if next(runs, "over") == "over":
            raise OutOfTime

    monkeypatch.setattr(checks, "one_run", once)
    monkeypatch.setattr(checks, "EXACT", ())
    monkeypatch.setattr(checks, "is_far", lambda *given: False)
    guard = Guard(clip=CLIP, noise_multiplier=multiplier, **HERE)
    assert world.report(guard, world.released(guard.protected)).reasons == reasons


def test_exact_methods_have_the_time_that_they_need() -> None:
    """Of four photographs behind convolutions, no search comes near to any in the time of a guard."""
    chosen, plain = photos().resized(32).subset(range(4)), Whitening((0.5,) * 3, (0.25,) * 3)
    model = build("lenet", shape=(3, 32, 32), classes=10, init=Uniform())
    inputs, labels = plain.whiten(chosen.images), chosen.labels % 10
    F.cross_entropy(model(inputs), labels).backward()
    before = {name: w.detach().clone() for name, w in model.named_parameters()}
    update = {name: -0.1 * w.grad for name, w in model.named_parameters() if w.grad is not None}
    found = Guard(**HERE).check(
        model, before, update=update, examples=inputs, labels=labels, training=STEP, batches=[range(4)]
    )
    assert found.reasons == (Reason.RECOVERED,)
    assert found.examined.attack == "dense_features"


def test_an_attack_that_reads_the_update_stops_it(world: World) -> None:
    searches = {"search": recipe("inverting_gradients", labels=OracleLabels())}
    report = world.report(Guard(attacks=searches, **HERE), world.trained())
    assert report.reasons == (Reason.RECOVERED,)
    assert report.examined.shown
    assert report.examined.shown <= (report.examples or 0)
    exact = report.examined.attack in EXACT
    assert report.examined.oracle is not exact, "a search was told the labels"
    assert (report.examined.residual is None) is exact, "what an exact attack settles is not replayed"
    with pytest.raises(GuardRefusal, match=f"^{re.escape(REFUSED)}$"):
        report.enforce()


def test_an_image_that_is_shown_in_several_ways_counts_once() -> None:
    scores = ImageScores({"psnr": [30.0, 19.0, 5.0]})
    assert (Gate().hits(scores), Gate().partly(scores)) == ([True, False, False], [False, True, False])
    assert shown_images(scores, [False, False, False], Gate()) == 2
    assert shown_images(scores, [True, True, False], Gate()) == 2
    assert shown_images(scores, [True, True, True], Gate()) == 3


def test_an_image_that_is_hardly_better_than_a_guess_is_not_shown() -> None:
    """Of a picture of low contrast, any guess comes near."""
    for guess, shown in ((18.0, 0), (17.0, 1)):
        scores = ImageScores({"psnr": [18.7]}, blind={"psnr": [guess]})
        assert Gate().partly(scores) == [True]
        assert shown_images(scores, [False], Gate()) == shown


def test_an_exact_attack_reads_what_a_dense_layer_holds(toy: Any) -> None:
    """Several steps on one image: the first dense layer's update is a multiple of it."""
    world = World(toy, 1, Training(lr=0.1, epochs=3))
    report = world.report(Guard(**HERE), world.trained())
    assert report.reasons == (Reason.RECOVERED,)
    assert report.examined.attack == "division"
    assert report.examined.best == pytest.approx(100, abs=60)
    assert not report.examined.oracle


def test_a_message_without_noise_singles_its_examples_out(world: World) -> None:
    report = world.report(Guard(level="singling_out", attacks={}, **HERE), world.trained())
    assert report.reasons == (Reason.SINGLED_OUT,), report.examined.fault
    assert (report.examined.singled_out, report.examined.candidates) == (2, 1000)
    assert world.report(Guard(attacks={}, **HERE), world.trained()).sound


def test_strong_noise_singles_nothing_out(world: World) -> None:
    guard = Guard(level="singling_out", attacks={}, clip=CLIP, noise_multiplier=10.0, **HERE)
    report = world.report(guard, world.released(guard.protected))
    assert report.sound, report
    assert report.examined.singled_out == 0


def test_a_game_that_decides_nothing_is_a_reason(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(checks, "FOR_RANK", 30)
    guard = Guard(level="singling_out", attacks={}, **HERE)
    assert world.report(guard, world.trained()).reasons == (Reason.UNDECIDED,)
    monkeypatch.setattr(checks, "FOR_RANK", 3)
    assert world.report(guard, world.trained()).reasons == (Reason.UNDECIDED,)


@pytest.mark.parametrize(("share", "level"), [(0, "reconstruction"), (0.05, "singling_out"), (0.5, "singling_out")])
def test_the_older_setting_of_the_level_keeps_working(share: float, level: str) -> None:
    assert Guard(false_alarms=share).level == level


def test_a_search_that_comes_near_to_no_image_ends_early(world: World) -> None:
    guard = Guard(clip=CLIP, noise_multiplier=10.0, **{**HERE, "starts": 3})
    report = world.report(guard, world.released(guard.protected))
    assert report.sound
    assert (report.examined.starts, report.examined.shown) == (0, 0)


@pytest.mark.parametrize("level", ["reconstruction", "singling_out"])
def test_the_first_line_of_the_log_says_what_the_level_asks(
    world: World, level: Any, caplog: pytest.LogCaptureFixture
) -> None:
    guard = Guard(level=level, attacks={}, **HERE)
    with caplog.at_level(logging.INFO, logger="fedglass.guard"):
        for _ in range(2):
            guard.refused(Reason.STRUCTURE)
    assert [level in record.getMessage() for record in caplog.records] == [True, False, False]
    assert ("earlier versions" in caplog.text) is (level == "reconstruction")


def test_strong_noise_is_let_out_and_verified(world: World) -> None:
    guard = Guard(clip=CLIP, noise_multiplier=MULTIPLIER, **HERE)
    report = world.report(guard, world.released(guard.protected))
    assert report.sound, report
    assert report.examined.escaped == ()
    assert report.answer == ""


def test_noise_inside_of_steps_is_let_out_and_verified(toy: Any) -> None:
    world, rule = World(toy, 4, Training(lr=0.1, epochs=3, batch_size=2)), DPSGD(clip=0.5, noise_multiplier=20.0)
    guard = Guard(dpsgd=rule, **HERE)
    assert world.report(guard, world.trained(rule, stream(3, "noise"))).sound
    weak = DPSGD(clip=0.5, noise_multiplier=5.0)
    assert world.report(guard, world.trained(weak, stream(3, "noise"))).reasons == (Reason.NOISE,)


@pytest.mark.parametrize("share", [0.0, 0.5])
def test_too_little_noise_is_told(world: World, share: float) -> None:
    guard = Guard(clip=CLIP, noise_multiplier=MULTIPLIER, **HERE)
    report = world.report(guard, world.released(Protected(CLIP, share * MULTIPLIER)))
    assert report.reasons == (Reason.NOISE,)


@pytest.mark.parametrize("clipped", [True, False])
def test_a_tensor_without_an_axis_that_escapes_the_noise_is_told(world: World, clipped: bool) -> None:
    guard = Guard(clip=CLIP, noise_multiplier=MULTIPLIER, **HERE)
    clean = world.released(Protected(CLIP)) if clipped else world.trained()
    after = {**world.released(guard.protected), "scale": clean["scale"]}
    report = world.report(guard, after)
    assert report.reasons == (Reason.NOISE,)
    assert "scale" in report.examined.escaped[0].split(" + "), "small tensors are tested together"


def test_noise_without_its_clipping_is_told(toy: Any) -> None:
    world = World(toy, training=Training(lr=5.0))
    update = {name: t - world.before[name] for name, t in world.trained().items()}
    noise = GaussianNoise(0.1 * MULTIPLIER).release(Outgoing(update, stream(2, "release")))
    guard = Guard(clip=0.1, noise_multiplier=MULTIPLIER, **HERE)
    assert float(torch.cat([t.flatten() for t in update.values()]).norm()) > 10 * 0.1
    after = {name: world.before[name] + t for name, t in noise.items()}
    assert world.report(guard, after).reasons == (Reason.NOISE,)


def test_clipping_counts_tensors_without_an_axis(world: World) -> None:
    after = world.released(Protected(CLIP))
    guard = Guard(clip=CLIP, attacks={}, false_alarms=0, **HERE)
    assert world.report(guard, after).sound
    assert world.report(guard, {**after, "scale": after["scale"] + 7}).reasons == (Reason.CLIPPING,)


def test_clipping_of_each_tensor_leaves_none_without_a_bound(world: World) -> None:
    bounds = dict.fromkeys(world.before, 0.1)
    guard = Guard(clip=bounds, attacks={}, false_alarms=0, **HERE)
    assert world.report(guard, world.released(Protected(bounds))).sound
    assert world.report(guard, world.trained()).reasons == (Reason.CLIPPING,)
    some = {name: bound for name, bound in bounds.items() if name != "scale"}
    lacking = Guard(clip=some, attacks={}, false_alarms=0, **HERE)
    assert world.report(lacking, world.released(Protected(bounds))).reasons == (Reason.CLIPPING,)


def test_what_the_declared_examples_do_not_explain_is_refused(toy: Any, world: World) -> None:
    other = World(toy, seed=5).trained()
    assert world.report(Guard(**HERE), other).reasons == (Reason.NOT_EXPLAINED,)


@pytest.mark.parametrize(
    "spoil",
    [
        lambda after: {**after, "extra": torch.zeros(3)},
        lambda after: {name: t for name, t in after.items() if name != "scale"},
        lambda after: {**after, "scale": after["scale"].double()},
        lambda after: {**after, "scale": after["scale"].view(1)},
        lambda after: {**after, "scale": "a text"},
        lambda after: dict(reversed(after.items())),
        lambda after: {**after, "body.1.weight": after["body.1.weight"].to_sparse()},
    ],
    ids=["one more", "one less", "type", "shape", "no tensor", "order", "sparse"],
)
@pytest.mark.parametrize("policy", ["block", "log"])
def test_nothing_but_the_models_tensors_leaves(world: World, spoil: Any, policy: Any) -> None:
    assert world.report(Guard(policy, **HERE), spoil(world.trained())).reasons == (Reason.STRUCTURE,)


def test_inputs_of_any_range_are_pixels_in_their_own(toy: Any) -> None:
    world = World(toy, 3)
    world.inputs = torch.cat([7 * world.inputs - 3, torch.zeros_like(world.inputs)], dim=1)
    out = Outbound(world.model, world.before, world.before, world.inputs, world.labels, STEP)
    assert torch.allclose(out.colours.whiten(out.pixels), world.inputs, atol=1e-5)
    assert (float(out.pixels[:, 0].min()), float(out.pixels[:, 0].max())) == pytest.approx((0, 1), abs=1e-5)
    wrong = replace(out, whitening=Whitening((0.5, 0.5), (0.5, 0.5)))
    with pytest.raises(DataError, match="whitening"):
        wrong.pixels  # noqa: B018


@pytest.mark.parametrize("factor", [1.0, 5.0])
def test_what_leaks_does_so_in_any_range(toy: Any, factor: float) -> None:
    world = World(toy)
    world.inputs = factor * (world.inputs - 0.5)
    assert world.report(Guard(false_alarms=0, **HERE), world.trained()).reasons == (Reason.RECOVERED,)


def test_an_update_is_checked_as_what_it_leads_to_is(world: World) -> None:
    guard, told = Guard(attacks={}, false_alarms=0, **HERE), {"examples": world.inputs, "labels": world.labels}
    facts: dict[str, Any] = {**told, "training": world.training}
    update = {name: t - world.before[name] for name, t in world.trained().items()}
    assert guard.check(world.model, world.before, update=update, **facts).sound
    spoiled = {**update, "scale": update["scale"].double()}
    assert guard.check(world.model, world.before, update=spoiled, **facts).reasons == (Reason.STRUCTURE,)
    both = guard.check(world.model, world.before, update=update, after=world.trained(), **facts)
    assert both.reasons == (Reason.FAULT,)


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_what_is_not_finite_is_refused(world: World, value: float) -> None:
    after = {**world.trained(), "scale": torch.tensor(value)}
    assert world.report(Guard(**HERE), after).reasons == (Reason.NOT_FINITE,)


def test_repeated_examples_count_once(toy: Any) -> None:
    world = World(toy, 4)
    world.inputs = world.inputs[:1].expand(4, -1, -1, -1)
    report = world.report(Guard(**{**HERE, "min_examples": 2}), world.trained())
    assert report.reasons == (Reason.FEW_EXAMPLES,)
    assert report.examples == 1
    assert world.report(Guard(**HERE), world.trained(), distinct=0).reasons == (Reason.FEW_EXAMPLES,)


def test_more_examples_than_can_be_examined_are_refused(world: World) -> None:
    assert world.report(Guard(max_examples=1, **HERE), world.trained()).reasons == (Reason.TOO_LARGE,)


def test_an_error_inside_refuses_and_tells_nothing(world: World, caplog: pytest.LogCaptureFixture) -> None:
    secret = "patient 4711"

    def raising(self: nn.Module, inputs: Tensor) -> Tensor:
        raise ValueError(secret)

    after = world.trained()
    world.model.forward = raising.__get__(world.model)  # type: ignore[method-assign] # that is the fault
    with caplog.at_level(logging.DEBUG):
        report = world.report(Guard(**HERE), after)
    assert report.reasons == (Reason.FAULT,)
    assert not report.allowed
    assert secret in report.examined.fault, "the client's own report says what was wrong"
    assert secret not in caplog.text + report.answer + repr(report)
    assert report.answer == REFUSED
    assert not any(letter.isdigit() for letter in REFUSED)


@pytest.mark.parametrize("policy", ["block", "warn"])
@pytest.mark.parametrize("given", [{"labels": None}, {"training": None}, {"examples": "nothing"}, {"batches": 3}])
def test_arguments_of_any_kind_do_not_raise(world: World, given: dict[str, Any], policy: Any) -> None:
    report = world.report(Guard(policy, **HERE), world.trained(), **given)
    assert report.reasons == (Reason.FAULT,)


@pytest.mark.parametrize("policy", ["warn", "log"])
def test_other_policies_let_it_out_and_say_so(world: World, policy: Any, caplog: pytest.LogCaptureFixture) -> None:
    guard = Guard(policy, **HERE)
    with caplog.at_level(logging.INFO, logger="fedglass.guard"):
        report = world.report(guard, world.trained())
    assert report.allowed
    assert not report.sound
    _, reasons = caplog.records
    assert reasons.levelno == (logging.WARNING if policy == "warn" else logging.INFO)
    assert (guard.counts.checked, guard.counts.refused, guard.counts.warned) == (1, 0, 1)


def test_a_client_notices_that_it_was_alone(toy: Any, world: World) -> None:
    guard = Guard("log", **HERE)
    world.report(guard, world.trained())
    world.before = world.trained()  # the server's mean over one client
    assert world.report(guard, world.trained()).reasons == (Reason.ALONE,)
    assert guard.counts.alone == 1
    other, mine = World(toy, seed=3), world.trained()
    other.before = world.before
    world.before = {name: (t + other.trained()[name]) / 2 for name, t in mine.items()}
    assert Reason.ALONE not in world.report(guard, world.trained()).reasons


def test_a_report_is_json(world: World) -> None:
    guard = Guard(clip=CLIP, noise_multiplier=MULTIPLIER, **HERE)
    told = json.loads(json.dumps(world.report(guard, world.released(guard.protected)).as_json(), allow_nan=False))
    assert told["allowed"] is True
    assert told["examined"]["escaped"] == []


def test_a_change_of_the_counter_tells_steps_only(toy: Any) -> None:
    model = toy.normalised()
    state = {name: t.clone() for name, t in model.state_dict().items()}
    images, labels = toy.images(2, 0), torch.tensor([0, 1])
    network = Network(model, dict(model.named_buffers()), STEP.batch_norm)
    weights = train(network, [state[n] for n in network.names], images, labels, schedule(STEP, 2, None), STEP)
    after = {**state, **dict(zip(network.names, weights, strict=True))}
    counter = next(name for name in state if name.endswith("num_batches_tracked"))
    guard = Guard(attacks={}, false_alarms=0, **HERE)

    def reasons(told: int) -> tuple[Reason, ...]:
        sent = {**after, counter: state[counter] + told}
        facts: dict[str, Any] = {"examples": images, "labels": labels, "training": STEP}
        return guard.check(model, state, after=sent, **facts).reasons

    assert reasons(0) == reasons(1) == ()
    assert reasons(4711) == (Reason.STRUCTURE,)


def test_running_statistics_that_move_leave_without_noise(toy: Any) -> None:
    guard = Guard(clip=CLIP, noise_multiplier=MULTIPLIER, attacks={}, false_alarms=0, **HERE)
    model = nn.Sequential(nn.Flatten(), nn.Linear(64, 40), nn.BatchNorm1d(40), nn.Linear(40, 5))
    toy.seeded(model)
    state = {name: t.clone() for name, t in model.state_dict().items()}
    images, labels = toy.images(4, 0), torch.arange(4)
    network = Network(model, dict(model.named_buffers()), STEP.batch_norm)
    start = [state[n] for n in network.names]
    after = train(network, start, images, labels, schedule(STEP, 4, None), STEP)
    update = {n: a - b for n, a, b in zip(network.names, after, start, strict=True)}
    sent = guard.protected.protection.release.release(Outgoing(update, stream(1, "release")))
    full = {**state, **{n: state[n] + t for n, t in sent.items()}}
    facts: dict[str, Any] = {"examples": images, "labels": labels, "training": STEP}
    assert guard.check(model, state, after=full, **facts).sound
    moved = {**full, "2.running_mean": full["2.running_mean"] + 1}
    report = guard.check(model, state, after=moved, **facts)
    assert "2.running_mean" in report.examined.escaped


@pytest.mark.parametrize(
    "wrong",
    [
        {"policy": "ask"},
        {"budget_seconds": 0},
        {"false_alarms": 1.0},
        {"false_alarms": 0, "level": "singling_out"},
        {"level": "all"},
        {"min_examples": 0},
        {"clip": -1.0},
        {"noise_multiplier": 1.0},
        {"noise_multiplier": 1.0, "clip": {"w": 1.0}},
    ],
    ids=str,
)
def test_wrong_settings_are_refused_at_once(wrong: dict[str, Any]) -> None:
    with pytest.raises(UsageError):
        Guard(**wrong)


SLOW = """
import time
import torch
from torch import nn

class Slow(nn.Linear):
    def __init__(self):
        super().__init__(4, 2)

    def forward(self, inputs):
        if self.waits:
            time.sleep(3600)
        return super().forward(inputs.flatten(1))

    waits = False
"""


@pytest.fixture
def slow(tmp_path: Path) -> Iterator[nn.Module]:
    """A network whose one pass takes an hour, in a module that other processes find."""
    (tmp_path / "slow_network.py").write_text(SLOW)
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(str(tmp_path))
        module = importlib.import_module("slow_network")
        yield module.Slow()
        del sys.modules["slow_network"]


def test_the_time_is_a_limit_whatever_is_computed(slow: nn.Module) -> None:
    before = {name: t.detach().clone() for name, t in slow.named_parameters()}
    inputs, labels = torch.rand(2, 1, 2, 2), torch.tensor([0, 1])
    F.cross_entropy(slow(inputs), labels).backward()
    after = {name: before[name] - 0.1 * p.grad for name, p in slow.named_parameters() if p.grad is not None}
    slow.waits = True  # type: ignore[assignment] # an instance's own
    guard = Guard(runner=SubprocessRunner(), budget_seconds=2.0)
    report = guard.check(slow, before, after=after, examples=inputs, labels=labels, training=STEP)
    assert report.reasons == (Reason.OUT_OF_TIME,)
    assert not report.allowed


def test_what_can_not_be_sent_to_a_process_is_refused(world: World) -> None:
    world.model.body[2].forward = lambda inputs: inputs.sigmoid()
    report = world.report(Guard(runner=SubprocessRunner()), world.trained())
    assert report.reasons == (Reason.FAULT,)


def test_a_noise_that_is_drawn_is_the_declared_one() -> None:
    """The guard's twin without noise differs from what it declares by the noise alone."""
    protected = Protected(CLIP, MULTIPLIER)
    update = {"w": torch.randn(4000, generator=stream(0, "update"))}
    noisy, clean = (
        each.release.release(Outgoing(update, stream(0, "release")))["w"]
        for each in (protected.protection, protected.noiseless)
    )
    assert float(clean.norm()) == pytest.approx(CLIP, rel=1e-5)
    drawn = GaussianNoise(CLIP * MULTIPLIER).release(Outgoing({"w": clean}, stream(0, "release")))["w"]
    assert torch.equal(noisy, drawn)


class Remembers(nn.Module):
    """A network that keeps a picture of what it was given in a buffer, which leaves with its state."""

    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Sequential(nn.Flatten(), nn.Linear(64, 5))
        self.register_buffer("seen", torch.zeros(1, 8, 8))

    def forward(self, inputs: Tensor) -> Tensor:
        out: Tensor = self.body(inputs)
        return out


def test_buffers_that_nobody_plays_again_do_not_leave(toy: Any) -> None:
    """The replay explains the weights, and what else moved is the picture itself."""
    model, inputs, labels = toy.seeded(Remembers()), toy.images(2, 0), torch.arange(2)
    before = {name: tensor.detach().clone() for name, tensor in model.state_dict().items()}
    guard = Guard(false_alarms=0.0, attacks={}, **HERE)
    for kept in (before["seen"], inputs[0]):
        model.load_state_dict(before)
        with guard.watch() as reader:
            optimiser = torch.optim.SGD(model.parameters(), lr=0.1)
            F.cross_entropy(model(inputs), labels).backward()  # type: ignore[no-untyped-call] # of torch
            optimiser.step()
        model.seen.copy_(kept)
        report = guard.check_watched(reader, before, after=model.state_dict())
        assert report.reasons == (() if kept is before["seen"] else (Reason.NOT_EXPLAINED,))


def test_noise_that_repeats_from_round_to_round_is_told(world: World) -> None:
    """A client that seeds its generator in every round: the difference of two updates is without noise."""
    guard = Guard(clip=CLIP, noise_multiplier=MULTIPLIER, **HERE)
    assert world.report(guard, world.released(guard.protected, seed=1)).sound
    assert world.report(guard, world.released(guard.protected, seed=2)).sound
    again = world.report(guard, world.released(guard.protected, seed=2))
    assert again.reasons == (Reason.NOISE,)
    assert again.examined.escaped == ("reused noise",)


def test_noise_that_was_drawn_for_one_row_is_told(world: World) -> None:
    guard = Guard(clip=CLIP, noise_multiplier=MULTIPLIER, **HERE)
    after = world.released(guard.protected)
    quiet = world.released(Protected(CLIP))["body.1.weight"]
    row = torch.randn(quiet.shape[1], generator=stream(0, "row"))
    after["body.1.weight"] = quiet + CLIP * MULTIPLIER * row / row.square().mean().sqrt()
    assert world.report(guard, after).reasons == (Reason.NOISE,)


def test_differences_that_no_weight_can_hold_do_not_leave_unseen(toy: Any) -> None:
    """Added to the weights they are rounding, and in the message they are the gradient."""
    world = World(toy, training=Training(lr=1e-8))
    network = Network(world.model, {}, world.training.batch_norm)
    weights = [world.before[name].requires_grad_() for name in network.names]
    loss = F.cross_entropy(network(weights, world.inputs), world.labels)
    update = {n: -1e-8 * g for n, g in zip(network.names, torch.autograd.grad(loss, weights), strict=True)}
    before = {name: tensor.detach() for name, tensor in world.before.items()}
    guard = Guard(false_alarms=0, **HERE)
    given = {"examples": world.inputs, "labels": world.labels, "training": world.training}
    assert guard.check(world.model, before, update=update, **given).reasons == (Reason.NOT_EXPLAINED,)
