"""The checks of an outbound update that take time, in the order of their price: replay, noise, decoys, attack.

Decoys are other pictures of the client, or made-up ones. They tell whether the message points at the true examples
among others, which needs no attack to succeed. Messages of decoys are computed as the declared training would have made
them, under the true labels, and compared with the message that was sent. If the message revealed nothing of the images,
the true ones would be as likely as any to fit it best. Their rank is then uniform, and the rate of false alarms is the
one that the guard is given.

Attacks run in the time that the client can spare. They are scored as in an audit: by the same metrics, and against the
same guesses without the message.
"""

from __future__ import annotations

import contextlib
import itertools
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from fedglass.attack.best_of import AnyAttack
from fedglass.attack.labels.given import OracleLabels
from fedglass.audit.assessment import Assessment, assess
from fedglass.audit.play import OutOfTime
from fedglass.audit.play_attack import isolate, oracle_facts
from fedglass.audit.target import Target
from fedglass.checks.claim import Claim
from fedglass.checks.distances import flat
from fedglass.checks.noise import replayed, residual_of, tensors_with_less_noise
from fedglass.checks.replay import exact_replay, has_fixed_order, message_of, too_long
from fedglass.checks.residual import refutations
from fedglass.core.facts import Fact
from fedglass.core.optimisers import SGD
from fedglass.core.rng import derive, stream
from fedglass.core.tensors import Params
from fedglass.core.types import Knowledge
from fedglass.execution.machine import repeatable_arithmetic
from fedglass.guard.outbound import Outbound, Protected
from fedglass.guard.report import CheckResult, Clock, Reason
from fedglass.recipes import recipe
from fedglass.verdict.gate import Gate
from fedglass.verdict.images import ImageScores

METRICS = ("psnr", "ssim")
FIRST = 1 / 8
"""Share of its iterations in the first run of an attack: what leaks most is recovered at once."""
CPU = torch.device("cpu")
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
    false_alarms: float
    attacks: Mapping[str, AnyAttack] | None
    starts: int
    gate: Gate
    seed: int
    last: Params | None = None
    """The last update that left."""

    @property
    def claim(self) -> Claim:
        return self.out.claim(self.protected.protection)


def run_checks(request: CheckRequest, seconds: float) -> CheckResult:
    """Run every check that the time allows; the first reason to refuse ends it."""
    clock, result = Clock(seconds), CheckResult()
    with repeatable_arithmetic():
        try:
            for check in (_check_replay, _check_noise, _check_decoys, _check_attacks):
                clock.check()
                result = check(request, result, clock)
                if result.reasons:
                    return result
        except OutOfTime:
            return replace(result, reasons=(Reason.OUT_OF_TIME,))
    return result


def _check_replay(request: CheckRequest, result: CheckResult, clock: Clock) -> CheckResult:
    """Check that the declared training on the examples gives the message: only then is its content known.

    Under noise, the noise check tests what the replay leaves.
    """
    claim = request.claim
    if too_long(claim):
        return replace(result, reasons=(Reason.TOO_LARGE,))
    if request.protected.noisy:
        return result
    outcome = exact_replay(claim)
    assert outcome is not None, "what is too long was refused"
    result = replace(result, residual=outcome.residual)
    return result if outcome.explained else replace(result, reasons=(Reason.NOT_EXPLAINED,))


def _check_noise(request: CheckRequest, result: CheckResult, clock: Clock) -> CheckResult:
    if not request.protected.noisy:
        return result
    lacking = missing_noise(request)
    return replace(result, escaped=lacking, reasons=(Reason.NOISE,) if lacking else ())


def _check_decoys(request: CheckRequest, result: CheckResult, clock: Clock) -> CheckResult:
    if request.false_alarms == 0:
        return result
    count = decoys_for(request.false_alarms)
    p = membership_rank(request, count, clock)
    result = replace(result, p_value=p, decoys=count)
    return replace(result, reasons=(Reason.SINGLED_OUT,)) if p <= request.false_alarms else result


def _check_attacks(request: CheckRequest, result: CheckResult, clock: Clock) -> CheckResult:
    """Run every attack from several starts until one shows an image or time is over."""
    attacks = attacks_for(request.out) if request.attacks is None else request.attacks
    if not attacks:
        return result
    best: CheckResult | None = None
    gate, target = request.gate, Target(request.out.observation(request.protected.protection), request.out.truth())
    with contextlib.suppress(OutOfTime):
        for start, (name, attack) in itertools.product(range(request.starts + 1), attacks.items()):
            run = attack.shortened(FIRST) if start == 0 else attack
            assessment = one_run(run, target, gate, derive(request.seed, name, start), clock)
            shown = shown_images(assessment.scores, assessment.shown_transformed, gate)
            values = [value for value in assessment.scores.values(gate.metric, gate.scale) if value is not None]
            latest = replace(result, attack=name, shown=shown, best=gate.scale.best(values) if values else None)
            if best is None or (shown, latest.best or 0.0) > (best.shown or 0, best.best or 0.0):
                best = latest
            best = replace(best, starts=start)
            if shown:
                break
    # A run of an eighth of the iterations shows what leaks, but not that nothing does.
    if best is None or not (best.shown or best.starts):
        raise OutOfTime
    oracle = any(oracle_facts(attack) for attack in attacks.values())
    return replace(best, reasons=(Reason.RECOVERED,) if best.shown else (), oracle=oracle)


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
        return (*bare, *tensors_with_less_noise(claim, protected.protection, plain))
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
    return training.lr * dpsgd.noise_multiplier * dpsgd.clip / len(client.labels)


