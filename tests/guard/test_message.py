"""Channels of a curious app: it hides a secret in what it hands to the guard, and looks for it in what leaves.

Each test builds the covert update first, and shows that the secret can be read from it. The guard lets the update out,
or refuses it; the message that leaves does not depend on the secret.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from tests.guard.test_docs import PAGE
from tests.guard.test_guard import CLIP, HERE, MULTIPLIER, STEP, World
from torch import Tensor, nn
from torch.nn import functional as F

from fedglass.checks.replay import MOST_STEPS
from fedglass.core.rng import stream
from fedglass.core.thresholds import REPLAY_ROUNDING
from fedglass.defend.dpsgd import DPSGD
from fedglass.guard import Guard, GuardReport, Reason
from fedglass.guard.message import LARGEST, built, count, figure, fresh_normals, rounded
from fedglass.guard.report import CheckResult, GuardMemory

OPEN: dict[str, Any] = {**HERE, "attacks": {}, "false_alarms": 0.0}
"""Without attacks and decoys, which refuse every update without noise: what they let out is looked at."""
NOISY: dict[str, Any] = {**OPEN, "clip": CLIP, "noise_multiplier": MULTIPLIER}
LOW = 8
"""Bits of a mantissa that fit into the tolerance of the replay."""


@pytest.fixture
def world(toy: Any) -> World:
    return World(toy)


def secret_bits(count: int, seed: int) -> Tensor:
    return torch.randint(2, (count,), generator=stream(seed, "secret"))


def size(params: dict[str, Tensor]) -> int:
    return sum(tensor.numel() for tensor in params.values())


def low_bits(params: dict[str, Tensor]) -> Tensor:
    """The last bits of all mantissas."""
    words = torch.cat([tensor.flatten() for tensor in params.values()]).view(torch.int32)
    return ((words[:, None] >> torch.arange(LOW)) & 1).flatten()


def with_low_bits(params: dict[str, Tensor], bits: Tensor) -> dict[str, Tensor]:
    values, hidden = (bits.view(-1, LOW) << torch.arange(LOW)).sum(1).int(), {}
    for name, tensor in params.items():
        value, values = values[: tensor.numel()], values[tensor.numel() :]
        words = (tensor.flatten().contiguous().view(torch.int32) & ~(2**LOW - 1)) | value
        hidden[name] = words.view(torch.float32).view(tensor.shape)
    return hidden


def message_of(report: GuardReport) -> dict[str, Tensor]:
    assert report.sound, report
    assert report.message is not None
    return dict(report.message)


def are_equal(one: dict[str, Tensor], other: dict[str, Tensor]) -> bool:
    return list(one) == list(other) and all(
        one[name].numpy().tobytes() == other[name].numpy().tobytes() for name in one
    )


@pytest.fixture
def same_noise(monkeypatch: pytest.MonkeyPatch) -> Callable[[], None]:
    """Lets the guard draw the same noise again, so that two messages can be compared bit by bit."""

    def begin() -> None:
        source = np.random.default_rng(5)
        monkeypatch.setattr("fedglass.guard.message.secrets.token_bytes", source.bytes)

    return begin


@pytest.mark.parametrize("options", [OPEN, NOISY], ids=["no noise", "noise"])
def test_low_bits_of_weights_stay(world: World, same_noise: Callable[[], None], options: dict[str, Any]) -> None:
    guard, messages = Guard(**options), []
    honest = world.released(guard.protected)
    for seed in (1, 2):
        bits = secret_bits(LOW * size(honest), seed)
        covert = with_low_bits(honest, bits)
        assert torch.equal(low_bits(covert), bits), "read back bit for bit"
        same_noise()
        message = message_of(world.report(Guard(**options), covert))
        assert float((low_bits(message) == bits).double().mean()) == pytest.approx(0.5, abs=0.02)
        messages.append(message)
    assert are_equal(*messages), "the message does not depend on the secret"


def test_the_message_is_the_training_up_to_the_tolerance(world: World) -> None:
    after = world.trained()
    message = message_of(world.report(Guard(**OPEN), after))
    for name, came in world.before.items():
        update, sent = after[name] - came, message[name] - came
        assert float((sent - update).norm()) <= REPLAY_ROUNDING * float(update.norm()), name
        assert float(sent.norm()) <= float(update.norm()) * (1 + 1e-5), "a declared clipping still holds"


def test_few_values_are_left_of_an_update() -> None:
    update = torch.randn(10_000, generator=stream(0, "update"))
    grid = rounded(update)
    assert len(grid.unique()) < 1_000
    assert float((grid - update).abs().max()) <= REPLAY_ROUNDING
    assert torch.equal(rounded(torch.zeros(3)), torch.zeros(3))
    assert torch.equal(rounded(-1e-9 * torch.ones(1) + torch.tensor([0.0])).sign(), -torch.ones(1))


@pytest.mark.parametrize("exponent", [-300, -170, 0, 170, 300])
def test_changes_of_any_size_are_rounded(exponent: int) -> None:
    """Squares of such numbers are infinite, or zero."""
    update = torch.randn(10_000, generator=stream(0, "update"), dtype=torch.float64)
    grid = rounded(update * 2.0**exponent)
    assert torch.equal(grid, rounded(update) * 2.0**exponent)
    assert len(grid.unique()) < 1_000


def test_changes_that_are_too_small_to_be_rounded_do_not_leave() -> None:
    assert not rounded(torch.tensor([5e-324, 1e-310], dtype=torch.float64)).any()
    faint = rounded(torch.tensor([1e-44, 3e-45, -0.0]))
    assert faint.isfinite().all()
    assert not faint.signbit()[faint == 0].any()


class Boundless(float):
    """Compares and prints as its app likes: neither smaller nor larger than any bound, with all of its digits."""

    def __lt__(self, other: object) -> bool:
        return False

    __gt__ = __le__ = __ge__ = __lt__

    def __float__(self) -> float:
        return 1.23456789e300

    def __round__(self, digits: object = None) -> Any:
        return self

    def __format__(self, spec: str) -> str:
        return "3.14159265358979"


class BoundlessCount(int):
    """The same for a count."""

    def __lt__(self, other: object) -> bool:
        return False

    __gt__ = __le__ = __ge__ = __lt__

    def __float__(self) -> float:
        return 4711.0815

    def __int__(self) -> int:
        return 10**30


def test_a_number_of_the_apps_own_class_leaves_as_any_other() -> None:
    assert figure(Boundless(0.5)) == LARGEST
    assert type(figure(Boundless(0.5))) is float
    assert (count(BoundlessCount(3)), type(count(BoundlessCount(3)))) == (4710, int)
    for value in (math.nan, math.inf):
        with pytest.raises(ValueError, match="finite"):
            figure(value)


@pytest.mark.parametrize("policy", ["block", "warn"])
def test_the_apps_own_arrays_never_leave_without_a_reason(world: World, policy: Any) -> None:
    """Whatever a network does to the process that runs it."""

    class Careless:
        def run(self, request: object, seconds: float) -> CheckResult:
            return CheckResult()

    options = {**OPEN, "runner": Careless(), "policy": policy}
    assert world.report(Guard(**options), world.trained()).reasons == (Reason.FAULT,)


def test_a_picture_in_place_of_some_noise_stays(toy: Any, same_noise: Callable[[], None]) -> None:
    """64 entries of 2,048: its pixels are as large as the noise, so that no test of the whole tensor sees them."""
    world, guard = World(toy), Guard(**NOISY)
    places = torch.randperm(2048, generator=stream(0, "places"))[:64]
    messages, pictures = [], [world.inputs[0].flatten(), world.inputs[1].flatten()]
    for picture in pictures:
        scaled = CLIP * MULTIPLIER * (picture - picture.mean()) / picture.std()
        covert = world.released(guard.protected)
        quiet = world.before["body.1.weight"].flatten()
        covert["body.1.weight"].view(-1)[places] = (quiet + 0.0)[places] + scaled
        read = covert["body.1.weight"].flatten()[places] - quiet[places]
        assert torch.corrcoef(torch.stack([read, picture]))[0, 1] > 0.99, "read back in the clear"
        same_noise()
        message = message_of(world.report(Guard(**NOISY), covert))
        left = message["body.1.weight"].flatten()[places] - quiet[places]
        assert torch.corrcoef(torch.stack([left, picture]))[0, 1].abs() < 0.4
        messages.append(message)
    assert are_equal(*messages)


def test_the_seed_of_the_apps_noise_stays(world: World, same_noise: Callable[[], None]) -> None:
    """Noise of a seed that only the server knows passes every test: it takes the noise away and reads the update."""
    messages = []
    for seed in (11, 12):
        same_noise()
        messages.append(message_of(world.report(Guard(**NOISY), world.released(Guard(**NOISY).protected, seed=seed))))
    assert are_equal(*messages)


def test_the_guards_noise_is_the_declared_one(world: World) -> None:
    guard = Guard(**NOISY)
    sent = world.released(guard.protected)
    first, second = (message_of(world.report(Guard(**NOISY), sent)) for _ in range(2))
    quiet = message_of(world.report(Guard(**OPEN, clip=CLIP), world.released(Guard(**OPEN, clip=CLIP).protected)))
    noise = torch.cat([(first[name] - quiet[name]).flatten() for name in quiet])
    other = torch.cat([(second[name] - quiet[name]).flatten() for name in quiet])
    assert float(noise.std()) == pytest.approx(CLIP * MULTIPLIER, rel=0.06)
    assert float(torch.corrcoef(torch.stack([noise, other]))[0, 1]) == pytest.approx(0, abs=0.1), "drawn anew"


def test_noise_inside_of_steps_is_the_guards_too(toy: Any) -> None:
    world, rule = World(toy, 4), DPSGD(clip=0.5, noise_multiplier=20.0)
    guard = Guard(dpsgd=rule, **OPEN)
    sent = world.trained(rule, stream(3, "noise"))
    message = message_of(world.report(guard, sent))
    noise = torch.cat([(message[name] - sent[name]).flatten() for name in sent])
    assert float(noise.std()) == pytest.approx(math.sqrt(2) * STEP.lr * 20.0 * 0.5 / 4, rel=0.06)


def test_normals_are_normal_and_finite() -> None:
    drawn = fresh_normals(torch.empty(100, 1000))
    assert bool(drawn.isfinite().all())
    assert (float(drawn.mean()), float(drawn.std())) == pytest.approx((0, 1), abs=0.02)


def test_the_sign_of_zeros_stays(toy: Any) -> None:
    """A tensor that came as zeros and is not trained: each zero has a sign, which no comparison of numbers sees."""
    world, messages = World(toy), []
    world.before["body.3.bias"] = torch.zeros(5)
    for sign in (1.0, -1.0):
        covert = {**world.trained(), "body.3.bias": sign * torch.zeros(5)}
        assert torch.equal(covert["body.3.bias"].signbit(), torch.full((5,), sign < 0)), "read back"
        messages.append(message_of(world.report(Guard(**OPEN), covert)))
    assert are_equal(*messages)
    assert not messages[0]["body.3.bias"].signbit().any()


class Noted(Tensor):
    """A tensor that carries a note."""

    note: str


def test_a_message_is_plain_whatever_its_types_are() -> None:
    before = {"w": torch.tensor([-1.0, 1e-9]).half(), "mask": torch.tensor([True, False]), "n": torch.tensor(3)}
    change = {"w": torch.tensor([1.0 - 1e-12, -2e-9]).double(), "n": torch.tensor(2)}
    weights, update = (built(before, change, noisy=True, as_update=as_update) for as_update in (False, True))
    for message in (weights, update):
        assert [t.dtype for t in message.values()] == [t.dtype for t in before.values()]
        assert not message["w"].signbit()[message["w"] == 0].any(), "a small negative number is rounded to a zero"
    assert (weights["n"], weights["mask"].tolist()) == (5, [True, False])
    assert (update["n"], update["mask"].tolist()) == (2, [False, False])


def test_attributes_and_storage_stay(world: World) -> None:
    covert: dict[str, Tensor] = {}
    for name, tensor in world.trained().items():
        wide = torch.full((tensor.numel() + 64,), 0.5)
        wide[: tensor.numel()] = tensor.flatten()
        wide[tensor.numel() :] = world.inputs[0].flatten()
        covert[name] = wide[: tensor.numel()].view(tensor.shape).as_subclass(Noted)
        covert[name].note = "patient 4711"  # type: ignore[attr-defined] # of the subclass
    message = message_of(world.report(Guard(**OPEN), covert))
    for name, tensor in message.items():
        assert type(tensor) is Tensor, name
        assert not vars(tensor)
        assert tensor.is_contiguous()
        assert tensor.untyped_storage().nbytes() == tensor.numel() * tensor.element_size()
        assert tensor.data_ptr() != covert[name].data_ptr()
        assert not tensor.requires_grad


class Name(str):
    note = "patient 4711"


class Raising(Tensor):
    @classmethod
    def __torch_function__(cls, *_: Any, **__: Any) -> Any:
        raise RuntimeError("patient 4711")


class Fickle(dict[str, Tensor]):
    """Holds something else when it is read again."""

    reads = 0

    def items(self) -> Any:
        self.reads += 1
        return [(name, tensor + (self.reads > 2)) for name, tensor in super().items()]


def with_nan_payload(after: dict[str, Tensor]) -> dict[str, Tensor]:
    words = after["body.1.weight"].clone().view(torch.int32)
    words[0, 0] = 0x7FC04711
    return {**after, "body.1.weight": words.view(torch.float32)}


CHANNELS: dict[str, tuple[Callable[[dict[str, Tensor]], Any], Reason | None]] = {
    "strides": (lambda after: {n: t.t().contiguous().t() if t.ndim == 2 else t for n, t in after.items()}, None),
    "names of a class": (lambda after: {Name(n): t for n, t in after.items()}, None),
    "denormals": (lambda after: {n: torch.where(t == 0, 1e-44, t) for n, t in after.items()}, None),
    "parameters": (lambda after: {n: nn.Parameter(t) for n, t in after.items()}, None),
    "fickle mapping": (Fickle, None),
    "order of names": (lambda after: dict(reversed(after.items())), Reason.STRUCTURE),
    "types": (lambda after: {n: t.double() for n, t in after.items()}, Reason.STRUCTURE),
    "layout": (lambda after: {n: t.to_sparse() if t.ndim == 2 else t for n, t in after.items()}, Reason.STRUCTURE),
    "payload of a NaN": (with_nan_payload, Reason.NOT_FINITE),
    "an exception's text": (lambda after: {n: t.as_subclass(Raising) for n, t in after.items()}, Reason.FAULT),
}


@pytest.mark.parametrize("channel", CHANNELS)
def test_other_forms_of_the_same_arrays_give_the_same_message_or_none(world: World, channel: str) -> None:
    change, reason = CHANNELS[channel]
    report = world.report(Guard(**OPEN), change(world.trained()))
    if reason is None:
        assert are_equal(message_of(report), message_of(world.report(Guard(**OPEN), world.trained())))
    else:
        assert (report.reasons, report.message) == ((reason,), None)
        assert "4711" not in report.answer


@pytest.mark.parametrize("batches", [[], [[]]], ids=str)
def test_a_training_without_steps_has_no_examples(world: World, batches: list[list[int]]) -> None:
    """The update is what the app likes, clipped and with the declared noise, and no replay contradicts it."""
    released = world.released(Guard(**NOISY).protected)
    report = world.report(Guard(**NOISY), released, batches=batches)
    assert report.reasons == (Reason.FEW_EXAMPLES,)
    assert report.message is None


def test_examples_without_a_step_do_not_count(toy: Any) -> None:
    world = World(toy, 4)
    report = world.report(Guard(**{**NOISY, "min_examples": 2}), world.before, batches=[[0], [0]])
    assert (report.reasons, report.examples) == ((Reason.FEW_EXAMPLES,), 1)
    wrong = world.report(Guard(**NOISY), world.before, batches=[[0], [-1]])
    assert wrong.reasons == (Reason.FAULT,)


def normalised(toy: Any) -> tuple[nn.Module, dict[str, Tensor], Any]:
    """A watched training with running statistics."""
    net = toy.normalised()
    before = {name: t.clone() for name, t in net.state_dict().items()}
    moving = torch.optim.SGD(net.parameters(), lr=0.1, momentum=0.9)
    with Guard(**OPEN).watch() as reader:
        for rows in torch.arange(6).split(3):
            moving.zero_grad()
            F.cross_entropy(net.train()(toy.images(6, 1)[rows]), rows % 5).backward()
            moving.step()
    return net, before, reader


def test_running_statistics_are_those_of_the_training(toy: Any) -> None:
    net, before, reader = normalised(toy)
    honest = {name: t.clone() for name, t in net.state_dict().items()}
    message = message_of(Guard(**OPEN).check_watched(reader, before, after=honest))
    for name in honest:
        moved = float((honest[name] - before[name]).double().norm())
        assert float((message[name] - honest[name]).double().norm()) <= REPLAY_ROUNDING * moved, name
        assert message[name].dtype is honest[name].dtype
    mean = next(name for name in honest if name.endswith("running_mean"))
    hidden = {**honest, mean: honest[mean] + 0.1 * toy.images(1, 7).flatten()[:3]}
    assert Guard(**OPEN).check_watched(reader, before, after=hidden).reasons == (Reason.NOT_EXPLAINED,)
    low = {**honest, mean: with_low_bits({"m": honest[mean]}, secret_bits(3 * LOW, 1))["m"]}
    assert are_equal(message, message_of(Guard(**OPEN).check_watched(reader, before, after=low)))


def test_which_tensors_stay_is_one_bit_for_each(world: World) -> None:
    """What is not trained is a choice of the app: the guard takes it as declared."""
    names = list(world.before)
    for bits in ((1, 1, 1, 0, 1), (0, 1, 1, 1, 0)):
        moved = dict(zip(names, bits, strict=True))
        covert = {name: t if moved[name] else world.before[name] for name, t in world.trained().items()}
        message = message_of(world.report(Guard(**OPEN), covert))
        assert tuple(int(not torch.equal(message[name], world.before[name])) for name in names) == bits, "read back"
        hidden = with_low_bits(covert, secret_bits(LOW * size(covert), 1))
        hidden = {name: hidden[name] if moved[name] else covert[name] for name in names}
        assert are_equal(message, message_of(world.report(Guard(**OPEN), hidden))), "and nothing more"


def test_counters_do_not_tell_that_a_client_was_alone() -> None:
    """Each client counts as many batches: the mean of the counters is the client's own."""
    memory, counter = GuardMemory(), "norm.num_batches_tracked"
    sent = {"w": torch.tensor([0.1, 0.2]), counter: torch.tensor(20)}
    memory.keep({"w": torch.zeros(2), counter: torch.tensor(0)}, sent, sent)
    assert not memory.was_alone({**sent, "w": torch.tensor([0.2, -0.1])})
    assert memory.was_alone(sent)


