"""What an audit would refuse after its training, a plan is refused for before it, with advice that holds."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import save_file
from torch import nn

from fedglass.attack.best_of import AnyAttack
from fedglass.attack.labels.given import OracleBatchLabels
from fedglass.attack.malicious_server import MaliciousServer
from fedglass.attack.parts import needs_of
from fedglass.audit.audit import Job, rehearse, run, threat_model
from fedglass.audit.simulated import Simulated
from fedglass.core.errors import UsageError
from fedglass.core.facts import Fact
from fedglass.core.optimisers import Adam
from fedglass.core.registry import built_in
from fedglass.core.types import Training
from fedglass.defend.pruning import Soteria
from fedglass.federation.federation import Federation, observe
from fedglass.federation.views import AggregateView, Knows, ServerView
from fedglass.plan.compile import compile_plan
from fedglass.plan.schema import parse_plan
from fedglass.recipes import recipe

Make = Callable[..., Federation]
LOCAL = Training(0.1, epochs=2, batch_size=2)


def plan(attack: str, adversary: str = "", federation: str = "examples = 2", training: str = "lr = 0.1") -> Job:
    text = f"""
[federation]
data = "photos"
size = 16
{federation}
training = {{ {training} }}
[adversary]
{adversary}
[[attacks]]
{attack}
[metrics]
names = ["psnr"]
"""
    return compile_plan(parse_plan(text), Path())


def unequal(make_federation: Make, *sizes: int) -> Federation:
    federation = make_federation(clients=len(sizes), examples=max(sizes))
    cut = [replace(c, images=c.images[:n], labels=c.labels[:n]) for c, n in zip(federation.clients, sizes, strict=True)]
    return replace(federation, clients=cut, training=LOCAL)


@pytest.mark.parametrize("attack", ["dlfa", "dlfa_published", "dlfa_unknown_epochs"])
def test_an_aggregate_of_unequal_clients_is_simulated_by_their_sizes(attack: str, make_federation: Make) -> None:
    federation = Simulated(unequal(make_federation, 3, 1), views=(AggregateView(),))
    rehearse([federation], {attack: recipe(attack)})
    with pytest.raises(UsageError, match="examples"):
        rehearse([replace(federation, knows=Knows(examples=False))], {attack: recipe(attack)})


@pytest.mark.parametrize("attack", ["dlfa_fedsgd_epoch"])
def test_an_aggregate_of_unequal_clients_has_no_epoch_in_common(attack: str, make_federation: Make) -> None:
    chosen = {attack: recipe(attack)}
    for sizes, views in (((3, 3), AggregateView()), ((3, 1), ServerView(1))):
        rehearse([Simulated(unequal(make_federation, *sizes), views=(views,))], chosen)
    with pytest.raises(UsageError, match=r"Unroll\w* needs an aggregate of clients with equally many .*sme or inv"):
        rehearse([Simulated(unequal(make_federation, 3, 1), views=(AggregateView(),))], chosen)
    advised: dict[str, AnyAttack] = {name: recipe(name) for name in ("sme", "inverting_gradients")}
    rehearse([Simulated(unequal(make_federation, 3, 1), views=(AggregateView(),))], advised)


def test_a_check_rehearses_each_view_once(make_federation: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    see, seen = ServerView.see, list[ServerView]()
    monkeypatch.setattr(ServerView, "see", lambda view, *facts: (seen.append(view), see(view, *facts))[1])
    source = Simulated(unequal(make_federation, 3, 1), views=(ServerView(0), ServerView(1)))
    attacks = {"dlg": recipe("dlg")}
    rehearse([source], attacks)
    threat_model(Job([source], attacks))
    assert seen == [ServerView(0), ServerView(1)]


def test_a_rehearsal_shows_what_will_be_seen_but_for_the_message(make_federation: Make) -> None:
    federation = replace(unequal(make_federation, 3, 1, 2), participation=0.67)
    source = Simulated(federation, 2, (AggregateView(1),), Knows(labels=True))
    (silent,) = source.rehearse()
    seen = silent.observation
    (target,) = source.targets(lambda done, total: None)
    real = target.observation.knows
    assert seen.knows.sizes == real.sizes
    assert (sum(real.sizes or ()), real.clients) == (real.examples, 2)
    assert (seen.knows.shape, seen.knows.steps, seen.knows.training) == (real.shape, real.steps, real.training)
    assert seen.knows.labels is not None
    assert real.labels is not None
    assert torch.equal(seen.knows.labels, real.labels)
    assert not any(t.any() for t in seen.update.values())


def test_batch_labels_of_an_aggregate_can_not_be_told(make_federation: Make) -> None:
    chosen: dict[str, AnyAttack] = {"dlfa": recipe("dlfa", labels=OracleBatchLabels())}
    knows, federation = Knows(batch_labels=True), replace(make_federation(examples=2), training=LOCAL)
    rehearse([Simulated(federation, views=(ServerView(),), knows=knows)], chosen)
    with pytest.raises(UsageError, match=r"OracleBatchLabels needs .*of an aggregate .*cannot.*labels = \"oracle\""):
        rehearse([Simulated(federation, views=(AggregateView(),), knows=knows)], chosen)


def test_a_budget_that_is_too_small_is_found_before_the_first_stage() -> None:
    assert plan('name = "dlfa"').cases
    with pytest.raises(UsageError, match=r"attack 'dlfa': Simulating .* but budget_mib is 0.01"):
        plan('name = "dlfa"\nbudget_mib = 0.01')


@pytest.mark.parametrize("name", ["dlg", "idlg", "idlg_adam", "sapag", "fedleak", "coarse_to_fine_published"])
def test_sizes_are_not_compared_with_a_message_that_has_none(name: str) -> None:
    blind = "knows_training = false"
    with pytest.raises(UsageError, match=rf"attack '{name}': \w+ needs the size .*knows_steps = true.*coarse_stage"):
        plan(f'name = "{name}"', blind)
    assert plan(f'name = "{name}"', f"{blind}\nknows_steps = true").cases
    for advised in ("inverting_gradients", "coarse_stage"):
        assert plan(f'name = "{advised}"', blind).cases


@pytest.mark.parametrize("name", ["dlg", "idlg", "idlg_adam", "sapag", "fedleak", "coarse_to_fine"])
@pytest.mark.parametrize("training", ['lr = 0.1, optimiser = "adam"', "lr = 0.1, weight_decay = 0.1"])
def test_sizes_are_not_compared_where_the_optimiser_hides_them(name: str, training: str) -> None:
    for federation in ("examples = 1", "examples = 2"):
        with pytest.raises(UsageError, match=r"needs the size .*Adam or clipping does, simulate .*coarse_stage"):
            plan(f'name = "{name}"', "", federation, training)
    for advised in ("dlfa", "dlfa_published", "dlfa_fedsgd_epoch", "inverting_gradients", "coarse_stage"):
        assert plan(f'name = "{advised}"\nlabels = "sign_rule"', "", "examples = 2", training).cases
    assert plan(f'name = "{name}"', "", "examples = 2", "lr = 0.1, momentum = 0.9").cases


def test_a_single_example_brings_its_size_with_it() -> None:
    assert plan('name = "coarse_to_fine"', "knows_training = false", "examples = 1").cases
    with pytest.raises(UsageError, match="attack 'coarse_to_fine': ReweightedL1 needs the size"):
        plan('name = "coarse_to_fine"', "knows_training = false", "examples = 2")


def test_unknown_epochs_need_the_steps_and_no_true_batches() -> None:
    with pytest.raises(UsageError, match=r"adversary\.knows_steps = true"):
        plan('name = "dlfa_unknown_epochs"', "knows_training = false")
    told = 'name = "dlfa_unknown_epochs"\nlabels = "oracle_batches"', "knows_batch_labels = true"
    assert plan(*told).cases
    with pytest.raises(UsageError, match=r"OracleBatchLabels needs .*knows_training = true.*knows_labels = true"):
        plan(told[0], f"{told[1]}\nknows_training = false\nknows_steps = true")


SHORT = 'name = "{}"\niterations = 1'


@pytest.mark.parametrize(
    ("adversary", "advised"),
    [
        ("knows_training = true", "dlfa_published"),
        ("knows_training = false\nknows_steps = true", "sme"),
        ("knows_training = false\nknows_steps = true", "dlfa_unknown_epochs"),
        ("knows_training = false", "inverting_gradients"),
    ],
)
def test_the_advice_to_who_does_not_know_the_training_holds(adversary: str, advised: str, tmp_path: Path) -> None:
    with pytest.raises(UsageError) as caught:
        plan(SHORT.format("dlfa_published"), "knows_training = false")
    words = [line for line in adversary.splitlines() if line.endswith("true")]
    assert all(f"adversary.{word}" in str(caught.value) for word in words)
    assert advised in (*str(caught.value).replace(",", "").replace(".", "").split(), "dlfa_published")
    result = run(plan(SHORT.format(advised), adversary), tmp_path)
    assert [record.status for record in result.searches] == ["done"]


def test_counted_labels_say_what_they_lack_and_what_needs_nothing() -> None:
    blind = "knows_training = false"
    for name in ("bias_counts", "counts_before", "interpolated_counts"):
        chosen = f'name = "inverting_gradients"\nlabels = "{name}"'
        with pytest.raises(UsageError, match=r"attack .*Counts\w* needs the size.*recording.training.*minimum_rule"):
            plan(chosen, blind)
        assert plan(chosen, f"{blind}\nknows_steps = true").cases
    assert plan('name = "sme"\nlabels = "minimum_rule"', blind).cases


def test_a_defence_that_can_not_bear_batch_statistics_is_found() -> None:
    for defence in ('name = "soteria"\nshare = 0.5', 'name = "dpsgd"\nclip = 1.0\nnoise_multiplier = 1.0'):
        attack = f'name = "inverting_gradients"\n[[defences]]\n{defence}'
        mixing = 'lr = 0.1, batch_norm = "batch"'
        assert plan(attack, federation='model = "resnet8"\nexamples = 2').cases
        assert plan(attack, federation='model = "resnet8"\nexamples = 1', training=mixing).cases
        with pytest.raises(UsageError, match="defences: The network normalises with the statistics of the batch"):
            plan(attack, federation='model = "resnet8"\nexamples = 2', training=mixing)


def test_a_defence_that_needs_a_dense_layer_is_found(make_federation: Make) -> None:
    bare = nn.Sequential(nn.Conv2d(1, 4, 3), nn.AdaptiveAvgPool2d(1), nn.Flatten())
    federation = replace(make_federation(), model=bare)
    rehearse([Simulated(federation)], {"dlg": recipe("dlg")})
    defended = replace(federation, clients=[replace(c, gradient=Soteria(0.5)) for c in federation.clients])
    with pytest.raises(UsageError, match="defences: The network has no dense layer"):
        rehearse([Simulated(defended)], {"dlg": recipe("dlg")})
    with pytest.raises(UsageError, match="attack 'idlg': The network has no dense layer"):
        rehearse([Simulated(federation)], {"idlg": recipe("idlg")})


def test_a_filter_that_is_wider_than_the_pictures_is_found() -> None:
    assert plan('name = "fedleak"').cases
    with pytest.raises(UsageError, match=r"attack 'fedleak': MedianFilter\(size=99\) needs pictures larger"):
        plan('name = "fedleak"\nmedian = 99')


@pytest.mark.parametrize("name", built_in("attacks"))
def test_a_plan_that_asks_for_nothing_special_is_sound(name: str) -> None:
    view = 'view = "peer"' if Fact.OWN_EXAMPLES in needs_of(recipe(name)) else ""
    view = 'view = "malicious_server"' if isinstance(recipe(name), MaliciousServer) else view
    members = "examples = 2\nclients = 2" if view else "examples = 2"
    assert plan(f'name = "{name}"', view, members, training="lr = 0.1, epochs = 2, batch_size = 1").cases


def test_who_has_no_examples_can_not_train_a_decoder_on_them() -> None:
    with pytest.raises(UsageError, match=r'OwnDecoder needs examples of the adversary.s own.*view = "peer"'):
        plan('name = "maliciously_curious_client_published"')


def test_a_rehearsal_leaves_the_federation_as_it_was(make_federation: Make) -> None:
    federation = make_federation(examples=2)
    source = Simulated(
        replace(federation, clients=[replace(c, gradient=Soteria(0.5)) for c in federation.clients], training=LOCAL)
    )
    before, state = source.identity(), torch.random.get_rng_state()
    rehearse([source], {"dlfa": recipe("dlfa")})
    assert source.identity() == before
    assert torch.equal(state, torch.random.get_rng_state())
    assert not any(p.grad is not None for p in federation.model.parameters())


def record(folder: Path, federation: Federation) -> None:
    """The aggregate of the first round on disk."""
    past = federation.run().rounds[0]
    save_file(dict(past.before), folder / "before.safetensors")
    save_file({name: t.contiguous() for name, t in past.step.items()}, folder / "update.safetensors")
    images, labels = (torch.cat([getattr(c, part) for c in federation.clients]) for part in ("images", "labels"))
    np.savez(folder / "truth.npz", images=images.numpy(), labels=labels.numpy())


def recorded(folder: Path, attack: str, clients: int, training: str = "training = { lr = 0.1, epochs = 2 }") -> Job:
    text = f"""
