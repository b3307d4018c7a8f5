"""The checks of an outbound update that take time: received model, replay, noise, exact attacks, searches, game.

Exact attacks and searches may read an example. They see what the server sees, and searches the true labels as well. The
truth judges their images, by the metrics of an audit and against the same guesses without the message. It also ends a
search whose images stay behind these guesses. It never changes what an attack does.

At the level `singling_out` the candidate game of an audit follows. It needs no attack to succeed: among many examples
of the same label, does the message name those that it was made with? Candidates are other pictures of the client, and
made-up ones where these are few. A message that was made without the records is the control.
"""

from __future__ import annotations

import contextlib
import itertools
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from fedglass.attack.best_of import AnyAttack
from fedglass.attack.exact.exact import ExactAttack, cost_of
from fedglass.attack.labels.given import OracleLabels
from fedglass.audit.assessment import Assessment, assess
from fedglass.audit.certificate import declared_bound
from fedglass.audit.play import OutOfTime
from fedglass.audit.probes import isolate, iterations_of, oracle_facts, play_game
from fedglass.audit.scoring import likeness
from fedglass.audit.target import Target
from fedglass.bounds.success import gdp_success
from fedglass.checks.claim import Claim
from fedglass.checks.noise import replayed, residual_of, tensors_with_less_noise
from fedglass.checks.replay import exact_replay, has_fixed_order, too_long
from fedglass.checks.residual import refutations
from fedglass.core.errors import UsageError
from fedglass.core.facts import Fact
from fedglass.core.losses import is_class_labels
from fedglass.core.metric_scale import scale_of
from fedglass.core.optimisers import SGD
from fedglass.core.rng import derive, stream
from fedglass.core.tensors import Params
from fedglass.core.thresholds import FEW_RECORDS
from fedglass.core.types import Knowledge
from fedglass.execution.machine import repeatable_arithmetic
from fedglass.federation.truth import Examples
from fedglass.guard.message import change_that_leaves
from fedglass.guard.outbound import Outbound, Protected
from fedglass.guard.received import ReceivedRequest
from fedglass.guard.report import CheckResult, Clock, Level, Reason
from fedglass.recipes import recipe
from fedglass.recipes.exact import METHODS
from fedglass.verdict.doubts import Doubt
from fedglass.verdict.gate import Gate
from fedglass.verdict.images import ImageScores
from fedglass.verdict.records import BASE_RATE

METRICS = ("psnr", "ssim")
EXACT = tuple(sorted((name for name in METHODS if name != "peeling"), key=cost_of))
"""The exact methods, the cheapest first. Peeling may take minutes on wide layers. Division, SPEAR and the last layer
read most of what it reads."""
EXACT_SECONDS = 4.0
"""CPU time of all exact methods together. The one that uses it up comes to its end."""
FIRST = 1 / 8
"""Share of its iterations in the first run of a search: what leaks most is recovered at once."""
BEHIND = -1.0
"""Decibels relative to the best blind guess. If every image stays further behind in the first run, the search ends.
Of 23 updates of fresh networks that a full run read, the best image of a first run was 0.5 dB behind at worst."""
AHEAD = 1.0
"""The same after a complete run, which must be ahead for another one to follow."""
TELLING = 100
"""Iterations from which on a first run may end a search. Where it is shorter, a full run follows."""
UNLIKE = 0.75
"""Correlation with every true image, however moved, below which an image shows nothing of it."""
CPU = torch.device("cpu")
FOR_RANK, FOR_RATE = 1100, 300
"""Candidates for each label: fewer than 8 records need ranks of one in a thousand, more of them a rate."""
LEAVES = 60
"""Discs in a made-up picture."""
SMALLEST, LARGEST = 0.06, 0.6
"""Radii of the discs, as shares of the picture's longer side."""
TINT = 0.4
"""Spread of the channels of a disc's colour, relative to the spread of the discs' brightness."""


