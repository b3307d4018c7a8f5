"""Recorded messages: as good as simulated ones, and checked before they are believed."""

from __future__ import annotations

import tomllib
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file

from fedglass.audit.audit import Job, run
from fedglass.audit.recorded import Recorded
from fedglass.checks.consistency import contradictions
from fedglass.core.errors import UsageError
from fedglass.core.types import BatchNorm, Observation, Training, Whitening
from fedglass.defend.noise import GaussianNoise
from fedglass.federation.client import Client
from fedglass.federation.federation import Federation, observe
from fedglass.federation.views import Knows, ServerView
from fedglass.fl.release import Protection
from fedglass.models.catalogue import build
from fedglass.plan.compile import read_job
from fedglass.plan.options import code_of
from fedglass.plan.schema import Plan
from fedglass.verdict.doubts import DoubtKind, doubt

PLAN = """
[recording]
model = "lenet"
classes = 4
before = "before.safetensors"
after = "after.safetensors"
truth = "truth.npz"
whitening = { mean = [0.5], std = [0.3] }
training = { lr = 0.1 }
[[attacks]]
name = "inverting_gradients"
iterations = 3
[metrics]
names = ["psnr", "ssim"]
"""


@pytest.fixture
def folder(tmp_path: Path, make_federation: Callable[..., Federation]) -> Path:
    """What a user's own federation could have left on disk."""
    federation = make_federation()
    past = federation.run().rounds[0]
    message, client = past.messages[0], federation.clients[0]
    save_file(dict(past.before), tmp_path / "before.safetensors")
    save_file(dict(message.update), tmp_path / "update.safetensors")
    save_file({n: past.before[n] + message.update[n] for n in past.before}, tmp_path / "after.safetensors")
    np.savez(tmp_path / "truth.npz", images=client.images.numpy(), labels=client.labels.numpy())
    (tmp_path / "plan.toml").write_text(PLAN)
    return tmp_path


def job(folder: Path, *changes: tuple[str, str]) -> Job:
    text = PLAN
    for old, new in changes:
        assert old in text
        text = text.replace(old, new)
    (folder / "plan.toml").write_text(text)
    return read_job(folder / "plan.toml")


def source(found: Job) -> Recorded:
    (one,) = found.sources
    assert isinstance(one, Recorded)
    return one


def seen_of(found: Job) -> Observation:
    (target,) = source(found).targets(lambda done, total: None)
    return target.observation


def test_a_recording_is_the_observation_that_was_recorded(
    folder: Path, make_federation: Callable[..., Federation]
) -> None:
    simulated, truth = observe(make_federation(), ServerView(), Knows())
    by_update = source(job(folder, ('after = "after', 'update = "update')))
    (target,) = by_update.targets(lambda done, total: None)
    seen = target.observation
    assert all(torch.equal(seen.update[name], t) for name, t in simulated.update.items())
    assert all(torch.equal(seen.before[name], t) for name, t in simulated.before.items())
    assert target.truth is not None
    assert torch.equal(target.truth.images, truth.images)
    for name in ("shape", "classes", "examples", "training", "steps", "lr", "clients", "whitening"):
        assert getattr(seen.knows, name) == getattr(simulated.knows, name)
    by_after = seen_of(job(folder))
    assert all(torch.allclose(by_after.update[n], t, atol=1e-6) for n, t in simulated.update.items())


def test_a_recording_is_audited(folder: Path) -> None:
    (record,) = run(job(folder), folder / "out").searches
    assert record.status == "done"
    assert len(record.metrics["psnr"]) == 1
    assert record.view == "recording: the server sees the update of client 0 in round 1"
    assert record.client == "recorded"


