"""Damage to sound files: bytes of any of them, values of JSON, also with fresh digests, and the structure of plans.

Random bytes seldom get past the first check. A mutated sound file does, and a forger computes its digests anew.
"""

from __future__ import annotations

import hashlib
import json
import re
import struct
from collections.abc import Iterator
from copy import deepcopy
from pathlib import Path
from random import Random
from typing import Any

DEEP: Any = [[[[[[[[[[[[[[[[[[]]]]]]]]]]]]]]]]]]
HOSTILE: tuple[Any, ...] = (
    *(None, True, -1, 0, 1, 2, 255, 2**31, 2**63, 10**9, 10**400),
    *(-0.5, 0.5, 1e-300, 1e308, float("nan"), float("inf")),
    *("", "x", "x" * 3000, "../../escape", "/etc/passwd", "\0", "os:system", "é" * 50),
    *([], {}, [[]], [None], [-1], [10**9], {"name": "x"}, {"": 0}, [0.5] * 2000, DEEP),
)
NUMBERS = (b"0", b"-1", b"99999999999999999999", b"1e999", b"0x" + b"f" * 6000, b"nan", b"[]", b"'x'", b"true")
Place = tuple[Any, Any]
"""A list or a table, and a key of it."""


def mutated_bytes(data: bytes, random: Random) -> bytes:
    """Return the bytes with one to three kinds of damage."""
    raw = bytearray(data)
    for _ in range(random.choice((1, 1, 2, 3))):
        at = min(random.randrange(len(raw) + 1), random.choice((40, 400, len(raw))))
        match random.randrange(8):
            case 0:
                del raw[at:]
            case 1:
                raw[at : at + 1] = bytes([random.randrange(256)])
            case 2 if at < len(raw):
                raw[at] ^= 1 << random.randrange(8)
            case 3:
                raw[at : at + 4] = struct.pack(random.choice("<>") + "I", random.choice((0, 1, 2**31, 2**32 - 1)))
            case 4:
                raw[at : at + 8] = struct.pack(random.choice("<>") + "Q", random.choice((0, 2**31, 2**63, 2**64 - 1)))
            case 5:
                length, source = random.randrange(200), random.randrange(len(raw) + 1)
                raw[at:at] = raw[source : source + length] * random.choice((1, 1, 50))
            case 6:
                del raw[at : at + random.randrange(1, 100)]
            case 7:
                numbers = list(re.finditer(rb"-?\d+(\.\d+)?", raw))
                if numbers:
                    number = random.choice(numbers)
                    raw[number.start() : number.end()] = random.choice(NUMBERS)
    return bytes(raw)


def mutated_json(content: Any, random: Random) -> Any:
    """Return the content with some of its values replaced, exchanged, removed or given twice."""
    for _ in range(random.choice((1, 1, 2, 4))):
        places = list(_places(content))
        if not places:
            return deepcopy(random.choice(HOSTILE))
        inside, key = random.choice(places)
        match random.randrange(6):
            case 0 | 1 | 2:
                inside[key] = deepcopy(random.choice(HOSTILE))
            case 3:
                other, other_key = random.choice(places)
                inside[key] = deepcopy(other[other_key])
            case 4:
                del inside[key]
            case 5 if isinstance(inside, list):
                inside.append(deepcopy(inside[key]))
            case _ if isinstance(inside, dict):
                inside[random.choice(("x", "0", str(key)[:-1]))] = deepcopy(inside[key])
    return content


PARTS = ("a", "'a'", '"a"', r'"\""', "'\"'", "''", "é")
STARTS = ("", "", '# "\n', 't = """a""""\n', "t = '''a''''\n", 't = """')
"""What a reader of quotes may stumble over before a key."""


