"""The candidate game as a probe: does the message name the records that were trained on?"""

from __future__ import annotations

from dataclasses import asdict, dataclass, replace
from typing import Any, ClassVar

from torch import Tensor

from fedglass.attack.participant import without_own_update
from fedglass.attack.parts import Progress
from fedglass.audit.cases import Finding
from fedglass.audit.certificate import total_std
from fedglass.audit.play_attack import state_of
from fedglass.audit.target import Target
from fedglass.checks.candidates import ENOUGH, LEAST, Pool
from fedglass.checks.message_scores import Message
from fedglass.checks.replay import Declared, Part, message_of, too_long
from fedglass.checks.singling_out import Counterfactual, GameResult, play
from fedglass.core.errors import UsageError
from fedglass.core.rng import derive
from fedglass.core.tensors import Params
from fedglass.federation.truth import Examples
from fedglass.verdict.doubts import Doubt, Kind, doubt
from fedglass.verdict.records import Game

NO_TRAINING = "How the clients trained is not declared."
DISHONEST = "Some participants are not honest."


@dataclass(frozen=True)
class PlayGame:
    """Plays the game on one of some messages, over which its limits are corrected."""

    messages: int = 1

    kind: ClassVar[str] = "game"
    metrics: ClassVar[tuple[str, ...]] = ()

    @property
    def played(self) -> PlayGame:
        """What decides the figures, for the key of a case."""
        return self

    def measure(self, target: Target, seed: int, progress: Progress) -> Finding:
        unsound = state_of(target.observation)
        if unsound is not None:
            return _finding(doubt(unsound))
        if target.truth is None:
            return _finding(doubt(Kind.NO_TRUTH))
        if target.declared is None:
            return _finding(doubt(Kind.GAME_NOT_PLAYED, why=NO_TRAINING))
        candidates = 0 if target.pool is None else len(target.pool.labels)
        if target.pool is None or candidates < LEAST:
            return _finding(doubt(Kind.NO_CANDIDATES, found=candidates, least=LEAST))
        try:
            result = self._play(target, target.declared, target.pool, seed)
        except UsageError as error:
            return _finding(doubt(Kind.GAME_NOT_PLAYED, why=str(error)))
        return _finding(*_doubts(result, target), game=_stored(result, self.messages))

    def _play(self, target: Target, claim: Declared, pool: Examples, seed: int) -> GameResult:
        assert target.truth is not None, "asked before"
        seen, private = without_own_update(replace(target.observation, also=())), target.truth.private
        others = replace(claim, parts=claim.parts[: len(claim.parts) - claim.own], own=0)
        message = Message(
            seen.model,
            seen.before,
            seen.buffers,
            seen.update,
            claim.parts[0].training,
            claim.whitening,
            total_std(others) or 0.0 if claim.combined_by_mean else 0.0,
        )
        return play(
            message,
            Examples(private.images, private.labels),
            Pool(pool.images, pool.labels),
            messages=self.messages,
            counterfactual=None if target.dishonest or too_long(others) else _replayed(others, seed),
            seed=seed,
        )


def _replayed(claim: Declared, seed: int) -> Counterfactual:
    """Return what the same clients would have sent if they had trained on some of their records alone."""

    def counterfactual(rows: Tensor) -> Params:
        wanted, start, parts = set(rows.tolist()), 0, list[Part]()
        for part in claim.parts:
            kept = [i for i in range(len(part.labels)) if start + i in wanted]
            start += len(part.labels)
            if kept:
                parts.append(replace(part, images=part.images[kept], labels=part.labels[kept], order=None, weight=None))
        sent = message_of(replace(claim, parts=tuple(parts)), 0, derive(seed, "counterfactual", int(rows.sum())))
        pairs = zip(claim.before.items(), sent, strict=True)
        return {name: tensor.to(before.dtype) for (name, before), tensor in pairs}

    return counterfactual


def _stored(result: GameResult, messages: int) -> Game:
    """Return the figures that a record keeps."""
    told = {name: value for name, value in asdict(result).items() if name in Game.model_fields}
    return Game.model_validate({**told, "messages": messages})


def _doubts(result: GameResult, target: Target) -> list[Doubt]:
    found = {
        "few_candidates": doubt(Kind.FEW_CANDIDATES, found=result.candidates, least=ENOUGH),
        "other_domain": doubt(Kind.OTHER_DOMAIN),
        "no_control": doubt(Kind.NO_CONTROL, why=DISHONEST if target.dishonest else ""),
        "low_power": doubt(Kind.LOW_POWER, public=result.public),
    }
    return [found[name] for name in result.doubts if name in found]


def _finding(*doubts: Doubt, **fields: Any) -> Finding:
    return Finding({"kind": "game", "doubts": list(doubts), **fields})
