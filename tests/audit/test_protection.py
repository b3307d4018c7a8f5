"""What an audit says of the defences: which they are, what they promise, and what they cost."""

from __future__ import annotations

import copy
import re
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch

from fedglass.audit.protection import DELTA, defences_of, describe_privacy, undefended
from fedglass.audit.public_data import accuracy, model_after
from fedglass.audit.simulated import Simulated
from fedglass.audit.target import Target
from fedglass.core.rng import stream
from fedglass.core.types import BatchNorm, Training
from fedglass.defend.accounting import Mechanism, budgets, gaussian_epsilon
from fedglass.defend.dpsgd import DPSGD, PoissonDPSGD
from fedglass.defend.filters import FlowerLocalDP, SVTPrivacy
from fedglass.defend.noise import Clip, GaussianNoise
from fedglass.defend.pruning import MagnitudePruning
from fedglass.federation.federation import Federation
from fedglass.federation.peer import PeerView
from fedglass.federation.truth import Examples
from fedglass.federation.views import AggregateView, ServerView
from fedglass.fl.release import Chain, Protection, Release

Make = Callable[..., Federation]


def defended(federation: Federation, **parts: object) -> Federation:
    return replace(federation, clients=[replace(c, **parts) for c in federation.clients])  # type: ignore[arg-type]  # passed on


def promised(federation: Federation, rounds: int) -> list[str]:
    """By the first client's defences."""
    return describe_privacy(federation.clients[0], federation.training, rounds)


def test_every_part_is_named_in_its_order(make_federation: Make) -> None:
    chain = Chain((Clip(norm=1.0), Chain((MagnitudePruning(share=0.5), GaussianNoise(std=0.1)))))
    federation = defended(make_federation(), gradient=DPSGD(clip=1.0, noise_multiplier=2.0), release=chain)
    words = defences_of(federation.clients[0])
    assert [w.split("(")[0] for w in words] == ["DPSGD", "Clip", "MagnitudePruning", "GaussianNoise"]
    assert defences_of(undefended(federation.clients[0])) == []
    assert Simulated(make_federation()).protection() == {"client 0": (), "client 1": ()}


@pytest.mark.parametrize(
    ("release", "says"),
    [
        (FlowerLocalDP(1.0, 1e-4, 10.0, 1e-5), r"declares epsilon 10 at delta 1e-05; over 2 releases it is \d.*e\+08"),
        (SVTPrivacy(epsilon=0.1), r"declares epsilon 0.1 at delta 0; over 2 releases it is \d"),
    ],
)
def test_a_declared_epsilon_stands_next_to_the_real_one(make_federation: Make, release: Release, says: str) -> None:
    federation = defended(make_federation(), release=release)
    (lines, *_) = (section[1] for section in Simulated(federation, rounds=2).threat())
    assert any(re.search(says, line) for line in lines), lines


def test_a_message_is_protected_by_its_own_clients_defences_alone(make_federation: Make) -> None:
    """Another client's defence must not make a blind attack look like a defence that hides something."""
    bare = make_federation(clients=3)
    noisy = replace(bare.clients[1], release=Chain((Clip(norm=1.0), GaussianNoise(std=2.0))))
    private = replace(
        bare.clients[2], gradient=DPSGD(clip=1.0, noise_multiplier=2.0), training=Training(lr=0.1, steps=7)
    )
    federation = replace(bare, clients=[bare.clients[0], noisy, private])
    views = ServerView(0), ServerView(1), ServerView(2), AggregateView(), PeerView(1)
    own, other, third, all_three, peer = Simulated(federation, views=views).targets(lambda done, total: None)
    assert own.defences == ()
    claims = [target.claim for target in (own, other) if isinstance(target, Target) and target.claim is not None]
    protections = [[client.protection for client in claim.clients] for claim in claims]
    assert protections == [[Protection()], [Protection(release=noisy.release)]]
    assert other.defences is not None
    assert "Defended by Clip(norm=1.0)." in other.defences
    assert third.defences is not None
    assert all("clipped and noised" not in line for line in third.defences)
    seven = budgets(Mechanism(2.0, sample_rate=1.0, steps=7), DELTA)[-1]
    assert any(str(seven) in line for line in third.defences)
    assert all_three.defences is not None
    assert "Client 0: No defence." in all_three.defences
    assert peer.defences is not None
    assert not any("Clip" in line for line in peer.defences)
    lines = [line for _, lines in Simulated(federation).threat() for line in lines]
    assert "Client 0: No defence." in lines
    assert "Client 1: Defended by clip (norm 1): the update scaled down to a maximal L2 norm." in lines


