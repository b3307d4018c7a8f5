"""The check of a message: its certificate over the plan, what stands beside it, and noise that is not as declared."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from fedglass.audit.check_message import CheckMessage, message_doubts
from fedglass.audit.public_data import Public
from fedglass.audit.recorded import Recorded
from fedglass.audit.simulated import Simulated
from fedglass.audit.target import Target
from fedglass.core.types import Training, Whitening
from fedglass.defend.dpsgd import DPSGD, PoissonDPSGD
from fedglass.defend.noise import Clip, GaussianNoise
from fedglass.federation.client import Client
from fedglass.federation.federation import Federation
from fedglass.fl.release import Chain, Protection
from fedglass.verdict.collect_doubts import flag
from fedglass.verdict.doubts import Doubt, DoubtKind
from fedglass.verdict.records import Certificate

STD = 0.02
PLAIN = Whitening((0.4,), (0.3,))
ONE = Training(lr=0.1)
Noise = Callable[[Tensor], Tensor]


def network(width: int = 16) -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Flatten(), nn.Linear(144, width), nn.Sigmoid(), nn.Linear(width, 5))


def smooth(count: int, seed: int) -> Tensor:
    coarse = torch.rand(count, 1, 3, 3, generator=torch.Generator().manual_seed(seed))
    return F.interpolate(coarse, (12, 12), mode="bilinear", align_corners=True)


def client(**parts: Any) -> Client:
    return Client("client 0", smooth(4, 1), torch.tensor([0, 1, 1, 4]), **parts)


def federation(training: Training = ONE, width: int = 16, **parts: Any) -> Federation:
    return Federation(network(width), [client(**parts)], training, 5, PLAIN)


def public(classes: int = 5) -> Public:
    return Public.of(smooth(250, 2), torch.arange(250) % classes)


def target_of(source: Simulated | Recorded) -> Target:
    (target,) = source.targets(lambda done, total: None)
    assert isinstance(target, Target)
    return target


def simulated(rounds: int = 1, **parts: Any) -> Target:
    return target_of(Simulated(federation(**parts), rounds, public=public()))


def checked(target: Target) -> tuple[Certificate | None, list[Doubt]]:
    found = CheckMessage().measure(target, 0, lambda done, total: None).record
    return found["certificate"], found["doubts"]


def certified(target: Target) -> Certificate:
    certificate, _ = checked(target)
    assert certificate is not None
    json.dumps(certificate.model_dump(mode="json"), allow_nan=False)
    return certificate


def recorded(noise: Noise, dtype: torch.dtype = torch.float32, std: float = STD, width: int = 16) -> Target:
    """A message to which somebody has added noise, said to be Gaussian."""
    source = Simulated(federation(width=width))
    said = source.transcript()
    past = said.rounds[0]
    (message,) = past.messages
    added = noise(torch.cat([tensor.flatten() for tensor in message.update.values()]))
    pieces = added.split([tensor.numel() for tensor in message.update.values()])
    pairs = zip(message.update.items(), pieces, strict=True)
    update = {name: (tensor + piece.view_as(tensor)).to(dtype).float() for (name, tensor), piece in pairs}
    edited = replace(said, rounds={0: replace(past, messages=(replace(message, update=update),))})
    shields = {"client 0": Protection(release=GaussianNoise(std))}
    return target_of(Recorded(edited, source.truths(), public=public(), defences=shields))


def gaussian(like: Tensor) -> Tensor:
    return STD * torch.randn(like.shape, generator=torch.Generator().manual_seed(987_001))


def gradient(model: nn.Module, images: Tensor, labels: Tensor) -> Tensor:
    loss = F.cross_entropy(model((images - 0.4) / 0.3), labels)
    return torch.cat([g.flatten() for g in torch.autograd.grad(loss, list(model.parameters()))])


def without(rows: Tensor) -> Noise:
    """Return noise that is missing in the span of some orthonormal rows, by a projection in double precision."""
    exact = rows.double()
    return lambda like: gaussian(like).double() - exact.T @ (exact @ gaussian(like).double())


def test_declared_noise_that_is_there_is_tested_and_certified() -> None:
    target = recorded(gaussian)
    assert message_doubts(target) == []
    certificate = certified(target)
    assert certificate.assumptions["noise"] == "tested"
    assert list(certificate.adversary) == ["2", "10", "100"]


def test_public_examples_of_other_classes_are_left_out() -> None:
    examples = public(classes=50).examples
    assert examples is not None
    target = replace(recorded(gaussian), pool=examples)
    assert message_doubts(target) == []
    assert list(certified(target).adversary) == ["2", "10"]  # 25 of the examples have a class of the network


@pytest.mark.parametrize("directions", [20, 50, 100])
def test_noise_that_leaves_out_public_directions_is_refuted(directions: int) -> None:
    examples = public().examples
    assert examples is not None
    model = network()
    rows = [gradient(model, examples.images[i : i + 1], examples.labels[i : i + 1]) for i in range(250)]
    spanned = torch.linalg.svd(torch.stack(rows), full_matrices=False).Vh[:directions]
    (found,) = message_doubts(recorded(without(spanned)))
    assert found.kind is DoubtKind.NOISE_REFUTED
    assert "principal directions" in found.details["tests"]  # type: ignore[operator]


def test_noise_that_leaves_out_a_record_is_refuted() -> None:
    # In single precision the audit knows the direction up to rounding: the smaller the network, the clearer the test.
    own, model, width = client(), network(4).double(), 4
    whole, rest = (gradient(model, own.images[i:].double(), own.labels[i:]) for i in (0, 1))
    (found,) = message_doubts(recorded(without(F.normalize(whole - rest, dim=0)[None]), width=width))
    assert found.kind is DoubtKind.NOISE_REFUTED
    assert found.details["tests"] == ["signal directions"]


def test_noise_below_the_rounding_of_the_message_is_not_testable() -> None:
    fine = recorded(lambda like: gaussian(like) / 20_000, std=STD / 20_000)
    assert message_doubts(fine) == []
    coarse = recorded(lambda like: gaussian(like) / 20_000, torch.bfloat16, std=STD / 20_000)
    certificate, (found, *_) = checked(coarse)
    assert found.kind is DoubtKind.NOISE_NOT_TESTABLE
    assert "rounded more coarsely" in str(found.details["why"])
    assert certificate is not None
    assert certificate.assumptions["noise"] == "declared"


@pytest.mark.parametrize(("used", "refuted"), [(4.0, False), (0.04, True)])
def test_noise_of_several_steps_is_refuted_where_it_is_too_small(used: float, refuted: bool) -> None:
    training = Training(lr=0.1, epochs=2, batch_size=2)
    source = Simulated(federation(training=training, gradient=DPSGD(1.0, used)))
    shields = {"client 0": Protection(gradient=DPSGD(1.0, 4.0))}
    target = target_of(Recorded(source.transcript(), source.truths(), public=public(), defences=shields))
    kinds = [found.kind for found in message_doubts(target)]
    assert DoubtKind.NOISE_NOT_TESTABLE in kinds  # it can be refuted, but not confirmed
    assert (DoubtKind.NOISE_REFUTED in kinds) == refuted


def test_rounds_that_are_planned_are_told() -> None:
    certificate = certified(simulated(3, release=Chain((Clip(0.1), GaussianNoise(0.1)))))
    assert (certificate.rounds, certificate.planned) == (1, 3)
    assert certificate.success_planned is not None
    assert certificate.success_planned > certificate.worst
    held, doubts = checked(simulated(3, release=GaussianNoise(0.1)))
    assert held is not None
    assert (held.planned, held.success_planned) == (3, None)
    assert [each.kind for each in doubts] == [DoubtKind.MORE_ROUNDS]


def test_dp_sgd_over_all_rounds_is_told_too() -> None:
    training = Training(lr=0.1, epochs=2, batch_size=2)
    certificate = certified(simulated(4, training=training, gradient=DPSGD(1.0, 4.0)))
    assert certificate.accounting == "composed_gaussian"
    assert certificate.mu == pytest.approx([2**0.5 / 4] * 4)
    assert (certificate.rounds, certificate.planned) == (1, 4)
    assert certificate.adversary == {}


def test_poisson_samples_of_an_audit_are_counted() -> None:
    pytest.importorskip("dp_accounting")
    shield = PoissonDPSGD(1.0, 1.0, sample_rate=0.1)
    certificate = certified(simulated(4, training=Training(lr=0.1, steps=25), gradient=shield))
    assert (certificate.accounting, certificate.assumptions["Poisson samples"]) == ("pld", "construction")
    assert certificate.success_planned == pytest.approx(0.03878, abs=5e-6)
    assert certificate.worst < 0.02


def with_update(target: Target, value: float) -> Target:
    seen = target.observation
    update = {name: torch.full_like(tensor, value) for name, tensor in seen.update.items()}
    return replace(target, observation=replace(seen, update=update))


def test_without_a_certificate_something_says_why() -> None:
    open_one = simulated()
    assert open_one.claim is not None
    unnamed, dishonest = replace(open_one.claim, unnamed_defence=True), replace(open_one.claim, honest=False)
    cases = {
        DoubtKind.NO_NOISE: open_one,
        DoubtKind.NOT_REPLAYED: replace(open_one, claim=None),
        DoubtKind.ZERO_UPDATE: with_update(open_one, 0.0),
        DoubtKind.NON_FINITE_UPDATE: with_update(open_one, float("nan")),
        DoubtKind.NO_TRUTH: replace(open_one, truth=None, claim=unnamed),
        DoubtKind.DEFENCE_NOT_BOUNDED: replace(open_one, claim=dishonest),
    }
    for kind, target in cases.items():
        certificate, doubts = checked(target)
        assert certificate is None
        assert [each.kind for each in doubts] == [kind]


@pytest.mark.parametrize(("known", "remedy"), [(True, "one noisy step"), (False, "Record the order")])
def test_the_step_for_noise_in_several_local_steps(known: bool, remedy: str) -> None:
    source = Simulated(federation(Training(lr=0.1, batch_size=2), gradient=DPSGD(1.0, 1.0)))
    truths = source.truths() if known else replace(source.truths(), order={})
    shields = {"client 0": Protection(DPSGD(1.0, 1.0))}
    (found,) = message_doubts(target_of(Recorded(source.transcript(), truths, defences=shields)))
    assert found.kind is DoubtKind.NOISE_NOT_TESTABLE
    assert remedy in flag(found).step
