"""What was sent beside the messages that attacks read: the examples may be in there, or the noise that hides them."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn

from fedglass.bundle.facts import FIGURES, FURTHER, LETTERS, best
from fedglass.bundle.manifest import Held
from fedglass.bundle.names import names_of
from fedglass.bundle.reader import Bundle
from fedglass.core.errors import FedglassError
from fedglass.core.params import Params
from fedglass.plan.bundle_choice import Choice
from fedglass.plan.bundle_told import base_of, told_beside
from fedglass.rounds.bundled import Reading

INSTEAD = re.compile(r"\((\d+) (bytes|numbers)\)")
"""What stands in a bundle for bytes and arrays, which JSON can not hold."""

Beside = dict[tuple[int, str], tuple[str, ...]]
"""By round and client."""


def sent_beside(bundle: Bundle, model: nn.Module, choice: Choice) -> Beside:
    """By name, what left with the messages that are looked at, and no attack reads."""
    found = defaultdict[tuple[int, str], list[str]](list)
    for turn, said in told_beside(bundle, choice, FURTHER).items():
        found[turn] += said
    for index in choice.rounds:
        for message in bundle.rounds[index].messages:
            turn = (index - base_of(bundle), message.client)
            found[turn] += large_metrics(best(bundle.facts_of(message.client, index), "metrics", {}))
            held = bundle.rounds[index].aggregated if choice.view == "aggregate" else message.received
            if held is not None and message.absent is None:
                found[turn] += second_names(bundle, held, model)
    return {turn: tuple(names) for turn, names in found.items() if names}


def others_of(reading: Reading, choice: Choice) -> dict[tuple[int, str], Params]:
    """What the server has got in the same rounds of those that nobody has asked about, as far as it can be read."""
    found: dict[tuple[int, str], Params] = {}
    for index in choice.rounds if choice.view == "server" and choice.names is not None else ():
        everybody = replace(choice, names=None).whose(index)
        for client in (name for name in everybody if name not in choice.whose(index)):
            with suppress(FedglassError):
                (message,) = reading.round(index, [client]).messages
                found[index - base_of(choice.bundle), client] = message.update
    return found


def large_metrics(metrics: Mapping[str, Any]) -> Iterator[str]:
    """The metrics that are more than a figure or a few."""
    for name, value in metrics.items():
        figures, letters = _size(value)
        if figures >= FIGURES or letters >= LETTERS:
            yield f"metric {name}"


def _size(value: Any) -> tuple[int, int]:
    """How many numbers and how many characters there are in a metric."""
    if isinstance(value, str):
        instead = INSTEAD.fullmatch(value)
        return (0, len(value)) if instead is None else (int(instead[1]), LETTERS * (instead[2] == "bytes"))
    inner = value.values() if isinstance(value, dict) else value if isinstance(value, list) else None
    if inner is None:
        return 1, 0
    sizes = [_size(each) for each in inner]
    return sum(figures for figures, _ in sizes), sum(letters for _, letters in sizes)


def second_names(bundle: Bundle, held: Held, model: nn.Module) -> Iterator[str]:
    """Tensors that the model has under two names, and that were sent with other values, or alone, under the second.

    Attacks read the first. A defence that goes through the parameters, of which torch names each once, passes over
    the second.
    """
    firsts: dict[int, str] = {}
    twice = {name: firsts[id(t)] for name, t in _state(model) if firsts.setdefault(id(t), name) != name}
    if not twice:
        return
    names = names_of([(a.name, tuple(a.shape)) for a in held.arrays], model, str(bundle.folder / held.file))
    sent = names.applied(bundle.arrays(held))
    for name, first in twice.items():
        if name in sent and (first not in sent or not torch.equal(sent[name], sent[first])):
            yield name


def _state(model: nn.Module) -> Iterator[tuple[str, Tensor]]:
    """By name, the very tensors of a model."""
    yield from model.state_dict(keep_vars=True).items()