def test_a_difference_leaves_as_one(toy: Any) -> None:
    net, before, reader = normalised(toy)
    update = {name: t - before[name] for name, t in net.state_dict().items()}
    as_weights = message_of(Guard(**OPEN).check_watched(reader, before, after=dict(net.state_dict())))
    as_update = message_of(Guard(**OPEN).check_watched(reader, before, update=update))
    for name in before:
        assert as_update[name].dtype is before[name].dtype
        assert torch.allclose(before[name] + as_update[name], as_weights[name], atol=1e-7)


def test_the_message_has_the_names_and_types_that_came(toy: Any) -> None:
    """A mean over clients has counters that are not whole numbers; the type of the app's network is its own choice."""
    net, before, reader = normalised(toy)
    came = {f"module.{name}": t.double() for name, t in reversed(before.items())}
    left = {f"module.{name}": t for name, t in net.state_dict().items()}
    message = message_of(Guard(**OPEN).check_watched(reader, came, after=left))
    assert list(message) == list(came)
    assert all(tensor.dtype is torch.float64 for tensor in message.values())


def test_nothing_is_there_to_send_after_a_refusal(world: World, toy: Any) -> None:
    assert world.report(Guard(**HERE), world.trained()).message is None
    warned = world.report(Guard("warn", **HERE), world.trained())
    assert warned.allowed
    assert warned.message is not None, "the guard can make it, and the policy lets it out"
    unexplained = world.report(Guard("warn", **HERE), World(toy, seed=5).trained())
    assert unexplained.allowed
    assert unexplained.message is None, "the guard cannot make it"
    assert "message" not in warned.as_json()
    assert "change" not in warned.as_json()["examined"]


