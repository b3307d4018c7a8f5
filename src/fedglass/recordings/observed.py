"""The declared clipping and noise beside those of a message: one-sided checks that need no data."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from fedglass.core.tensors import COUNTER, RUNNING
from fedglass.core.text import some
from fedglass.recordings.format import SOURCES, FactSheet, RoundFacts, best, disputed, merged, sheet
from fedglass.recordings.reader import Bundle, files_of

State = Mapping[str, Tensor]
SLACK = 1e-3
"""The share by which a mean or a norm may differ: rounding, and the quantisation of secure aggregation."""
WIDTHS = 6.0
"""Standard deviations by which the size of noise may differ by chance."""
CLIPPING, NOISE = "clipping_norm", "noise_std"
"""What options of other frameworks' defences are called that mean the same as clip.norm and gaussian_noise.std."""


def without_running(moved: State) -> dict[str, Tensor]:
    return {name: tensor for name, tensor in moved.items() if name.rpartition(".")[2] not in RUNNING}


def _options(defences: list[dict[str, Any]]) -> tuple[float | None, float]:
    """The norm that updates are clipped to, and the standard deviation of noise, as far as they are declared."""
    told = {f"{p['name']}.{name}": value for p in defences for name, value in (p.get("options") or {}).items()}
    numbers = {name: float(value) for name, value in told.items() if isinstance(value, int | float) and value > 0}
    clip = next((value for name, value in numbers.items() if name == "clip.norm" or _last(name) == CLIPPING), None)
    std = next((value for name, value in numbers.items() if name == "gaussian_noise.std" or _last(name) == NOISE), 0.0)
    return clip, std


def _last(name: str) -> str:
    return name.rpartition(".")[2]


def defended(moved: State, defences: list[dict[str, Any]]) -> Iterator[str]:
    """The declared bound and noise beside the message's own."""
    clip, std = _options(defences)
    if clip is not None and moved:
        yield from _bounded(moved, clip, std)
    if std:
        yield from _noisy(moved, std)


def unbounded(moved: State, defences: list[dict[str, Any]]) -> Iterator[str]:
    """Running statistics that leave beside a clipped update, and are not clipped themselves."""
    clip, std = _options(defences)
    running = {name: tensor for name, tensor in moved.items() if _last(name) in RUNNING}
    loud = [
        name for name, tensor in running.items() if clip is not None and float(tensor.norm()) > _most(tensor, clip, std)
    ]
    if loud:
        yield f"running statistics leave outside the clipping to {clip:g} ({some(loud)})"


def _most(like: Tensor, clip: float, std: float) -> float:
    entries = like.numel()
    noise = std * math.sqrt(entries) * (1 + WIDTHS / math.sqrt(2 * entries)) if std else 0.0
    return (clip + noise) * (1 + SLACK)


def _bounded(moved: State, clip: float, std: float) -> Iterator[str]:
    """|u| <= C, and what is outside of it by name: a clipping that works on arrays may pass over scalars."""
    most = _most(torch.cat([tensor.reshape(-1) for tensor in moved.values()]), clip, std)
    if _norm(moved) <= most:
        return
    scalars = [name for name, tensor in moved.items() if tensor.dim() == 0]
    rest = {name: tensor for name, tensor in moved.items() if tensor.dim() > 0}
    why = "it was not clipped so"
    if scalars and rest and _norm(rest) <= most:
        why = f"0-d tensors escaped the clipping ({some(scalars)})"
    yield f"the update's norm is {_norm(moved):.4g} where at most {clip:g} is declared: {why}"


def _noisy(moved: State, std: float) -> Iterator[str]:
    """Whatever the data are, entries with independent noise are not smaller than it."""
    bare = []
    for name, tensor in moved.items():
        n = tensor.numel()
        if n == 1 and float(tensor) == round(float(tensor)):
            bare.append(name)
        elif n > 1 and 1 - WIDTHS / math.sqrt(2 * n) > 0:
            size = float(tensor.square().mean().sqrt())
            if size < std * (1 - WIDTHS / math.sqrt(2 * n)):
                bare.append(name)
    if bare:
        yield f"noise of standard deviation {std:g} is declared, and {len(bare)} tensor(s) hold less ({some(bare)})"


def _norm(tensors: State) -> float:
    return float(torch.stack([t.norm() for t in tensors.values()]).norm())


# What the messages of a bundle tell by themselves, beside what is said of them: nothing here needs the data.
#
# Each check is one-sided: what passes may still have been otherwise, and what fails was not as declared.


MEANS = ("mean", "fedavg", "weighted_mean")
"""Rules that are checked by playing them again."""
AUGMENTED = "; examples that are changed anew each time they are trained on count as different ones"
GRAINS = {"F32": 2.0**-23, "F16": 2.0**-10, "BF16": 2.0**-7}
"""The rounding of each type, as a share."""


