"""Is the declared noise in every tensor of the message? Clipping and noise are verified, not believed."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace

import scipy
import torch
from torch import Tensor

from fedglass.attack.best_of import AnyAttack
from fedglass.audit.play_attack import oracle_facts
from fedglass.checks.replay import Declared, as_declared, has_no_order, message_of, too_long
from fedglass.checks.residual import Residual, refutations
from fedglass.core.optimisers import SGD
from fedglass.core.rng import derive
from fedglass.core.tensors import Params
from fedglass.execution.machine import one_thread
from fedglass.fl.release import Protection
from fedglass.guard.decoys import decoy_images
from fedglass.guard.outbound import Outbound, Protected
from fedglass.guard.quick_attack import attacks_for, read
from fedglass.guard.report import Clock, Examined, OutOfTime, Reason
from fedglass.verdict.gate import Gate

# its parts are imported when they are first used


DRAWS = 6
"""Replays from which the size of noise inside of several local steps is taken."""
LEVEL = 1e-3
"""The chance that any tensor of a message with its noise is said to lack it."""
SHARE = 0.9
"""Of the deviation of several noisy steps that must be there: it is known from a few replays alone."""


def missing_noise(out: Outbound, declared: Declared, protected: Protected, last: Params | None) -> tuple[str, ...]:
    """Return where the declared noise is missing: tensors, or tests that the whole message fails.

    Buffers are not trained, and a defence of the parameters' update leaves them as they are: where they move they
    leave without noise. `last` is the last update that left, in which the same noise must not be.
    """
    # Drawn orders would be another noise, of a size that nobody declared.
    if not has_no_order(declared):
        return tuple(out.parameters)
    clean = _played(declared, protected.noiseless)
    bare = [name for name in out.leaving if name not in clean and _moved(out, name)]
    std = _std(declared, protected)
    if std is None:
        return (*bare, *_smaller_than_replays(declared, protected, clean))
    residual = {name: declared.update[name].double() - tensor for name, tensor in clean.items()}
    others = {} if last is None or not all(name in last for name in residual) else {"the last update": last}
    sent = {name: declared.before[name] + declared.update[name] for name in residual}
    found = refutations(Residual(residual, std, message=sent, before=declared.before, weights_sent=True, others=others))
    return (*bare, *dict.fromkeys(each.tensor or each.test.replace("_", " ") for each in found))


def _std(declared: Declared, protected: Protected) -> float | None:
    """Return the deviation of the noise at every entry; None where it is not the same additive noise everywhere."""
    inside = protected.dpsgd
    if inside is None or inside.noise_multiplier == 0:
        return protected.std
    (part,) = declared.parts
    training, size = part.training, len(part.labels)
    linear = isinstance(training.optimiser, SGD) and not training.optimiser.nesterov and training.clip is None
    if part.steps > 1 or not linear or protected.clip is not None:
        return None
    return training.lr * inside.noise_multiplier * inside.clip / size


def _smaller_than_replays(declared: Declared, protected: Protected, clean: dict[str, Tensor]) -> list[str]:
    """Return the tensors that hold less noise than replays do, by Fisher's test of two variances."""
    draws = [_played(declared, protected.protection, draw) for draw in range(DRAWS)]
    bare = _played(declared, Protection())
    found = []
    for name, tensor in clean.items():
        usual = sum(_mean_square(each[name] - tensor) for each in draws) / DRAWS
        left = min(_mean_square(declared.update[name].double() - each[name]) for each in (clean, bare))
        ratio = left / (SHARE**2 * usual) if usual > 0 else 0.0
        if not scipy.stats.f.cdf(ratio, tensor.numel(), DRAWS * tensor.numel()) > LEVEL / (2 * len(clean)):
            found.append(name)
    return found


def _played(declared: Declared, protection: Protection, draw: int = 0) -> dict[str, Tensor]:
    parts = tuple(replace(part, protection=protection) for part in declared.parts)
    return dict(zip(declared.before, message_of(replace(declared, parts=parts), 0, draw), strict=True))


def _mean_square(tensor: Tensor) -> float:
    return float(tensor.square().mean()) if tensor.numel() else 0.0


def _moved(out: Outbound, name: str) -> bool:
    return not torch.equal(out.after[name], out.before[name])


# Does the message point at the true examples among others? That needs no attack to succeed.
#
# Messages of decoys are computed as the declared training would have made them, under the true labels, and compared
# with
# the message that was sent. If it told nothing of the images, the true ones would be as likely as any to fit it best:
# the rank of the true ones is then uniform, and the share of false alarms is what the guard is told.


def decoys_for(false_alarms: float) -> int:
    """How many are needed for a rank to be that rare.

    >>> decoys_for(0.05), decoys_for(0.01)
    (19, 99)
    """
    return math.ceil(1 / false_alarms - 1e-9) - 1


def p_value(out: Outbound, declared: Declared, protected: Protected, decoys: int, seed: int, clock: Clock) -> float:
    """The chance of so good a rank if the message told nothing of the images, labels given."""
    quiet = replace(declared, parts=tuple(replace(p, protection=protected.noiseless) for p in declared.parts))
    messages = [_message(quiet)]
    for images in decoys_of(out, decoys, seed):
        clock.check()
        messages.append(_message(replace(quiet, parts=tuple(replace(part, images=images) for part in quiet.parts))))
    sent = torch.cat([declared.update[name].double().flatten() for name in declared.before])
    return rank_of_first(sent, torch.stack(messages))


