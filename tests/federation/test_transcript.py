"""Transcripts on disk: what was saved comes back to the last bit, and what was tampered with does not."""

from __future__ import annotations

import json
import stat
import sys
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from fedglass.core.errors import DataError, UsageError
from fedglass.core.optimisers import SGD, Adam, AdamW
from fedglass.core.rng import stream
from fedglass.core.types import BatchNorm, Training
from fedglass.federation.federation import Federation
from fedglass.federation.transcript import Participant, Transcript
from fedglass.federation.truth import Truths
from fedglass.recordings.format import MANIFEST

TRAININGS = [
    Training(0.2, epochs=2, batch_size=3),
    Training(0.1, steps=3, batch_size=2, optimiser=SGD(momentum=0.9, nesterov=True, weight_decay=1e-3), clip=1.0),
    Training(0.01, optimiser=Adam(betas=(0.8, 0.9)), shuffle=False, label_smoothing=0.1),
    Training(0.01, optimiser=AdamW(), batch_norm=BatchNorm.BATCH),
]


def federation(toy: Any, training: Training = TRAININGS[0]) -> Federation:
    found: Federation = toy.federation(training, model=toy.normalised(), clients=3, examples=4)
    return found


@pytest.mark.parametrize("training", TRAININGS)
def test_what_was_saved_comes_back(toy: Any, same: Callable[..., bool], tmp_path: Path, training: Training) -> None:
    said = replace(federation(toy, training).run(3, keep=(0, 2)), origin="somewhere")
    said.save(tmp_path)
    heard = Transcript.load(tmp_path, toy.normalised())
    assert (heard.terms, heard.origin, list(heard.rounds)) == (said.terms, said.origin, [0, 2])
    for one, other in zip(said.rounds.values(), heard.rounds.values(), strict=True):
        assert (one.participants, one.accepted) == (other.participants, other.accepted)
        assert [m.client for m in one.messages] == [m.client for m in other.messages]
        for part in ("before", "buffers", "step", "buffers_after", "after"):
            assert same(getattr(one, part), getattr(other, part))
        for mine, theirs in zip(one.messages, other.messages, strict=True):
            assert same(mine.update, theirs.update)
            assert same(mine.buffers, theirs.buffers)


def test_nothing_private_is_saved(toy: Any, tmp_path: Path) -> None:
    """Other data of the same sizes and the same updates leave the very same files."""
    played = federation(toy)
    played.run().save(tmp_path / "a")
    files = sorted(path.name for path in (tmp_path / "a").iterdir())
    assert files == [
        "manifest.json",
        *(
            f"round-00000{end}"
            for end in ("-00000.safetensors", "-00001.safetensors", "-00002.safetensors", ".safetensors")
        ),
    ]
    text = (tmp_path / "a" / MANIFEST).read_text()
    assert "images" not in text
    assert "labels" not in text.replace("label_smoothing", "")


def test_an_aggregate_alone_is_saved_too(toy: Any, tmp_path: Path) -> None:
    said = federation(toy).run()
    people = (Participant("a", 3, lr=0.1, steps=2), Participant("b", 5))
    secure = replace(said.rounds[0], messages=(), participants=people, accepted=("b",))
    replace(said, rounds={0: secure}).save(tmp_path)
    assert Transcript.load(tmp_path, toy.normalised()).rounds[0].participants == people


def test_truths_are_kept_apart_and_to_their_owner(toy: Any, same: Callable[..., bool], tmp_path: Path) -> None:
    truths = federation(toy).truths((0, 1))
    truths.save(tmp_path)
    again = Truths.load(tmp_path)
    assert list(again.examples) == list(truths.examples)
    for name, own in truths.examples.items():
        assert same(again.of(name, 0).images, own.images)
        assert same(again.of(name, 0).labels, own.labels)
    assert again.batch_labels == truths.batch_labels
    if sys.platform != "win32":
        assert {stat.S_IMODE(path.stat().st_mode) for path in tmp_path.iterdir()} == {0o600}


def mixed_rounds(folder: Path) -> None:
    manifest = json.loads((folder / MANIFEST).read_text())
    first, second = manifest["rounds"]
    first["models"], second["models"] = second["models"], first["models"]
    (folder / MANIFEST).write_text(json.dumps(manifest))


def changed(**facts: object) -> Callable[[Path], None]:
    def change(folder: Path) -> None:
        manifest = json.loads((folder / MANIFEST).read_text())
        (folder / MANIFEST).write_text(json.dumps({**manifest, **facts}))

    return change


def edited(path: str, value: object) -> Callable[[Path], None]:
    def change(folder: Path) -> None:
        manifest = json.loads((folder / MANIFEST).read_text())
        place: Any = manifest
        *steps, last = [int(step) if step.isdigit() else step for step in path.split(".")]
        for step in steps:
            place = place[step]
        place[last] = value
        (folder / MANIFEST).write_text(json.dumps(manifest))

    return change


def torn(folder: Path) -> None:
    path = folder / "round-00000.safetensors"
    path.write_bytes(path.read_bytes()[:-10])


def swollen(folder: Path) -> None:
    with (folder / "round-00000.safetensors").open("r+b") as file:
        file.truncate(2**40)  # a file of holes


def endless(folder: Path) -> None:
    path = folder / "round-00000.safetensors"
    path.unlink()
    path.symlink_to("/dev/zero")


