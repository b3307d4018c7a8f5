"""A saved transcript becomes a bundle: the same messages under the same training, read by the same commands."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from click.testing import Result

from fedglass.checks.replay import replay
from fedglass.core.errors import DataError
from fedglass.core.types import Training
from fedglass.defend.noise import Clip
from fedglass.federation.federation import Federation
from fedglass.models.names import with_fixed
from fedglass.recordings.join import bundle_of_saved, is_saved
from fedglass.recordings.observed import contradictions_of

from .test_plans import job, sources, targets

Make = Callable[..., Federation]
Run = Callable[..., Result]
KEYS = 'model = "lenet"\ntruth = "private"\nrounds = "all"'


TRAINING = Training(lr=0.2, epochs=2, batch_size=1)


@pytest.fixture
def federation(make_federation: Make) -> Federation:
    return replace(make_federation(clients=2, examples=2), training=TRAINING)


@pytest.fixture
def saved(federation: Federation, tmp_path: Path) -> Path:
    federation.run(2).save(tmp_path / "saved")
    federation.truths(range(2)).save(tmp_path / "private")
    return tmp_path / "saved"


def test_its_messages_are_those_of_the_transcript(federation: Federation, saved: Path, tmp_path: Path) -> None:
    assert is_saved(saved)
    bundle = bundle_of_saved(saved, tmp_path / "b")
    assert not is_saved(tmp_path / "b")
    assert [finding for index in bundle.rounds for finding in contradictions_of(bundle, index)] == []
    (source,) = sources(job(tmp_path, KEYS))
    for index, past in federation.run(2).rounds.items():
        found = source.transcript.rounds[index]
        assert found.participants == past.participants
        assert found.accepted == past.accepted
        assert all(torch.equal(found.before[name], tensor) for name, tensor in past.before.items())
        assert all(torch.equal(found.step[name], tensor) for name, tensor in past.step.items())
        for one, other in zip(found.messages, past.messages, strict=True):
            assert all(torch.equal(one.update[name], tensor) for name, tensor in other.update.items())
    for target in targets(job(tmp_path, KEYS)):
        assert target.claim is not None
        played = replay(target.claim)
        assert played is not None
        assert played.explained


def test_defences_stay_what_they_are_in_words(federation: Federation, tmp_path: Path) -> None:
    said = federation.run(1)
    words = {"client 0": ("Defended by Clip(norm=1.0).",), "client 1": ()}
    replace(said, terms=replace(said.terms, defences=words)).save(tmp_path / "saved")
    bundle_of_saved(tmp_path / "saved", tmp_path / "b")
    (source,) = sources(job(tmp_path, 'model = "lenet"'))
    told = source.transcript.terms.defences
    assert told is not None
    assert "Clip(norm=1.0)" in told["client 0"][0]
    assert told["client 1"] == ()
    assert source.defences == {}


def test_layers_that_its_model_does_not_train_are_told_behind_a_defence_too(
    federation: Federation, tmp_path: Path
) -> None:
    fixed = ["body.0.weight", "body.0.bias"]
    clip = Clip(norm=0.01)
    clients = tuple(replace(client, release=clip) for client in federation.clients)
    tuned = replace(federation, model=with_fixed(federation.model, fixed), clients=clients)
    tuned.run(1).save(tmp_path / "saved")
    tuned.truths(range(1)).save(tmp_path / "private")
    bundle_of_saved(tmp_path / "saved", tmp_path / "b")
    keys = 'model = "lenet"\ntruth = "private"\ndefended = [{ name = "clip", norm = 0.01 }]'
    for target in targets(job(tmp_path, keys)):
        assert not set(fixed) & set(target.observation.update)
        assert target.claim is not None
        played = replay(target.claim)
        assert played is not None
        assert played.explained


def test_the_commands_read_it(fedglass: Run, saved: Path, tmp_path: Path) -> None:
    refused = fedglass("record-info", saved)
    assert refused.exit_code == 2
    assert f"`fedglass join NEW {saved}`" in refused.stderr
    assert fedglass("join", tmp_path / "b", saved).exit_code == 0
    assert json.loads(fedglass("record-info", tmp_path / "b", "--json").stdout)["needed"] == ["model"]
    assert fedglass("init", tmp_path / "plan.toml", "--from", tmp_path / "b", "--model", "lenet").exit_code == 0
    assert "is sound" in " ".join(fedglass("check", tmp_path / "plan.toml").stdout.split())


@pytest.mark.parametrize("spoil", ["a file", "a stranger", "a part"])
def test_what_is_damaged_is_refused_in_a_sentence(saved: Path, tmp_path: Path, spoil: str) -> None:
    path = saved / "manifest.json"
    told = json.loads(path.read_text())
    if spoil == "a file":
        (saved / "round-00001.safetensors").write_bytes(b"no")
    elif spoil == "a stranger":
        told["rounds"][0]["kept"] = ["nobody"]
    else:
        told["rounds"][0]["models"] = next(iter(told["rounds"][0]["messages"].values()))
    path.write_text(json.dumps(told))
    with pytest.raises(DataError) as refused:
        bundle_of_saved(saved, tmp_path / "b")
    assert "\n" not in str(refused.value)
