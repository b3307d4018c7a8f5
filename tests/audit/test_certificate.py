"""Certificates of messages: distances by hand, several rounds, several clients, and what has none."""

from __future__ import annotations

import importlib.util
import json
import math
from collections.abc import Callable
from dataclasses import replace

import pytest
import torch
from scipy.stats import norm
from torch import nn
from torch.nn import functional as F

from fedglass.audit import certificate as adversary
from fedglass.audit.certificate import (
    MessageBound,
    bound_of,
    certificate_of,
    certify,
    declared_bound,
    planned_certificate,
    shown_figures,
)
from fedglass.checks.claim import Claim, ClientClaim
from fedglass.checks.noise import total_std
from fedglass.core.errors import UsageError
from fedglass.core.tensors import buffers_of, weights_of
from fedglass.core.types import Training, Whitening
from fedglass.defend.dpsgd import DPSGD, PoissonDPSGD
from fedglass.defend.noise import Clip, GaussianNoise, LaplacianNoise
from fedglass.federation.truth import Examples
from fedglass.fl.release import AsIs, Chain, Outgoing, Protection, Release
from fedglass.verdict.doubts import Doubt, DoubtKind
from fedglass.verdict.records import MOST_MU, Certificate

PLAIN = Whitening((0.0,), (1.0,))
ONE = Training(lr=0.5)


def network() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Flatten(), nn.Linear(16, 6), nn.ReLU(), nn.Linear(6, 3))


def data(count: int = 3) -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(1)
    return torch.rand(count, 1, 4, 4, generator=generator), torch.arange(count) % 3


def pooled() -> nn.Module:
    """A network that sees means of squares alone."""
    torch.manual_seed(0)
    return nn.Sequential(nn.AvgPool2d(2), nn.Flatten(), nn.Linear(4, 16), nn.ReLU(), nn.Linear(16, 3))


def by_hand(
    images: torch.Tensor, labels: torch.Tensor, lr: float = 0.5, made: Callable[[], nn.Module] = network
) -> torch.Tensor:
    """One step of plain SGD, as a loop of PyTorch makes it."""
    model = made()
    F.cross_entropy(model(images), labels).backward()
    return torch.cat([-lr * p.grad.flatten() for p in model.parameters() if p.grad is not None]).double()


def claim(*releases: Release, training: Training = ONE, count: int = 3, own: int = 0, **told: object) -> Claim:
    images, labels = data(count * len(releases))
    model = network()
    rows = (slice(i * count, (i + 1) * count) for i in range(len(releases)))
    clients = tuple(
        ClientClaim(training, Examples(images[some], labels[some]), Protection(release=release))
        for some, release in zip(rows, releases, strict=True)
    )
    return Claim(model, weights_of(model), buffers_of(model), {}, PLAIN, clients, own_clients=own, **told)  # type: ignore[arg-type]


def bound(*claims: Claim) -> MessageBound:
    found = bound_of(claims)
    assert isinstance(found, MessageBound)
    return found


def test_each_record_is_compared_with_its_absence_and_with_the_clients() -> None:
    images, labels = data()
    whole, std = by_hand(images, labels), 0.3
    expected = []
    for i in range(3):
        rest = [j for j in range(3) if j != i]
        without = by_hand(images[rest], labels[rest])
        expected.append(min(float((whole - without).norm()), float(whole.norm())) / std)
    found = bound(claim(GaussianNoise(std)))
    assert found.mu == pytest.approx(expected, rel=1e-4)
    assert found.client_mu == pytest.approx(float(whole.norm()) / std, rel=1e-4)
    certificate = certificate_of(found, 0)
    assert certificate is not None
    assert certificate.success == pytest.approx([norm.cdf(norm.ppf(1e-3) + mu) for mu in expected], rel=1e-4)
    assert certificate.worst == max(certificate.success)


def test_rounds_add_up_as_squares() -> None:
    one = bound(claim(GaussianNoise(0.3)))
    two = bound(claim(GaussianNoise(0.3)), claim(GaussianNoise(0.3)))
    assert two.mu == pytest.approx([math.sqrt(2) * mu for mu in one.mu])
    assert two.rounds == 2


def test_further_rounds_need_a_clip() -> None:
    assert certificate_of(bound(claim(GaussianNoise(0.3))), 1) is None
    clipped = bound(claim(Chain((Clip(0.1), GaussianNoise(0.3)))))
    found = certificate_of(clipped, 8)
    assert found is not None
    assert max(found.mu) == pytest.approx(math.hypot(max(clipped.mu), math.sqrt(8) * 0.1 / 0.3))
    assert found.rounds == 9