@dataclass(frozen=True, eq=False)
class CheckRequest:
    """Everything that the checks need: it can be sent to another process."""

    out: Outbound
    protected: Protected
    level: Level
    attacks: Mapping[str, AnyAttack] | None
    starts: int
    gate: Gate
    seed: int
    last: Params | None = None
    """The last update that the app made, of those that left."""
    received: ReceivedRequest | None = None
    """The check of the model that came; None where the server is trusted."""

    @property
    def claim(self) -> Claim:
        return self.out.claim(self.protected.protection)

    @property
    def target(self) -> Target:
        """The message as the server sees it, with the truth by which attacks are judged."""
        return Target(self.out.observation(self.protected.protection), self.out.truth())

    def run(self, seconds: float) -> CheckResult:
        """Return the result of all checks, for the guard's runners."""
        return run_checks(self, seconds)


def run_checks(request: CheckRequest, seconds: float) -> CheckResult:
    """Run every check that the time allows; the first reason to refuse ends it."""
    clock, result = Clock(seconds), CheckResult()
    with repeatable_arithmetic():
        try:
            for check in CHECKS:
                clock.check()
                result = check(request, result, clock)
                if result.reasons:
                    return result
                if check is _build_message and result.change is not None:
                    # What follows examines what leaves, before it is rounded: rounding is no defence.
                    request = replace(request, out=request.out.changed_by(result.change))
        except OutOfTime:
            return replace(result, reasons=(Reason.OUT_OF_TIME,))
    return result


def _check_received(request: CheckRequest, result: CheckResult, clock: Clock) -> CheckResult:
    return result if request.received is None else request.received.run(clock.remaining)


def _check_length(request: CheckRequest, result: CheckResult, clock: Clock) -> CheckResult:
    return replace(result, reasons=(Reason.TOO_LARGE,)) if too_long(request.claim) else result


def _check_exact(request: CheckRequest, result: CheckResult, clock: Clock) -> CheckResult:
    """Run exact methods until one reads an image, or their time is over."""
    if request.attacks is not None and not request.attacks:
        return result
    gate, target, end = request.gate, request.target, time.thread_time() + EXACT_SECONDS
    for name in EXACT:
        left = min(end - time.thread_time(), EXACT_SECONDS / 2, clock.remaining)  # none takes all of the time
        if left <= 0:
            break
        assessment = one_run(ExactAttack((name,), left), target, gate, request.seed, clock)
        read = with_shown(result, name, assessment, gate)
        if read.shown:
            return replace(read, reasons=(Reason.RECOVERED,))
    return result


def _check_replay(request: CheckRequest, result: CheckResult, clock: Clock) -> CheckResult:
    """Check that the declared training on the examples gives the message: only then is its content known.

    Under noise, the noise check tests what the replay leaves.
    """
    if request.protected.noisy:
        return result
    outcome = exact_replay(request.claim)
    assert outcome is not None, "what is too long was refused"
    result = replace(result, residual=outcome.residual)
    return result if outcome.explained else replace(result, reasons=(Reason.NOT_EXPLAINED,))


def _check_noise(request: CheckRequest, result: CheckResult, clock: Clock) -> CheckResult:
    if not request.protected.noisy:
        return result
    lacking = missing_noise(request)
    return replace(result, escaped=lacking, reasons=(Reason.NOISE,) if lacking else ())


def _build_message(request: CheckRequest, result: CheckResult, clock: Clock) -> CheckResult:
    change = change_that_leaves(request.out, request.protected)
    return replace(result, reasons=(Reason.NOT_EXPLAINED,)) if change is None else replace(result, change=change)


def _check_searches(request: CheckRequest, result: CheckResult, clock: Clock) -> CheckResult:
    """Run every search from several starts, until one shows an image, none is near to any, or time is over.

    Under verified noise that bounds any adversary as the gate demands, a first run of each search suffices.
    """
    attacks = searches_for(request.out) if request.attacks is None else request.attacks
    if not attacks:
        return result
    best: CheckResult | None = None
    gate, target, far = request.gate, request.target, set[str]()
    with contextlib.suppress(OutOfTime):
        for start, (name, attack) in itertools.product(range(request.starts + 1), attacks.items()):
            if name in far:
                continue
            run = attack.shortened(FIRST) if start == 0 else attack
            assessment = one_run(run, target, gate, derive(request.seed, name, start), clock)
            latest = with_shown(result, name, assessment, gate)
            if best is None or (latest.shown, latest.best or 0.0) > (best.shown or 0, best.best or 0.0):
                best = latest
            best = replace(best, starts=start)
            if latest.shown:
                break
            tells = start > 0 or (iterations_of(run) or 0) >= TELLING
            if tells and is_far(assessment, target, AHEAD if start else BEHIND):
                far.add(name)
    # A run of an eighth of the iterations shows what leaks. That nothing does takes a full one, or images far off.
    if best is None or not (best.shown or best.starts or len(far) == len(attacks) or _is_hidden(request)):
        raise OutOfTime
    oracle = any(oracle_facts(attack) for attack in attacks.values())
    return replace(best, reasons=(Reason.RECOVERED,) if best.shown else (), oracle=oracle)


