"""Layers that nobody trains, or that never travel, as in the fine-tuning of a pretrained network."""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file
from torch import nn
from torch.nn import functional as F

from fedglass.audit.recorded import Recorded
from fedglass.audit.target import Target, ready_target
from fedglass.checks.replay import replay
from fedglass.core.errors import UpdateError
from fedglass.federation.transcript import unmoved_parameters
from fedglass.models.catalogue import build
from fedglass.plan.compile import compile_plan
from fedglass.plan.draft import draft
from fedglass.plan.schema import parse_plan
from fedglass.recorders.plain import recording
from fedglass.recordings import BundleWriter, read_bundle
from fedglass.recordings.observed import contradictions_of
from fedglass.recordings.transcript import TranscriptReader

from .federations import CLASSES, SHAPE, TERMS, State, examples

STEM = ("body.0.weight", "body.0.bias")
ATTACK = '[[attacks]]\nname = "inverting_gradients"\niterations = 3\n[metrics]\nnames = ["psnr"]\n'


def pretrained() -> nn.Module:
    return build("lenet", shape=SHAPE, classes=CLASSES)


def fine_tuned(model: nn.Module, steps: int = 3, seed: int = 0) -> State:
    """After some steps of all but the stem."""
    own = copy.deepcopy(model)
    images, labels = examples(seed, 2)
    optimiser = torch.optim.SGD([p for name, p in own.named_parameters() if name not in STEM], lr=0.1)
    for _ in range(steps):
        optimiser.zero_grad()
        F.cross_entropy(own((images - 0.5) / 0.3), labels).backward()
        optimiser.step()
    return {name: tensor.detach().clone() for name, tensor in own.state_dict().items()}


def trained_alone(state: State) -> State:
    return {name: tensor for name, tensor in state.items() if name not in STEM}


def written(folder: Path, sent: State, received: State, **facts: Any) -> None:
    writer = BundleWriter(folder / "b", facts={**TERMS, **facts})
    writer.round(1).sent(sent)
    writer.round(1).received("a", received, examples=2)
    writer.training("a", 1, {"optimiser": "SGD", "lr": 0.1, "steps": 3, "batch_sizes": [2] * 3}, source="read")
    writer.truth("a", *examples(0, 2))


def looked_at(folder: Path, keys: str = "") -> tuple[Recorded, Target]:
    text = f'[recording]\nbundle = "b"\ntruth = "b-truth"\n{keys}\n{ATTACK}'
    (source,) = compile_plan(parse_plan(text), folder).sources
    assert isinstance(source, Recorded)
    (target,) = source.targets(lambda done, total: None)
    return source, ready_target(target)


def explained(target: Target) -> bool:
    assert target.claim is not None
    found = replay(target.claim)
    assert found is not None
    return found.explained


def test_layers_that_stay_are_constants_and_the_message_is_explained(tmp_path: Path) -> None:
    model = pretrained()
    written(tmp_path, dict(model.state_dict()), fine_tuned(model))
    source, target = looked_at(tmp_path)
    assert set(target.observation.before) == set(dict(model.named_parameters())) - set(STEM)
    assert set(STEM) <= set(target.observation.buffers)
    assert explained(target)
    assert any("body.0.weight" in line and "constants" in line for line in source.threat()[0][1])


def test_what_does_not_come_back_is_not_trained(tmp_path: Path) -> None:
    model = pretrained()
    written(tmp_path, dict(model.state_dict()), trained_alone(fine_tuned(model)))
    _, target = looked_at(tmp_path)
    assert not set(STEM) & set(target.observation.before)
    assert explained(target)


def test_what_never_travels_is_named_by_the_plan(tmp_path: Path) -> None:
    model = pretrained()
    state = {name: tensor.detach().clone() for name, tensor in model.state_dict().items()}
    written(tmp_path, trained_alone(state), trained_alone(fine_tuned(model)))
    with pytest.raises(
        UpdateError, match=r"lacks the model's parameter 'body.0.weight' \(2 in all\).*recording.weights"
    ):
        looked_at(tmp_path)
    save_file({name: state[name] for name in STEM}, tmp_path / "stem.safetensors")
    assert draft(tmp_path / "b").problem
    made = draft(tmp_path / "b", weights=tmp_path / "stem.safetensors")
    assert not made.problem
    assert "\nweights = " in made.text
    _, target = looked_at(tmp_path, 'weights = "stem.safetensors"')
    assert torch.equal(target.observation.buffers["body.0.weight"], state["body.0.weight"])
    assert explained(target)
    save_file({"other": torch.zeros(2)}, tmp_path / "wrong.safetensors")
    with pytest.raises(UpdateError, match=r"recording.weights: .*has the unknown 'other'"):
        looked_at(tmp_path, 'weights = "wrong.safetensors"')


def test_another_start_of_what_never_travels_is_not_explained(tmp_path: Path) -> None:
    """As that of layers which each client keeps and trains for itself."""
    model = pretrained()
    written(tmp_path, trained_alone(dict(model.state_dict())), trained_alone(fine_tuned(model)))
    save_file({name: 1.5 * model.state_dict()[name] for name in STEM}, tmp_path / "stem.safetensors")
    _, target = looked_at(tmp_path, 'weights = "stem.safetensors"')
    assert not explained(target)


def test_the_recorder_tells_what_is_not_trained(tmp_path: Path) -> None:
    model = pretrained()
    for name, parameter in model.named_parameters():
        parameter.requires_grad_(name not in STEM)
    images, labels = examples(0, 2)
    optimiser = torch.optim.SGD(model.parameters(), lr=0.1)
    with recording(tmp_path / "b", model, client="a", round=1):
        F.cross_entropy(model((images - 0.5) / 0.3), labels).backward()
        optimiser.step()
    bundle = read_bundle(tmp_path / "b")
    assert bundle.facts_of("a", 1)["untrained"] == {"read": list(STEM)}
    assert contradictions_of(bundle, 1) == []


