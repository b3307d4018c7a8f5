"""Facts of a bundle about privacy: filters of other frameworks, epsilons that it declares or counts, and canaries.

A bundle says how many canaries a message holds, and a commitment to their key. The key gives directions and coins. It
is drawn from the system's random numbers when the training begins, and is stored next to the bundle, never in it: who
knows it could take the canaries out again, or treat them in another way than data. It tells nothing of the data or of
the noise. The commitment shows that the coins were not chosen afterwards.
"""

from __future__ import annotations

import hashlib
import math
import secrets
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import BaseModel, Field, StringConstraints, ValidationError

from fedglass.bounds.success import gdp_epsilon
from fedglass.core.errors import DataError, FedglassError, UsageError
from fedglass.core.files import make_folder, write_atomic
from fedglass.core.registry import built_in, make
from fedglass.defend.accounting import Mechanism
from fedglass.defend.dpsgd import DPSGD, PoissonDPSGD
from fedglass.defend.filters import FlowerLocalDP, SVTPrivacy
from fedglass.defend.noise_model import EpsilonClaim, dpsgd_claim, epsilon_claims
from fedglass.fl.canaries import Canaries
from fedglass.fl.release import Chain
from fedglass.recordings.facts import ACCOUNTANT, RESERVATION_IDS, RESERVATIONS, preferred
from fedglass.recordings.format import read_at_most
from fedglass.recordings.reader import Bundle
from fedglass.recordings.writer import BundleWriter

LEDGER = "x-privacy-ledger"
"""Of a client in a round: what SVTPrivacy's ledger has counted so far."""
SPENT = "x-privacy-spent"
"""Of a round: what the accountant of Flower's strategy has counted so far."""
ACCOUNTED = "FixedClipping"
"""Strategies of Flower whose accountant counts Gaussian releases of one noise multiplier, without sampling."""

ADAPTIVE = "AdaptiveClipping"
"""Part of the names of Flower's strategies that adapt the norm."""


def recorded_epsilons(bundle: Bundle) -> dict[str, tuple[EpsilonClaim, ...]]:
    """Return the declared or counted epsilons of clients over all recorded rounds, by client.

    Those of the federation's accountant have an empty name.
    """
    epsilons = {name: (*_of_client(bundle, name), *_of_steps(bundle, name)) for name in bundle.clients}
    epsilons[""] = tuple(_of_accountant(bundle))
    return {client: claims for client, claims in epsilons.items() if claims}


def _of_client(bundle: Bundle, client: str) -> Iterator[EpsilonClaim]:
    """Yield the epsilons of a client's last defences, over the rounds in which it had them."""
    received = bundle.received_from(client)
    defended = [(index, parts) for index in received if (parts := bundle.defences_of(client, index))]
    if not defended:
        return
    last, parts = defended[-1]
    known = built_in("defences")
    if not all(part["name"] in known for part in parts):  # no code of others is run to read a bundle
        return
    entries = sum(math.prod(array.shape) for array in received[last].arrays)
    releases, ledger = sum(same == parts for _, same in defended), preferred(bundle.facts_of(client, last), LEDGER)
    try:
        chain = Chain(tuple(make("defences", part["name"], **(part.get("options") or {})) for part in parts))
        budgeted = any(part["name"] in BUDGETED for part in parts)
        yield from epsilon_claims(chain, releases, entries) if budgeted else ()
    except (FedglassError, TypeError, ArithmeticError):
        return
    counted, calls = (_number((ledger if isinstance(ledger, dict) else {}).get(key)) for key in ("epsilon", "releases"))
    for part in chain.releases:
        if isinstance(part, SVTPrivacy) and counted is not None and calls is not None:
            times, spent = max(releases, int(calls)), part.spent(entries)
            why = f"one release of {entries:,} entries costs {spent:.6g}"
            yield EpsilonClaim("the ledger of SVTPrivacy", counted, spent * times, 0.0, times, why)


