"""Checks of a bundle's messages against what is recorded or declared about them; nothing here needs the data.

Each check is one-sided: a message that passes may still have been made otherwise; one that fails was not as declared.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from fedglass.core.tensors import COUNTER, RUNNING, counted_batches
from fedglass.core.text import some
from fedglass.core.thresholds import CLIP_SLACK_RECORDED, NOISE_LEVEL, largest_norm, least_noise
from fedglass.recordings.facts import SOURCES, FactSheet, Source, overlay, preferred
from fedglass.recordings.privacy import draws_poisson, filter_problems, local_dp_std, same_filter, sample_rate
from fedglass.recordings.reader import Bundle, files_of

State = Mapping[str, Tensor]
CLIPPING, NOISE = "clipping_norm", "noise_std"
"""What other frameworks call the options clip.norm and gaussian_noise.std of their defences."""
MEANS = ("mean", "fedavg", "weighted_mean")
"""Names of rules that are the weighted mean: these are checked by computing it again."""
AUGMENTED = "; an augmented example counts as a different one each time"
GRAINS = {"F32": 2.0**-23, "F16": 2.0**-10, "BF16": 2.0**-7}
"""The rounding of each type, as a share."""


@dataclass(frozen=True)
class Contradiction:
    """A message or an aggregate that is not as declared."""

    round: int
    client: str
    """The client that sent the message; empty if it concerns the whole round."""
    text: str
    statistics_only: bool = False
    """Whether it concerns running statistics alone, on which no attack on the weights depends."""


def update_of(bundle: Bundle, client: str, index: int) -> dict[str, Tensor] | None:
    """Return what a client's message adds to the model it was sent, in double precision; None if either is missing."""
    round_, message = bundle.rounds[index], bundle.message(client, index)
    if message is None or message.received is None:
        return None
    received = bundle.arrays(message.received)
    if message.received.form == "update":
        return {name: tensor.double() for name, tensor in received.items()}
    start = message.sent or round_.sent
    if start is None:
        return None
    before = bundle.arrays(start)
    return {
        name: tensor.double() - _loaded(before[name], tensor) for name, tensor in received.items() if name in before
    }


def _loaded(sent: Tensor, like: Tensor) -> Tensor:
    """Return what a client starts from: a mean of counters has decimals, and a whole number drops them."""
    return sent.double() if like.is_floating_point() else sent.double().trunc()


def facts_with_observed(bundle: Bundle, client: str, index: int, update: State | None) -> FactSheet:
    """Return the facts of a client in a round together with those that its message shows.

    BatchNorm's counters count the batches that were seen in train mode.
    """
    scalars = {name: tensor for name, tensor in (update or {}).items() if tensor.dim() == 0}
    counts = {round(count, 6) for count in counted_batches(scalars)}
    observed: FactSheet = {"batch_norm": {"measured": "batch" if any(counts) else "frozen"}} if counts else {}
    count = max(counts, default=0.0)
    if count > 0 and count == int(count):
        observed["steps"] = {"measured": int(count)}
    return overlay(bundle.facts_of(client, index), observed)


def contradictions_of(bundle: Bundle, index: int, names: Mapping[str, str] | None = None) -> list[Contradiction]:
    """Return the contradictions of a round; `names` are those of the model, by the names of the arrays."""
    contradictions = [Contradiction(index, "", text) for text in _in_aggregate(bundle, index)]
    for message in bundle.rounds[index].messages:
        update = update_of(bundle, message.client, index)
        if update is not None and names is not None:
            update = {names.get(name, name): tensor for name, tensor in update.items()}
        facts = facts_with_observed(bundle, message.client, index, update)
        texts = list(_in_facts(facts))
        if update is not None:
            defences = bundle.defences_of(message.client, index) or []
            texts += (*_in_defences(update, defences), *_in_samples(facts, defences))
            contradictions += [
                Contradiction(index, message.client, text, statistics_only=True)
                for text in _in_statistics(update, defences)
            ]
            back = [name for name, t in update.items() if name.endswith(COUNTER) and t.dim() == 0 and float(t) < 0]
            if back:
                texts.append(f"{back[0]} counts backwards: before and after were swapped")
            untrained = [(names or {}).get(name, name) for name in preferred(facts, "untrained", [])]
            changed = [name for name in untrained if name in update and bool(update[name].any())]
            if changed and not defences:  # whose noise may be on all that is sent
                texts.append(f"{some(changed)} changed although declared as frozen")
        texts += _in_filters(facts, bundle.defences_of(message.client, index))
        contradictions += [Contradiction(index, message.client, text) for text in texts]
    return contradictions