def _is_hidden(request: CheckRequest) -> bool:
    """Return whether the declared clipping and noise bound any adversary as the gate demands."""
    bound = declared_bound(request.claim, 1)
    return not isinstance(bound, Doubt) and gdp_success(BASE_RATE, max(bound.mu)) <= request.gate.max_success


def _check_game(request: CheckRequest, result: CheckResult, clock: Clock) -> CheckResult:
    """Play the candidate game for each example; a game that decides nothing is a reason to refuse."""
    if request.level != "singling_out":
        return result
    pool = candidates_for(request.out, request.seed)
    try:
        game = play_game(replace(request.target, claim=request.claim, pool=pool), request.seed, gate=request.gate)
    except UsageError:
        return replace(result, reasons=(Reason.UNDECIDED,))
    result = replace(result, singled_out=round(game.top1 * game.records), candidates=game.candidates)
    if game.exposed_by:
        return replace(result, reasons=(Reason.SINGLED_OUT,))
    return replace(result, reasons=(Reason.UNDECIDED,)) if game.doubts else result


CHECKS = (
    _check_received,
    _check_length,
    _check_replay,
    _check_noise,
    _build_message,
    _check_exact,
    _check_searches,
    _check_game,
)


def missing_noise(request: CheckRequest) -> tuple[str, ...]:
    """Return where the declared noise is missing: tensors, or tests that the whole message fails.

    Buffers are not trained, and a defence of the parameters' update leaves them as they are: where they move they
    leave without noise. The same noise must not be in the last update that left.
    """
    out, claim, protected = request.out, request.claim, request.protected
    # Drawn orders would be another noise, of a size that was not declared.
    if not has_fixed_order(claim):
        return tuple(out.parameters)
    plain = replayed(claim.protected_by(protected.noiseless), draw=0)
    bare = [name for name in out.leaving if name not in plain and not torch.equal(out.after[name], out.before[name])]
    std = _std(claim, protected)
    if std is None:
        return (*bare, *tensors_with_less_noise(claim.protected_by(protected.protection), plain))
    reused_in = {} if request.last is None else {"the last update": request.last}
    refuted = refutations(residual_of(claim, plain, std, others=reused_in, sent_as_weights=True))
    return (*bare, *dict.fromkeys(refutation.tensor or refutation.test.replace("_", " ") for refutation in refuted))


def _std(claim: Claim, protected: Protected) -> float | None:
    """Return the deviation of the noise at every entry; None where it is not the same additive noise everywhere."""
    dpsgd = protected.dpsgd
    if dpsgd is None or dpsgd.noise_multiplier == 0:
        return protected.std
    (client,) = claim.clients
    training = client.training
    linear = isinstance(training.optimiser, SGD) and not training.optimiser.nesterov and training.clip is None
    if client.steps > 1 or not linear or protected.clip is not None:
        return None
    return training.lr * dpsgd.noise_multiplier * dpsgd.clip / dpsgd.divisor(len(client.labels))


def candidates_for(out: Outbound, seed: int) -> Examples:
    """Return candidates for the game: others of the client's own, or made-up pictures, under each label of the batch.

    The game leaves out those that show the same as an example.
    """
    count = FOR_RANK if len(out.labels) < FEW_RECORDS else FOR_RATE
    others = None if out.others is None else out.colours.unwhiten(out.others).clamp(0, 1)
    images = other_images(replace(out.observation().knows, examples=count), others, seed)
    if not is_class_labels(out.labels):  # the game gives them the targets of the records
        return Examples(images, out.labels[:1].expand(count, *out.labels.shape[1:]))
    labels = torch.unique(out.labels)
    return Examples(images.repeat(len(labels), 1, 1, 1), labels.repeat_interleave(count))


