"""Guesses of a participant: an unknown learning rate or number of examples, and the updates that the rule accepted.

The search for the first two is led by the participant's own images.
"""

from __future__ import annotations

import math
import time
from collections.abc import Iterator
from dataclasses import dataclass, replace
from itertools import combinations, islice
from typing import ClassVar

import torch
from torch import Tensor

from fedglass.attack.attack import Attack
from fedglass.attack.best_of import AnyAttack, GuessedRun, Guesses, lowest_energies
from fedglass.attack.forward.target import learning_rate
from fedglass.attack.forward.unroll import full_batch_training
from fedglass.attack.parts import Progress, check_needs
from fedglass.attack.peer_knowledge import check_not_echo
from fedglass.attack.stages import energy_rank, progress_part
from fedglass.core.errors import UsageError, check_at_least
from fedglass.core.facts import Fact, refusal
from fedglass.core.tensors import assign, squared_distances
from fedglass.core.types import Accepted, Observation, Own, Reconstruction, Trial


@dataclass(frozen=True)
class SearchByOwnImages(Guesses[AnyAttack]):
    """The learning rate, the number of examples, or both, under which the adversary's own images come back best.

    They must be among those that are reconstructed, and it knows them [Wilson et al., 2024, Appendix B]: the search
    uses no image of another client. All pairs of `rates` and `counts` are tried with `probe`; then the best one's
    neighbours, `zooms` times, each time at half the distance, of rates by their logarithm. A value that is known is not
    searched for. The attack is run once, under the best guess; the reconstruction lists every trial.
    """

    probe: Attack
    """A short attack in which all images are unknown, the adversary's own among them."""
    rates: tuple[float, ...] = (0.001, 0.003, 0.01, 0.03, 0.1, 0.3)
    counts: tuple[int, ...] = (8, 16, 32, 64)
    zooms: int = 2

    needs: ClassVar[frozenset[Fact]] = frozenset({Fact.STEPS})
    supplies: ClassVar[frozenset[Fact]] = frozenset({Fact.LR, Fact.EXAMPLES, Fact.SIZE, Fact.OWN_SHARE})

    def __post_init__(self) -> None:
        if not self.rates or not all(0 < rate < math.inf for rate in self.rates):
            raise UsageError(f"search.rates must be positive and finite, at least one, got {self.rates}.")
        if not self.counts or min(self.counts) < 1:
            raise UsageError(f"search.counts must be at least 1 each, at least one, got {self.counts}.")
        check_at_least("search.zooms", self.zooms, 0)

    def options(self, attack: AnyAttack, observation: Observation) -> list[GuessedRun]:
        """Return all pairs of the grid."""
        check_needs(attack, observation, self.supplies)
        if not _nothing_unknown(observation):
            _own(observation)
        return [self._guess(attack, observation, pair) for pair in self._grid(observation)]

    def check(self, options: list[GuessedRun]) -> None:
        self.probe.check(options[0].observation)
        super().check(options[:1])

    def select(
        self, options: list[GuessedRun], observation: Observation, seed: int, progress: Progress
    ) -> list[GuessedRun]:
        if _nothing_unknown(observation):
            return options[:1]
        trials = self._search(observation, seed, progress)
        best = min(trials, key=lambda trial: energy_rank(trial.error))
        listed = tuple(trials) if len(trials) > 1 else ()
        return [self._guess(options[0].attack, observation, (best.lr, best.examples), listed)]

    def recall(self, attack: AnyAttack, observation: Observation, like: Reconstruction) -> GuessedRun:
        if like.supposed is None:
            raise UsageError("The reconstruction supposes no learning rate: give one that this attack returned.")
        return self._guess(attack, observation, (like.supposed.lr, len(like.labels)))

    def _guess(
        self, attack: AnyAttack, observation: Observation, pair: tuple[float, int], trials: tuple[Trial, ...] = ()
    ) -> GuessedRun:
        supposed = with_rate_and_examples(observation, *pair)
        return GuessedRun(
            attack, supposed, lambda run: replace(run, supposed=full_batch_training(supposed), tried=trials)
        )

    def shortened(self, share: float) -> SearchByOwnImages:
        return replace(self, probe=self.probe.shortened(share))

    def _search(self, observation: Observation, seed: int, progress: Progress) -> list[Trial]:
        """Try all pairs of the grid, then the neighbours of the best one."""
        trials: dict[tuple[float, int], Trial] = {}

        def consider(pairs: list[tuple[float, int]]) -> None:
            for pair in pairs:
                if pair not in trials:
                    began = time.perf_counter()
                    images = self.probe.run(with_rate_and_examples(observation, *pair), seed, progress).images
                    error = own_image_error(images, _own(observation).images)
                    trials[pair] = Trial(*pair, error=error, seconds=time.perf_counter() - began)

        consider(self._grid(observation))
        for step in range(1, self.zooms + 1):
            best = min(trials.values(), key=lambda trial: energy_rank(trial.error))
            consider(self._around(observation, best, 0.5**step))
        return list(trials.values())

    def _grid(self, observation: Observation) -> list[tuple[float, int]]:
        """Return all pairs of rates and counts; a known value is the only one of its kind."""
        lr, knows = learning_rate(observation), observation.knows
        rates = self.rates if lr is None else (lr,)
        if knows.counted:
            return [(rate, knows.examples) for rate in rates]
        least = len(_own(observation).labels) + 1
        possible = [count for count in self.counts if count >= least]
        if not possible:
            raise UsageError(
                f"search.counts must go beyond the adversary's own {least - 1} examples, got {self.counts}: add larger "
                "numbers."
            )
        return [(rate, count) for rate in rates for count in possible]

    def _around(self, observation: Observation, best: Trial, share: float) -> list[tuple[float, int]]:
        """Return the neighbours of the best trial at a share of the grid's spacing."""
        neighbours: list[tuple[float, int]] = []
        if Fact.LR not in observation.facts:
            # The mean distance between neighbours; that of a factor of 3 where there is only one rate.
            logs = [math.log(rate) for rate in self.rates]
            spacing = (max(logs) - min(logs)) / (len(logs) - 1) if len(logs) > 1 else math.log(3)
            factor = math.exp(share * spacing)
            neighbours += [(best.lr * factor, best.examples), (best.lr / factor, best.examples)]
        if not observation.knows.counted:
            least = len(_own(observation).labels) + 1
            gap = min((abs(count - best.examples) for count in self.counts if count != best.examples), default=2)
            move = max(1, round(share * gap))
            neighbours += [(best.lr, max(least, best.examples + sign * move)) for sign in (1, -1)]
        return neighbours


