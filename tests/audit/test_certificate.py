"""Certificates of messages: distances by hand, several rounds, several clients, and what has none."""

from __future__ import annotations

import math

import pytest
import torch
from scipy.stats import norm
from torch import nn
from torch.nn import functional as F

from fedglass.audit.certificate import Bound, bound_of, certificate_of, certify, total_std
from fedglass.audit.replay import Declared, Part
from fedglass.core.errors import UsageError
from fedglass.core.params import buffers_of, weights_of
from fedglass.core.types import Training, Whitening
from fedglass.defend.clip import Clip
from fedglass.defend.dpsgd import DPSGD
from fedglass.defend.gaussian_noise import GaussianNoise
from fedglass.defend.laplacian_noise import LaplacianNoise
from fedglass.fl.protection import Protection
from fedglass.fl.release import AsIs, Chain, Outgoing, Release
from fedglass.ledger.doubts import Doubt, Kind

PLAIN = Whitening((0.0,), (1.0,))
ONE = Training(lr=0.5)


def network() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Flatten(), nn.Linear(16, 6), nn.ReLU(), nn.Linear(6, 3))


def data(count: int = 3) -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(1)
    return torch.rand(count, 1, 4, 4, generator=generator), torch.arange(count) % 3


def by_hand(images: torch.Tensor, labels: torch.Tensor, lr: float = 0.5) -> torch.Tensor:
    """One step of plain SGD, as a loop of PyTorch makes it."""
    model = network()
    F.cross_entropy(model(images), labels).backward()
    return torch.cat([-lr * p.grad.flatten() for p in model.parameters() if p.grad is not None]).double()


def claim(*releases: Release, training: Training = ONE, count: int = 3, own: int = 0, **told: object) -> Declared:
    images, labels = data(count * len(releases))
    model = network()
    parts = tuple(
        Part(images[i * count : (i + 1) * count], labels[i * count : (i + 1) * count], training, Protection(release=r))
        for i, r in enumerate(releases)
    )
    return Declared(model, weights_of(model), buffers_of(model), {}, PLAIN, parts, own=own, **told)  # type: ignore[arg-type]


def bound(*claims: Declared) -> Bound:
    found = bound_of(claims)
    assert isinstance(found, Bound)
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
    assert lone.kind is Kind.NO_NOISE


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