def test_without_truth_there_are_pictures_and_no_verdict(folder: Path) -> None:
    result = run(job(folder, ('truth = "truth.npz"', "shape = [1, 12, 12]\nexamples = 1")), folder / "out")
    (record,) = result.searches
    assert record.metrics == {}
    assert [each.kind for each in record.doubts] == [DoubtKind.NO_TRUTH]
    (picture,) = record.extra["pictures"]  # type: ignore[misc]  # JSON
    assert (folder / "out" / str(picture)).is_file()
    assert result.verdict.exit_code == 3
    assert "true examples were not given" in result.verdict.sentence


def test_half_precision_is_read_as_single(folder: Path) -> None:
    update = {name: tensor.half() for name, tensor in load_file(folder / "update.safetensors").items()}
    save_file(update, folder / "update.safetensors")
    seen = seen_of(job(folder, ('after = "after', 'update = "update')))
    assert {t.dtype for t in seen.update.values()} == {torch.float32}


def test_knowledge_follows_the_adversary(folder: Path) -> None:
    ignorant = seen_of(job(folder, ("[recording]", "[adversary]\nknows_training = false\n[recording]"))).knows
    assert (ignorant.training, ignorant.steps, ignorant.lr, ignorant.labels) == (None, None, None, None)
    told = seen_of(job(folder, ("[recording]", "[adversary]\nknows_labels = true\n[recording]"))).knows
    assert told.labels is not None


def test_running_statistics_come_with_the_weights(tmp_path: Path, folder: Path) -> None:
    model = build("resnet8", shape=(1, 12, 12), classes=4)
    whole = {name: t.clone() for name, t in model.state_dict().items()}
    client = Client("a", torch.rand(1, 1, 12, 12, generator=torch.Generator().manual_seed(0)), torch.tensor([1]))
    federation = Federation(model, [client], Training(0.1, batch_norm=BatchNorm.FROZEN), 4, Whitening((0.5,), (0.3,)))
    save_file(whole, folder / "before.safetensors")
    save_file(dict(federation.run().rounds[0].messages[0].update), folder / "update.safetensors")
    changes = [('model = "lenet"', 'model = "resnet8"'), ('after = "after', 'update = "update')]
    seen = seen_of(job(folder, *changes))
    floats = {name for name, buffer in model.named_buffers() if buffer.is_floating_point()}
    assert floats
    assert floats <= set(seen.buffers)
    parameters = {name: t for name, t in whole.items() if name in dict(model.named_parameters())}
    save_file(parameters, folder / "before.safetensors")
    with pytest.raises(UsageError, match=r"recording.buffers is missing.*running_mean"):
        job(folder, *changes)
    save_file({n: t for n, t in whole.items() if n not in parameters}, folder / "buffers.safetensors")
    again = seen_of(job(folder, *changes, ("classes", 'buffers = "buffers.safetensors"\nclasses')))
    assert all(torch.equal(again.buffers[n], seen.buffers[n]) for n in floats)


def rewrite(folder: Path, name: str, change: Callable[[dict[str, torch.Tensor]], object]) -> None:
    tensors = load_file(folder / name)
    change(tensors)
    save_file(tensors, folder / name)


BROKEN: dict[str, tuple[Callable[[dict[str, torch.Tensor]], object], str]] = {
    "missing name": (lambda t: t.pop("fc.0.bias"), r"recording.after: .* lacks 'fc.0.bias' \(1 in all\)"),
    "extra name": (lambda t: t.update(more=torch.zeros(1)), r"has the unknown 'more' \(1 in all\)"),
    "shape": (lambda t: t.update({"fc.0.bias": torch.zeros(9)}), r"'fc.0.bias' has shape \(9,\), expected \(4,\)"),
    "nan": (lambda t: t["fc.0.bias"].fill_(float("nan")), "'fc.0.bias' holds NaN or infinity"),
    "infinity": (lambda t: t["fc.0.bias"].fill_(float("inf")), "'fc.0.bias' holds NaN or infinity"),
    "integers": (lambda t: t.update({"fc.0.bias": torch.zeros(4, dtype=torch.int64)}), "must hold floats"),
}