def test_a_figure_holds_13_bits() -> None:
    values = {figure(x) for x in np.concatenate([np.linspace(-top, top, 200_001) for top in (2, 20, 200, 2000)])}
    assert len(values) == 7401
    assert max(values) == LARGEST
    assert math.log2(len(values)) < 13


def test_the_page_has_the_capacities() -> None:
    """In bytes: figures with a name each, or without, and what the guard counts within its limits."""
    of_figure, of_count = math.log2(7401 + 1), math.log2(len({count(x) for x in range(1_000_001)}) + 1)
    rows = {
        "figures": (5 * of_figure + 2, 4 * of_figure),
        "figures of an evaluation": (5 * of_figure + 2 * of_count,),
        "the number of examples": (math.log2(Guard.max_examples), math.log2(MOST_STEPS)),
        "when it comes": (math.log2(30 / 0.1),),
        "what the training is": (1 / (2 * math.log(2)),),
    }
    for name, capacities in rows.items():
        (line,) = re.findall(rf"^\| {name}(?: \(| ?:| \|).*$", PAGE, flags=re.MULTILINE)
        for capacity in capacities:
            digits = 2 if capacity < 1 else 1
            assert f"{capacity / 8:.{digits}f}" in line.split("|")[3], name


@pytest.mark.parametrize("error", [SystemExit, GeneratorExit])
def test_an_app_that_ends_the_process_is_refused(world: World, error: type[BaseException]) -> None:
    secret = "patient 4711"

    def ends(self: nn.Module, inputs: Tensor) -> Tensor:
        raise error(secret)

    after = world.trained()
    world.model.forward = ends.__get__(world.model)  # type: ignore[method-assign] # that is the fault
    report = world.report(Guard(**OPEN), after)
    assert report.reasons == (Reason.FAULT,)
    assert secret not in report.answer


def test_an_interrupt_is_not_held_up(world: World) -> None:
    def interrupted(self: nn.Module, inputs: Tensor) -> Tensor:
        raise KeyboardInterrupt

    after = world.trained()
    world.model.forward = interrupted.__get__(world.model)  # type: ignore[method-assign]
    with pytest.raises(KeyboardInterrupt):
        world.report(Guard(**OPEN), after)