def test_what_is_planned_stands_beside_what_holds() -> None:
    clipped = bound(claim(Chain((Clip(0.1), GaussianNoise(0.3)))))
    held, whole = planned_certificate(clipped, 8), certificate_of(clipped, 8)
    assert whole is not None
    assert (held.rounds, held.planned) == (1, 9)
    assert held.worst == pytest.approx(norm.cdf(norm.ppf(1e-3) + max(clipped.mu)))
    assert held.success_planned == whole.worst > held.worst
    unbounded = planned_certificate(bound(claim(GaussianNoise(0.3))), 8)
    assert (unbounded.planned, unbounded.success_planned) == (9, None)
    assert planned_certificate(clipped, 0).planned is None


def stated(protection: Protection) -> Claim:
    """A claim without the data."""
    model = network()
    client = ClientClaim(ONE, protection=protection, stated_examples=3)
    return Claim(model, weights_of(model), buffers_of(model), {}, PLAIN, (client,))


def test_a_declaration_alone_is_planned_for_too() -> None:
    shield = Protection(release=Chain((Clip(0.1), GaussianNoise(0.3))))
    told = declared_bound(stated(shield), 2)
    assert isinstance(told, MessageBound)
    found = planned_certificate(told, 6)
    assert found.mu == pytest.approx([math.sqrt(2) / 3])
    assert found.success_planned == pytest.approx(norm.cdf(norm.ppf(1e-3) + math.sqrt(8) / 3))
    assert isinstance(declared_bound(stated(Protection(release=GaussianNoise(0.3))), 1), Doubt)


def pool(count: int = 300) -> Examples:
    generator = torch.Generator().manual_seed(7)
    return Examples(torch.rand(count, 1, 4, 4, generator=generator), torch.arange(count) % 3)


def test_the_simulated_adversary_is_the_nearest_candidate() -> None:
    """Messages with each candidate in the place of the worst record, noised in full and compared with all."""
    made = claim(GaussianNoise(0.05))
    found, others = bound(made), pool()
    shown = shown_figures([made], found, others, seed=3)["adversary"]
    assert isinstance(shown, dict)
    assert list(shown) == ["2", "10", "100"]
    images, labels = data()
    worst = max(range(3), key=lambda i: found.mu[i])
    candidates = [images[worst], *others.images[others.labels == labels[worst]][:9]]
    rows = []
    for candidate in candidates:
        images[worst] = candidate
        rows.append(by_hand(images.clone(), labels))
    sent, generator = torch.stack(rows), torch.Generator().manual_seed(0)
    truth = torch.randint(10, (4000,), generator=generator)
    noisy = sent[truth] + 0.05 * torch.randn(4000, sent.shape[1], generator=generator, dtype=torch.float64)
    named = float((torch.cdist(noisy, sent).argmin(1) == truth).double().mean())
    # Other candidates of the same law, so that it is near and not the same.
    assert shown["10"] == pytest.approx(named, abs=0.15)
    assert 1 > shown["2"] > shown["10"] > shown["100"] > 0.01


def test_rounds_make_the_simulated_adversary_stronger() -> None:
    made = claim(GaussianNoise(0.1))
    one, four = (shown_figures([made] * k, bound(*[made] * k), pool(), seed=0)["adversary"] for k in (1, 4))
    near = claim(GaussianNoise(0.05))
    assert isinstance(one, dict)
    assert isinstance(four, dict)
    assert four["10"] > one["10"] + 0.05
    assert four == shown_figures([near], bound(near), pool(), seed=0)["adversary"]  # 4 rounds are half the noise


def test_the_simulated_adversary_keeps_to_its_budget(monkeypatch: pytest.MonkeyPatch) -> None:
    made = claim(GaussianNoise(0.05))
    monkeypatch.setattr(adversary, "MOST_WORK", 50 * 3 * adversary.LEAST_WEIGHTS)
    shown = shown_figures([made], bound(made), pool(), seed=3)["adversary"]
    assert isinstance(shown, dict)
    assert list(shown) == ["2", "10"]
    assert shown_figures([made], bound(made), None, seed=3)["adversary"] == {}
    laplacian = claim(LaplacianNoise(0.05))
    assert shown_figures([laplacian], bound(laplacian), pool(), seed=3) == {}


