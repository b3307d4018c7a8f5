"""Beside every score stands the best of several guesses that need no message."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest
import torch

from fedglass.audit.assessment import (
    IMAGINED,
    assess,
    best_guess,
    guessed_public,
    guesses,
    scored_guesses,
)
from fedglass.audit.public_data import Public
from fedglass.audit.simulated import Simulated
from fedglass.audit.target import Target
from fedglass.core.rng import stream
from fedglass.core.types import Reconstruction
from fedglass.data.catalogue import glyphs
from fedglass.federation.federation import Federation
from fedglass.federation.peer import PeerView
from fedglass.federation.truth import Examples, Truth
from fedglass.federation.views import ServerView, View
from fedglass.recipes import recipe
from fedglass.verdict.gate import Gate

Make = Callable[..., Federation]
CLASS_MEANS = "the means of the classes found"


def seen_by(view: View, federation: Federation, public: Public | None = None) -> Target:
    target = Simulated(federation, views=(view,), public=public).targets(lambda done, total: None)[0]
    assert isinstance(target, Target)
    return target


def test_class_means_beat_flat_guesses_on_characters(make_federation: Make) -> None:
    """And the pairing is the attack's: labels in another order guess as well."""
    data = glyphs(writers=8).resized(12)
    private = data.subset([0, 1, 2])
    rest = Public.of(data.images, data.labels, range(3, len(data)))
    federation = make_federation(examples=3)
    target = seen_by(ServerView(), federation)
    truth = Truth(private.images, private.labels, ("x",))
    best = [
        best_guess(target.observation, truth, labels, ("psnr",), rest)
        for labels in (private.labels, private.labels.flip(0))
    ]
    flat, _ = best_guess(target.observation, truth, private.labels, ("psnr",), None)
    (values, names), (values_flipped, _) = best
    assert values == values_flipped
    assert names["psnr"].count(CLASS_MEANS) >= 2
    assert sum(values["psnr"]) > sum(flat["psnr"]) + 3


def test_labels_that_no_public_image_has_are_guessed_by_the_mean(make_federation: Make) -> None:
    target = seen_by(ServerView(), make_federation(examples=2))
    assert target.truth is not None
    public = Public.of(torch.rand(4, 1, 12, 12), torch.tensor([0, 0, 1, 1]))
    named = guesses(target.observation, target.truth, torch.tensor([1, 7]), public)
    assert torch.equal(named[CLASS_MEANS][0], torch.stack([public.of_class[1], public.mean]))


def test_a_peers_class_means_may_show_its_own_examples_too(make_federation: Make) -> None:
    target = seen_by(PeerView(0), make_federation(clients=2, examples=2))
    assert target.truth is not None
    # Means of four classes, each of which is one of the four images behind the message.
    public = Public.of(target.truth.images, torch.arange(4))
    values, names = best_guess(target.observation, target.truth, torch.tensor([3, 1, 0, 2]), ("psnr",), public)
    assert set(names["psnr"]) == {CLASS_MEANS}
    assert len(values["psnr"]) == 2


def test_what_public_data_show_as_well_is_not_recovered(make_federation: Make) -> None:
    target = seen_by(ServerView(), make_federation(examples=1))
    assert target.truth is not None
    truth = target.truth
    attack = recipe("inverting_gradients", iterations=1)
    run = attack.run(target.observation)
    shown: Reconstruction = replace(run, images=(truth.images + 0.03).clamp(0, 1))

    def guessed(public: Public | None) -> int:
        return Gate().guessed(assess(attack, replace(target, public=public), shown, ("psnr",), 0).scores)

    assert guessed(None) == 0
    assert guessed(Public.of(truth.images, truth.labels)) == 1


