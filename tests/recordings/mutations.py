"""Bundles that are damaged, exchanged or forged, each in one way that a seed decides.

Damage leaves the digests as they were. A forger computes them anew: then the contents themselves must give it away.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import struct
from collections.abc import Callable
from pathlib import Path
from random import Random
from typing import Any

import torch

from fedglass.recordings import BundleWriter

Mutation = Callable[[Path, Random], None]
ZEROS = "0" * 64


def original(folder: Path) -> None:
    """Two rounds of three clients of unequal size, and their mean."""
    writer = BundleWriter(folder, writer="server", facts={"rule": {"name": "mean"}, "model": "lenet", "classes": 4})
    generator = torch.Generator().manual_seed(0)
    state = {"w": torch.randn(3, 4, generator=generator), "b": torch.randn(3, generator=generator)}
    sizes = {"a": 1, "b": 2, "c": 5}
    for index in (1, 2):
        turn = writer.round(index)
        turn.sent(state)
        sent = {}
        for client, count in sizes.items():
            sent[client] = {name: t + torch.randn(t.shape, generator=generator) for name, t in state.items()}
            turn.received(client, sent[client], examples=count, config={"lr": 0.1})
            writer.training(client, index, {"optimiser": "SGD", "lr": 0.1, "steps": 1}, source="read")
        total = sum(sizes.values())
        state = {name: sum(sent[c][name] * (n / total) for c, n in sizes.items()) for name in state}  # type: ignore[misc] # never an empty sum
        turn.aggregated(state)


# ---- damage ---------------------------------------------------------------------------------------------------------


def _any(folder: Path, random: Random) -> Path:
    return random.choice(_files(folder))


def _files(folder: Path) -> list[Path]:
    """Those that a bundle is made of."""
    return sorted(path for path in folder.iterdir() if not path.name.startswith("."))


def bit_flip(folder: Path, random: Random) -> None:
    path = _any(folder, random)
    data = bytearray(path.read_bytes())
    data[random.randrange(len(data))] ^= 1 << random.randrange(8)
    path.write_bytes(data)


def cut_short(folder: Path, random: Random) -> None:
    path = _any(folder, random)
    data = path.read_bytes()
    path.write_bytes(data[: random.randrange(len(data))])


def grown(folder: Path, random: Random) -> None:
    path = _any(folder, random)
    path.write_bytes(path.read_bytes() + random.randbytes(random.randrange(1, 100)))


def noise(folder: Path, random: Random) -> None:
    path = _any(folder, random)
    path.write_bytes(random.randbytes(len(path.read_bytes())))


def missing(folder: Path, random: Random) -> None:
    _any(folder, random).unlink()


def exchanged(folder: Path, random: Random) -> None:
    one, other = random.sample(_files(folder), 2)
    first, second = one.read_bytes(), other.read_bytes()
    one.write_bytes(second)
    other.write_bytes(first)


def renamed(folder: Path, random: Random) -> None:
    one, other = random.sample(_files(folder), 2)
    one.rename(random.choice([other, folder / f"x{one.name}"]))


def linked(folder: Path, random: Random) -> None:
    path = _any(folder, random)
    elsewhere = folder.with_name(f"{folder.name}-elsewhere")
    shutil.copy(path, elsewhere)
    path.unlink()
    path.symlink_to(elsewhere)


def no_file(folder: Path, random: Random) -> None:
    path = _any(folder, random)
    path.unlink()
    random.choice([path.mkdir, lambda: os.mkfifo(path), lambda: path.symlink_to(path.name)])()


# ---- forgery --------------------------------------------------------------------------------------------------------


def _load(path: Path) -> Any:
    return json.loads(path.read_text())


def _rounds(folder: Path) -> list[Path]:
    return sorted(folder.glob("round-*-*.json"))


def _text(value: Any) -> str:
    """As deep as the value is, where Python's own writer gives up."""
    return value if isinstance(value, str) else json.dumps(value)


def sign(folder: Path, manifest: Any = None) -> None:
    """Every digest anew, up to the manifest's own."""
    told = _load(folder / "manifest.json") if manifest is None else manifest
    for listed in told["rounds"]:
        path = folder / listed["file"]
        if path.is_file():
            data = path.read_bytes()
            listed |= {"sha256": hashlib.sha256(data).hexdigest(), "bytes": len(data)}
    told["sha256"] = ZEROS
    text = json.dumps(told)
    (folder / "manifest.json").write_text(text.replace(ZEROS, hashlib.sha256(text.encode()).hexdigest(), 1))


