"""Every published attack keeps to the rules of its parts, and beats a blind guess in moments."""

from __future__ import annotations

import dataclasses
import importlib
import inspect
import pickle
import pkgutil
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor

import fedglass.attack
from fedglass.attack.attack import Attack
from fedglass.attack.forward.gradients import ObservedResidual, OneGradient, OnSegment, RepeatedGradient
from fedglass.attack.labels.assigned import JointLabels
from fedglass.attack.labels.given import OracleBatchLabels, OracleLabels
from fedglass.attack.parts import Evaluation, binding_of, parts_of
from fedglass.attack.solvers.schedules import Constant, Lowest, LowestFrom
from fedglass.attack.terms.distance import Cosine, Ramp, SupportCosine
from fedglass.attack.terms.priors import AbsoluteEpochPrior, ReweightedL1, SquaredEpochPrior
from fedglass.attack.terms.term import After
from fedglass.core.errors import UsageError
from fedglass.core.registry import built_in
from fedglass.core.rng import stream
from fedglass.core.tensors import assign, squared_distances
from fedglass.core.types import Candidate, Observation, Training
from fedglass.federation.client import Client
from fedglass.federation.federation import Federation, observe
from fedglass.federation.views import Knows, ServerView
from fedglass.recipes import recipe
from fedglass.recipes.coarse_to_fine import PRIOR
from fedglass.recipes.dlfa import PRIOR_WEIGHTS, SETTINGS, SUMMARIES

CRAFTING = {"imprint", "trap_weights", "fishing"}
"""They need a model that the server crafted: tests/recipes/test_malicious_server.py."""
RECIPES = {name: found for name, found in built_in("attacks").items() if name not in {"exact", *CRAFTING}}
"""Those that search; exact methods have no iterations, and tests of their own."""
Equip = Callable[..., Observation]

FEDSGD = Training(0.1)
FEDAVG = Training(0.1, epochs=2, batch_size=1)
WHOLE = Training(0.1, epochs=3)

PROBLEMS: Mapping[str, tuple[Training, list[int], dict[str, Any]]] = {
    "dlg": (FEDSGD, [2], {"iterations": 10, "restarts": 5}),
    "idlg": (FEDSGD, [2], {"iterations": 15}),
    "inverting_gradients": (FEDSGD, [3], {"iterations": 100}),
    "inverting_gradients_published": (FEDAVG, [0, 2, 3], {"iterations": 100}),
    "dlfa": (FEDAVG, [0, 2, 3], {"iterations": 40, "warm_up": 60}),
    "dlfa_published": (FEDAVG, [0, 2], {"iterations": 150}),
    "dlfa_printed": (FEDAVG, [0, 2], {"iterations": 100, "setting": "cifar100"}),
    "dlfa_no_prior": (FEDAVG, [0, 2], {"iterations": 60}),
    "dlfa_shared": (FEDAVG, [0, 2], {"iterations": 60}),
    "dlfa_fedsgd_epoch": (FEDAVG, [0, 2], {"iterations": 60}),
    "dlfa_fedsgd": (FEDAVG, [0, 2], {"iterations": 60}),
    "dlfa_unknown_epochs": (FEDAVG, [0, 2], {"iterations": 150}),
    "sme": (FEDAVG, [0, 2, 3], {"iterations": 60}),
    "sme_published": (FEDAVG, [0, 2, 3], {"iterations": 60}),
    "sme_baseline_ig": (FEDAVG, [0, 2, 3], {"iterations": 60}),
    "idlg_adam": (FEDSGD, [2], {"iterations": 150}),
    "invg": (FEDSGD, [3], {"iterations": 100}),
    "sapag": (FEDSGD, [0, 2], {"iterations": 200}),
    "agic": (FEDAVG, [0, 2], {"iterations": 100}),
    "hfgradinv": (FEDSGD, [0, 2], {"iterations": 150}),
    "fedleak": (FEDSGD, [0, 2], {"iterations": 100, "width": 16, "median": 1}),
    "coarse_to_fine": (FEDSGD, [3], {"iterations": 100}),
    "coarse_to_fine_published": (FEDSGD, [3], {"iterations": 100}),
    "coarse_to_fine_pruned": (FEDSGD, [3], {"iterations": 100}),
    "coarse_to_fine_batchnorm": (FEDSGD, [3], {"iterations": 100}),
    "coarse_to_fine_statistics": (FEDSGD, [3], {"iterations": 100}),
    "coarse_stage_published": (FEDSGD, [3], {"iterations": 150}),
    "coarse_stage": (FEDSGD, [3], {"iterations": 150}),
    "invg_scaled": (FEDSGD, [3], {"iterations": 150}),
    "curious_client": (WHOLE, [0, 2], {"iterations": 100}),
    "curious_client_published": (WHOLE, [0, 2], {"iterations": 100, "factor": 2}),
    "rog": (WHOLE, [0, 2], {"iterations": 150, "factor": 2}),
    "maliciously_curious_client": (WHOLE, [0, 2], {"iterations": 100, "tv": 0.0}),
    "maliciously_curious_client_published": (WHOLE, [0, 2], {"iterations": 100, "rate": 0.1}),
    "curious_client_search": (WHOLE, [0, 2], {"iterations": 100, "factor": 2}),
}
"""The toy problem of each recipe: how the client trains, its labels, and the recipe's options."""
REPRESENTATIVES = {"fedinverse"}
"""They find images that the model takes for a class, whatever the client's are: tests/recipes/test_fedinverse.py."""