def mutated_toml(text: str, random: Random) -> str:
    """Return a plan with deep tables, long keys, huge integers or lines that are there twice."""
    lines = text.splitlines()
    for _ in range(random.choice((1, 1, 2, 4))):
        at, many = random.randrange(len(lines) + 1), random.choice((2, 19, 25, 300, 20_000))
        key = random.choice((".", " . ")).join([random.choice(PARTS)] * many)
        digits = random.choice(("9", "-9", "0x" + "f", "0b1", "1_0", "1e9", "0.")) + random.choice("019") * many
        match random.randrange(7):
            case 0:
                lines.insert(at, random.choice(STARTS) + random.choice((f"{key} = 1", f"a = {{{key} = 1}}")))
            case 1:
                lines.insert(at, random.choice((f"[{key}]", f"[[{key}]]", f"[federation.{key}]", f"[{key}")))
            case 2:
                lines.insert(at, "x = " + random.choice(("[", "{a=", "[{a=")) * many + "1")
            case 3:
                lines.insert(at, f"{random.choice(('seed', 'x', 'rounds'))} = {digits}")
            case 4:
                lines.insert(at, random.choice(lines))
            case 5:
                lines = [re.sub(r"-?\d+(\.\d+)?", digits, line) if i == at else line for i, line in enumerate(lines)]
            case 6:
                lines[at:] = [*lines[at:], *lines[at:]]
    return "\n".join(lines)


def _places(content: Any) -> Iterator[Place]:
    if isinstance(content, dict | list):
        for key in list(content) if isinstance(content, dict) else range(len(content)):
            yield content, key
            yield from _places(content[key])


def mutate(folder: Path, random: Random) -> None:
    """Damage one file of a folder; a JSON file in its values, mostly, and then with the digests that it should have."""
    files = sorted(path for path in folder.rglob("*") if path.is_file())
    path = random.choice(files)
    if path.suffix in (".json", ".jsonl") and random.random() < 0.8:
        lines = path.read_bytes().splitlines() if path.suffix == ".jsonl" else [path.read_bytes()]
        number = random.randrange(len(lines))
        lines[number] = json.dumps(mutated_json(json.loads(lines[number]), random)).encode()
        path.write_bytes(b"\n".join(lines) + b"\n")
    elif path.suffix == ".toml" and random.random() < 0.6:
        path.write_text(mutated_toml(path.read_text(), random))
    elif path.suffix == ".safetensors" and random.random() < 0.5:
        _mutate_header(path, random)
    else:
        path.write_bytes(mutated_bytes(path.read_bytes(), random))
    if random.random() < 0.8:
        sign(folder)


def _mutate_header(path: Path, random: Random) -> None:
    """Damage the JSON at the start of a safetensors file, with its length as it should be."""
    data = path.read_bytes()
    end = 8 + int.from_bytes(data[:8], "little")
    header = json.dumps(mutated_json(json.loads(data[8:end]), random)).encode()
    path.write_bytes(len(header).to_bytes(8, "little") + header + data[end:])


def sign(folder: Path) -> None:
    """Compute the digests of bundles, transcripts, truths and records anew."""
    try:
        for path in sorted(folder.glob("round-*.json")):
            _write(path, _with_digests(_read(path), folder))
        for name in ("manifest.json", "truth.json"):
            if (folder / name).is_file():
                content = _with_digests(_read(folder / name), folder)
                if name == "truth.json":
                    content["sha256"] = hashlib.sha256((folder / "truth.safetensors").read_bytes()).hexdigest()
                _write(folder / name, content)
                if name == "manifest.json" and "sha256" in content:
                    text = json.dumps({**content, "sha256": "0" * 64})
                    signed = hashlib.sha256(text.encode()).hexdigest()
                    (folder / name).write_text(text.replace("0" * 64, signed, 1))
        for path in folder.glob("*.jsonl"):
            path.write_bytes(b"".join(map(_signed_record, path.read_bytes().splitlines())))
    except (ValueError, TypeError, KeyError, AttributeError, OSError, RecursionError):
        return  # what cannot be signed is damaged enough


def _read(path: Path) -> Any:
    return json.loads(path.read_bytes())


def _write(path: Path, content: Any) -> None:
    path.write_text(json.dumps(content))


def _with_digests(content: Any, folder: Path) -> Any:
    """Return the content with digest and length of every file that it names."""
    for inside, key in _places(content):
        if key == "file" and isinstance(inside[key], str) and (folder / Path(inside[key]).name).is_file():
            data = (folder / Path(inside[key]).name).read_bytes()
            inside["sha256"] = hashlib.sha256(data).hexdigest()
            if "bytes" in inside:
                inside["bytes"] = len(data)
    return content


def _signed_record(line: bytes) -> bytes:
    try:
        content = json.loads(line)
        content.pop("digest", None)
    except (ValueError, AttributeError, TypeError, RecursionError):
        return line + b"\n"
    content["digest"] = hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()
    return json.dumps(content).encode() + b"\n"