def _edited(folder: Path, path: Path, told: Any) -> None:
    path.write_text(_text(told))
    sign(folder)


def _held(told: Any) -> list[Any]:
    return [told["sent"], told["aggregated"], *(m["received"] for m in told["messages"])]


def _stored_anew(folder: Path, held: Any) -> None:
    data = (folder / held["file"]).read_bytes()
    held |= {"sha256": hashlib.sha256(data).hexdigest(), "bytes": len(data)}


def other_path(folder: Path, random: Random) -> None:
    path = random.choice(_rounds(folder))
    told = _load(path)
    names = [
        "../x.safetensors",
        "/etc/passwd",
        "..",
        "",
        "a" * 300,
        "a\0b",
        "round-00001-sent.safetensors/../x",
        "~",
        ".",
    ]
    random.choice(_held(told))["file"] = random.choice(names)
    _edited(folder, path, told)


def other_round_file(folder: Path, random: Random) -> None:
    manifest = _load(folder / "manifest.json")
    names = ["../round-00001-0000.json", "/dev/zero", "manifest.json", "round-00001-sent.safetensors", "round-9-9.json"]
    random.choice(manifest["rounds"])["file"] = random.choice(names)
    sign(folder, manifest)


def absurd_size(folder: Path, random: Random) -> None:
    path = random.choice(_rounds(folder))
    told = _load(path)
    held = random.choice(_held(told))
    if random.random() < 0.5:
        held["bytes"] = random.choice([-1, 2**40, 2**63, 10**30, 1.5, None, "9"])
    else:
        held["arrays"][0]["shape"] = random.choice([[2**40] * 3, [-1], [10**30], [1] * 50, [1.5], "3", None])
    _edited(folder, path, told)


def deep(folder: Path, random: Random) -> None:
    depth = random.choice([50, 5_000, 200_000])
    if random.random() < 0.5:
        (folder / "manifest.json").write_text('{"format": 2, "facts": ' + "[" * depth + "]" * depth + "}")
        return
    path = random.choice(_rounds(folder))
    text = path.read_text()
    _edited(folder, path, text.replace('"facts": {', '"facts": {"x-deep": ' + "[" * depth + "]" * depth + ", ", 1))


def other_type(folder: Path, random: Random) -> None:
    """A field that carries the structure holds something else."""
    path = random.choice(_rounds(folder))
    told = _load(path)
    message, held = random.choice(told["messages"]), random.choice(_held(told))
    place, key = random.choice(
        [
            (told, "index"),
            (told, "messages"),
            (message, "client"),
            (message, "facts"),
            (held, "sha256"),
            (held, "form"),
            (held, "arrays"),
            (held["arrays"][0], "name"),
            (held["arrays"][0], "dtype"),
        ]
    )
    place[key] = random.choice([None, -1, 1.5, True, {"a": 1}, [[]], "\ud800", "?" * 600])
    _edited(folder, path, told)


def other_fact(folder: Path, random: Random) -> None:
    path = random.choice(_rounds(folder))
    told = _load(path)
    facts = random.choice(told["messages"])["facts"]
    name, value = random.choice(
        [
            ("lr", -1),
            ("lr", "fast"),
            ("steps", 2.5),
            ("steps", True),
            ("examples", 0),
            ("examples", [5, 1]),
            ("loss", 3),
            ("unheard", 1),
            ("batch_norm", "both"),
            ("batch_sizes", []),
            ("defences", [{"nom": 1}]),
            ("x-a", "\ud800"),
        ]
    )
    facts[name] = {"read": value} if random.random() < 0.8 else {"guessed": value}
    _edited(folder, path, told)


def before_and_after_swapped(folder: Path, random: Random) -> None:
    path = random.choice(_rounds(folder))
    told = _load(path)
    one, other = folder / told["sent"]["file"], folder / told["aggregated"]["file"]
    first, second = one.read_bytes(), other.read_bytes()
    one.write_bytes(second)
    other.write_bytes(first)
    for held in (told["sent"], told["aggregated"]):
        _stored_anew(folder, held)
    _edited(folder, path, told)