def own_image_error(images: Tensor, own_images: Tensor) -> float:
    """Return the mean squared error of the adversary's own images, each compared with one reconstructed image."""
    if len(own_images) > len(images):
        return math.inf
    truth, shown = own_images.to(images), images.clamp(0, 1)  # (own, c, h, w), (n, c, h, w)
    partner = assign(squared_distances(truth, shown)).to(shown.device)
    return float((truth.cpu().double() - shown[partner].cpu().double()).square().flatten(1).mean(1).mean())


def with_rate_and_examples(observation: Observation, lr: float, examples: int) -> Observation:
    """Return the same message to an adversary that supposes this learning rate and this number of examples."""
    knows, contribution = observation.knows, observation.own
    if knows.counted:
        counted = knows
    else:
        counted = replace(knows, examples=examples, counted=True, labels=_labels_of(knows.labels, examples))
    rated = counted if counted.training is not None else replace(counted, lr=lr)
    if contribution is not None and contribution.share is None:
        contribution = replace(contribution, share=len(contribution.labels) / examples)
    return replace(observation, knows=rated, own=contribution)


def _labels_of(labels: Tensor | None, examples: int) -> Tensor | None:
    """Return as many of the true labels as examples are supposed, where an oracle has given them.

    The adversary's own labels are last, and stay; where too many examples are supposed, labels are repeated.
    """
    if labels is None or len(labels) == examples:
        return labels
    repeats = -(-examples // len(labels))
    return labels.repeat(repeats)[-examples:]


def _nothing_unknown(observation: Observation) -> bool:
    return {Fact.LR, Fact.EXAMPLES} <= observation.facts


def _own(observation: Observation) -> Own:
    if observation.own is None or Fact.OWN not in observation.facts:
        raise refusal("Searching by the adversary's own images", [Fact.OWN])
    return observation.own


MOST_COMBINATIONS = 2**16
"""Of the clients of a round, before those that look alike are merged."""


@dataclass(frozen=True)
class AllClients:
    """All clients that took part."""

    when_known: ClassVar[bool] = True
    """Whether the attack is run as it is where the adversary knows whose updates were accepted."""

    def guesses(self, other_clients: int) -> Iterator[Accepted]:
        """Yield the possible sets of clients in a round with this number of other clients."""
        yield Accepted(tuple(range(other_clients)), own=True)


@dataclass(frozen=True)
class AllOthers:
    """All clients but the adversary, whose update was dropped, as that of a poisoner is."""

    when_known: ClassVar[bool] = False

    def guesses(self, other_clients: int) -> Iterator[Accepted]:
        yield Accepted(tuple(range(other_clients)), own=False)


@dataclass(frozen=True)
class OneOther:
    """One of the other clients alone, as Krum selects it; each of them is possible."""

    when_known: ClassVar[bool] = True

    def guesses(self, other_clients: int) -> Iterator[Accepted]:
        yield from (Accepted((i,), own=False) for i in range(other_clients))


@dataclass(frozen=True)
class SomeOthers:
    """Some of the others and perhaps the adversary, as DnC, FreqFed and Multi-Krum select them: large sets first."""

    when_known: ClassVar[bool] = False

    def guesses(self, other_clients: int) -> Iterator[Accepted]:
        for count in range(other_clients - 1, 0, -1):
            for chosen in combinations(range(other_clients), count):
                yield Accepted(chosen, own=True)
                if count > 1:
                    yield Accepted(chosen, own=False)


AcceptedClients = AllClients | AllOthers | OneOther | SomeOthers
"""The clients of the round that a guess supposes behind the message."""


@dataclass(frozen=True)
class GuessAccepted(Guesses[AnyAttack]):
    """The clients whose updates were accepted, where the adversary knows only who took part.

    Other clients of the same size and, where an oracle has given them, the same labels cannot be distinguished: one of
    them stands for all. Of several guesses, the first `most`, each is tried with a quarter of a `share` of the attack's
    iterations, the best quarter with all of it, and the attack is run under the best one. Where the adversary knows
    whose updates were accepted, there is one guess, None.
    """

    clients: AcceptedClients
    mean: bool = False
    """Whether the rule is a mean of the accepted updates, in which the adversary's own has its share of examples."""
    share: float = 0.1
    most: int = 64

    supplies: ClassVar[frozenset[Fact]] = frozenset({Fact.EXAMPLES})

    def __post_init__(self) -> None:
        if not 0 < self.share <= 1 or self.most < 1:
            raise UsageError(
                f"kept.share must be above 0 and at most 1, kept.most at least 1, got {self.share} and {self.most}."
            )

    def options(self, attack: AnyAttack, observation: Observation) -> list[GuessedRun]:
        check_not_echo(observation)
        present = observation.knows.present
        if present is not None:
            return [self._guess(attack, observation, clients) for clients in self._distinct(observation, present)]
        if not self.clients.when_known:
            raise UsageError(
                f"{self.clients} is a guess about whose updates the rule has accepted, which the adversary knows: set "
                'adversary.knows_kept = false, or suppose rule = "mean".'
            )
        return [self._guess(attack, observation, None)]

    def check(self, options: list[GuessedRun]) -> None:
        super().check(options[:1])

    def select(
        self, options: list[GuessedRun], observation: Observation, seed: int, progress: Progress
    ) -> list[GuessedRun]:
        if len(options) == 1:
            return options
        keep = max(4, len(options) // 4)
        best = lowest_energies(options, self.share / 4, keep, seed, progress_part(progress, 0, 2))
        likely = [guess for guess in options if guess in best]
        return lowest_energies(likely, self.share, 1, seed, progress_part(progress, 1, 2))

    def recall(self, attack: AnyAttack, observation: Observation, like: Reconstruction) -> GuessedRun:
        """Return the guess of the reconstruction, or one that fits the number of images where that differs.

        The adversary's own images come last, where they are among them.
        """
        contribution, present, count = observation.own, observation.knows.present, len(like.images)
        if contribution is None or present is None:
            return self._guess(attack, observation, None)
        size, own_images = len(contribution.labels), contribution.images
        with_own = count > size and torch.equal(like.images[-size:].to(own_images), own_images)
        by_count = [_of_size(present[:-1], count - n, has_own) for n, has_own in ((size, True), (0, False))]
        candidates = [like.kept, *(by_count if with_own else reversed(by_count))]
        fitting = [c for c in candidates if c is not None and _examples(c, present, size) == count]
        if not fitting:
            raise UsageError(
                f"{count} images are those of no clients of the round, who have {present} examples: give all "
                "images of some of them."
            )
        accepted = next((c for c in fitting if c.own == with_own), fitting[0])
        return self._guess(attack, observation, accepted)

    def _guess(self, attack: AnyAttack, observation: Observation, accepted: Accepted | None) -> GuessedRun:
        supposed = self._suppose(observation, accepted)

        def note(run: Reconstruction) -> Reconstruction:
            return replace(run, kept=accepted, grouping=() if self.mean else _grouping(supposed, run))

        return GuessedRun(attack, supposed, note, value=accepted)

    def _distinct(self, observation: Observation, present: tuple[int, ...]) -> list[Accepted]:
        """Return the first `most` sets of clients that the message can tell apart."""
        kinds, possible = _kinds(observation), islice(self.clients.guesses(len(present) - 1), MOST_COMBINATIONS)
        # The first of those that look alike, in the place of the last.
        distinct = {
            (tuple(sorted(kinds[i] for i in accepted.others)), accepted.own): accepted
            for accepted in reversed(list(possible))
        }
        if not distinct:
            raise UsageError(f"{self.clients} is not possible in a round of {len(present)} clients: suppose another.")
        return [*reversed(distinct.values())][: self.most]

    def _suppose(self, observation: Observation, accepted: Accepted | None) -> Observation:
        """Return the same message to an adversary that takes these for the clients behind it."""
        contribution, present = observation.own, observation.knows.present
        if contribution is None or present is None or accepted is None:
            return self._with_share(observation)
        labels = observation.knows.labels
        chosen = [*accepted.others, *([len(present) - 1] if accepted.own else [])]
        labels_of = None if labels is None else torch.split(labels, list(present))
        knows = replace(
            observation.knows,
            examples=sum(present[i] for i in chosen),
            clients=len(chosen),
            sizes=tuple(present[i] for i in chosen),
            labels=None if labels_of is None else torch.cat([labels_of[i] for i in chosen]),
            counted=True,
            present=None,
        )
        contribution = replace(contribution, share=None if accepted.own else 0.0)
        return self._with_share(replace(observation, knows=knows, own=contribution))

    def _with_share(self, observation: Observation) -> Observation:
        """Add the weight of the adversary's own update, where the rule is a mean and the update was accepted."""
        contribution, knows = observation.own, observation.knows
        if not self.mean or contribution is None or contribution.share is not None or not knows.counted:
            return observation
        share = len(contribution.labels) / knows.examples
        return replace(observation, own=replace(contribution, share=share))


def _examples(accepted: Accepted, present: tuple[int, ...], own_size: int) -> int:
    """Count the examples of the accepted clients."""
    return sum(present[i] for i in accepted.others) + own_size * accepted.own


def _kinds(observation: Observation) -> list[tuple[int, ...]]:
    """Return the size of each other client, and its labels where an oracle has given them."""
    present, labels = observation.knows.present or (), observation.knows.labels
    if labels is None:
        return [(size,) for size in present[:-1]]
    return [(len(client), *client.tolist()) for client in torch.split(labels, list(present))[:-1]]


def _grouping(supposed: Observation, reconstruction: Reconstruction) -> tuple[tuple[int, ...], ...]:
    """Return the reconstructed labels of each other client; nothing where an oracle has given them."""
    sizes, labels = supposed.knows.sizes or (), supposed.knows.labels
    sizes = sizes[:-1] if Fact.OWN in supposed.facts else sizes
    if labels is not None or not sizes or sum(sizes) > len(reconstruction.labels):
        return ()
    return tuple(tuple(c.tolist()) for c in torch.split(reconstruction.labels[: sum(sizes)], list(sizes)))


def _of_size(sizes: tuple[int, ...], examples: int, with_own: bool) -> Accepted | None:
    """Return some of the other clients that have this number of examples together."""
    clients_by_sum: dict[int, tuple[int, ...]] = {0: ()}
    for i, size in enumerate(sizes):
        clients_by_sum = {n + size: (*clients, i) for n, clients in clients_by_sum.items()} | clients_by_sum
    return Accepted(clients_by_sum[examples], with_own) if clients_by_sum.get(examples) else None
