"""The checks that take time, in the order of their price: replay, noise, decoys, attack."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

from fedglass.attack.hypotheses import AnyAttack
from fedglass.audit.isolation import oracle_facts
from fedglass.audit.machine import one_thread
from fedglass.audit.replay import as_declared, too_long
from fedglass.core.params import Params
from fedglass.guard.clock import Clock, OutOfTime
from fedglass.guard.noise import missing_noise
from fedglass.guard.outbound import Outbound
from fedglass.guard.protected import Protected
from fedglass.guard.quick_attack import attacks_for, read
from fedglass.guard.report import Examined, Reason
from fedglass.guard.singled_out import decoys_for, p_value
from fedglass.verdict.gate import Gate


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
