"""A participant's search for an unknown learning rate or number of examples, led by its own images."""

from __future__ import annotations

import math
import time
from dataclasses import dataclass, replace
from typing import ClassVar

from torch import Tensor

from fedglass.attack.attack import Attack
from fedglass.attack.best_of import AnyAttack, GuessedRun, Guesses
from fedglass.attack.forward.target import learning_rate
from fedglass.attack.forward.unroll import full_batch_training
from fedglass.attack.needs import check_needs
from fedglass.attack.parts import Progress
from fedglass.attack.stages import energy_rank
from fedglass.core.errors import UsageError
from fedglass.core.facts import Fact, refusal
from fedglass.core.tensors import assign, squared_distances
from fedglass.core.types import Observation, Own, Reconstruction, Trial


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
        if self.zooms < 0:
            raise UsageError(f"search.zooms must be at least 0, got {self.zooms}.")

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
                    trials[pair] = self._try(observation, pair, seed, progress)

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
            factor = math.exp(share * _spacing([math.log(rate) for rate in self.rates]))
            neighbours += [(best.lr * factor, best.examples), (best.lr / factor, best.examples)]
        if not observation.knows.counted:
            least, gap = len(_own(observation).labels) + 1, _gap(self.counts, best.examples)
            move = max(1, round(share * gap))
            neighbours += [(best.lr, max(least, best.examples + sign * move)) for sign in (1, -1)]
        return neighbours

    def _try(self, observation: Observation, pair: tuple[float, int], seed: int, progress: Progress) -> Trial:
        began = time.perf_counter()
        reconstruction = self.probe.run(with_rate_and_examples(observation, *pair), seed, progress)
        error = own_image_error(reconstruction.images, _own(observation).images)
        return Trial(*pair, error=error, seconds=time.perf_counter() - began)


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


def _spacing(points: list[float]) -> float:
    """Return the mean distance between neighbours; that of a factor of 3 where there is only one point."""
    return (max(points) - min(points)) / (len(points) - 1) if len(points) > 1 else math.log(3)


def _gap(counts: tuple[int, ...], at: int) -> int:
    """Return the distance to the nearest other count of the grid."""
    return min((abs(count - at) for count in counts if count != at), default=2)
