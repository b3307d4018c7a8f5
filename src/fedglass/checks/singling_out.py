"""The candidate game: among many candidates, does the message name the one that was trained on?

It needs no reconstruction: one gradient for each candidate, at the weights that the client started from. A record is
named if it fits the message better than every candidate of its label. Records of the same origin that the message was
not made with play the same game as a control, without which nothing is decided: a client's pictures may differ from
the candidates in more than that the client trained on them.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor, nn

from fedglass.bounds.success import Game, exposed_by
from fedglass.checks.candidates import Draw, GameScores, draw_candidates, rate_limits, shows_one_of
from fedglass.checks.message_scores import ScoredMessage, Scorer, with_numbered_targets
from fedglass.checks.replay import MOST_STEPS
from fedglass.core.errors import UsageError
from fedglass.core.rng import stream
from fedglass.core.tensors import Params, buffers_of, check_update, check_weights, subtract, weights_of
from fedglass.core.thresholds import ENOUGH_CANDIDATES, FEW_PUBLIC_GRADIENTS, SAME_AS_PRIVATE
from fedglass.core.types import Training, Whitening
from fedglass.federation.truth import Examples
from fedglass.fl.local import schedule, train
from fedglass.models.network import Network

Counterfactual = Callable[[Tensor], Params]
"""Function from the indices of records to the update of a training on these records alone."""

MOST_CONTROLS = 256
"""Held-out records that are played, at most: more hardly narrow the limits."""
STAND_INS = 8
"""Messages of other examples that a single record is played against."""
QUANTILES = 21
"""Number of quantiles of the candidates' scores, for the chart."""


class GameResult(Game):
    """A candidate game, with what it says by itself."""

    doubts: tuple[str, ...] = ()
    exposed_by: Literal["", "rate", "rank"] = ""
    """`rate`, or `rank` where there are fewer than 8 records; empty where records are not shown to be singled out."""


_Trial = tuple[Examples, Sequence[Tensor], int]
"""Examples, the candidates of each as places within those of its label, and the message that they play against."""


@dataclass(frozen=True, eq=False)
class _Control:
    """Records that the message was not made with, or messages that were made without the records."""

    kind: str = ""
    trials: Sequence[_Trial] = ()
    updates: Sequence[Params] = ()
    stand_ins: Sequence[int] = ()
    """Rows of the pool that the updates were made with instead."""


def play(
    message: ScoredMessage,
    records: Examples,
    pool: Examples,
    *,
    same_source: bool = True,
    max_singling_out: float = 0.1,
    messages: int = 1,
    candidates: int = 1000,
    counterfactual: Counterfactual | None = None,
    held_out: Examples | None = None,
    seed: int = 0,
) -> GameResult:
    """Play the candidate game on one of `messages` messages of an audit.

    Without `same_source` the pool holds images of another kind: the game gives a chart and never a verdict.
    """
    check_weights(message.before, message.model)
    check_update(message.update, message.before)
    message, records, pool, held_out = with_numbered_targets(message, records, pool, held_out, candidates)
    private = [] if held_out is None else [held_out.images]
    draw = draw_candidates(records, pool, candidates=candidates, private=private, seed=seed)
    control = _control(message, records, pool, draw, counterfactual, held_out, seed)
    scorer = Scorer(message, [message.update, *control.updates], pool, draw.public)
    rows = torch.cat([*draw.of_label.values()])
    rows = rows[torch.randperm(len(rows), generator=stream(seed, "batches"))]
    scores = torch.zeros(1 + len(control.updates), len(pool.labels))
    scores[:, rows] = scorer.of_pool(rows)
    for sent, row in enumerate(control.stand_ins, start=1):
        scores[sent, row] = -torch.inf  # it is named rightly
    main = _game([(_at(records, draw.records), draw.places, 0)], scorer, draw, scores)
    compared = [_game(control.trials, scorer, draw, scores)] if control.trials else []
    same_source = same_source and all(game.rate <= max_singling_out for game in compared)
    game = Game(
        records=len(main.scores),
        candidates=int(main.candidates.min()),
        messages=messages,
        control=control.kind,
        candidate_quantiles=np.quantile(scores[0, rows].double().numpy(), np.linspace(0, 1, QUANTILES)).tolist(),
        statistic="likelihood" if message.noise_std > 0 else "projected_cosine",
        directions=scorer.directions,
        public=len(draw.public),
        same_source=same_source,
        **_figures(main, messages, seed),
        **{f"control_{name}": value for game in compared for name, value in _figures(game, messages, seed).items()},
    )
    holds_by_doubt = {
        "few_candidates": game.candidates < ENOUGH_CANDIDATES,
        "other_domain": not same_source,
        "no_control": not control.kind,
        "low_power": len(draw.public) < FEW_PUBLIC_GRADIENTS or not scorer.reads_as_trained,
    }
    return GameResult(
        **vars(game),
        doubts=tuple(name for name, holds in holds_by_doubt.items() if holds),
        exposed_by=exposed_by(game, max_singling_out, messages),
    )