[recording]
model = "lenet"
classes = 4
before = "before.safetensors"
update = "update.safetensors"
truth = "truth.npz"
clients = {clients}
whitening = {{ mean = [0.5], std = [0.3] }}
{training}
[adversary]
knows_labels = true
[[attacks]]
name = "{attack}"
"""
    return compile_plan(parse_plan(text), folder)


def test_each_client_of_a_recorded_aggregate_keeps_its_own_labels(make_federation: Make, tmp_path: Path) -> None:
    federation = make_federation(clients=2, examples=3)
    mixed = [torch.tensor([3, 1, 2]), torch.tensor([2, 0, 1])]
    federation = replace(
        federation, clients=[replace(c, labels=own) for c, own in zip(federation.clients, mixed, strict=True)]
    )
    record(tmp_path, federation)

    def labels(clients: int) -> list[int]:
        (seen,) = [s.observation for s in recorded(tmp_path, "sme", clients).sources[0].rehearse()]
        assert seen.knows.labels is not None
        return [int(label) for label in seen.knows.labels]

    assert labels(2) == [1, 2, 3, 0, 1, 2]
    assert labels(1) == labels(4) == [0, 1, 1, 2, 2, 3]
    simulated = observe(federation, AggregateView(), Knows(labels=True))[0].knows.labels
    assert simulated is not None
    assert labels(2) == simulated.tolist()


def test_a_recording_says_what_is_missing_for_a_simulation(make_federation: Make, tmp_path: Path) -> None:
    record(tmp_path, make_federation(clients=2, examples=3))
    assert recorded(tmp_path, "dlfa", clients=3).cases
    with pytest.raises(
        UsageError, match=r"attack 'dlfa': Simulating.* needs .*equally many examples.*recording.clients"
    ):
        recorded(tmp_path, "dlfa", clients=4)
    with pytest.raises(UsageError, match=r"attack 'dlfa': Unroll needs .*batch size.*give recording.training"):
        recorded(tmp_path, "dlfa", clients=2, training="")
    assert recorded(tmp_path, "inverting_gradients", clients=2, training="").cases


def test_a_client_that_trains_in_its_own_way_is_rehearsed_too(make_federation: Make) -> None:
    federation = make_federation(clients=2)
    own = replace(federation.clients[0], training=Training(0.1, optimiser=Adam()))
    views = ServerView(0), ServerView(1)
    attacks: dict[str, AnyAttack] = {"dlg": recipe("dlg", iterations=1)}
    rehearse([Simulated(federation, views=views)], attacks)
    for clients in ([own, federation.clients[1]], [federation.clients[1], own]):
        with pytest.raises(UsageError, match="attack 'dlg': SquaredError needs the size of the gradients"):
            rehearse([Simulated(replace(federation, clients=clients), views=views)], attacks)