def bold(toy: Any, n: int, name: str = "bold") -> Tensor:
    """Pictures of strong contrast, half light and half dark: no grey comes near them."""
    smooth: Tensor = toy.images(n, name)
    middle = smooth.flatten(1).median(1).values.view(-1, 1, 1, 1)
    return ((smooth - middle) * 6 + 0.5).clamp(0, 1)


def problem(toy: Any, training: Training, labels: list[int]) -> Federation:
    client = Client("client 0", bold(toy, len(labels)), torch.tensor(labels))
    federation: Federation = replace(toy.federation(training), clients=[client])
    return federation


def error(images: Tensor, truth: Tensor) -> float:
    """Mean squared error under the best matching."""
    distances = squared_distances(truth, images)
    return float(distances[torch.arange(len(truth)), assign(distances)].mean())


def blind(truth: Tensor) -> float:
    """The best that can be had without a look at the message: greys and noise, all matched to the truth."""
    greys = [torch.full_like(truth, float(v)) for v in torch.linspace(0, 1, 11)]
    noises = [torch.rand(truth.shape, generator=stream(i, "blind")) for i in range(5)]
    return min(error(guess, truth) for guess in (*greys, *noises))


def test_every_recipe_has_a_toy_problem() -> None:
    assert set(PROBLEMS) == set(RECIPES) - REPRESENTATIVES


@pytest.mark.parametrize("name", PROBLEMS)
def test_a_recipe_beats_a_blind_guess(toy: Any, name: str, equipped: Equip) -> None:
    training, labels, options = PROBLEMS[name]
    seen, truth = observe(problem(toy, training, labels), ServerView(), Knows())
    attack = recipe(name, **options)
    found = attack.run(equipped(attack, seen, bold(toy, 64, "others")))
    assert error(found.images.clamp(0, 1), truth.images) < 0.6 * blind(truth.images)
    assert sorted(found.labels.tolist()) == sorted(truth.labels.tolist())


def short(name: str, **options: Any) -> Attack:
    return recipe(name, iterations=2, **options)


def composed(name: str) -> Any:
    return recipe(name, iterations=10)


def composition(attack: Any) -> Attack:
    """The parts of an attack, also where it is tried under several hypotheses."""
    while not isinstance(attack, Attack):
        attack = attack.attack[0][1] if isinstance(attack.attack, tuple) else attack.attack
    return attack


def namespace() -> dict[str, Any]:
    names = [m.name for m in pkgutil.walk_packages(fedglass.attack.__path__, "fedglass.attack.")]
    members = (inspect.getmembers(importlib.import_module(name), inspect.isclass) for name in names)
    return {name: thing for found in members for name, thing in found}


@pytest.mark.parametrize("name", RECIPES)
def test_a_recipe_prints_as_itself(name: str) -> None:
    for attack in (recipe(name), short(name)):
        assert eval(repr(attack), namespace()) == attack
        assert pickle.loads(pickle.dumps(attack)) == attack
        assert hash(attack) == hash(eval(repr(attack), namespace()))


@pytest.fixture(scope="module")
def federation(toy: Any) -> Federation:
    found: Federation = toy.federation(Training(0.2, epochs=2, batch_size=3), examples=4)
    return found