def test_one_clipped_gradient_has_an_expected_psnr() -> None:
    """An error of sigma |x| in every pixel, sigma being noise over clip."""
    images, labels = data(1)
    noisy: list[Release] = [Clip(0.5), GaussianNoise(0.05)]
    found = certify(network(), images, labels, ONE, noisy, whitening=PLAIN)
    error = (0.05 / 0.5 * float(images.norm())) ** 2
    assert found.expected_psnr == pytest.approx(-10 * math.log10(error), abs=0.4)  # 0.3 dB for 16 pixels
    same = certify(network(), images, labels, ONE, [DPSGD(7.0, 0.1)], whitening=PLAIN)
    assert same.expected_psnr == pytest.approx(found.expected_psnr)
    assert certify(network(), images, labels, ONE, noisy[1:], whitening=PLAIN).expected_psnr is None
    assert certify(network(), *data(2), ONE, noisy, whitening=PLAIN).expected_psnr is None
    twice = replace(ONE, epochs=2)
    assert certify(network(), images, labels, twice, noisy, whitening=PLAIN).expected_psnr is None
    assert certify(network(), images, labels, ONE, noisy, whitening=PLAIN, rounds=2).expected_psnr is None
    black = certify(network(), torch.zeros_like(images), labels, ONE, noisy, whitening=PLAIN)
    assert black.expected_psnr is None


def frozen() -> nn.Module:
    """A network that sees nothing of an image: its first layer is zero and behind a ReLU."""
    model = network()
    for parameter in list(model.parameters())[:2]:
        nn.init.constant_(parameter, -0.0 if parameter.dim() > 1 else -1.0)
    return model


def test_a_message_that_is_the_same_whatever_the_record_is_tells_nothing() -> None:
    """Labels alone move its last bias, so that all candidates with the label of the record give the same message."""
    images, labels = data()
    model = frozen()
    client = ClientClaim(ONE, Examples(images, labels))
    blind = Claim(model, weights_of(model), buffers_of(model), {}, PLAIN, (client,))
    found = bound_of([blind], pool(330))
    assert isinstance(found, MessageBound)
    certificate = certificate_of(found, 0)
    assert certificate is not None
    assert (certificate.method, certificate.accounting) == ("record", "identical")
    assert certificate.mu == [0.0] * 3
    assert certificate.success == pytest.approx([1e-3] * 3)
    assert certificate_of(found, 1) is None
    for open_one in (replace(blind, model=network(), before=weights_of(network())), blind):
        refused = bound_of([open_one], pool(330) if open_one is not blind else pool(200))  # too few candidates
        assert isinstance(refused, Doubt)
        assert refused.kind is DoubtKind.NO_NOISE
    other = {name: tensor + 1e-7 for name, tensor in weights_of(model).items()}
    assert isinstance(bound_of([replace(blind, update=other)], pool(330)), Doubt)


def test_a_message_is_compared_in_the_precision_that_was_sent() -> None:
    """Half precision loses what one of many records adds that look equal to the network; single precision does not."""
    images, labels = data(1)
    images, labels = images.repeat(64, 1, 1, 1) / 2 + 0.25, labels.repeat(64)
    lighter = torch.arange(64) / 256
    images[:, 0, 0, 0] += lighter
    images[:, 0, 0, 1] -= lighter
    images[0, 0, 0, 0] += 1e-4
    model = pooled()
    client = ClientClaim(ONE, Examples(images, labels))
    claimed = Claim(model, weights_of(model), buffers_of(model), {}, PLAIN, (client,))
    exact = by_hand(images, labels, made=pooled).float()
    sizes = {name: tensor.shape for name, tensor in weights_of(model).items()}

    def sent(dtype: torch.dtype) -> Claim:
        pieces = exact.split([shape.numel() for shape in sizes.values()])
        named = zip(sizes.items(), pieces, strict=True)
        return replace(claimed, update={n: piece.view(shape).to(dtype).float() for (n, shape), piece in named})

    assert isinstance(bound_of([sent(torch.float32)]), Doubt)
    half = bound_of([sent(torch.bfloat16)])
    assert isinstance(half, MessageBound)
    assert half.identical


@pytest.mark.parametrize("noise", [GaussianNoise(1e-320), LaplacianNoise(1e-320)])
def test_an_infinite_mu_reaches_no_json(noise: Release) -> None:
    images, labels = data()
    found = certify(network(), images, labels, ONE, [noise], whitening=PLAIN)
    assert found.success == [1.0] * 3
    assert found.mu in ([], [MOST_MU] * 3)
    json.dumps(found.model_dump(mode="json"), allow_nan=False)
    told = Certificate(
        method="record", accounting="gaussian", success=[1.0], mu=[math.inf], client_mu=math.inf, epsilon=math.inf
    )
    assert (told.mu, told.client_mu, told.epsilon) == ([MOST_MU], MOST_MU, None)


