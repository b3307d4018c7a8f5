"""A malicious server reads images from the updates to its crafted models, and takes no number from its clients."""

from __future__ import annotations

import pickle
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from fedglass.attack import malicious_server
from fedglass.attack.malicious_server import Fishing, Imprint, MaliciousServer, PublicSample, TrapWeights
from fedglass.core.errors import UsageError
from fedglass.core.types import Observation, Training
from fedglass.federation.client import Client
from fedglass.federation.federation import Federation, observe
from fedglass.federation.views import Knows, MaliciousServerView, ServerView
from fedglass.plan.compile import compile_plan
from fedglass.plan.schema import parse_plan
from fedglass.recipes import recipe

NAMES = ("imprint", "trap_weights", "fishing")
OPTIONS: dict[str, dict[str, Any]] = {
    "imprint": {"bins": 64},
    "trap_weights": {"units": 64},
    "fishing": {"iterations": 200},
}
LABELS = torch.tensor([1, 0, 2, 3])
"""One example of the class that is fished for, 0."""


def sent(toy: Any, name: str, model: nn.Module) -> tuple[Observation, Tensor, MaliciousServer]:
    """What the server sees of a client that trained the model crafted for an attack."""
    attack = recipe(name, **OPTIONS[name])
    assert isinstance(attack, MaliciousServer)
    federation: Federation = toy.federation(Training(0.1), model=model)
    client = Client("client 0", toy.images(4, "private"), LABELS)
    crafted = attack.sends.craft(model, PublicSample(toy.images(200, "public"), federation.whitening))
    federation = Federation(crafted, [client], federation.training, federation.classes, federation.whitening)
    seen, truth = observe(federation, ServerView(), Knows())
    return seen, truth.images, attack


def errors(found: Tensor, truth: Tensor) -> Tensor:
    """Mean squared error of each true image, next to the image that shows it best.  # (n,)"""
    return (found[:, None] - truth[None]).square().flatten(2).mean(2).amin(0)


@pytest.mark.parametrize("front", [False, True], ids=["behind an added block", "first dense layer"])
@pytest.mark.parametrize("name", NAMES)
def test_the_server_reads_images(toy: Any, name: str, front: bool) -> None:
    dense = nn.Sequential(nn.Flatten(), nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 16), nn.ReLU(), nn.Linear(16, 5))
    seen, truth, attack = sent(toy, name, toy.seeded(dense) if front else toy.dense())
    assert hasattr(seen.model, "second") == (not front and name != "fishing")
    found = attack.run(seen)
    blind = errors(toy.images(200, "public").mean(0, keepdim=True), truth)
    read = errors(found.images, truth) < 0.1 * blind
    assert int(read.sum()) >= 1
    assert len(found.images) <= 4
    if name == "fishing":
        assert bool(read[1]), "the only example of the class"


@pytest.mark.parametrize("name", NAMES)
def test_an_attack_prints_as_itself_and_is_a_value(name: str) -> None:
    attack = recipe(name)
    assert pickle.loads(pickle.dumps(attack)) == attack
    assert hash(attack) == hash(recipe(name))
    assert attack.shortened(0.5).sends == attack.sends


@pytest.mark.parametrize("part", [Imprint(16), TrapWeights(0.1, 16), Fishing(2)])
def test_crafting_leaves_the_model_as_it_was_and_repeats_to_the_bit(toy: Any, part: Any) -> None:
    model, public = toy.dense(), PublicSample(toy.images(50, "public"), toy.federation(Training(0.1)).whitening)
    before = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    one, two = part.craft(model, public).state_dict(), part.craft(model, public).state_dict()
    assert all(torch.equal(one[name], two[name]) for name in one)
    assert all(torch.equal(before[name], tensor) for name, tensor in model.state_dict().items())


def test_rows_of_an_imprint_measure_one_number_with_rising_quantiles(toy: Any) -> None:
    public = toy.images(400, "public").flatten(1)
    direction = torch.ones(64) / 64
    weight, bias = malicious_server.imprint_rows(direction, public @ direction, 10)
    assert torch.equal(weight, direction.expand(10, -1))
    fires = (public @ weight.T + bias > 0).float().mean(0)
    torch.testing.assert_close(fires, 1 - torch.arange(10) / 10, atol=0.01, rtol=0)


def test_half_of_a_trap_row_is_negative_and_larger() -> None:
    rows = malicious_server.trap_rows(6, 40, 0.8, torch.Generator().manual_seed(0))
    assert ((rows < 0).sum(1) == 20).all()
    torch.testing.assert_close(rows.clamp(min=0).sum(1), -0.8 * rows.clamp(max=0).sum(1))


def test_other_classes_move_nothing_in_front_of_a_fished_layer(toy: Any) -> None:
    model = Fishing(2).craft(toy.dense(), PublicSample(toy.images(2), toy.federation(Training(0.1)).whitening))
    inputs = toy.images(5)
    for label in range(5):
        loss = nn.functional.cross_entropy(model(inputs), torch.full((5,), label))
        first = next(iter(torch.autograd.grad(loss, list(model.parameters()))))
        assert bool(first.any()) == (label == 2)


PLAN = """
[federation]
data = "photos"
size = 16
clients = 1
examples = 2
training.lr = 0.1
[adversary]
view = "malicious_server"
[[attacks]]
name = "imprint"
bins = 8
"""
RECORDING = """
[recording]
bundle = "b"
[adversary]
view = "malicious_server"
[[attacks]]
name = "imprint"
"""


def job(text: str) -> Any:
    return compile_plan(parse_plan(text), Path())


def test_a_plan_sends_the_model_that_its_attack_crafts() -> None:
    source = job(PLAN).sources[0]
    assert hasattr(source.federation.model, "second")
    assert source.views == (MaliciousServerView(0, 0),)
    assert "crafts the model" in str(source.threat())


@pytest.mark.parametrize(
    ("text", "answer"),
    [
        (
            RECORDING,
            r'A recording cannot have adversary.view = "malicious_server", since its model was sent already: simulate',
        ),
        (
            PLAN.replace('view = "malicious_server"', ""),
            r"attack 'imprint' crafts the model that clients train: simulate",
        ),
        (PLAN.replace('"imprint"\nbins = 8', '"idlg"'), r"needs one crafted model, but none of the attacks crafts"),
        (PLAN + '[[attacks]]\nname = "fishing"', r"imprint, fishing craft different models"),
        (PLAN.replace("examples = 2", "examples = 24"), r"needs public images, but the clients have all of the data"),
        (PLAN.replace("[adversary]", "[adversary]\nround = 1"), r"crafts the model of the first round"),
        (PLAN.replace("bins = 8", "bins = 1"), r"imprint.bins must be at least 2, got 1"),
        (PLAN.replace('"imprint"\nbins = 8', '"fishing"\ntarget = 10'), r"a class 10: choose another model or target"),
    ],
)
def test_a_plan_is_refused_in_a_sentence(text: str, answer: str) -> None:
    with pytest.raises(UsageError, match=answer):
        job(text)