def _figures(game: GameScores, messages: int, seed: int) -> dict[str, Any]:
    """Return the figures of a game or of its control."""
    low, high = rate_limits(game, messages, seed)
    rank_p = ((1 + game.better) / (1 + game.candidates)).tolist()
    return {"top1": game.rate, "low": low, "high": high, "rank_p": rank_p, "scores": game.scores.tolist()}


def _game(trials: Sequence[_Trial], scorer: Scorer, draw: Draw, scores: Tensor) -> GameScores:
    """Return the scores of all trials, with those of the candidates of the same label and message."""
    pools: dict[tuple[int, int], Tensor] = {}
    example_scores, groups, counts, better = [], [], [], []
    for examples, places_by_example, message in trials:
        own_scores = scorer.of_examples(examples)[message].tolist()
        for score, label, places in zip(own_scores, examples.labels.tolist(), places_by_example, strict=True):
            compared = pools.setdefault((label, message), scores[message, draw.of_label[label]])
            example_scores.append(score)
            groups.append([*pools].index((label, message)))
            counts.append(len(places))
            better.append(int((compared[places] >= score).sum()))
    arrays = [pool_scores.double().numpy() for pool_scores in pools.values()]
    return GameScores(np.array(example_scores), np.array(groups), arrays, np.array(counts), np.array(better))


def _control(
    message: ScoredMessage,
    records: Examples,
    pool: Examples,
    draw: Draw,
    counterfactual: Counterfactual | None,
    held_out: Examples | None,
    seed: int,
) -> _Control:
    if held_out is not None and len(held_out.labels):
        return _held_out(records, held_out, draw, seed)
    if counterfactual is None:
        return _Control()
    control = (
        _halves(records, draw, counterfactual, seed)
        if len(records.labels) > 1
        else _stand_ins(message, records, pool, draw, seed)
    )
    sound = all(update and all(bool(u.isfinite().all()) for u in update.values()) for update in control.updates)
    return control if sound else _Control()


def _held_out(records: Examples, held_out: Examples, draw: Draw, seed: int) -> _Control:
    """Play held-out records of the same origin, without those that show what was trained on."""
    untrained = ~shows_one_of(held_out.images, records.images, SAME_AS_PRIVATE)
    has_candidates = torch.isin(held_out.labels, torch.tensor([*draw.of_label]))
    rows = (untrained & has_candidates).nonzero().flatten()
    if not len(rows):
        return _Control()
    chosen = rows[torch.randperm(len(rows), generator=stream(seed, "held out"))[:MOST_CONTROLS]]
    examples, most = _at(held_out, chosen), max(map(len, draw.places))
    places = [
        torch.randperm(len(draw.of_label[label]), generator=stream(seed, "held out", i))[:most]
        for i, label in enumerate(examples.labels.tolist())
    ]
    return _Control("held_out", trials=[(examples, places, 0)])