def _of_steps(bundle: Bundle, client: str) -> Iterator[EpsilonClaim]:
    """Yield the epsilon of a client's DP-SGD over its rounds, next to what Opacus's accountant has counted."""
    rounds = list(bundle.received_from(client))
    runs = [_noisy_steps(bundle, client, index) for index in rounds]
    known = [run for run in runs if run is not None]
    if known and len(known) == len(runs):
        with suppress(FedglassError, ArithmeticError):
            counted = _counted(preferred(bundle.facts_of(client, rounds[-1]), ACCOUNTANT))
            yield dpsgd_claim(known, counted, len(runs))


def _noisy_steps(bundle: Bundle, client: str, index: int) -> Mechanism | None:
    """Return the noisy steps that each record of a client may be in during a round; None without DP-SGD."""
    parts, facts = bundle.defences_of(client, index) or (), bundle.facts_of(client, index)
    part = next((part for part in parts if part["name"] in ("dpsgd", "dpsgd_poisson")), None)
    epochs, steps = preferred(facts, "epochs"), preferred(facts, "steps")
    try:
        defence = None if part is None else make("defences", part["name"], **(part.get("options") or {}))
    except (FedglassError, TypeError):
        return None
    if isinstance(defence, PoissonDPSGD):
        return Mechanism(defence.noise_multiplier, defence.sample_rate, steps) if steps else None
    count = epochs or steps  # a record is once in an epoch
    return Mechanism(defence.noise_multiplier, 1.0, count) if isinstance(defence, DPSGD) and count else None


def _counted(accountant: Any) -> list[Mechanism]:
    """Return what an accountant has counted, as a file has it; nothing if any of it cannot be so."""
    history = accountant.get("history") if isinstance(accountant, dict) else None
    try:
        return [Mechanism(noise, rate, int(float(steps))) for noise, rate, steps in history or ()]
    except (FedglassError, TypeError, ValueError, OverflowError):
        return []


def _of_accountant(bundle: Bundle) -> Iterator[EpsilonClaim]:
    """Yield what Flower's accountant counted after the last round that it counted."""
    claim, aggregated = None, 0
    for index, round_ in bundle.rounds.items():
        aggregated += round_.aggregated is not None
        spent, rule = preferred(round_.facts, SPENT), bundle.rule_of(index)
        if not isinstance(spent, dict) or rule is None or ACCOUNTED not in rule["name"]:
            continue
        epsilon, delta = _number(spent.get("epsilon")), _number(spent.get("delta"))
        noise = _number((rule.get("options") or {}).get("noise_multiplier"))
        if epsilon is None or delta is None or noise is None or not 0 < delta < 1:
            continue
        releases = max(aggregated, int(_number(spent.get("num_releases")) or 0), 1)
        real = gdp_epsilon(math.sqrt(releases) / noise, delta) if noise > 0 else math.inf
        why = f"the noise multiplier {noise:g} gives at least that, by Gaussian differential privacy"
        claim = EpsilonClaim("Flower's accountant", epsilon, real, delta, releases, why)
    if claim is not None:
        yield claim


def adapts_clipping(bundle: Bundle) -> bool:
    """Return whether the norm of clipping follows the data, by a client's defence or by the rule of the server."""
    facts = [bundle.facts, *(round_.facts for round_ in bundle.rounds.values())]
    facts += [bundle.facts_of(client, index) for index in bundle.rounds for client in bundle.clients]
    parts = [part for of in facts for part in (*preferred(of, "defences", ()), preferred(of, "rule")) if part]
    return any(ADAPTIVE in part["name"] or (part.get("options") or {}).get("adaptive") is True for part in parts)


def svt_ledger(budget: Any, cumulative: Any) -> dict[str, float] | None:
    """Return the ledger that a message of SVTPrivacy carries, as a fact; None where it is none.

    >>> svt_ledger({"epsilon_total": 2.0, "n_upload": 3}, {"epsilon_total": 4.0, "calls": 2})
    {'epsilon': 4.0, 'releases': 2.0, 'last': 2.0}
    """
    if not isinstance(budget, Mapping) or not isinstance(cumulative, Mapping):
        return None
    values = {
        "epsilon": _number(cumulative.get("epsilon_total")),
        "releases": _number(cumulative.get("calls")),
        "last": _number(budget.get("epsilon_total")),
    }
    known = {name: value for name, value in values.items() if value is not None}
    return known if len(known) == len(values) else None


