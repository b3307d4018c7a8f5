"""Units, scales and refusals of the operators."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from fedglass.attack.forward.gradients import AlongSegment, OneGradient, OnSegment, RepeatedGradient
from fedglass.attack.forward.target import head_gradient, head_of, network_of
from fedglass.attack.forward.unroll import Unroll, UnrollEpochs
from fedglass.attack.parts import Forward
from fedglass.core.errors import UsageError
from fedglass.core.optimisers import SGD
from fedglass.core.types import Candidate, Observation, Training, Unknown
from fedglass.federation.federation import observe
from fedglass.federation.views import AggregateView, Knows
from fedglass.fl.local import MeanGradient, Step
from fedglass.fl.trajectory import TrajectoryMemory

FEDAVG = Training(0.2, epochs=3, batch_size=2)


def message(forward: Forward, seen: Observation, candidate: Candidate) -> Tensor:
    bound = forward.bind(seen)
    own = [u.start for u in bound.unknowns]
    return torch.cat([g.detach().flatten() for g in bound.predict(candidate, own)])


def target(forward: Forward, seen: Observation) -> Tensor:
    return torch.cat([y.flatten() for y in forward.bind(seen).target])


def flat(seen: Observation, by: float) -> Tensor:
    return torch.cat([seen.update[name].flatten() / by for name in forward_names(seen)])


def forward_names(seen: Observation) -> list[str]:
    return [name for name, _ in seen.model.named_parameters()]


@pytest.fixture
def seen(toy: Any) -> Observation:
    found: Observation = toy.observation(FEDAVG)
    return found


@pytest.fixture
def candidate(toy: Any) -> Candidate:
    return Candidate(toy.images(4, "candidate")[None], torch.tensor([0, 1, 2, 3]))


def test_targets_are_in_the_units_of_their_operators(seen: Observation) -> None:
    steps = 6
    torch.testing.assert_close(target(OneGradient(), seen), flat(seen, -0.2 * steps))
    torch.testing.assert_close(target(OnSegment(), seen), flat(seen, -0.2 * steps))
    for forward in (RepeatedGradient(), Unroll(), UnrollEpochs()):
        torch.testing.assert_close(target(forward, seen), flat(seen, -0.2))


def test_the_scale_needs_only_steps_and_rate(toy: Any, seen: Observation) -> None:
    knowing = toy.observation(FEDAVG, Knows(training=False, steps=True))
    torch.testing.assert_close(target(OneGradient(), knowing), target(OneGradient(), seen))
    blind = toy.observation(FEDAVG, Knows(training=False))
    torch.testing.assert_close(target(OneGradient(), blind), flat(seen, -1.0))


def test_a_repeated_gradient_is_the_one_gradient_times_the_steps(seen: Observation, candidate: Candidate) -> None:
    torch.testing.assert_close(
        message(RepeatedGradient(), seen, candidate), 6 * message(OneGradient(), seen, candidate)
    )


def test_unroll_epochs_against_a_loop(seen: Observation, candidate: Candidate) -> None:
    """Each epoch one step of the full batch's gradient, as long as the client's two."""
    network_weights = {name: w.clone().requires_grad_() for name, w in seen.before.items()}
    total = {name: torch.zeros_like(w) for name, w in seen.before.items()}
    for _ in range(3):
        logits = torch.func.functional_call(seen.model, network_weights, (candidate.images[0],))
        found = torch.autograd.grad(F.cross_entropy(logits, candidate.labels), list(network_weights.values()))
        for (name, w), g in zip(list(network_weights.items()), found, strict=True):
            total[name] += 2 * g
            network_weights[name] = (w - 0.2 * 2 * g).detach().requires_grad_()
    slow = torch.cat([total[name].flatten() for name in forward_names(seen)])
    torch.testing.assert_close(message(UnrollEpochs(), seen, candidate), slow, rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("forward", [OneGradient(), RepeatedGradient(), OnSegment(), AlongSegment()], ids=repr)
def test_one_gradient_takes_the_first_of_labels_by_epoch(
    seen: Observation, candidate: Candidate, forward: Forward
) -> None:
    told = Candidate(candidate.images, torch.stack([candidate.labels, candidate.labels.flip(0)]))
    torch.testing.assert_close(message(forward, seen, told), message(forward, seen, candidate), rtol=0, atol=0)


@pytest.mark.parametrize("alpha", [0.0, 0.3, 1.0])
def test_the_segment_is_a_gradient_between_before_and_after(
    seen: Observation, candidate: Candidate, alpha: float
) -> None:
    bound = OnSegment().bind(seen)
    moved = {n: (w + alpha * seen.update[n]).requires_grad_() for n, w in seen.before.items()}
    logits = torch.func.functional_call(seen.model, moved, (candidate.images[0],))
    slow = torch.autograd.grad(F.cross_entropy(logits, candidate.labels), [moved[n] for n in bound.names])
    for mine, theirs in zip(bound.predict(candidate, [torch.tensor(alpha)]), slow, strict=True):
        torch.testing.assert_close(mine, theirs)


def test_several_points_are_the_mean_of_single_ones(seen: Observation, candidate: Candidate) -> None:
    single, several = OnSegment().bind(seen), AlongSegment(3).bind(seen)
    # Six steps: the middles of thirds, half a step of a twelfth earlier.
    alphas = [torch.tensor(1 / 12), torch.tensor(5 / 12), torch.tensor(9 / 12)]
    expected = [torch.stack(g).mean(0) for g in zip(*(single.predict(candidate, [a]) for a in alphas), strict=True)]
    for mine, theirs in zip(several.predict(candidate, ()), expected, strict=True):
        torch.testing.assert_close(mine, theirs)


def test_points_without_number_are_refused() -> None:
    with pytest.raises(UsageError, match="points must be at least 1, got 0"):
        AlongSegment(0)


def test_alpha_is_a_bounded_unknown_with_its_own_rate(seen: Observation) -> None:
    (alpha,) = OnSegment(start=0.25, rate=0.01, every=7).bind(seen).unknowns
    assert alpha.low is not None
    assert alpha.high is not None
    assert (float(alpha.start), float(alpha.low), float(alpha.high)) == (0.25, 0.0, 1.0)
    assert (alpha.rate, alpha.every) == (0.01, 7)


def test_the_gradient_in_alpha_is_the_inner_product_with_the_update(seen: Observation, candidate: Candidate) -> None:
    """[Zhu et al., 2023, Eq. 11]"""
    bound = OnSegment().bind(seen)

    def loss(alpha: Tensor) -> Tensor:
        return torch.stack([g.square().sum() for g in bound.predict(candidate, [alpha])]).sum()

    alpha = torch.tensor(0.4, requires_grad=True)
    (found,) = torch.autograd.grad(loss(alpha), alpha)
    step = 1e-2
    numeric = (loss(alpha.detach() + step) - loss(alpha.detach() - step)) / (2 * step)
    torch.testing.assert_close(found, numeric, rtol=2e-2, atol=1e-4)


@pytest.mark.parametrize("forward", [Unroll(), UnrollEpochs(), RepeatedGradient()], ids=repr)
def test_a_simulation_needs_the_training(toy: Any, forward: Forward) -> None:
    with pytest.raises(UsageError, match="knows_training"):
        forward.bind(toy.observation(FEDAVG, Knows(training=False, steps=True)))


def test_clients_of_unknown_size_can_not_be_simulated(seen: Observation) -> None:
    odd = replace(seen, knows=replace(seen.knows, examples=5, clients=2, sizes=None))
    with pytest.raises(UsageError, match="clients with equally many examples, which"):
        Unroll().bind(odd)


@pytest.mark.parametrize("training", [FEDAVG, Training(0.2, batch_size=2, optimiser=SGD(momentum=0.9), shuffle=False)])
def test_clients_of_unequal_size_weigh_as_they_do_at_the_server(toy: Any, training: Training) -> None:
    """The true batches have zero residual; with the plain mean they have not."""
    training = replace(training, shuffle=False)
    clients = [toy.client(0, 2), toy.client(1, 3)]
    seen, _ = observe(replace(toy.federation(training), clients=clients), AggregateView(), Knows())
    images, labels = (torch.cat([getattr(c, kind) for c in clients]) for kind in ("images", "labels"))
    whitened = Candidate(seen.knows.whitening.whiten(images)[None], labels)
    expected = target(Unroll(), seen)
    torch.testing.assert_close(message(Unroll(), seen, whitened), expected, rtol=1e-4, atol=1e-5)
    parts = [
        message(Unroll(), replace(seen, knows=replace(seen.knows, examples=n, clients=1, sizes=(n,))), part)
        for n, part in ((2, _rows(whitened, 0, 2)), (3, _rows(whitened, 2, 5)))
    ]
    torch.testing.assert_close((2 * parts[0] + 3 * parts[1]) / 5, expected, rtol=1e-4, atol=1e-5)
    assert not torch.allclose((parts[0] + parts[1]) / 2, expected, rtol=1e-3, atol=1e-4)


def _rows(candidate: Candidate, first: int, last: int) -> Candidate:
    return Candidate(candidate.images[:, first:last], candidate.labels[first:last])


@pytest.mark.parametrize("forward", [Unroll(0.001), UnrollEpochs(0.001)], ids=repr)
def test_a_budget_that_is_too_small_is_refused(seen: Observation, candidate: Candidate, forward: Forward) -> None:
    with pytest.raises(UsageError, match=r"needs at least \d+ MiB, but budget_mib is 0.001"):
        message(forward, seen, candidate)


def test_the_budget_changes_memory_not_the_result(
    monkeypatch: pytest.MonkeyPatch, seen: Observation, candidate: Candidate
) -> None:
    found = []
    for memory in (TrajectoryMemory(graphs=True), TrajectoryMemory(), TrajectoryMemory(every=3)):
        monkeypatch.setattr("fedglass.attack.forward.unroll.fit", lambda *_, chosen=memory: chosen)
        found.append(message(Unroll(), seen, candidate))
    assert torch.equal(found[0], found[1])
    assert torch.equal(found[1], found[2])


class HeadFirst(nn.Module):
    """A network whose last layer is registered first."""

    def __init__(self) -> None:
        super().__init__()
        self.head = nn.Linear(6, 5)
        self.body = nn.Linear(64, 6)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.body(x.flatten(1)).sigmoid())  # type: ignore[no-any-return]  # of Any


def test_the_head_is_the_last_layer_that_is_executed(toy: Any) -> None:
    seen = toy.observation(Training(0.1), model=toy.seeded(HeadFirst()))
    assert head_of(seen)[0] == "head.weight"
    torch.testing.assert_close(head_gradient(seen), -seen.update["head.weight"])


@pytest.mark.parametrize("forward", [OneGradient(), OnSegment(), Unroll(), UnrollEpochs()], ids=repr)
def test_double_precision_stays_double(seen: Observation, candidate: Candidate, forward: Forward) -> None:
    double = replace(
        seen,
        model=nn.Sequential(*seen.model.children()).double(),
        before={n: t.double() for n, t in seen.before.items()},
        update={n: t.double() for n, t in seen.update.items()},
    )
    bound = forward.bind(double)
    wide = Candidate(candidate.images.double(), candidate.labels)
    found = bound.predict(wide, [u.start for u in bound.unknowns])
    assert {t.dtype for t in (*found, *bound.target)} == {torch.float64}
    assert all(isinstance(u, Unknown) and u.start.dtype == torch.float64 for u in bound.unknowns)


def test_a_step_of_the_plain_rule_is_a_mean(seen: Observation, candidate: Candidate) -> None:
    """The gradient of a batch is the mean of its examples' gradients."""
    weights = [seen.before[n].clone().requires_grad_() for n in forward_names(seen)]
    network = network_of(seen)
    whole = MeanGradient().gradient(Step(network, weights, candidate.images[0], candidate.labels))
    each = [
        MeanGradient().gradient(Step(network, weights, candidate.images[0, i : i + 1], candidate.labels[i : i + 1]))
        for i in range(4)
    ]
    for parts, together in zip(zip(*each, strict=True), whole, strict=True):
        torch.testing.assert_close(torch.stack(parts).mean(0), together)


def test_other_images_than_the_training_is_simulated_with_are_refused(seen: Observation, candidate: Candidate) -> None:
    """Such as a truth that holds more than was trained on."""
    more = Candidate(torch.cat([candidate.images] * 2, dim=1), torch.cat([candidate.labels] * 2))
    with pytest.raises(UsageError, match="number of examples"):
        message(Unroll(), seen, more)