def test_a_training_that_diverges_has_no_certificate() -> None:
    model = network()
    for parameter in model.parameters():
        nn.init.constant_(parameter, 1e30)
    images, labels = data()
    with pytest.raises(UsageError, match="the declared training diverges"):
        certify(model, images, labels, ONE, [GaussianNoise(1.0)], whitening=PLAIN)


def test_in_a_mean_all_noise_hides_a_client() -> None:
    """Of two equal clients, each weighs a half: its own half is hidden by the noise of both."""
    alone = bound(claim(GaussianNoise(0.3)))
    together = bound(claim(GaussianNoise(0.3), GaussianNoise(0.3)))
    assert together.mu[:3] == pytest.approx([mu / math.sqrt(2) for mu in alone.mu])
    assert total_std(claim(GaussianNoise(0.3), GaussianNoise(0.3))) == pytest.approx(0.3 / math.sqrt(2))
    silent = bound(claim(AsIs(), GaussianNoise(0.3)))
    assert silent.mu[:3] == pytest.approx(alone.mu)


def test_an_adversarys_own_noise_hides_nothing() -> None:
    peer = bound(claim(GaussianNoise(0.3), GaussianNoise(9.0), own=1))
    assert len(peer.mu) == 3
    assert peer.mu == pytest.approx(bound(claim(GaussianNoise(0.3))).mu)
    lone = bound_of([claim(AsIs(), GaussianNoise(9.0), own=1)])
    assert isinstance(lone, Doubt)
    assert lone.kind is DoubtKind.NO_NOISE


def test_another_rule_tells_no_more_than_the_message() -> None:
    found = bound(claim(GaussianNoise(0.3), GaussianNoise(0.3), combined_by_mean=False))
    assert found.mu[:3] == pytest.approx(bound(claim(GaussianNoise(0.3))).mu)


def test_dp_sgd_over_several_steps_is_bounded_by_the_accountant() -> None:
    images, labels = data()
    training = Training(lr=0.5, epochs=4, batch_size=1)
    found = certify(network(), images, labels, training, [DPSGD(1.0, 8.0)], whitening=PLAIN, rounds=4)
    assert found.mu == pytest.approx([0.5] * 3)
    assert found.success[0] == pytest.approx(0.004796, abs=1e-6)
    assert (found.method, found.rounds) == ("accountant", 4)
    assert found.epsilon == pytest.approx(1.9931, abs=1e-3)


def test_laplacian_noise_has_a_certificate() -> None:
    images, labels = data()
    near = certify(network(), images, labels, ONE, [LaplacianNoise(30.0)], whitening=PLAIN)
    far = certify(network(), images, labels, ONE, [LaplacianNoise(0.01)], whitening=PLAIN)
    assert 1e-3 <= near.worst < 1.2e-3
    assert far.worst > 0.9


class Mine:
    def release(self, leaving: Outgoing) -> dict[str, torch.Tensor]:
        return dict(leaving.update)


@pytest.mark.parametrize(
    ("defences", "words"),
    [([], "nothing adds noise"), ([Clip(1.0)], "nothing adds noise"), ([Mine()], "no bound is known")],
)
def test_what_has_no_bound_is_refused_in_a_sentence(defences: list[Release], words: str) -> None:
    images, labels = data()
    with pytest.raises(UsageError, match=words):
        certify(network(), images, labels, ONE, defences, whitening=PLAIN)
    with pytest.raises(UsageError, match="Clip the update"):
        certify(network(), images, labels, ONE, [GaussianNoise(1.0)], whitening=PLAIN, rounds=3)


STEPS = Training(lr=0.5, batch_size=1, steps=25)


def test_poisson_samples_gain_by_sampling() -> None:
    pytest.importorskip("dp_accounting")
    images, labels = data(10)
    found = certify(network(), images, labels, STEPS, [DPSGD(1.0, 1.0)], whitening=PLAIN, rounds=4, poisson=0.1)
    assert found.success == pytest.approx([0.03878] * 10, abs=5e-6)
    assert found.epsilon == pytest.approx(7.0466, rel=3e-4)
    assert (found.method, found.accounting, found.rounds) == ("accountant", "pld", 4)
    assert found.assumptions["Poisson samples"] == "declared"
    shuffled = certify(network(), images, labels, STEPS, [DPSGD(1.0, 1.0)], whitening=PLAIN, rounds=4)
    assert shuffled.worst > 10 * found.worst
    assert shuffled.accounting == "composed_gaussian"
    assert found.advantage is not None
    assert shuffled.advantage is not None
    assert found.advantage < shuffled.advantage