def _number(value: Any) -> float | None:
    """Return a number of a file, which may hold anything; None of what is none, negative or infinite."""
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value <= sys.float_info.max:
        return None
    return float(value)


NAMES = {"PercentilePrivacy": "percentile_privacy", "SVTPrivacy": "svt_privacy"}
"""NVFlare's filters, by the names of their classes, as fedglass calls them."""
DIFFERENCES = "let the client send DataKind.WEIGHT_DIFF"
BUDGETED = ("svt_privacy", "flower_local_dp")
"""Defences that declare an epsilon."""
DATA_KIND, FULL_WEIGHTS = "data_kind", "WEIGHTS"
"""The option of a filter that says what it acted on, and NVFlare's word for a whole model."""


def draws_poisson(defences: Sequence[Mapping[str, Any]] | None) -> bool:
    """Return whether each local step draws a Poisson sample: the sizes of its batches then vary by chance."""
    return any(part["name"] == "dpsgd_poisson" for part in defences or ())


def sample_rate(defences: Sequence[Mapping[str, Any]] | None) -> float | None:
    """Return the chance of an example to be in a Poisson sample, below 1; None without such samples."""
    rates = ((part.get("options") or {}).get("sample_rate") for part in defences or () if draws_poisson([part]))
    return next((rate for rate in map(_number, rates) if rate is not None and rate < 1), None)


def same_filter(name: str, declared: Sequence[str]) -> bool:
    """Return whether a filter that a message passed is among the declared defences, by either name."""
    return name in declared or NAMES.get(name) in declared


def filter_problems(defences: Sequence[Mapping[str, Any]]) -> Iterator[str]:
    """Yield why recorded filters do not protect an update: they acted on full weights, or their options are wrong."""
    for part in defences:
        name, options = str(part["name"]), dict(part.get("options") or {})
        if name not in NAMES:
            continue
        if options.pop(DATA_KIND, None) == FULL_WEIGHTS:
            yield f"the filter {name!r} acted on full weights, but it is made for differences of weights: {DIFFERENCES}"
            continue
        options.pop("data_kinds", None)
        try:
            make("defences", NAMES[name], **{key: value for key, value in options.items() if value is not None})
        except (FedglassError, TypeError) as error:
            yield f"the filter {name!r} did nothing, because its options are out of range ({error})"


def local_dp_std(defences: Sequence[Mapping[str, Any]]) -> float:
    """Return the standard deviation of Flower's local noise among the defences; 0 without it."""
    options = next((part.get("options") or {} for part in defences if part["name"] == "flower_local_dp"), None)
    try:
        return 0.0 if options is None else FlowerLocalDP(**options).std
    except (FedglassError, TypeError):
        return 0.0


CANARIES = "x-canaries"
"""Of a client in a round: how many canaries its message holds, what they are, and a commitment to their key."""
FOLDER = "-canaries"
"""The end of the name of the folder next to a bundle that holds the keys."""
INSERTED = "Canaries were inserted into the training, so that the message holds more than the data."
LONGEST = 10 * 2**20
Unit = Literal["example", "update"]
Digest = Annotated[str, StringConstraints(pattern="^[0-9a-f]{64}$")]
Count = Annotated[int, Field(ge=1, le=10_000_000)]


class CanaryFact(BaseModel, frozen=True, extra="forbid", strict=True):
    """Facts of a bundle about the canaries in a message."""

    count: Count
    unit: Unit
    commitment: Digest