@pytest.mark.parametrize("gate", [Gate("rmse", 0.1), Gate("psnr", 20.0)], ids=str)
def test_a_peer_that_shows_what_can_be_guessed_is_flagged_by_any_gate(make_federation: Make, gate: Gate) -> None:
    target = seen_by(PeerView(0), make_federation(clients=3, examples=2))
    assert target.truth is not None
    truth = target.truth
    attack = recipe("maliciously_curious_client", iterations=1)
    near = (truth.images + 0.03).clamp(0, 1)  # beyond either gate's threshold
    shown: Reconstruction = replace(attack.run(target.observation), images=near)

    def guessed(public: Public | None) -> int:
        return gate.guessed(assess(attack, replace(target, public=public), shown, ("psnr", "rmse"), 0).scores)

    assert guessed(None) == 0
    assert guessed(Public.of(truth.images, torch.arange(len(truth.images)))) > 0


def test_black_is_black_and_never_better_than_the_best_flat_colour(make_federation: Make) -> None:
    target = seen_by(ServerView(), make_federation(examples=3))
    assert target.truth is not None
    truth = target.truth
    scores = scored_guesses(target.observation, truth, truth.labels, ("rmse",))
    expected = truth.images.square().mean((1, 2, 3)).sqrt()
    assert torch.allclose(torch.tensor(scores["black"]["rmse"]), expected, atol=1e-5)
    assert all(map(float.__ge__, scores["black"]["rmse"], scores["the best flat colour"]["rmse"]))


def test_what_a_decoder_draws_of_nothing_is_a_guess_where_an_attack_uses_it(make_federation: Make) -> None:
    target = seen_by(PeerView(0), make_federation(clients=2, examples=2))
    assert target.truth is not None
    seen, truth = target.observation, target.truth
    attack = recipe("maliciously_curious_client_published", iterations=1)
    scores = scored_guesses(seen, truth, truth.labels, ("rmse",), attack=attack)
    assert len(scores[IMAGINED]["rmse"]) == 2
    again = scored_guesses(seen, truth, truth.labels, ("rmse",), attack=attack)
    assert again[IMAGINED] == scores[IMAGINED]
    for other in (None, recipe("inverting_gradients"), recipe("maliciously_curious_client_published", decoder="none")):
        assert IMAGINED not in scored_guesses(seen, truth, truth.labels, ("rmse",), attack=other)


def test_an_image_that_random_codes_draw_as_well_is_not_recovered(make_federation: Make) -> None:
    target = seen_by(PeerView(0), make_federation(clients=2, examples=2))
    assert target.truth is not None
    attack = recipe("maliciously_curious_client_published", iterations=1)
    drawn, _ = guesses(target.observation, target.truth, target.truth.labels, attack=attack)[IMAGINED]
    truth = replace(target.truth, images=drawn)  # as if the private images were what the decoder draws anyway
    shown: Reconstruction = replace(attack.run(target.observation), images=drawn)
    gate = Gate("rmse", 0.1)
    scores = assess(attack, replace(target, truth=truth), shown, ("rmse",), 0).scores
    assert gate.guessed(scores) > 0
    assert not any(gate.hits(scores))


def test_public_means_leave_out_what_is_private() -> None:
    images = torch.rand(5, 1, 4, 4)
    labels = torch.tensor([0, 0, 1, 1, 2])
    public = Public.of(images, labels, [1, 2, 3])
    torch.testing.assert_close(public.mean, images[1:4].mean(0))
    torch.testing.assert_close(public.of_class[1], images[2:4].mean(0))
    assert set(public.of_class) == {0, 1}
    assert public.examples is not None
    assert public.images == len(public.examples.labels) == 3
    assert Public.given(images, labels).identity != Public.given(1 - images, labels).identity
    assert public.identity == ""


def test_smooth_public_images_are_guessed_by_those_of_their_class() -> None:
    """Each is left out of its own class's mean: a class of one is not guessed."""
    generator = stream(0, "public")
    classes = torch.rand(2, 1, 8, 8, generator=generator)
    labels = torch.arange(40) % 2
    images = (classes[labels] + 0.01 * torch.randn(40, 1, 8, 8, generator=generator)).clamp(0, 1)
    found = guessed_public(Examples(images, labels), ("psnr", "ssim", "rmse", "lpips"))
    assert set(found) == {"psnr", "rmse"}
    assert min(found["psnr"]) > 35
    lonely = torch.arange(40)
    assert max(guessed_public(Examples(images, lonely), ("psnr",))["psnr"]) < 20