@pytest.fixture
def seen(toy: Any, federation: Federation, equipped: Equip, request: pytest.FixtureRequest) -> Observation:
    """What the server sees; one with examples of its own, where the recipe needs them."""
    found = observe(federation, ServerView(), Knows(labels=True, batch_labels=True))[0]
    return equipped(recipe(request.node.callspec.params["name"]), found, toy.images(3, "own"))


@pytest.mark.parametrize("name", RECIPES)
def test_the_same_seed_repeats_to_the_bit(seen: Observation, name: str) -> None:
    one, again, other = (short(name).run(seen, seed) for seed in (0, 0, 1))
    assert torch.equal(one.images, again.images)
    assert torch.equal(one.labels, again.labels)
    assert one.energy == again.energy
    assert one.trace == again.trace
    assert not torch.equal(one.images, other.images)


@pytest.mark.parametrize("name", RECIPES)
def test_global_random_numbers_play_no_part(seen: Observation, name: str) -> None:
    state = torch.random.get_rng_state()
    short(name).run(seen)
    assert torch.equal(state, torch.random.get_rng_state())


@pytest.mark.parametrize("name", RECIPES)
def test_the_observation_is_left_as_it_was(seen: Observation, name: str) -> None:
    assert seen.knows.labels is not None
    tensors = [
        *seen.before.values(),
        *seen.buffers.values(),
        *seen.update.values(),
        *seen.model.state_dict().values(),
        seen.knows.labels,
    ]
    kept = [t.clone() for t in tensors]
    short(name).run(seen)
    assert all(map(torch.equal, kept, tensors))
    assert not any(t.requires_grad for t in (*seen.before.values(), *seen.update.values()))


@pytest.mark.parametrize("name", RECIPES)
def test_the_truth_plays_no_part(toy: Any, name: str, equipped: Equip) -> None:
    """Replaced after the round, the private data leave the reconstruction as it was, to the bit."""
    federation = toy.federation(Training(0.2, epochs=2, batch_size=3), examples=4)
    told, truth = observe(federation, ServerView(), Knows())
    seen = equipped(recipe(name), told, toy.images(3, "own"))
    before = short(name).run(seen)
    truth.images.fill_(0.5)
    truth.labels.fill_(0)
    federation.clients[0].images.fill_(0.5)
    federation.clients[0].labels.fill_(0)
    after = short(name).run(seen)
    assert torch.equal(before.images, after.images)
    assert torch.equal(before.labels, after.labels)
    assert before.energy == after.energy


@pytest.mark.parametrize("name", RECIPES)
def test_the_gradient_reaches_the_unknowns(seen: Observation, name: str) -> None:
    attack = composition(recipe(name))
    labels = attack.labels.bind(seen, stream(0, "labels"))
    for stage in attack.stages:
        images, forward = stage.images.bind(seen, stream(0, "images"), None), stage.forward.bind(seen)
        groups = [
            [u.start.clone().requires_grad_() for u in unknowns]
            for unknowns in (images.unknowns, labels.unknowns, forward.unknowns)
        ]
        at = Candidate(images.decode(groups[0]), labels.decode(groups[1]))
        predicted = forward.predict(at, groups[2])
        energy = stage.objective.bind(binding_of(forward, seen.knows))(Evaluation(predicted, at, 0.5))
        gradients = torch.autograd.grad(energy, [t for group in groups for t in group])
        assert all(bool(g.any()) and bool(torch.isfinite(g).all()) for g in gradients)
        assert gradients[0].flatten(2).any(-1).all()  # of every image


@pytest.mark.parametrize("name", [n for n, r in RECIPES.items() if "labels" in inspect.signature(r.value).parameters])
@pytest.mark.parametrize("labels", [OracleLabels(), OracleBatchLabels(), JointLabels()], ids=repr)
def test_labels_can_be_chosen(seen: Observation, name: str, labels: Any) -> None:
    attack = short(name, labels=labels)
    assert labels in list(parts_of(composition(attack).labels))
    assert attack.run(seen).labels.shape == (4,)


