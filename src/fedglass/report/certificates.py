"""The certificates of an audit: what bounds the success of any adversary, and under which assumptions."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import dataclass

from fedglass.bounds.success import eps_delta_success, gdp_success
from fedglass.ledger.records import BASE_RATE, Certificate, Record
from fedglass.report.flags import Label, label
from fedglass.report.names import Names, by_text, message_name
from fedglass.report.page import Cell, Table
from fedglass.report.sections import CHARTS
from fedglass.verdict.gate import Gate
from fedglass.verdict.judge import serious_doubts
from fedglass.verdict.texts import UNCHECKED, count, flag, percent

KNOWN = {
    "construction": "by construction: fedglass itself does this",
    "tested": "tested: the message is consistent with it",
    "declared": "declared: nothing tested it",
}
"""How an assumption is known."""
ACCOUNTINGS = {
    "gaussian": "Gaussian noise, and how far each record moves the message",
    "laplacian": "Laplacian noise, and how far each record moves the message",
    "composed_gaussian": "Gaussian noise of all local steps. Shuffled batches are not Poisson samples, so sampling "
    "gains nothing",
    "pld": "privacy-loss distribution of DP-SGD on Poisson samples",
    "poisson_not_counted": "Gaussian noise of all local steps. What Poisson samples gain is not counted: pip install "
    "fedglass[pld]",
    "identical": "no noise; the message is bit for bit the same whatever the record is",
}
"""What a certificate adds up."""
NO_PRIOR = "It does not bound an adversary with a prior, that is, one that knows what such pictures look like."


@dataclass(frozen=True)
class Stated:
    """One certificate in full."""

    title: str
    labels: Sequence[Label]
    """Why it is not enough, or not believed."""
    facts: Table
    assumptions: Table


@dataclass(frozen=True)
class Certificates:
    """What the page says of all certificates."""

    table: Table | None
    stated: Sequence[Stated]
    more: int
    """Certificates that are not stated in full here."""
    missing: Sequence[tuple[str, str]]
    """Messages without one, and why."""


def certificates_of(records: Sequence[Record], gate: Gate, names: Names) -> Certificates | None:
    """Return the certificates, the weakest first; None where no message was checked for one."""
    checked = [record for record in records if record.kind == "certificate" and record.status == "done"]
    if not checked:
        return None
    checked.sort(key=gate.allowed, reverse=True)
    found = [(record, record.certificate) for record in checked if record.certificate is not None]
    columns = ["message", "success at most", "base rate", "advantage", "rounds", "epsilon"]
    rows = [_row(record, certificate, gate, names) for record, certificate in found]
    stated = [_stated(record, certificate, gate, names) for record, certificate in found[:CHARTS]]
    why = [(_why(record, gate), message_name(record, names)) for record in checked if record.certificate is None]
    return Certificates(Table(columns, rows) if rows else None, stated, len(found) - len(stated), by_text(why))


def facts(certificate: Certificate) -> list[list[Cell | str]]:
    """Return all figures of a certificate, named."""
    worst, middle = max(certificate.success, default=1.0), statistics.median(certificate.success or [1.0])
    adversary = [f"{percent(rate)} among {int(size):,}" for size, rate in certificate.adversary.items()]
    clients = None if certificate.client_mu is None else percent(gdp_success(BASE_RATE, certificate.client_mu))
    psnr = certificate.expected_psnr
    rows = {
        "success in naming a record": _success(worst, certificate),
        "single records": f"worst {percent(worst)}, median {percent(middle)}, of {len(certificate.success)}",
        "all records of a client at once": clients and f"at most {clients}",
        "rounds": _rounds(certificate),
        "epsilon": _epsilon(certificate),
        "epsilon by itself": _by_epsilon(certificate),
        "accounting": ACCOUNTINGS.get(certificate.accounting, certificate.accounting) + ".",
        "simulated best adversary": f"{', '.join(adversary)} candidates; shown, never deciding" if adversary else None,
        "expected PSNR": None if psnr is None else f"{psnr:.1f} dB for an adversary without a prior. {NO_PRIOR}",
    }
    return [[name, text] for name, text in rows.items() if text]


def _success(worst: float, certificate: Certificate) -> str:
    advantage = "" if certificate.advantage is None else f"; advantage {percent(certificate.advantage)}"
    return f"at most {percent(worst)} (without the message {percent(BASE_RATE)}{advantage})"


def _rounds(certificate: Certificate) -> str:
    """Say how long the bound holds."""
    held = f"holds for {count(certificate.rounds, 'round')}"
    if certificate.planned is None:
        return held
    planned, later = count(certificate.planned, "round"), certificate.success_planned
    if later is None:
        return f"{held}; nothing bounds the planned {planned}"
    return f"{held}; at the planned {planned} it is {percent(later)}"


def _epsilon(certificate: Certificate) -> str | None:
    if certificate.epsilon is None:
        return None
    return f"{certificate.epsilon:.3g}" + ("" if certificate.delta is None else f" at delta {certificate.delta:g}")


def _by_epsilon(certificate: Certificate) -> str | None:
    """Say what (epsilon, delta) alone bounds: it wastes much of the guarantee."""
    if certificate.epsilon is None or certificate.delta is None:
        return None
    success = eps_delta_success(BASE_RATE, certificate.epsilon, certificate.delta)
    return f"success at most {percent(success)}, a weaker bound of the same noise"


def _row(record: Record, certificate: Certificate, gate: Gate, names: Names) -> list[Cell | str]:
    labels = [label(flag(each)) for each in serious_doubts(record, gate)]
    badge, tone = (labels[0].name, labels[0].tone) if labels else ("certified", "clear")
    return [
        Cell(message_name(record, names), badge=badge, tone=tone),
        Cell(percent(max(certificate.success, default=1.0)), note=_beside(certificate)),
        percent(BASE_RATE),
        "n/a" if certificate.advantage is None else percent(certificate.advantage),
        Cell(str(certificate.rounds), note=_planned(certificate)),
        Cell(
            "n/a" if certificate.epsilon is None else f"{certificate.epsilon:.3g}",
            note="" if certificate.delta is None else f"delta {certificate.delta:g}",
        ),
    ]


def _beside(certificate: Certificate) -> str:
    """Return what stands with the bound: of how many records it is, and what the best adversary of a game reaches."""
    told = [f"worst of {count(len(certificate.success), 'record')}"]
    if certificate.adversary:
        size, rate = max(certificate.adversary.items(), key=lambda item: int(item[0]))
        told.append(f"simulated adversary {percent(rate)} among {int(size):,}")
    return "; ".join(told)


def _planned(certificate: Certificate) -> str:
    if certificate.planned is None:
        return ""
    later = certificate.success_planned
    return f"{certificate.planned} planned: {'not bounded' if later is None else percent(later)}"


def _stated(record: Record, certificate: Certificate, gate: Gate, names: Names) -> Stated:
    labels = [label(flag(each)) for each in serious_doubts(record, gate)]
    assumptions = [[name, KNOWN.get(how, how)] for name, how in certificate.assumptions.items()]
    told = Table(["assumption", "how it is known"], assumptions)
    return Stated(message_name(record, names), labels, Table(["", ""], facts(certificate)), told)


def _why(record: Record, gate: Gate) -> str:
    """Return the one sentence why there is no certificate."""
    doubts = serious_doubts(record, gate)
    return flag(doubts[0]).text if doubts else UNCHECKED.format(messages="this message")