def _in_facts(facts: FactSheet) -> Iterator[str]:
    """Compare what the sources say of the same fact, and the number of batches with that of steps."""
    for name, values in facts.items():
        agreed = all(value == preferred(facts, name) for value in values.values())
        if agreed or name == "config" or _is_explained(name, values, facts):
            continue
        by_source = ", ".join(f"{json.dumps(values[source])[:80]} ({source})" for source in SOURCES if source in values)
        read, declared = values.get("read"), values.get("declared")
        more = name == "examples" and isinstance(read, int) and isinstance(declared, int) and read > declared
        yield f"sources disagree on {name}: {by_source}{AUGMENTED if more else ''}"
    sizes, steps = preferred(facts, "batch_sizes"), preferred(facts, "steps")
    if sizes is not None and steps is not None and len(sizes) != steps:
        yield f"{len(sizes)} batch sizes are recorded, but {steps} local step(s)"


def _in_samples(facts: FactSheet, defences: Sequence[Mapping[str, Any]]) -> Iterator[str]:
    """Compare the sizes of batches with those of declared Poisson samples, which vary."""
    rate, sizes = sample_rate(defences), preferred(facts, "batch_sizes", ())
    if rate is not None and len(set(sizes)) == 1:
        # The likeliest size of a Poisson sample has about this chance, each time anew.
        chance = (2 * math.pi * max(1.0, sizes[0] * (1 - rate))) ** -0.5
        if chance ** (len(sizes) - 1) < NOISE_LEVEL:
            yield f"Poisson samples are declared, but all {len(sizes)} batches have {sizes[0]} example(s)"


def _is_explained(name: str, values: Mapping[Source, Any], facts: FactSheet) -> bool:
    """Check for two sources that differ for a reason, and do not contradict each other."""
    read, declared = values.get("read"), values.get("declared")
    if name == "examples" and draws_poisson(preferred(facts, "defences")):
        # A Poisson sample leaves out some of the examples that a client declares.
        return isinstance(read, int) and isinstance(declared, int) and read <= declared and len(values) == 2
    if name == "defences" and len(values) == 2 and read is not None and declared is not None:
        return all(part in read for part in declared)  # what was asked for, among what was done
    return False


def _in_filters(facts: FactSheet, defences: list[dict[str, Any]] | None) -> Iterator[str]:
    """Compare the filters that a message passed with the declared defences."""
    if defences is None:
        return
    declared = [part["name"] for part in defences]
    yield from filter_problems(defences)
    undeclared = [name for name in preferred(facts, "filters", []) if not same_filter(name, declared)]
    if undeclared:
        filters = ", ".join(map(repr, undeclared[:3]))
        yield f"the message went through filter {filters}, which no declared defence mentions"


# Declared clipping and noise


def _clip_and_noise(defences: list[dict[str, Any]]) -> tuple[float | None, float]:
    """Return the declared norm of clipping and the declared standard deviation of noise."""
    options = {f"{p['name']}.{name}": value for p in defences for name, value in (p.get("options") or {}).items()}
    numbers = {name: float(value) for name, value in options.items() if isinstance(value, int | float) and value > 0}
    clip = next((value for name, value in numbers.items() if name == "clip.norm" or _last(name) == CLIPPING), None)
    std = next((value for name, value in numbers.items() if name == "gaussian_noise.std" or _last(name) == NOISE), 0.0)
    return clip, std or local_dp_std(defences)


def _last(name: str) -> str:
    return name.rpartition(".")[2]


def _in_defences(update: State, defences: list[dict[str, Any]]) -> Iterator[str]:
    """Compare the declared bound and noise with those of the message."""
    weights = {name: tensor for name, tensor in update.items() if _last(name) not in RUNNING}
    clip, std = _clip_and_noise(defences)
    if clip is not None and weights:
        yield from beyond_clipping(weights, clip, std)
    yield from without_noise(weights, std)


def without_noise(update: State, std: float) -> Iterator[str]:
    """Name tensors with entries smaller than the declared noise: they cannot have it, whatever the data are."""
    quiet = [name for name, tensor in update.items() if std and _is_quiet(tensor, std)]
    if quiet:
        yield f"noise of standard deviation {std:g} is declared, but {len(quiet)} tensor(s) hold less ({some(quiet)})"


def _is_quiet(tensor: Tensor, std: float) -> bool:
    """Check whether a tensor holds less than the noise; a single entry does if it is a whole number."""
    if tensor.numel() == 1:
        return float(tensor) == round(float(tensor))
    return tensor.numel() > 1 and float(tensor.square().mean().sqrt()) < least_noise(std, tensor.numel())


def _in_statistics(update: State, defences: list[dict[str, Any]]) -> Iterator[str]:
    """Name running statistics that leave with a clipped update and are not clipped themselves."""
    clip, std = _clip_and_noise(defences)
    if clip is None:
        return
    running = {name: tensor for name, tensor in update.items() if _last(name) in RUNNING}
    longer = [
        name
        for name, tensor in running.items()
        if float(tensor.norm()) > largest_norm(clip, CLIP_SLACK_RECORDED, std, tensor.numel())
    ]
    if longer:
        yield f"running statistics leave outside the clipping to {clip:g} ({some(longer)})"