def rounds_mixed(folder: Path, random: Random) -> None:
    """A file of one round in the place of the other's."""
    one, other = map(_load, _rounds(folder))
    place = random.randrange(len(_held(one)))
    source, target = _held(one)[place], _held(other)[place]
    if random.random() < 0.5:
        one, other, source, target = other, one, target, source
    (folder / target["file"]).write_bytes((folder / source["file"]).read_bytes())
    _stored_anew(folder, target)
    path = next(p for p in _rounds(folder) if _load(p)["index"] == other["index"])
    _edited(folder, path, other)


def round_renumbered(folder: Path, random: Random) -> None:
    manifest = _load(folder / "manifest.json")
    random.choice(manifest["rounds"])["index"] = random.choice([0, 3, 7, -1, 10**12])
    sign(folder, manifest)


def client_dropped(folder: Path, random: Random) -> None:
    path = random.choice(_rounds(folder))
    told = _load(path)
    del told["messages"][random.randrange(3)]
    _edited(folder, path, told)


def clients_exchanged(folder: Path, random: Random) -> None:
    """Each has sent what the other did."""
    path = random.choice(_rounds(folder))
    told = _load(path)
    one, other = (message["received"] for message in random.sample(told["messages"], 2))
    first, second = folder / one["file"], folder / other["file"]
    contents = first.read_bytes(), second.read_bytes()
    first.write_bytes(contents[1])
    second.write_bytes(contents[0])
    for held in (one, other):
        _stored_anew(folder, held)
    _edited(folder, path, told)


def examples_miscounted(folder: Path, random: Random) -> None:
    path = random.choice(_rounds(folder))
    told = _load(path)
    random.choice(told["messages"])["facts"]["examples"] = {"read": random.choice([9, 50, 1000])}
    _edited(folder, path, told)


def client_twice(folder: Path, random: Random) -> None:
    path = random.choice(_rounds(folder))
    told = _load(path)
    told["messages"].append(random.choice(told["messages"]))
    _edited(folder, path, told)


def stranger(folder: Path, random: Random) -> None:
    path = random.choice(_rounds(folder))
    told = _load(path)
    random.choice(told["messages"])["client"] = "somebody else"
    _edited(folder, path, told)


def header(folder: Path, random: Random) -> None:
    """A safetensors file whose head tells something else."""
    path = random.choice(_rounds(folder))
    told = _load(path)
    held = random.choice(_held(told))
    file = folder / held["file"]
    data = bytearray(file.read_bytes())
    length = struct.unpack("<Q", data[:8])[0]
    if random.random() < 0.3:
        data[:8] = struct.pack("<Q", random.choice([0, 1, length - 1, length + 1, 2**31, 2**63]))
    else:
        data[8 + random.randrange(length)] ^= 1 << random.randrange(8)
    file.write_bytes(data)
    _stored_anew(folder, held)
    _edited(folder, path, told)


def newer(folder: Path, random: Random) -> None:
    manifest = _load(folder / "manifest.json")
    manifest["format"] = random.choice([3, 99, 0, -2, "2", None, 2.0, 10**400])
    sign(folder, manifest)


def other_json(folder: Path, random: Random) -> None:
    text = random.choice(
        ["", "[]", "null", "{", '"x"', "NaN", '{"format": 2}', '{"format": 1}', "9" * 10_000, "\ufeff{}"]
    )
    random.choice([folder / "manifest.json", *_rounds(folder)]).write_text(text)
    if random.random() < 0.5 and (folder / "manifest.json").read_text() != text:
        sign(folder)


DAMAGE: tuple[Mutation, ...] = (
    bit_flip,
    cut_short,
    grown,
    noise,
    missing,
    exchanged,
    renamed,
    linked,
    no_file,
)
FORGERY: tuple[Mutation, ...] = (
    other_path,
    other_round_file,
    absurd_size,
    deep,
    other_type,
    other_fact,
    before_and_after_swapped,
    rounds_mixed,
    round_renumbered,
    client_dropped,
    clients_exchanged,
    examples_miscounted,
    client_twice,
    stranger,
    header,
    newer,
    other_json,
)