@pytest.mark.parametrize("kind", BROKEN)
def test_files_that_do_not_fit_are_refused(kind: str, folder: Path) -> None:
    change, words = BROKEN[kind]
    rewrite(folder, "after.safetensors", change)
    with pytest.raises(UsageError, match=words):
        job(folder)


@pytest.mark.parametrize("form", ["after", "update"])
def test_what_moves_by_less_than_single_precision_holds_is_refused(form: str, folder: Path) -> None:
    """It would count as a layer that is not trained, and nobody would look at what is in it."""
    before = load_file(folder / "before.safetensors")["fc.0.bias"].double()
    hidden = before * (1 + 1e-12) if form == "after" else torch.full_like(before, 1e-50)
    rewrite(folder, f"{form}.safetensors", lambda tensors: tensors.update({"fc.0.bias": hidden}))
    with pytest.raises(UsageError, match=rf"recording.{form}: .*'fc.0.bias' moved by less"):
        job(folder, ('after = "after.safetensors"', f'{form} = "{form}.safetensors"'))


def test_steps_may_be_known_without_epochs_and_batch_size(folder: Path) -> None:
    attack = "inverting_gradients", "dlfa_unknown_epochs"
    steps = "training = { lr = 0.1 }", "lr = 0.1\nsteps = 1"
    found = job(folder, attack, steps)
    knows = seen_of(found).knows
    assert (knows.training, knows.steps, knows.lr) == (None, 1, 0.1)
    records = run(job(folder, attack, steps), folder / "out").searches
    assert [record.status for record in records] == ["done"]
    with pytest.raises(UsageError, match=r"GuessEpochs needs .*local steps.*recording\.lr and recording\.steps"):
        job(folder, attack, (steps[0], ""))
    with pytest.raises(UsageError, match=r"'dlfa_published': Unroll needs .*give recording\.training"):
        job(folder, ("inverting_gradients", "dlfa_published"), steps)
    for wrong in ("lr = 0.1", "steps = 1", "lr = 0.1\nsteps = 1\ntraining = { lr = 0.1 }"):
        with pytest.raises(UsageError, match="give training, or lr and steps"):
            job(folder, (steps[0], wrong))


@pytest.mark.parametrize("keep", [0, 4, 100, 2000])
def test_truncated_files_are_refused(keep: int, folder: Path) -> None:
    path = folder / "after.safetensors"
    path.write_bytes(path.read_bytes()[:keep])
    with pytest.raises(UsageError, match=r"recording.after: .*truncated, corrupt or of another format"):
        job(folder)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (('after = "after.safetensors"\n', ""), "recording: give either after"),
        (('before = "before', 'before = "nowhere'), "recording.before: no such file"),
        (("classes = 4", "classes = 5"), r"'fc.0.bias' has shape \(4,\), expected \(5,\).*recording.classes"),
        (('truth = "truth.npz"\n', ""), "without truth, shape = "),
        (("classes = 4", "classes = 4\nshape = [1, 9, 9]"), r"expected images of shape \(1, 9, 9\)"),
        (("classes = 4", "classes = 4\nexamples = 3"), "recording.examples is 3, but .* holds 1 images"),
        (("mean = [0.5], std = [0.3]", "mean = [0.5, 0.5], std = [1, 1]"), "one mean per channel, expected 1, got 2"),
        (("[recording]", "[adversary]\nknows_batch_labels = true\n[recording]"), "needs a simulated federation"),
        (("[recording]", '[[defences]]\nname = "x"\n[recording]'), "Defences apply only to simulated federations"),
    ],
)
def test_a_recording_that_can_not_be_used_is_refused(change: tuple[str, str], words: str, folder: Path) -> None:
    with pytest.raises(UsageError, match=words):
        job(folder, change)