def beyond_clipping(update: State, clip: float, std: float) -> Iterator[str]:
    """Check |u| <= C, and name scalars outside of it: a clipping that works on arrays may pass over them."""
    longest = largest_norm(clip, CLIP_SLACK_RECORDED, std, sum(tensor.numel() for tensor in update.values()))
    if _norm(update) <= longest:
        return
    scalars = [name for name, tensor in update.items() if tensor.dim() == 0]
    arrays = {name: tensor for name, tensor in update.items() if tensor.dim() > 0}
    why = "it was not clipped so"
    if scalars and arrays and _norm(arrays) <= longest:
        why = f"0-d tensors escaped the clipping ({some(scalars)})"
    yield f"the update's norm is {_norm(update):.4g} where at most {clip:g} is declared: {why}"


def _norm(tensors: State) -> float:
    return float(torch.stack([t.norm() for t in tensors.values()]).norm())


# The aggregate


def _in_aggregate(bundle: Bundle, index: int) -> Iterator[str]:
    """Compare the aggregate with the mean of what was received, if a mean is declared to have made it."""
    round_ = bundle.rounds[index]
    if round_.sent is None or round_.aggregated is None:
        return
    before, after = bundle.arrays(round_.sent), bundle.arrays(round_.aggregated)
    is_update = round_.aggregated.form == "update"
    start = {name: torch.zeros_like(tensor) if is_update else tensor for name, tensor in before.items()}
    stands_still = all(name in start and torch.equal(t.double(), start[name].double()) for name, t in after.items())
    all_updates = (update_of(bundle, message.client, index) or {} for message in round_.messages)
    if stands_still and any(bool(tensor.any()) for update in all_updates for tensor in update.values()):
        yield "the aggregate is the model that was sent, although clients sent others: one of them is of another round"
    rule = bundle.rule_of(index)
    if rule is None or rule["name"].lower() not in MEANS:
        return
    if rule.get("options") or preferred(bundle.facts, "defences"):
        return
    aggregated = preferred(round_.facts, "kept", [m.client for m in round_.messages if m.absent is None])
    by_client = {client: update_of(bundle, client, index) for client in aggregated}
    updates = {client: update for client, update in by_client.items() if update is not None}
    if not updates or len(updates) < len(aggregated):
        return
    arrays = [array for file in files_of(round_) for array in file.arrays]
    # The mean of whole numbers is rounded when it is loaded.
    integers = {array.name for array in arrays if array.dtype[0] in "IUB" and array.dtype != "BF16"}
    step = {n: t.double() - start[n].double() for n, t in after.items() if n in start and n not in integers}
    coarsest = max(GRAINS.get(array.dtype, 0.0) for array in arrays)
    rounding = {name: 4 * coarsest * float(before[name].double().norm()) for name in step}
    weights = _weights(bundle, index, list(updates))
    if _is_mean(step, updates, weights, rounding):
        return
    # If clients began with different models, it may be the mean of the updates or that of the models themselves.
    from_common = {client: _from_common(bundle, client, index, update) for client, update in updates.items()}
    begun_apart = any(from_common[client] is not update for client, update in updates.items())
    if begun_apart and _is_mean(step, from_common, weights, rounding):
        return
    yield (
        f"the aggregate is not the mean of the {len(updates)} recorded message(s): before and after were swapped, a "
        "client is missing, its number of examples is wrong, or another rule made it"
    )


def _from_common(bundle: Bundle, client: str, index: int, update: State) -> State:
    """Return a client's new model as what it adds to the round's model instead of the client's own start."""
    round_, message = bundle.rounds[index], bundle.message(client, index)
    if round_.sent is None or message is None or message.sent is None:
        return update
    start, common = bundle.arrays(message.sent), bundle.arrays(round_.sent)
    return {
        name: tensor + start[name].double() - common[name].double()
        for name, tensor in update.items()
        if name in start and name in common
    }


def _weights(bundle: Bundle, index: int, clients: list[str]) -> list[float]:
    """Return the clients' weights or numbers of examples; equal weights if one of them is unknown."""
    sheets = [bundle.facts_of(client, index) for client in clients]
    weights = [preferred(facts, "weight", preferred(facts, "examples")) for facts in sheets]
    if not all(isinstance(weight, int | float) for weight in weights):
        return [1.0] * len(clients)
    return [float(weight) for weight in weights]


def _is_mean(step: State, updates: Mapping[str, State], weights: list[float], rounding: Mapping[str, float]) -> bool:
    for name, tensor in step.items():
        parts = [update[name] for update in updates.values() if name in update]
        if len(parts) < len(updates):
            continue
        mean = sum(part * (weight / sum(weights)) for part, weight in zip(parts, weights, strict=True))
        size = max(float(part.norm()) for part in parts)
        if not float((tensor - mean).norm()) <= CLIP_SLACK_RECORDED * size + rounding[name]:
            return False
    return True