@pytest.mark.parametrize("name", RECIPES)
def test_a_recipe_takes_its_iterations_and_cites_its_paper(name: str) -> None:
    stages = composition(short(name)).stages
    assert 2 in {stage.solver.iterations for stage in stages}  # type: ignore[attr-defined]  # of every solver so far
    assert "http" in RECIPES[name].paper
    assert RECIPES[name].summary
    with pytest.raises(UsageError, match="iterations must be at least 1, got 0"):
        recipe(name, iterations=0)


def test_unknown_names_are_answered_with_the_nearest() -> None:
    with pytest.raises(UsageError, match="Unknown attack 'inverting_gradient': did you mean 'inverting_gradients'"):
        recipe("inverting_gradient")
    with pytest.raises(UsageError, match="Attack 'idlg': Unknown option 'iteration': did you mean 'iterations'"):
        recipe("idlg", iteration=3)
    with pytest.raises(UsageError, match="Unknown setting 'cifar10': did you mean 'cifar100'"):
        recipe("dlfa_published", setting="cifar10")
    with pytest.raises(UsageError, match="rate must be positive, got 0"):
        recipe("sme_published", rate=0.0)


@pytest.mark.parametrize("rate", [1.0, 0.1])
def test_alpha_moves_at_a_thousandth_whatever_the_rate_of_the_images(rate: float) -> None:
    stage = recipe("sme_published", rate=rate).stages[0]
    assert isinstance(stage.forward, OnSegment)
    assert stage.forward.rate * stage.solver.rate == pytest.approx(0.001)  # type: ignore[attr-defined]  # an Adam


def test_the_baselines_differ_in_the_operator_alone() -> None:
    sme, ig = recipe("sme_published"), recipe("sme_baseline_ig")
    assert isinstance(ig.stages[0].forward, OneGradient)
    assert replace(ig.stages[0], forward=sme.stages[0].forward) == sme.stages[0]
    geng = recipe("dlfa_fedsgd")
    assert isinstance(geng.stages[0].forward, RepeatedGradient)
    shared, plain = recipe("dlfa_shared"), recipe("dlfa_no_prior")
    assert replace(shared.stages[0], images=plain.stages[0].images) == plain.stages[0]


def test_coarse_to_fine_adds_one_component_at_a_time() -> None:
    """The rows of Table 3: rescaled variation, the support, the fine stage [K. Zhu et al., 2025]."""
    names = "invg_scaled", "coarse_stage_published", "coarse_to_fine_published"
    plain, coarse, whole = (composed(name) for name in names)
    assert plain.stages[0].objective.terms == (Cosine(), PRIOR)
    assert coarse.stages[0].objective.terms == (Cosine(), After(0.05 * SupportCosine(), 0.6), PRIOR)
    assert whole.stages[:1] == coarse.stages
    assert whole.stages[1].objective.terms == (Cosine(), ReweightedL1(), PRIOR)
    for attack, keeps in ((plain, [Lowest()]), (whole, [LowestFrom(0.6), Lowest()])):
        assert [stage.solver.keep for stage in attack.stages] == keeps
    assert [stage.solver.rate for stage in whole.stages] == [0.1, 0.01]


def test_our_coarse_to_fine_differs_in_operator_schedules_first_prior_and_second_rate_alone() -> None:
    ours, published = composed("coarse_to_fine"), composed("coarse_to_fine_published")
    forward, schedule = published.stages[0].forward, published.stages[0].solver.schedule
    assert ours.stages[0].forward == ours.stages[1].forward == ObservedResidual(sized=True)
    alike = [replace(stage, forward=forward) for stage in ours.stages]
    alike[0] = replace(alike[0], solver=replace(alike[0].solver, schedule=schedule))
    assert alike[0].objective.terms == (*published.stages[0].objective.terms[:-1], Ramp(PRIOR, 30.0, 1.0, until=0.85))
    alike[0] = replace(alike[0], objective=published.stages[0].objective)
    assert alike[1].solver.rate == 0.2
    alike[1] = replace(alike[1], solver=published.stages[1].solver)
    assert tuple(alike) == published.stages