def test_labels_of_the_truth_must_be_classes(folder: Path) -> None:
    np.savez(folder / "truth.npz", images=np.zeros((1, 12, 12), np.uint8), labels=np.array([4]))
    with pytest.raises(UsageError, match="labels must lie in 0 to 3, got 4"):
        job(folder)


@pytest.mark.parametrize(
    ("said", "defences", "unnamed"),
    [("", None, True), ("defended = false", (), False), ("defended = true", ("Defended, as the plan says.",), True)],
)
def test_whether_a_recording_was_defended_is_told_or_unknown(
    said: str, defences: tuple[str, ...] | None, unnamed: bool, folder: Path
) -> None:
    (target,) = source(job(folder, ("classes = 4", f"classes = 4\n{said}"))).targets(lambda done, total: None)
    assert target.defences == defences
    assert (doubt(DoubtKind.DEFENCE_NOT_NAMED) in target.doubts) == unnamed


def test_statistics_after_the_training_come_with_it_or_in_a_file_of_their_own(folder: Path) -> None:
    model = build("resnet8", shape=(1, 12, 12), classes=4)
    before = {name: t.clone() for name, t in model.state_dict().items()}
    parameters = {name: before[name] + 0.01 for name, _ in model.named_parameters()}
    moved = {name: before[name] + 1 for name, _ in model.named_buffers()}
    save_file(before, folder / "before.safetensors")
    save_file(moved, folder / "statistics.safetensors")
    resnet = ('model = "lenet"', 'model = "resnet8"')
    for held, more in (({**parameters, **moved}, ""), (parameters, '\nbuffers_after = "statistics.safetensors"')):
        save_file(held, folder / "after.safetensors")
        (target,) = source(job(folder, resnet, ("classes = 4", f"classes = 4{more}"))).targets(lambda *_: None)
        assert target.claim is not None
        assert contradictions(target.claim)[0].startswith("the running statistics moved")
    (target,) = source(job(folder, resnet)).targets(lambda *_: None)
    assert target.claim is not None
    assert target.claim.buffers_after == {}


def test_a_defence_may_be_named_with_its_options(folder: Path) -> None:
    said = 'defended = { name = "gaussian_noise", std = 0.5 }'
    found = source(job(folder, ("classes = 4", f"classes = 4\n{said}")))
    (target,) = found.targets(lambda *_: None)
    assert target.defences == ("Defended by GaussianNoise(std=0.5).",)
    assert target.claim is not None
    assert not target.claim.unnamed_defence
    assert target.claim.clients[0].protection == Protection(release=GaussianNoise(std=0.5))
    other = source(job(folder, ("classes = 4", f"classes = 4\n{said.replace('0.5', '0.4')}")))
    assert other.identity() != found.identity()
    with pytest.raises(UsageError, match="std"):
        job(folder, ("classes = 4", f"classes = 4\n{said.replace('0.5', '-1.0')}"))
    (target,) = source(job(folder, ("classes = 4", "classes = 4\ndefended = []"))).targets(lambda *_: None)
    assert target.claim is not None
    assert not target.claim.unnamed_defence
    assert [client.protection for client in target.claim.clients] == [Protection()]


def test_code_of_others_in_a_recordings_defence_is_named() -> None:
    table = {"defended": [{"name": "strange.module:shield"}]}
    plan = Plan.model_validate({**tomllib.loads(PLAN), "recording": {**tomllib.loads(PLAN)["recording"], **table}})
    assert [(code.kind, code.name) for code in code_of(plan)] == [("defences", "strange.module:shield")]


def test_public_data_of_a_recording_stand_beside_its_scores(folder: Path) -> None:
    """Those that hold the private images show them without the message, and nothing counts as recovered."""
    told = job(folder, ("[[attacks]]", '[adversary]\npublic = "npz:truth.npz"\n[[attacks]]'))
    assert told.cases[0].key != job(folder).cases[0].key
    record = run(told, folder / "out").searches[0]
    assert set(record.blind_guess["psnr"]) & {"the mean of public images", "the means of the classes found"}