def other_images(knows: Knowledge, pictures: Tensor | None, seed: int) -> Tensor:
    """Return as many images as there are examples: drawn from `pictures`, mirrored if these are too few, or made up.

    # (n, c, h, w), pixels
    """
    count, draws = knows.examples, stream(seed, "decoys", "images")
    available = torch.zeros(0, *knows.shape) if pictures is None else pictures
    chosen = available[torch.randperm(len(available), generator=draws)]
    several = torch.cat([chosen, chosen.flip(-1), chosen.flip(-2), chosen.flip(-2, -1)])[:count]
    return torch.cat([several, dead_leaves(knows, count - len(several), draws)])


def dead_leaves(knows: Knowledge, count: int, generator: torch.Generator) -> Tensor:
    """Return pictures of discs that hide each other, with radii r of a density that falls as r^-3.

    They have edges and the power spectrum of photographs, and none of their objects
    [Lee, Mumford and Huang, 2001].  # (count, c, h, w), pixels
    """
    channels, height, width = knows.shape
    rows, columns = torch.arange(height).view(-1, 1), torch.arange(width).view(1, -1)
    side = max(height, width)
    images = torch.zeros(count, *knows.shape)
    for leaf in range(LEAVES):
        across, down = (torch.rand(count, 1, 1, 1, generator=generator) for _ in range(2))
        share = torch.rand(count, 1, 1, 1, generator=generator)
        radius = side * (SMALLEST**-2 + share * (LARGEST**-2 - SMALLEST**-2)) ** -0.5
        inside = (rows - down * height).square() + (columns - across * width).square() < radius.square()
        grey, tint = (torch.randn(count, n, 1, 1, generator=generator) for n in (1, channels))
        colour = knows.whitening.unwhiten(grey + TINT * tint)
        images = torch.where(inside | (leaf == 0), colour, images)
    return images.clamp(knows.low, knows.high)


def searches_for(out: Outbound) -> dict[str, AnyAttack]:
    """Choose a fast search for a message of this kind; it is given the true labels, so that it cannot fail there."""
    if out.steps > 1:
        name = "sme"
    else:
        name = "coarse_to_fine_statistics" if Fact.STATISTICS in out.observation().facts else "inverting_gradients"
    return {name: recipe(name, labels=OracleLabels())}


def one_run(attack: AnyAttack, target: Target, gate: Gate, seed: int, clock: Clock) -> Assessment | None:
    """Run an attack once and assess what it shows of the private images; None where it gives no image."""
    observation = isolate(target.observation, attack, CPU)
    reconstruction = attack.run(observation, seed, clock)
    if not len(reconstruction.images):
        return None
    metrics = tuple(dict.fromkeys((*METRICS, gate.metric)))
    return assess(attack, replace(target, observation=observation), reconstruction, metrics, seed)


def with_shown(result: CheckResult, name: str, assessment: Assessment | None, gate: Gate) -> CheckResult:
    """Return the result with what an attack shows."""
    if assessment is None:
        return replace(result, attack=name, shown=0)
    shown = shown_images(assessment.scores, assessment.shown_transformed, gate)
    values = [value for value in assessment.scores.values(gate.metric, gate.scale) if value is not None]
    return replace(result, attack=name, shown=shown, best=gate.scale.best(values) if values else None)


def is_far(assessment: Assessment | None, target: Target, lead: float) -> bool:
    """Return whether every image has a lead over the best blind guess below this one, and is like no true image."""
    if assessment is None:
        return True
    scores = assessment.scores
    pairs = zip(scores.values("psnr", scale_of("psnr")), scores.blind["psnr"], strict=True)
    if any(value is not None and guess is not None and value - guess >= lead for value, guess in pairs):
        return False
    return max(likeness(assessment.shown, target.known_truth.images, UNLIKE)) < UNLIKE


def shown_images(scores: ImageScores, transformed: Sequence[bool], gate: Gate) -> int:
    """Count the images that are recovered, clearly recognisable in part or shown in another form, each once."""
    return sum(map(any, zip(gate.hits(scores), gate.partly(scores, clearly=True), transformed, strict=True)))