@dataclass(frozen=True)
class Finding:
    """Something that is not as it was said."""

    round: int
    client: str
    """Whose message it is about; empty where it is about the round."""
    words: str
    aside: bool = False
    """Whether it is about running statistics alone, which no attack on the weights depends on."""


def change(bundle: Bundle, client: str, index: int) -> dict[str, Tensor] | None:
    """What a client's message adds to what it was sent, in double precision; None where either was not seen."""
    past, message = bundle.rounds[index], bundle.message(client, index)
    if message is None or message.received is None:
        return None
    got = bundle.arrays(message.received)
    if message.received.form == "update":
        return {name: tensor.double() for name, tensor in got.items()}
    start = message.sent or past.sent
    if start is None:
        return None
    before = bundle.arrays(start)
    return {name: tensor.double() - _loaded(before[name], tensor) for name, tensor in got.items() if name in before}


def _loaded(sent: Tensor, like: Tensor) -> Tensor:
    """What a client starts from: the mean of counters has decimals, which a whole number does not take over."""
    return sent.double() if like.is_floating_point() else sent.double().trunc()


def measured(moved: State) -> FactSheet:
    """The facts that a message tells by itself: BatchNorm's counters count the batches that were seen in train mode."""
    counts = {round(float(t), 6) for name, t in moved.items() if name.endswith(COUNTER) and t.dim() == 0}
    if not counts:
        return {}
    told: FactSheet = {"batch_norm": {"measured": "batch" if any(counts) else "frozen"}}
    count = max(counts)
    if count > 0 and count == int(count):
        told["steps"] = {"measured": int(count)}
    return told


def facts_with_measured(bundle: Bundle, client: str, index: int, moved: State | None) -> FactSheet:
    """What is told of a client in a round, and what its message tells beside."""
    told = bundle.facts_of(client, index)
    return told if moved is None else merged(told, measured(moved))


def findings_of(bundle: Bundle, index: int, names: Mapping[str, str] | None = None) -> list[Finding]:
    """What of a round is not as it was said; `names` are those of the model, where the arrays have others."""
    found = [Finding(index, "", words) for words in _of_round(bundle, index)]
    for message in bundle.rounds[index].messages:
        moved = change(bundle, message.client, index)
        if moved is not None and names is not None:
            moved = {names.get(name, name): tensor for name, tensor in moved.items()}
        told = facts_with_measured(bundle, message.client, index, moved)
        found += [Finding(index, message.client, words) for words in _disputes(told)]
        if moved is not None:
            defences = best(told, "defences", best(bundle.facts, "defences", []))
            found += [Finding(index, message.client, words) for words in defended(without_running(moved), defences)]
            found += [Finding(index, message.client, words, aside=True) for words in unbounded(moved, defences)]
            found += [Finding(index, message.client, words) for words in _backwards(moved)]
            if not defences:  # whose noise may be on all that is sent
                untrained = [(names or {}).get(name, name) for name in best(told, "untrained", [])]
                found += [Finding(index, message.client, words) for words in _restless(moved, untrained)]
        found += [Finding(index, message.client, words) for words in _unnamed(bundle, told)]
    return found


def _disputes(told: FactSheet) -> Iterator[str]:
    for name, values in disputed(told):
        if name == "config":
            continue
        said = ", ".join(f"{json.dumps(values[source])[:80]} ({source})" for source in SOURCES if source in values)
        seen, told_of = values.get("read"), values.get("declared")
        more = name == "examples" and isinstance(seen, int) and isinstance(told_of, int) and seen > told_of
        yield f"{name} is told differently: {said}{AUGMENTED if more else ''}"
    sizes, steps = best(told, "batch_sizes"), best(told, "steps")
    if sizes is not None and steps is not None and len(sizes) != steps:
        yield f"{len(sizes)} batch sizes are told, and {steps} local step(s)"


def _unnamed(bundle: Bundle, told: FactSheet) -> Iterator[str]:
    """Filters that a message says it passed, where what protects it was told without them."""
    defences = best(told, "defences", best(bundle.facts, "defences"))
    if defences is None:
        return
    others = [name for name in best(told, "filters", []) if name not in [part["name"] for part in defences]]
    if others:
        yield f"the message passed {', '.join(map(repr, others[:3]))} on its way, of which no declared defence tells"


def _backwards(moved: State) -> Iterator[str]:
    back = [name for name, t in moved.items() if name.endswith(COUNTER) and t.dim() == 0 and float(t) < 0]
    if back:
        yield f"{back[0]} counts backwards: before and after were swapped"


def _restless(moved: State, untrained: Sequence[str]) -> Iterator[str]:
    """What nobody trained and has moved: something else was put into it."""
    names = [name for name in untrained if name in moved and bool(moved[name].any())]
    if names:
        yield f"{some(names)} moved, although it is told that this is not trained"