def test_one_epoch_makes_the_variants_alike(toy: Any) -> None:
    """With one epoch the prior says nothing and nothing is shared [Dimitrov et al., 2022, Sec. 5.1]."""
    seen = observe(toy.federation(Training(0.2, 1, 2)), ServerView(), Knows(labels=True))[0]
    options: dict[str, Any] = {"labels": OracleLabels()}
    ours, plain, shared = (short(n, **options).run(seen) for n in ("dlfa_published", "dlfa_no_prior", "dlfa_shared"))
    torch.testing.assert_close(ours.images, plain.images)
    torch.testing.assert_close(shared.images, plain.images)
    geng, by_epoch = (short(n, **options).run(seen) for n in ("dlfa_fedsgd", "dlfa_fedsgd_epoch"))
    torch.testing.assert_close(geng.images, by_epoch.images, rtol=1e-3, atol=1e-3)
    assert geng.energy == pytest.approx(by_epoch.energy, rel=1e-3)


@pytest.mark.parametrize("name", SETTINGS)
def test_the_settings_are_the_released_ones(name: str) -> None:
    tv, clip, inv, rate, by, every, ramp = {
        "femnist": (0.001, 2.0, 1000.0, 0.4, 0.995, 10, (1.0, 2.0)),
        "cifar100": (0.0002, 10.0, 6.075, 0.1, 0.997, 20, (4.0, 2.0)),
    }[name]
    chosen = SETTINGS[name]
    assert (chosen.tv, chosen.clip, chosen.inv, chosen.rate) == (tv, clip, inv, rate)
    assert (chosen.decay.by, chosen.decay.every, chosen.ramp) == (by, every, ramp)
    assert dataclasses.is_dataclass(chosen)


def test_a_simulation_under_told_batches_starts_from_images_under_their_own_labels(toy: Any) -> None:
    """From the true images the second stage of `dlfa` has nothing left to do."""
    client = Client("client 0", toy.images(5), torch.arange(5))
    federation = replace(toy.federation(Training(0.2, epochs=3, batch_size=2)), clients=[client])
    seen = observe(federation, ServerView(), Knows(batch_labels=True))[0]
    attack: Any = recipe("dlfa", labels=OracleBatchLabels(), tv=0.0, prior=0.0)
    stage, labels = attack.stages[1], attack.labels.bind(seen, stream(0, "labels")).decode([])
    first = federation.whitening.whiten(client.images)[labels[0]][None]  # the label of an image is its number
    start = stage.images.bind(seen, stream(0, "images"), first)
    at = Candidate(start.decode([u.start for u in start.unknowns]), labels)
    forward = stage.forward.bind(seen)
    objective = stage.objective.bind(binding_of(forward, seen.knows))
    assert float(objective(Evaluation(forward.predict(at, []), at)).detach()) < 1e-5


@pytest.mark.parametrize("setting", SETTINGS)
def test_every_prior_of_table_4_can_be_chosen(setting: str) -> None:
    own = {"femnist": "mean", "cifar100": "conv_max"}[setting]
    assert recipe("dlfa_published", setting=setting, summary=own, distance="l2") == recipe(
        "dlfa_published", setting=setting
    )
    distances = {"l1": AbsoluteEpochPrior, "l2": SquaredEpochPrior}
    for (name, distance), weights in PRIOR_WEIGHTS.items():
        for summary, weight in weights.items() if name == setting else ():
            attack: Any = recipe("dlfa_published", setting=setting, summary=summary, distance=distance)
            plain: Any = recipe("dlfa_no_prior", setting=setting)
            prior = distances[distance](SUMMARIES[summary])
            assert attack.stages[0].objective == plain.stages[0].objective + weight * prior
    assert recipe("dlfa_published", setting=setting, distance="l1") == recipe(
        "dlfa_published", setting=setting, summary=own, distance="l1"
    )


def test_other_priors_are_refused_with_those_that_there_are() -> None:
    with pytest.raises(UsageError, match=r"Unknown summary 'median'.*Known: conv_max, conv_mean, max, mean"):
        recipe("dlfa_published", summary="median")
    with pytest.raises(UsageError, match=r"Unknown distance 'l3'.*Known: l1, l2"):
        recipe("dlfa_published", distance="l3")


@pytest.mark.parametrize("name", ["sme_published", "sme_baseline_ig"])
def test_the_rate_of_sme_may_stay_as_it_is(name: str) -> None:
    falling: Any = recipe(name, rate=0.1)
    constant: Any = recipe(name, rate=0.1, decay=False)
    assert constant.stages[0].solver.schedule == Constant()
    solver = replace(constant.stages[0].solver, schedule=falling.stages[0].solver.schedule)
    assert replace(constant.stages[0], solver=solver) == falling.stages[0]
