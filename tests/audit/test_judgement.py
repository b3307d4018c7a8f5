"""What the truth says of a reconstruction when some of the examples behind the message are the adversary's own."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import torch

from fedglass.audit.assessment import assess
from fedglass.audit.scoring import blends_of, decoys
from fedglass.audit.simulated import Simulated
from fedglass.federation.federation import Federation
from fedglass.federation.peer import PeerView
from fedglass.recipes import recipe

Make = Callable[..., Federation]


def test_a_peers_own_examples_are_no_leak_before_a_refinement_either(make_federation: Make) -> None:
    federation = make_federation(clients=2, examples=2)
    (target,) = Simulated(federation, views=(PeerView(0),)).targets(lambda done, total: None)
    assert target.truth is not None
    attack = recipe("inverting_gradients", iterations=1)
    found = attack.run(target.observation)
    grey = torch.full_like(found.images, 0.5)
    own = torch.cat([grey[:2], federation.clients[0].images])
    judged = assess(attack, target, replace(found, images=grey, raw=own), ("psnr",), 0)
    assert judged.shown_raw is not None
    assert len(judged.shown_raw) == len(judged.shown) == 2
    assert len(judged.scores.metrics_raw["psnr"]) == 2
    assert max(judged.scores.metrics_raw["psnr"]) < 20


def test_a_decoy_that_shows_the_same_is_none() -> None:
    """Otherwise the truth would seem not to stand out from other images, which is what shows that a defence works."""
    halves = torch.zeros(1, 1, 8, 8)
    halves[..., 4:] = 1.0
    (inverted,) = decoys(halves)
    torch.testing.assert_close(inverted, 1 - halves)
    assert decoys(torch.full((1, 1, 8, 8), 0.3)) == []
    assert len(decoys(torch.rand(2, 1, 8, 8, generator=torch.Generator().manual_seed(0)))) == 3


def test_a_blend_of_two_images_is_neither() -> None:
    generator = torch.Generator().manual_seed(0)
    images = torch.rand(3, 1, 6, 6, generator=generator)
    mean = images[:2].mean(0, keepdim=True)
    noisy = images + 0.05 * torch.randn(images.shape, generator=generator)
    assert blends_of(torch.cat([mean, mean, noisy[2:]]), images) == [[0, 1], [0, 1], []]
    assert blends_of(noisy, images) == [[], [], []]
    unread = torch.full_like(images[:1], torch.nan)
    assert blends_of(torch.cat([unread, noisy[1:]]), images) == [[], [], []]
