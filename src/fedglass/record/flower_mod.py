"""A Flower client mod that reads how the client trains, and can keep its examples for its own audit."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from fedglass.record.client import ClientRecorder, Told, folder_name, going_on
from fedglass.record.flower_names import name_of
from fedglass.record.flower_strategy import defences_of
from fedglass.record.hooks import TrainingReader

log = logging.getLogger("fedglass")
Mod = Callable[[Any, Any, Callable[[Any, Any], Any]], Any]
ROUND_KEYS = ("server-round", "server_round", "current_round", "round")


def recording_mod(
    folder: str | Path,
    *,
    truth: str | Path | None = None,
    model: str | None = None,
    whitening: tuple[Sequence[float], Sequence[float]] | None = None,
    facts: Mapping[str, Any] | None = None,
) -> Mod:
    """A mod for `ClientApp(mods=[recording_mod("clients"), ...])`; the first, so that it knows of those after it.

    Every client writes to a folder of its own below `folder`. `truth` is another folder, for its examples, which are
    private and stay with the client: by them an audit can say whether what an attack found is true. Give absolute
    paths: a client's process has a working directory of its own.

    `whitening` is the pixels' normalisation (means, deviations), where it can not be read off the pixels themselves.
    """
    told = Told(model, whitening, {} if facts is None else facts)
    place = Path(folder)
    if not place.is_absolute():
        log.warning(
            "fedglass records to %s: give an absolute path, since every process has a folder of its own.",
            place.absolute(),
        )

    def mod(message: Any, context: Any, call_next: Callable[[Any, Any], Any]) -> Any:
        with TrainingReader(keep_examples=truth is not None) as reader:
            reply = call_next(message, context)
        if not reply.has_error() and (reader.steps or reader.fault or _trained(message, reply)):
            with going_on("this training"):
                name = name_of(reply, message.metadata.dst_node_id)
                recorder = ClientRecorder(place / folder_name(name), name, told=told, truth=truth)
                mods = list(mods_within(call_next))
                recorder.trained(_round(message), reader, defences_of(mods, _config(message)))
        return reply

    return mod


def _trained(message: Any, reply: Any) -> bool:
    """Whether a model came back from a training, wherever that ran."""
    return str(message.metadata.message_type).partition(".")[0] == "train" and bool(reply.content.array_records)


def _config(message: Any) -> dict[str, Any]:
    return {key: value for record in message.content.config_records.values() for key, value in record.items()}


def _round(message: Any) -> int:
    """The round's number, from the message's configuration or, of older strategies, its group."""
    config = _config(message)
    for key in ROUND_KEYS:
        if isinstance(config.get(key), int):
            return int(config[key])
    return int(message.metadata.group_id) if str(message.metadata.group_id).isdecimal() else 0


def mods_within(call_next: Any) -> Iterator[Any]:
    """The mods between this one and the client, innermost first, which is the order in which they see the reply.

    Flower's chain is made of closures; what is in none of them is not known, and not told.
    """
    cells = [cell.cell_contents for cell in getattr(call_next, "__closure__", None) or ()]
    names = getattr(getattr(call_next, "__code__", None), "co_freevars", ())
    held = dict(zip(names, cells, strict=False))
    if "_mod" in held and "_ffn" in held:
        yield from mods_within(held["_ffn"])
        yield held["_mod"]