def decoys_for(false_alarms: float) -> int:
    """Return how many decoys a rank needs to be that rare.

    >>> decoys_for(0.05), decoys_for(0.01)
    (19, 99)
    """
    return math.ceil(1 / false_alarms - 1e-9) - 1


def membership_rank(request: CheckRequest, decoys: int, clock: Clock) -> float:
    """Return the rank of the true images among decoys under the true labels, as a share of all.

    It is the chance of so good a rank if the message revealed nothing of the images.
    """
    claim = request.claim
    plain = claim.protected_by(request.protected.noiseless)
    (client,) = plain.clients
    messages = [flat(message_of(plain, 0))]
    for images in decoys_of(request.out, decoys, request.seed):
        clock.check()
        decoy = replace(plain, clients=(client.with_examples(images, client.labels),))
        messages.append(flat(message_of(decoy, 0)))
    sent = flat([claim.update[name] for name in claim.before])
    return rank_of_first(sent, torch.stack(messages))


def decoys_of(out: Outbound, count: int, seed: int) -> Iterator[Tensor]:
    """Yield different sets of images, none of them the true one: from others of the client's own, or made up.

    Where there are few others a set would come up again, and a rank among fewer would pass for one among many.
    # (n, c, h, w) each
    """
    knows, true_images = out.observation().knows, {_bytes(image) for image in out.inputs}
    unused = [] if out.others is None else [image for image in out.others if _bytes(image) not in true_images]
    pixels = out.colours.unwhiten(torch.stack(unused)).clamp(0, 1) if unused else None
    used = set[bytes]()
    for i in range(count):
        decoy_seed = derive(seed, "singled out", i)
        images = decoy_images(knows, pixels, decoy_seed)
        if _bytes(images) in used:
            images = decoy_images(knows, None, decoy_seed)
        used.add(_bytes(images))
        yield images


def rank_of_first(sent: Tensor, messages: Tensor) -> float:
    """Return the rank of the first message by how far the sent one lies towards it, as a share of all.

    What all candidates have in common is taken out, and directions have length 1: neither the network's distance from
    its goal nor the length of a candidate's message says which of them it was. Under noise alone each of these
    projections has the same distribution.  # (d,), (m, d)

    >>> rank_of_first(torch.tensor([0.0, 2.0]), torch.tensor([[0.0, 1.0], [1.0, 0.0], [-1.0, 0.0], [0.0, -1.0]]))
    0.25
    """
    finite = torch.isfinite(messages).all(dim=1)
    centre = messages[finite].mean(0)
    directions = messages - centre
    lengths = directions.norm(dim=1).clamp(min=torch.finfo(messages.dtype).tiny)
    # A decoy on which the training diverges fits nothing.
    along = torch.where(finite, directions @ (sent - centre) / lengths, -math.inf)
    return float((along >= along[0]).sum()) / len(messages)


def _bytes(image: Tensor) -> bytes:
    return image.detach().cpu().contiguous().numpy().tobytes()


def decoy_images(knows: Knowledge, pictures: Tensor | None, seed: int) -> Tensor:
    """Return as many decoys as there are examples: drawn from `pictures`, mirrored if these are too few, or made up.

    # (n, c, h, w), pixels
    """
    count, draws = knows.examples, stream(seed, "decoys", "images")
    available = torch.zeros(0, *knows.shape) if pictures is None else pictures.detach().cpu()
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


def attacks_for(out: Outbound) -> dict[str, AnyAttack]:
    """Choose a fast attack for a message of this kind; it is given the true labels, so that it cannot fail there."""
    if out.steps > 1:
        name = "sme"
    else:
        name = "coarse_to_fine_statistics" if Fact.STATISTICS in out.observation().facts else "inverting_gradients"
    return {name: recipe(name, labels=OracleLabels())}


def one_run(attack: AnyAttack, target: Target, gate: Gate, seed: int, clock: Clock) -> Assessment:
    """Run an attack once and assess what it shows of the private images."""
    observation = isolate(target.observation, attack, CPU)
    reconstruction = attack.run(observation, seed, clock)
    metrics = tuple(dict.fromkeys((*METRICS, gate.metric)))
    return assess(attack, replace(target, observation=observation), reconstruction, metrics, seed)


def shown_images(scores: ImageScores, transformed: Sequence[bool], gate: Gate) -> int:
    """Count the images that are recovered, partly recognisable or shown in another form, each once."""
    return sum(map(any, zip(gate.hits(scores), gate.partly(scores), transformed, strict=True)))
