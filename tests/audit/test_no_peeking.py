"""No attack can see the truth: with other data put in its place after the round, nothing changes."""

from __future__ import annotations

import inspect
from collections.abc import Callable

import numpy as np
import pytest
import torch

from fedglass.attack.parts import needs_of
from fedglass.audit.audit import Job
from fedglass.audit.play import Work, play_case
from fedglass.audit.target import Target
from fedglass.core.facts import Fact
from fedglass.core.registry import built_in
from fedglass.core.types import Training
from fedglass.federation.federation import Federation
from fedglass.federation.peer import PeerView
from fedglass.federation.truth import Truth
from fedglass.federation.views import Knows
from fedglass.recipes import recipe
from fedglass.verdict.directory import Evidence, Reconstructed
from fedglass.verdict.records import Record

LABELS = torch.tensor([3, 3])


def played(job: Job, target: Target) -> tuple[Record, Evidence | None]:
    return play_case(Work(job.cases[-1], target, torch.device("cpu")), lambda done, total: None)


@pytest.mark.parametrize("name", built_in("attacks"))
def test_replacing_the_truth_after_the_round_changes_no_bit(
    name: str,
    make_job: Callable[..., Job],
    make_federation: Callable[..., Federation],
    receiving: Callable[[object, Federation], Federation],
) -> None:
    few = {"iterations": 3} if "iterations" in inspect.signature(built_in("attacks")[name].value).parameters else {}
    attack = recipe(name, **few)
    peers = 1 if Fact.OWN_EXAMPLES in needs_of(attack) else 0  # who has examples of its own knows those
    federation = receiving(attack, make_federation(examples=2))
    trained = Federation(
        federation.model, federation.clients, Training(0.1, 2, 1), federation.classes, federation.whitening
    )
    knows = Knows(labels=True, batch_labels=True)
    views = {"views": (PeerView(0),)} if peers else {}
    job = make_job(federation=trained, knows=knows, attacks={name: attack}, **views)
    target = job.sources[0].targets(lambda done, total: None)[0]
    honest_record, honest = played(job, target)
    assert isinstance(honest, Reconstructed), honest_record.error

    for client in trained.clients[peers:]:  # the private data themselves, after the round
        client.images.fill_(0.25)
        client.labels.copy_((client.labels + 1) % trained.classes)
    false = torch.rand(2, 1, 12, 12, generator=torch.Generator().manual_seed(5))
    own = trained.clients[:peers]
    images, labels = torch.cat([false, *(c.images for c in own)]), torch.cat([LABELS, *(c.labels for c in own)])
    lie = Truth(images, labels, ("x",), own=2 * peers)
    fooled_record, fooled = played(job, Target(target.observation, lie))
    assert isinstance(fooled, Reconstructed)
    assert np.array_equal(honest.images, fooled.images, equal_nan=True)
    assert np.array_equal(honest.recovered_labels, fooled.recovered_labels)
    assert honest_record.energy == fooled_record.energy
    assert honest_record.trace == fooled_record.trace
    assert honest_record.metrics["psnr"] != fooled_record.metrics["psnr"]