def decoys_of(out: Outbound, count: int, seed: int) -> Iterator[Tensor]:
    """Different sets of images, none of them the true one: from others of the client's own, or made up.

    Where there are few others a set would come up again, and a rank among fewer would pass for one among many.
    # (n, c, h, w) each
    """
    knows, true = out.seen().knows, {_bytes(image) for image in out.inputs}
    given = [] if out.others is None else [image for image in out.others if _bytes(image) not in true]
    others = out.colours.unwhiten(torch.stack(given)).clamp(0, 1) if given else None
    known = set[bytes]()
    for i in range(count):
        own = derive(seed, "singled out", i)
        images = decoy_images(knows, others, own)
        if _bytes(images) in known:
            images = decoy_images(knows, None, own)
        known.add(_bytes(images))
        yield images


def rank_of_first(sent: Tensor, messages: Tensor) -> float:
    """The rank of the first message by how far the one that was sent lies towards it, as a share of all.

    What all candidates have in common is taken out, and directions are of length 1: neither that the network is far
    from its goal nor that one candidate's message is longer than another's says which of them it was. Under noise
    alone each of these projections has the same distribution.  # (d,), (m, d)

    >>> rank_of_first(torch.tensor([0.0, 2.0]), torch.tensor([[0.0, 1.0], [1.0, 0.0], [-1.0, 0.0], [0.0, -1.0]]))
    0.25
    """
    sound = torch.isfinite(messages).all(dim=1)
    middle = messages[sound].mean(0)
    apart = messages - middle
    lengths = apart.norm(dim=1).clamp(min=torch.finfo(messages.dtype).tiny)
    # A decoy on which the training diverges fits nothing.
    along = torch.where(sound, apart @ (sent - middle) / lengths, -math.inf)
    return float((along >= along[0]).sum()) / len(messages)


def _message(declared: Declared) -> Tensor:
    return torch.cat([tensor.flatten() for tensor in message_of(declared, 0)])


def _bytes(image: Tensor) -> bytes:
    return image.detach().cpu().contiguous().numpy().tobytes()


# The checks that take time, in the order of their price: replay, noise, decoys, attack.


@dataclass(frozen=True, eq=False)
class Errand:
    """All that the checks are told: it can be sent to another process."""

    out: Outbound
    protected: Protected
    false_alarms: float
    attacks: Mapping[str, AnyAttack] | None
    starts: int
    gate: Gate
    seed: int
    last: Params | None = None
    """The last update that left."""


def examine(errand: Errand, seconds: float) -> Examined:
    """Everything that the time allows. The first reason to refuse ends it: what follows would be no news."""
    clock, found = Clock(seconds), Examined()
    with one_thread():
        try:
            for check in (_explained, _noisy, _singled_out, _read):
                clock.check()
                found = check(errand, found, clock)
                if found.reasons:
                    return found
        except OutOfTime:
            return replace(found, reasons=(Reason.OUT_OF_TIME,))
    return found


def _explained(errand: Errand, found: Examined, clock: Clock) -> Examined:
    """Whether the declared training on the examples gives the message: only then is it known what is in it.

    Under noise that is asked of what the replay leaves.
    """
    declared = errand.out.declared(errand.protected.protection)
    if too_long(declared):
        return replace(found, reasons=(Reason.TOO_LARGE,))
    if errand.protected.noisy:
        return found
    replayed = as_declared(declared)
    assert replayed is not None, "what is too long was refused"
    told = replace(found, residual=replayed.residual)
    return told if replayed.explained else replace(told, reasons=(Reason.NOT_EXPLAINED,))


def _noisy(errand: Errand, found: Examined, clock: Clock) -> Examined:
    if not errand.protected.noisy:
        return found
    declared = errand.out.declared(errand.protected.protection)
    lacking = missing_noise(errand.out, declared, errand.protected, errand.last)
    return replace(found, escaped=lacking, reasons=(Reason.NOISE,) if lacking else ())


def _singled_out(errand: Errand, found: Examined, clock: Clock) -> Examined:
    if errand.false_alarms == 0:
        return found
    decoys, out = decoys_for(errand.false_alarms), errand.out
    chance = p_value(out, out.declared(errand.protected.protection), errand.protected, decoys, errand.seed, clock)
    told = replace(found, p_value=chance, decoys=decoys)
    return replace(told, reasons=(Reason.SINGLED_OUT,)) if chance <= errand.false_alarms else told


def _read(errand: Errand, found: Examined, clock: Clock) -> Examined:
    attacks = attacks_for(errand.out) if errand.attacks is None else errand.attacks
    if not attacks:
        return found
    told = read(errand.out, attacks, errand.gate, errand.starts, errand.seed, clock)
    if told is None:
        raise OutOfTime
    reasons = (Reason.RECOVERED,) if told.shown else ()
    oracle = any(oracle_facts(attack) for attack in attacks.values())
    found = replace(found, reasons=reasons, attack=told.attack, starts=told.starts, oracle=oracle)
    return replace(found, shown=told.shown, best=told.best)