def _of_round(bundle: Bundle, index: int) -> Iterator[str]:
    """The aggregate beside the mean of what was received, where that is said to have made it."""
    past = bundle.rounds[index]
    if past.sent is not None and past.aggregated is not None and _stands(bundle, index):
        yield "the aggregate is the model that was sent, although clients sent others: one of them is of another round"
    rule = best(sheet(past.facts), "rule", best(bundle.facts, "rule"))
    if past.sent is None or past.aggregated is None or rule is None or rule["name"].lower() not in MEANS:
        return
    if rule.get("options") or best(bundle.facts, "defences"):
        return
    kept = best(sheet(past.facts), "kept", [m.client for m in past.messages if m.absent is None])
    moves = {client: change(bundle, client, index) for client in kept}
    known = {client: moved for client, moved in moves.items() if moved is not None}
    if not known or len(known) < len(kept) or _made_by_mean(bundle, index, known):
        return
    # Of models that began apart it may be the mean of the updates, or that of the models themselves.
    ends = {client: _from_common(bundle, client, index, moved) for client, moved in known.items()}
    if any(ends[client] is not moved for client, moved in known.items()) and _made_by_mean(bundle, index, ends):
        return
    yield (
        f"the aggregate is not the mean of the {len(known)} message(s) that were recorded: before and after were "
        "swapped, a client is missing, its number of examples is wrong, or another rule made it"
    )


def _from_common(bundle: Bundle, client: str, index: int, moved: State) -> State:
    """The same model, as what it adds to the round's in place of what its client alone was sent."""
    past, message = bundle.rounds[index], bundle.message(client, index)
    if past.sent is None or message is None or message.sent is None:
        return moved
    own, common = bundle.arrays(message.sent), bundle.arrays(past.sent)
    return {
        name: tensor + own[name].double() - common[name].double()
        for name, tensor in moved.items()
        if name in own and name in common
    }


def _made_by_mean(bundle: Bundle, index: int, moves: Mapping[str, State]) -> bool:
    past = bundle.rounds[index]
    assert past.sent is not None, "asked of rounds that have both"
    assert past.aggregated is not None, "asked of rounds that have both"
    before, after = bundle.arrays(past.sent), bundle.arrays(past.aggregated)
    step = {
        name: tensor.double() - (0 if past.aggregated.form == "update" else before[name].double())
        for name, tensor in after.items()
        if name in before and name not in _whole(past)  # a mean of whole numbers is rounded by whoever loads it
    }
    coarse = max(GRAINS.get(array.dtype, 0.0) for held in files_of(past) for array in held.arrays)
    rounding = {name: 4 * coarse * float(before[name].double().norm()) for name in step}
    return _is_mean(step, moves, _weights(bundle, index, list(moves)), rounding)


def _whole(past: RoundFacts) -> set[str]:
    return {
        array.name
        for held in files_of(past)
        for array in held.arrays
        if array.dtype[0] in "IUB" and array.dtype != "BF16"
    }


def _stands(bundle: Bundle, index: int) -> bool:
    """Whether a round changed nothing although a client did: a mean does not tell what it started from."""
    past = bundle.rounds[index]
    assert past.sent is not None, "asked of rounds that have both"
    assert past.aggregated is not None, "asked of rounds that have both"
    before, after = bundle.arrays(past.sent), bundle.arrays(past.aggregated)
    if past.aggregated.form == "update":
        before = {name: torch.zeros_like(tensor) for name, tensor in before.items()}
    if not all(
        name in before and torch.equal(tensor.double(), before[name].double()) for name, tensor in after.items()
    ):
        return False
    moves = (change(bundle, message.client, index) for message in past.messages)
    return any(bool(tensor.any()) for moved in moves if moved is not None for tensor in moved.values())


def _weights(bundle: Bundle, index: int, clients: list[str]) -> list[float]:
    """By what they weigh or by their examples, as far as these are known; else each the same."""
    sheets = [bundle.facts_of(client, index) for client in clients]
    told = [best(each, "weight", best(each, "examples")) for each in sheets]
    known = all(isinstance(number, int | float) for number in told)
    return [float(number) for number in told] if known else [1.0] * len(clients)


def _is_mean(step: State, moves: Mapping[str, State], weights: list[float], rounding: Mapping[str, float]) -> bool:
    for name, tensor in step.items():
        known = [moved[name] for moved in moves.values() if name in moved]
        if len(known) < len(moves):
            continue
        mean = sum(moved * (weight / sum(weights)) for moved, weight in zip(known, weights, strict=True))
        size = max(float(moved.norm()) for moved in known)
        if not float((tensor - mean).norm()) <= SLACK * size + rounding[name]:
            return False
    return True