class CanaryKey(BaseModel, frozen=True, extra="forbid", strict=True):
    """Seed, number and kind of the canaries in one message; the names are those of the tensors that hold them."""

    seed: Annotated[str, StringConstraints(pattern="^[0-9a-f]{32}$")]
    count: Count
    unit: Unit
    names: Annotated[list[str], Field(max_length=100_000)] = []

    @classmethod
    def drawn(cls, count: int, unit: Unit) -> CanaryKey:
        """Return a new key that no one can predict."""
        if isinstance(count, bool) or not isinstance(count, int) or count < 1:
            raise UsageError(f"canaries must be a whole number of at least 1, or 0 for none, got {count!r}.")
        return cls(seed=secrets.token_hex(16), count=count, unit=unit)

    @property
    def canaries(self) -> Canaries:
        """The canaries that follow from the key."""
        return Canaries(int(self.seed, 16), self.count)

    def commitment(self, client: str, index: int) -> str:
        """Return a digest by which the key of a message can be recognised, and nothing else."""
        text = "\n".join([self.seed, str(self.count), self.unit, str(index), client, *self.names])
        return hashlib.sha256(text.encode()).hexdigest()


class KeyFile(BaseModel, frozen=True, extra="forbid", strict=True):
    """The keys of a client, by round."""

    format: Literal[1] = 1
    client: str
    rounds: dict[str, CanaryKey] = {}


def store_key(writer: BundleWriter, path: Path, client: str, index: int, key: CanaryKey) -> None:
    """Write a key to the file of a client's keys, and its commitment to the bundle."""
    keys = _read(path) if path.exists() else KeyFile(client=client)
    make_folder(path.parent)
    write_atomic(path, keys.model_copy(update={"rounds": {**keys.rounds, str(index): key}}).model_dump_json() + "\n")
    fact = CanaryFact(count=key.count, unit=key.unit, commitment=key.commitment(client, index))
    known = writer.round(index).message(client).facts
    facts = {
        CANARIES: fact.model_dump(),
        RESERVATIONS: [*preferred(known, RESERVATIONS, []), INSERTED],
        RESERVATION_IDS: [*preferred(known, RESERVATION_IDS, []), "canaries"],
    }
    writer.training(client, index, facts, source="read")


def keys_folder(folder: str | Path) -> Path:
    """Return the folder of the keys that belong to a bundle."""
    place = Path(folder)
    return place.with_name(place.name + FOLDER)


def messages_with_canaries(bundle: Bundle, folder: Path) -> Iterator[tuple[str, int, CanaryKey]]:
    """Yield client, round and key of each message that holds canaries; a key must be the one that was committed to."""
    facts = dict(_facts(bundle))
    if not facts:
        raise UsageError(
            f"{bundle.folder} holds no canaries, which a lower bound on epsilon needs: only DP-SGD by Opacus and "
            "Flower's local noise take them, with canaries=1000 or 40 in the recorder; for others give a plan."
        )
    if not folder.is_dir():
        raise UsageError(f"{folder} is not a folder, expected the keys of the canaries: name it with --keys.")
    files = (_read(path) for path in sorted(folder.glob("*.json")))
    keys = {(file.client, int(index)): key for file in files for index, key in file.rounds.items()}
    for (client, index), fact in facts.items():
        key = keys.get((client, index))
        if key is None:
            raise DataError(f"{folder} lacks the key of {client!r} in round {index}: add the keys of all clients.")
        if key.commitment(client, index) != fact.commitment:
            raise DataError(
                f"{folder}: the key of {client!r} in round {index} is not the one of the recording: use the keys that "
                "were stored with it."
            )
        yield client, index, key


def _facts(bundle: Bundle) -> Iterator[tuple[tuple[str, int], CanaryFact]]:
    for index, round_ in bundle.rounds.items():
        for message in round_.messages:
            value = preferred(message.facts, CANARIES)
            if value is None or message.received is None:
                continue
            try:
                yield (message.client, index), CanaryFact.model_validate(value)
            except ValidationError as error:
                raise DataError(
                    f"{bundle.folder}: {CANARIES} of {message.client!r} is damaged: record again."
                ) from error


def _read(path: Path) -> KeyFile:
    try:
        file = KeyFile.model_validate_json(read_at_most(path, most=LONGEST))
        [int(index) for index in file.rounds]
    except ValueError as error:
        raise DataError(
            f"{path} is not a file of canary keys: name the folder that the recorder has written."
        ) from error
    return file