@pytest.mark.parametrize("wrapped", [False, True])
def test_the_recorder_tells_them_by_the_networks_own_names(tmp_path: Path, wrapped: bool) -> None:
    """Whatever it is wrapped in for the training, the network alone or its wrapper may be sent."""
    model = pretrained()
    for name, parameter in model.named_parameters():
        parameter.requires_grad_(name not in STEM)
    parallel, (images, labels) = nn.DataParallel(model), examples(0, 2)
    optimiser = torch.optim.SGD(model.parameters(), lr=0.1)
    with recording(tmp_path / "b", parallel if wrapped else model, client="a", round=1):
        F.cross_entropy(parallel((images - 0.5) / 0.3), labels).backward()
        optimiser.step()
    bundle = read_bundle(tmp_path / "b")
    assert bundle.facts_of("a", 1)["untrained"] == {"read": list(STEM)}
    assert TranscriptReader(bundle, pretrained(), {}).round(1).participants[0].untrained == STEM


def test_what_is_not_trained_and_moves_is_said(tmp_path: Path) -> None:
    model = pretrained()
    after = fine_tuned(model)
    after["body.0.bias"] = after["body.0.bias"] + 1
    written(tmp_path, dict(model.state_dict()), after)
    BundleWriter(tmp_path / "b", resume=True).training("a", 1, {"untrained": list(STEM)}, source="read")
    words = [found.text for found in contradictions_of(read_bundle(tmp_path / "b"), 1)]
    assert words == ["body.0.bias changed although declared as frozen"]
    _, target = looked_at(tmp_path)
    assert "body.0.bias" in target.observation.before
    assert not explained(target)


def test_behind_a_defence_what_is_told_counts(tmp_path: Path) -> None:
    """What has not moved may have been cut out, unless a recorder saw that it was not trained."""
    model = pretrained()
    clipped = [{"name": "clip", "options": {"norm": 100.0}}]
    written(tmp_path, dict(model.state_dict()), fine_tuned(model), defences=clipped)
    assert not explained(looked_at(tmp_path)[1])
    BundleWriter(tmp_path / "b", resume=True).training("a", 1, {"untrained": list(STEM)}, source="read")
    assert explained(looked_at(tmp_path)[1])


def test_a_difference_that_is_too_small_for_a_weight_is_no_layer_that_nobody_trains() -> None:
    """Clients that send differences send the smallest of them in full: what it tells is not to be left out."""
    before = {"first": torch.ones(3), "last": torch.ones(3)}
    update = {"first": torch.tensor([1e-9, -2e-9, 0.0]), "last": torch.full((3,), 0.1)}
    assert unmoved_parameters(before, update) == ()
    assert unmoved_parameters(before, update, mean=True) == ()
    rounded = {**update, "first": torch.tensor([2.0**-23, 1e-16, 0.0])}
    assert unmoved_parameters(before, rounded, mean=True) == ("first",)
    assert unmoved_parameters(before, {**update, "first": torch.zeros(3)}) == ("first",)


def test_what_moves_in_an_aggregate_is_no_constant_although_no_message_had_it(tmp_path: Path) -> None:
    model = pretrained()
    sent = {name: tensor.detach().clone() for name, tensor in model.state_dict().items()}
    writer, ends = BundleWriter(tmp_path / "b", facts=TERMS), []
    writer.round(1).sent(sent)
    for i, client in enumerate("ab"):
        ends.append(fine_tuned(model, seed=i))
        writer.round(1).received(client, trained_alone(ends[i]), examples=2)
        read = {"optimiser": "SGD", "lr": 0.1, "steps": 3, "batch_sizes": [2] * 3}
        writer.training(client, 1, read, source="read")
        writer.truth(client, *examples(i, 2))
    moved = {**sent, STEM[1]: 2 * sent[STEM[1]]}
    writer.round(1).aggregated(
        {name: moved[name] if name in STEM else (ends[0][name] + ends[1][name]) / 2 for name in sent}
    )
    _, target = looked_at(tmp_path, '[adversary]\nview = "aggregate"')
    assert STEM[0] not in target.observation.update
    assert STEM[1] in target.observation.update
    assert not explained(target)


def test_what_moves_by_less_than_the_models_own_type_can_hold_is_refused(tmp_path: Path) -> None:
    model = pretrained()
    sent, after = dict(model.state_dict()), {name: t.double() for name, t in fine_tuned(model).items()}
    hidden = {**after, STEM[1]: after[STEM[1]] * (1 + 1e-12)}
    for name, message in (("hidden", hidden), ("plain", after)):
        written(tmp_path / name, sent, message)
    assert explained(looked_at(tmp_path / "plain")[1])
    with pytest.raises(UpdateError, match=r"'body.0.bias' moved by less than torch.float32 can hold"):
        looked_at(tmp_path / "hidden")


def test_weights_that_came_in_double_precision_and_are_sent_back_are_none_that_moved(tmp_path: Path) -> None:
    model = pretrained()
    wide = {name: tensor.double() * (1 + 1e-12) for name, tensor in model.state_dict().items()}
    after = fine_tuned(model)
    for name, stem in (("narrow", {}), ("wide", {key: wide[key] for key in STEM})):
        written(tmp_path / name, wide, {**after, **stem})
        _, target = looked_at(tmp_path / name)
        assert not set(STEM) & set(target.observation.update)
        assert explained(target)