def test_private_training_states_every_accountants_budget(make_federation: Make) -> None:
    federation = defended(make_federation(examples=4), gradient=DPSGD(clip=1.0, noise_multiplier=2.0))
    federation = replace(federation, training=Training(lr=0.1, epochs=3, batch_size=2))
    (said,) = [line for line in promised(federation, rounds=5) if "DP-SGD" in line]
    for budget in budgets(Mechanism(2.0, sample_rate=1.0, steps=15), DELTA):  # one slice of every epoch
        assert str(budget) in said
    assert "Gaussian" in said
    assert "CLT" not in said


def test_poisson_samples_amplify_privacy(make_federation: Make) -> None:
    sampled = PoissonDPSGD(clip=1.0, noise_multiplier=2.0, sample_rate=0.5)
    federation = defended(make_federation(examples=4), gradient=sampled)
    federation = replace(federation, training=Training(lr=0.1, steps=6))
    (said,) = [line for line in promised(federation, rounds=5) if "DP-SGD" in line]
    for budget in budgets(Mechanism(2.0, sample_rate=0.5, steps=30), DELTA):
        assert str(budget) in said
    assert "CLT: an approximation, not a bound" in said


def test_noise_counts_after_a_clip_alone(make_federation: Make) -> None:
    clip, noise = Clip(norm=0.5), GaussianNoise(std=1.0)
    (said,) = [
        line
        for line in promised(defended(make_federation(), release=Chain((clip, noise))), rounds=2)
        if "takes part" in line
    ]
    assert f"ε ≤ {gaussian_epsilon(Mechanism(2.0, 1.0, 2), DELTA):.3g}" in said
    for release in (Chain((noise, clip)), noise, clip):
        assert promised(defended(make_federation(), release=release), rounds=2) == []


def test_a_clip_after_the_noise_promises_no_more(make_federation: Make) -> None:
    chain = Clip(norm=10.0), GaussianNoise(std=1.0)
    for later in (Clip(norm=0.1), MagnitudePruning(share=0.5)):
        said, more = (
            promised(defended(make_federation(), release=Chain(parts)), rounds=1) for parts in (chain, (*chain, later))
        )
        assert said == more != []
    again = Chain((*chain, Clip(norm=0.1), GaussianNoise(std=1.0)))
    (first, *_) = promised(defended(make_federation(), release=again), rounds=1)
    assert f"ε ≤ {gaussian_epsilon(Mechanism(10.0, 1.0, 1), DELTA):.3g}" in first


def test_accuracy_is_measured_with_and_without_the_defences(make_federation: Make) -> None:
    drawn = stream(0, "test examples")
    test = Examples(torch.rand(40, 1, 12, 12, generator=drawn), torch.randint(4, (40,), generator=drawn))
    bare = make_federation(examples=8, lr=0.5)
    drowned = defended(bare, release=GaussianNoise(std=10.0))

    def utility(federation: Federation) -> dict[str, float]:
        return dict(Simulated(federation, rounds=2, test=test).targets(lambda done, total: None)[0].utility)

    def measured(federation: Federation) -> float:
        return accuracy(model_after(federation.model, federation.run(2).rounds[1]), federation.whitening, test)

    plain = measured(bare)
    assert utility(bare) == {"test accuracy": plain}
    assert utility(drowned) == {
        "test accuracy": pytest.approx(measured(drowned)),
        "test accuracy, undefended": plain,
    }


def test_accuracy_is_that_of_the_model_after_the_round_with_its_statistics(toy: Any) -> None:
    """Running statistics from before the last round would belong to another model."""
    training = Training(0.3, batch_size=2, batch_norm=BatchNorm.BATCH)
    federation = toy.federation(training, model=toy.normalised(), clients=2, examples=6)
    last = federation.run(1).rounds[0]
    model = copy.deepcopy(federation.model)
    model.load_state_dict({**last.after, **last.buffers_after})
    images = toy.images(60, "test")
    with torch.no_grad():
        answers = model.eval()(federation.whitening.whiten(images)).argmax(1)
    test = Examples(images, answers)  # what the right model answers counts as right
    stale = replace(last, buffers_after=last.buffers)
    assert accuracy(model_after(federation.model, stale), federation.whitening, test) < 1
    assert accuracy(model_after(federation.model, last), federation.whitening, test) == 1
    found = Simulated(federation, rounds=1, test=test).targets(lambda done, total: None)[0].utility
    assert found["test accuracy"] == 1