def _halves(records: Examples, draw: Draw, counterfactual: Counterfactual, seed: int) -> _Control:
    """Play each half of the records against the message of the other half."""
    order = torch.randperm(len(records.labels), generator=stream(seed, "halves"))
    halves = [half.sort().values for half in (order[: len(order) // 2], order[len(order) // 2 :])]
    trials = list[_Trial]()
    for sent, half in enumerate(reversed(halves), start=1):
        places = torch.isin(draw.records, half).nonzero().flatten().tolist()
        if places:
            trials.append((_at(records, draw.records[places]), [draw.places[i] for i in places], sent))
    updates = [counterfactual(half) for half in halves]
    return _Control("counterfactual", trials=trials, updates=updates)


def _stand_ins(message: ScoredMessage, records: Examples, pool: Examples, draw: Draw, seed: int) -> _Control:
    """Play the only record against messages of other examples of its label."""
    rows = draw.of_label[int(records.labels[0])][:STAND_INS].tolist()
    updates = [counterfactual_update(message, _at(pool, torch.tensor([row])), seed) for row in rows]
    trials = [(records, draw.places, sent) for sent in range(1, 1 + len(rows))]
    return _Control("counterfactual", trials=trials, updates=updates, stand_ins=rows)


def counterfactual_update(message: ScoredMessage, examples: Examples, seed: int = 0) -> dict[str, Tensor]:
    """Return what the declared training would have sent for these examples, with noise of its own.

    Empty where the training is too long.
    """
    training = message.training
    if training.local_steps(len(examples.labels)) > MOST_STEPS:
        return {}
    network = Network(message.model, message.buffers, training.batch_norm)
    start = [message.before[name] for name in network.names]
    batches = schedule(training, len(examples.labels), stream(seed, "counterfactual"))
    inputs, labels = message.whitening.whiten(examples.images.to(start[0])), examples.labels.to(start[0].device)
    after = train(network, start, inputs, labels, batches, training)
    noise = stream(seed, "counterfactual", "noise", len(examples.labels), int(examples.images.sum()))
    return {
        name: (a - b).cpu() + message.noise_std * torch.randn(b.shape, generator=noise)
        for name, a, b in zip(network.names, after, start, strict=True)
    }


def _at(examples: Examples, rows: Tensor) -> Examples:
    return Examples(examples.images[rows], examples.labels[rows])


Labelled = Examples | tuple[Tensor, Tensor]
"""Images and their labels."""


def singling_out(
    model: nn.Module,
    *,
    training: Training,
    records: Labelled,
    candidates: Labelled,
    before: Params | None = None,
    after: Params | None = None,
    update: Params | None = None,
    buffers: Params | None = None,
    whitening: Whitening | None = None,
    noise_std: float = 0.0,
    held_out: Labelled | None = None,
    same_source: bool = True,
    max_singling_out: float = 0.1,
    messages: int = 1,
    number: int = 1000,
    seed: int = 0,
) -> GameResult:
    """Return how often one client's message names the records that it was trained on among candidates.

    `before` are the weights that the client started from, by default those of the model; give `after` or `update`.
    Images are pixels in [0, 1], which `whitening` turns into what the network is fed. `candidates` are examples of the
    same origin that were not trained on, and `number` is how many of them each record is compared with. Without
    `held_out` records, the declared training is run again on each half of the records as a control.
    """
    trained_on, start = _examples(records), weights_of(model) if before is None else before
    if (after is None) == (update is None):
        raise UsageError("singling_out needs either `after` or `update`: give one of them.")
    sent = subtract(after, start) if after is not None else update
    assert sent is not None
    plain = Whitening((0.0,) * trained_on.images.shape[1], (1.0,) * trained_on.images.shape[1])
    message = ScoredMessage(
        model, start, buffers_of(model) if buffers is None else buffers, sent, training, whitening or plain, noise_std
    )
    return play(
        message,
        trained_on,
        _examples(candidates),
        same_source=same_source,
        max_singling_out=max_singling_out,
        messages=messages,
        candidates=number,
        counterfactual=lambda rows: counterfactual_update(message, _at(trained_on, rows), seed),
        held_out=None if held_out is None else _examples(held_out),
        seed=seed,
    )


def _examples(examples: Labelled) -> Examples:
    return examples if isinstance(examples, Examples) else Examples(*examples)