@pytest.mark.parametrize(
    ("damage", "words"),
    [
        (lambda folder: (folder / MANIFEST).unlink(), "Cannot read .*manifest.json"),
        (lambda folder: (folder / MANIFEST).write_text("{"), "not the manifest of a transcript"),
        (lambda folder: (folder / MANIFEST).write_text("[" * 100_000), "not the manifest of a transcript"),
        (changed(format=2), "has format 2, expected at most 1: a newer fedglass"),
        (changed(format="x"), "not the manifest"),
        (changed(more=1), "more: Extra inputs"),
        (changed(rounds=[]), "rounds: List should have at least 1 item"),
        (edited("rounds.0.models.file", "../secret"), "rounds.0.models.file"),
        (edited("rounds.0.models.file", "none.safetensors"), "Cannot read .*none.safetensors"),
        (edited("rounds.0.kept", ["stranger"]), "names .'stranger'"),
        (edited("rounds.0.participants.0.training.lr", -1.0), "training.lr must be positive"),
        (edited("rounds.0.participants.0.training.optimiser.name", "os.system"), "unknown optimiser 'os.system'"),
        (edited("rounds.0.participants.0.training.optimiser.options", {"rate": 1.0}), "round 0"),
        (edited("rounds.1.index", 0), "names '0' twice"),
        (edited("terms.clients", ["client 0", "client 0", "client 1", "client 2"]), "names 'client 0' twice"),
        (edited("terms.mean", [float("nan")]), "manifest.json .* NaN is not a number in JSON"),
        (edited("terms.std", [float("inf")]), "manifest.json .* Infinity is not a number in JSON"),
        (edited("rounds.0.participants.0.lr", float("nan")), "manifest.json .* NaN is not a number in JSON"),
        (swollen, "it has .* bytes, expected at most"),
        (endless, "is a link, which is not followed here"),
        (torn, "other SHA-256"),
        (lambda folder: (folder / "round-00001-00002.safetensors").unlink(), "Cannot read .*00002"),
        (mixed_rounds, "does not start where round 0 ended"),
    ],
)
def test_a_damaged_transcript_is_refused(
    toy: Any, tmp_path: Path, damage: Callable[[Path], object], words: str
) -> None:
    federation(toy).run(2).save(tmp_path)
    damage(tmp_path)
    with pytest.raises(DataError, match=words):
        Transcript.load(tmp_path, toy.normalised())


def test_a_step_may_be_taken_from_two_models(toy: Any, tmp_path: Path) -> None:
    """As a recorder of a real federation does, which has the models and not what the rule gave."""
    said = federation(toy).run(2)
    first, second = said.rounds[0], said.rounds[1]
    noise = {n: torch.rand(w.shape, generator=stream(0, n)) for n, w in first.before.items()}
    before = {n: w + 3e-3 * noise[n] for n, w in first.before.items()}
    step = {n: w - before[n] for n, w in second.before.items()}
    assert any(not torch.equal(before[n] + step[n], w) for n, w in second.before.items())
    replace(said, rounds={0: replace(first, before=before, step=step), 1: second}).save(tmp_path)
    assert list(Transcript.load(tmp_path, toy.normalised()).rounds) == [0, 1]


@dataclass(frozen=True)
class Own(SGD):
    """An optimiser of somebody else."""


def test_an_optimiser_without_a_name_is_refused_in_a_sentence(toy: Any, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"cannot name the optimiser Own\(.*expected one of sgd, adam, adamw"):
        federation(toy, Training(0.1, optimiser=Own())).run().save(tmp_path)


def test_another_model_is_refused(toy: Any, tmp_path: Path) -> None:
    federation(toy).run().save(tmp_path)
    with pytest.raises(DataError, match="does not fit the model at"):
        Transcript.load(tmp_path, toy.dense())
    wider = toy.normalised()
    wider[-1] = nn.Linear(12, 6)
    with pytest.raises(DataError, match=r"does not fit the model at 'before/5.weight' \(6 such\)|does not fit"):
        Transcript.load(tmp_path, wider)


@pytest.mark.parametrize("text", ["{", "[]", '{"clients": ["a"], "batch_labels": [], "sha256": "00"}'])
def test_damaged_truths_are_refused(toy: Any, tmp_path: Path, text: str) -> None:
    federation(toy).truths().save(tmp_path)
    (tmp_path / "truth.json").write_text(text)
    with pytest.raises(DataError, match=r"truth\.json is not a sidecar of truths"):
        Truths.load(tmp_path)


def test_rounds_that_nobody_looks_at_are_not_kept(toy: Any) -> None:
    whole, part = federation(toy).run(4), federation(toy).run(4, keep=(1, 3))
    assert list(part.rounds) == [1, 3]
    assert all(torch.equal(part.rounds[3].step[n], t) for n, t in whole.rounds[3].step.items())


def test_statistics_that_were_not_recorded_stay_unknown(toy: Any, tmp_path: Path) -> None:
    said = federation(toy).run()
    past = said.rounds[0]
    messages = tuple(replace(message, buffers={}) for message in past.messages)
    replace(said, rounds={0: replace(past, messages=messages, buffers_after={})}).save(tmp_path)
    heard = Transcript.load(tmp_path, toy.normalised()).rounds[0]
    assert [message.buffers for message in heard.messages] == [{}] * len(messages)
    assert heard.buffers_after == {}
    assert heard.buffers
