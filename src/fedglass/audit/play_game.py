"""The probe that plays the candidate game: does the message name the records that were trained on?"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, ClassVar

from torch import Tensor

from fedglass.attack.parts import Progress
from fedglass.attack.peer_knowledge import without_own_update
from fedglass.audit.cases import ProbeResult
from fedglass.audit.play_attack import unusable_state
from fedglass.audit.target import Target
from fedglass.checks.candidates import Pool
from fedglass.checks.claim import Claim, ClientClaim
from fedglass.checks.message_scores import ScoredMessage
from fedglass.checks.noise import total_std
from fedglass.checks.replay import message_of, too_long
from fedglass.checks.singling_out import Counterfactual, GameResult, play
from fedglass.core.errors import UsageError
from fedglass.core.rng import derive
from fedglass.core.tensors import Params
from fedglass.core.thresholds import ENOUGH_CANDIDATES, LEAST_CANDIDATES
from fedglass.federation.truth import Examples
from fedglass.verdict.doubts import Doubt, DoubtKind, doubt
from fedglass.verdict.records import Game

NO_TRAINING = "How the clients trained is not declared."
DISHONEST = "Some participants are not honest."


@dataclass(frozen=True)
class PlayGame:
    """The candidate game on one of some messages, over which its limits are corrected."""

    messages: int = 1

    kind: ClassVar[str] = "game"
    metrics: ClassVar[tuple[str, ...]] = ()

    def measure(self, target: Target, seed: int, progress: Progress) -> ProbeResult:
        unsound = unusable_state(target.observation)
        if unsound is not None:
            return _finding(doubt(unsound))
        if target.truth is None:
            return _finding(doubt(DoubtKind.NO_TRUTH))
        if target.claim is None:
            return _finding(doubt(DoubtKind.GAME_NOT_PLAYED, why=NO_TRAINING))
        candidates = 0 if target.pool is None else len(target.pool.labels)
        if target.pool is None or candidates < LEAST_CANDIDATES:
            return _finding(doubt(DoubtKind.NO_CANDIDATES, found=candidates, least=LEAST_CANDIDATES))
        try:
            result = self._play(target, target.claim, target.pool, seed)
        except UsageError as error:
            return _finding(doubt(DoubtKind.GAME_NOT_PLAYED, why=str(error)))
        figures = {name: value for name, value in vars(result).items() if name in Game.model_fields}
        game = Game.model_validate({**figures, "messages": self.messages})
        return _finding(*_doubts(result, target.claim), game=game)

    def _play(self, target: Target, claim: Claim, pool: Examples, seed: int) -> GameResult:
        assert target.truth is not None, "asked before"
        observation, private = without_own_update(replace(target.observation, also=())), target.truth.private
        private_claim = replace(claim, clients=claim.private, own_clients=0)
        message = ScoredMessage(
            observation.model,
            observation.before,
            observation.buffers,
            observation.update,
            claim.clients[0].training,
            claim.whitening,
            total_std(private_claim) or 0.0 if claim.combined_by_mean else 0.0,
        )
        return play(
            message,
            Examples(private.images, private.labels),
            Pool(pool.images, pool.labels),
            messages=self.messages,
            counterfactual=None if not claim.honest or too_long(private_claim) else _replayed(private_claim, seed),
            seed=seed,
        )


def _replayed(claim: Claim, seed: int) -> Counterfactual:
    """Return a function from records to the update of the same clients trained on these records alone."""

    def counterfactual(rows: Tensor) -> Params:
        wanted, start, clients = set(rows.tolist()), 0, list[ClientClaim]()
        for client in claim.clients:
            places = [i for i in range(len(client.labels)) if start + i in wanted]
            start += len(client.labels)
            if places:
                reduced = client.with_examples(client.images[places], client.labels[places])
                clients.append(replace(reduced, order=None, weight=None))
        sent = message_of(replace(claim, clients=tuple(clients)), 0, derive(seed, "counterfactual", int(rows.sum())))
        pairs = zip(claim.before.items(), sent, strict=True)
        return {name: tensor.to(before.dtype) for (name, before), tensor in pairs}

    return counterfactual


def _doubts(result: GameResult, claim: Claim) -> list[Doubt]:
    details: dict[str, dict[str, Any]] = {
        "few_candidates": {"found": result.candidates, "least": ENOUGH_CANDIDATES},
        "no_control": {"why": "" if claim.honest else DISHONEST},
        "low_power": {"public": result.public},
    }
    return [doubt(DoubtKind(name), **details.get(name, {})) for name in result.doubts]


def _finding(*doubts: Doubt, **fields: Any) -> ProbeResult:
    return ProbeResult({"kind": "game", "doubts": list(doubts), **fields})