def test_a_declared_poisson_sample_gains_where_it_can_be_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    images, labels = data(10)
    steps = Training(lr=0.5, steps=25)
    shield = [PoissonDPSGD(1.0, 1.0, sample_rate=0.1)]
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    plain = certify(network(), images, labels, steps, shield, whitening=PLAIN, rounds=4)
    assert plain.accounting == "poisson_not_counted"
    assert plain.mu == pytest.approx([10.0] * 10)
    monkeypatch.undo()
    pytest.importorskip("dp_accounting")
    found = certify(network(), images, labels, steps, shield, whitening=PLAIN, rounds=4)
    assert found.accounting == "pld"
    assert found.success == pytest.approx([0.03878] * 10, abs=5e-6)
    sliced = certify(network(), images, labels, STEPS, shield, whitening=PLAIN)  # of one example at a time
    assert sliced.accounting == "composed_gaussian"
    assert sliced.mu == pytest.approx([math.sqrt(3)] * 10)


def test_what_poisson_samples_need_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    images, labels = data()

    def ask(*defences: Release | DPSGD) -> None:
        certify(network(), images, labels, STEPS, defences, whitening=PLAIN, poisson=0.123)

    with pytest.raises(UsageError, match="sampling rate of DP-SGD: add the defence dpsgd"):
        ask(GaussianNoise(1.0))
    with pytest.raises(UsageError, match="no bound is known"):
        ask(DPSGD(1.0, 1.0), Mine())
    with pytest.raises(UsageError, match="nothing adds noise"):
        ask(DPSGD(1.0, 0.0))
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(UsageError, match=r"pip install fedglass\[pld\]"):
        ask(DPSGD(1.0, 1.0))


def with_copies(times: int, gradient: DPSGD, order: tuple[tuple[int, ...], ...] | None = None) -> MessageBound:
    """The bound of DP-SGD on three pictures of which the first one is there so many times."""
    images, labels = data()
    rows = [0] * times + [1, 2]
    training = replace(ONE, steps=None if order is None or len(order) == 1 else len(order))
    client = ClientClaim(training, Examples(images[rows], labels[rows]), Protection(gradient), order=order)
    return bound(Claim(network(), weights_of(network()), {}, {}, PLAIN, (client,)))


def test_copies_of_a_picture_are_one_record() -> None:
    """They move a noisy step together, so that its clipping does not bound them as it does one."""
    once, thrice = with_copies(1, DPSGD(1e-3, 2.0)), with_copies(3, DPSGD(1e-3, 2.0))
    assert (once.per_round, thrice.per_round) == (0.5, 1.5)
    assert max(once.mu) <= 0.5 < min(thrice.mu[:3])
    assert max(thrice.mu[3:]) <= 0.5


def test_a_record_that_a_step_takes_twice() -> None:
    found = with_copies(1, DPSGD(1e-3, 2.0), order=((0, 0, 1, 2),))
    assert found.per_round == 1
    assert max(found.mu[1:]) <= 0.5 < found.mu[0]
    found = with_copies(1, DPSGD(1e-3, 2.0), order=((0, 1), (0, 0), (0, 2)))
    assert found.mu == pytest.approx([0.5 * math.sqrt(6)] + [0.5 * math.sqrt(3)] * 2)


def test_poisson_samples_do_not_amplify_the_privacy_of_copies() -> None:
    rare = PoissonDPSGD(1e-3, 2.0, sample_rate=0.1)
    assert with_copies(1, rare).samples is not None
    found = with_copies(3, rare)
    assert found.samples is None
    assert found.mu == pytest.approx([1.5, 1.5, 1.5, 0.5, 0.5])


@pytest.mark.parametrize("noise", [GaussianNoise(0.3), LaplacianNoise(0.3)])
def test_clients_with_the_same_picture_tell_of_it_together(noise: Release) -> None:
    apart = claim(noise, noise, count=1)
    same = replace(apart, clients=(apart.clients[0],) * 2)
    one, both = bound(replace(apart, clients=apart.clients[:1])), bound(same)
    if one.mu:  # the mean has the noise of two
        assert both.mu == pytest.approx([math.sqrt(2) * one.mu[0]] * 2, rel=1e-4)
    else:
        assert both.renyi[0] == pytest.approx(2 * one.renyi[0], rel=1e-4)


def test_poisson_samples_of_copies_are_refused() -> None:
    images, labels = data()
    twice = torch.cat([images, images[:1]]), torch.cat([labels, labels[:1]])
    with pytest.raises(UsageError, match="some are copies of others"):
        certify(network(), *twice, ONE, [DPSGD(1.0, 1.0)], whitening=PLAIN, poisson=0.1)
