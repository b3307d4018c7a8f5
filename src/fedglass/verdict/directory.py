"""The folder of an audit: `records.jsonl` is the source of truth, and everything else is derived from it.

One plan owns a folder (`claim`), and one process at a time works in it (`alone`). Records are appended one by one
(`RecordFile`); reconstructions and pictures of a case lie next to them (`Evidence`).
"""

from __future__ import annotations

import contextlib
import errno
import hashlib
import io
import itertools
import json
import os
from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from PIL import Image
from pydantic import ValidationError
from safetensors.numpy import save

from fedglass.core.errors import AuditError, DataError, UsageError
from fedglass.core.files import (
    RefusedFile,
    check_json_size,
    json_size,
    locked,
    make_folder,
    open_file,
    parse_json,
    read_file,
    write_atomic,
)
from fedglass.verdict.records import SCHEMA, Picture, Record, is_unchanged

PLAN, CLAIM, RECORDS, LOCK = "plan.toml", "audit.json", "records.jsonl", ".lock"
SUMMARY, REPORT, PICTURES, RECONSTRUCTIONS = "summary.json", "report.html", "pictures", "reconstructions"
MOST_BYTES = 2**26
"""Of `audit.json` and `summary.json`: larger ones are not read."""
MOST_RECORD_BYTES, LONGEST_RECORD, MOST_RECORDS = 2**29, 2**25, 100_000
"""Of `records.jsonl`: its bytes, those of one line, and its lines. All in memory stay below 4 GiB."""
IN_A_STRIP, GAP = 16, 2
"""Images in a strip, as in SME's figures, and the white pixels between them."""
MOST_FILE_BYTES = 2**31 + 2**20
"""Of a file of reconstructions, raw and refined, and of a picture."""
_SPLIT = "Restore the file, or audit into several directories with -o."
Array = NDArray[Any]


@dataclass(frozen=True)
class RecordFile:
    """An append-only file of records that survives being killed at any moment."""

    path: Path

    def append(self, record: Record) -> None:
        """Append one record with a single write; it is on disk when this returns."""
        try:
            with locked(self.path) as fd:  # workers may share the file
                _repair_tail(fd)
                _write_all(fd, record.line())
        except OSError as error:
            raise _not_written(self.path, error) from error

    def read(self) -> list[Record]:
        """Return the latest record of every case, in the order in which the cases first appeared."""
        return list({record.key: record for record in self.history()}.values())

    def history(self) -> list[Record]:
        """Return every record, also a failed one before its repetition, but no changed one and not a torn last line."""
        return [record for record, unchanged in self._entries() if unchanged]

    def changed(self) -> list[Record]:
        """Return the records that no longer are what was written, or have a file that is not."""
        latest = {record.key: (record, unchanged) for record, unchanged in self._entries()}
        return [record for record, unchanged in latest.values() if not unchanged]

    def missing(self) -> list[str]:
        """Return the files of the records that are not there any more."""
        names = dict.fromkeys(name for record in self.read() for name in _digests(record))
        return [name for name in names if not (self.path.parent / name).exists()]

    def _entries(self) -> list[tuple[Record, bool]]:
        """Return every record, and whether it and its files are as they were written."""
        entries, values, containers = list[tuple[Record, bool]](), 0, 0
        for number, line in enumerate(self._lines(), 1):
            more_values, more_containers = json_size(line)
            values, containers = values + more_values, containers + more_containers
            try:
                check_json_size(values, containers)
            except ValueError as error:
                raise DataError(f"{self.path} cannot be read: {error}. {_SPLIT}") from None
            if number > MOST_RECORDS:
                raise DataError(f"{self.path} cannot be read: it has more than {MOST_RECORDS:,} lines. {_SPLIT}")
            if line.endswith(b"\n") or _is_complete(line):
                record = self._parse(line, number)
                files = _digests(record).items()  # one that was deleted shows nothing wrong
                entries.append((record, is_unchanged(line) and all(self._is_as_written(*file) for file in files)))
        return entries

    def _lines(self) -> Iterator[bytes]:
        """Yield one line after another, the last one perhaps torn; nothing longer than a record is read."""
        try:
            with open_file(self.path, limit=MOST_RECORD_BYTES) as file:
                for number in itertools.count(1):
                    line = file.readline(LONGEST_RECORD + 1)
                    if len(line) > LONGEST_RECORD:
                        raise DataError(
                            f"{self.path} line {number} is not a record (more than {LONGEST_RECORD} bytes): delete "
                            "that line to run its case again, or restore the file."
                        )
                    if not line:
                        return
                    yield line
        except (FileNotFoundError, NotADirectoryError):
            return
        except RefusedFile as error:
            raise AuditError(f"Cannot read {self.path}: {error.strerror}. {_SPLIT}") from error
        except OSError as error:
            raise AuditError(f"Cannot read {self.path}: {error.strerror}; fix its permissions.") from error

    def _is_as_written(self, name: str, digest: str) -> bool:
        try:
            with open_file(self.path.parent / name, within=self.path.parent, limit=MOST_FILE_BYTES) as file:
                return hashlib.file_digest(file, "sha256").hexdigest() == digest
        except FileNotFoundError:
            return True
        except OSError:
            return False

    def _parse(self, line: bytes, number: int) -> Record:
        try:
            return Record.model_validate_json(line)
        except ValidationError as error:
            refuse_other_version(self.path.parent, version_in(line))
            first = error.errors(include_url=False, include_input=False)[0]
            where = ".".join(map(str, first["loc"])) or "line"
            raise DataError(
                f"{self.path} line {number} is not a record ({where}: {first['msg']}): delete that line to "
                "run its case again, or restore the file; if a newer fedglass wrote it, use that version."
            ) from error


def _digests(record: Record) -> dict[str, str]:
    """Return the files of a record with their SHA-256."""
    tensors = f"{RECONSTRUCTIONS}/{record.key}.safetensors"
    return {**({tensors: record.reconstructions} if record.reconstructions else {}), **record.picture_files}


def claim(directory: Path, digest: str) -> None:
    """Make this plan the owner of the directory; refuse one of another plan, or one that cannot be written."""
    try:
        make_folder(directory)
        owner = claimed_digest(directory)
        if owner is None and (directory / RECORDS).exists():
            raise UsageError(
                f"The output directory {directory} holds {RECORDS} but no {CLAIM}, so the plan of these records is "
                "unknown: choose another directory with -o, or move them away."
            )
        if owner is not None and owner != digest:
            raise UsageError(
                f"The output directory {directory} holds another plan's records, or this one's by another version of "
                f"fedglass (plan digest {owner[:12]}, this plan is {digest[:12]}): choose another directory with -o, "
                "or delete it to start over."
            )
        # Written even if it is already ours: this tests that we may write.
        write_atomic(directory / CLAIM, json.dumps({"schema_version": SCHEMA, "plan_digest": digest}) + "\n")
    except OSError as error:
        raise unwritable(directory, error) from error


def unwritable(directory: Path, error: OSError) -> UsageError:
    """Return the error for an output directory that cannot be created or written."""
    return UsageError(
        f"Cannot write to the output directory {directory}: {error.strerror}; choose another one with -o."
    )


def claimed_digest(directory: Path) -> str | None:
    """Return the digest of the plan that owns the directory, or None if no plan does.

    >>> claimed_digest(Path("no-such-directory")) is None
    True
    """
    path = directory / CLAIM
    try:
        content = parse_json(read_file(path, MOST_BYTES))
    except FileNotFoundError:
        return None
    except OSError as error:
        raise UsageError(f"Cannot read {path}: {error.strerror}; choose another directory.") from error
    except ValueError:
        content = None
    digest = content.get("plan_digest") if isinstance(content, dict) else None
    if isinstance(content, dict):
        refuse_other_version(directory, content.get("schema_version"))
    if not isinstance(digest, str):
        raise UsageError(f"{path} is damaged (expected an object with plan_digest): choose another directory.")
    return digest


def refuse_other_version(directory: Path, version: object) -> None:
    """Refuse an output directory whose files another version of fedglass wrote."""
    if isinstance(version, int) and version != SCHEMA:
        raise UsageError(
            f"{directory} was written by another version of fedglass (record schema {version}, expected {SCHEMA}): "
            "audit into another directory, or read it with that version; its files stay as they are."
        )


def version_in(line: bytes) -> object:
    """Return the schema version that a line of JSON states, or None."""
    try:
        content = parse_json(line)
    except ValueError:
        return None
    return content.get("schema_version") if isinstance(content, dict) else None


def _write_all(fd: int, line: bytes) -> None:
    end = os.fstat(fd).st_size
    if os.write(fd, line) != len(line):
        os.ftruncate(fd, end)  # a full disk takes a part of the line: leave none of it
        raise OSError(errno.ENOSPC, "no space left for a complete record")
    os.fsync(fd)


def _repair_tail(fd: int) -> None:
    """Finish the last line if it is a complete record; remove it if a kill tore it."""
    size = os.fstat(fd).st_size
    tail = b""
    while len(tail) < size and b"\n" not in tail:
        step = min(size - len(tail), 1 << 16)
        os.lseek(fd, size - len(tail) - step, os.SEEK_SET)
        tail = os.read(fd, step) + tail
    tail = tail.rpartition(b"\n")[2]
    if _is_complete(tail):
        _write_all(fd, b"\n")
    elif tail:
        os.ftruncate(fd, size - len(tail))


def _is_complete(tail: bytes) -> bool:
    """Return whether a last line without its newline is a complete record."""
    try:
        Record.model_validate_json(tail)
    except ValidationError:
        return False
    return True


@contextlib.contextmanager
def alone(directory: Path) -> Iterator[None]:
    """Create the directory and lock it, or refuse if another process has the lock.

    The operating system releases the lock when the process ends. The file itself means nothing.
    """
    with contextlib.ExitStack() as stack:
        try:
            make_folder(directory)
            stack.enter_context(locked(directory / LOCK, wait=False))
        except BlockingIOError as error:
            raise UsageError(
                f"Another command is running in the output directory {directory}: wait until it has ended, or choose "
                "another directory with -o."
            ) from error
        except OSError as error:
            raise unwritable(directory, error) from error
        yield


@dataclass(frozen=True, eq=False)
class Reconstructed:
    """The reconstructions of a case with their originals; pixels in [0, 1]."""

    images: Array  # (m, c, h, w): as the attack returned them
    recovered_labels: Array  # (m,)
    shown: Array  # (n, c, h, w): as scored, in the order of the originals
    originals: Array | None = None  # (n, c, h, w)
    labels: tuple[str, ...] = ()
    """The names or numbers of the true classes."""
    raw: Array | None = None  # (n, c, h, w): as `shown`, before the refinement; None without one
    images_raw: Array | None = None  # (m, c, h, w): as `images`, before the refinement
    film: Array | None = None  # (epochs, n, c, h, w): `shown` during its refinement
    film_captions: tuple[str, ...] = ()

    def save(self, directory: Path, record: Record) -> Record:
        """Write the files, and return the record with their paths."""
        tensors = {"images": self.images, "labels": self.recovered_labels, "raw": self.images_raw}
        stored = {name: np.ascontiguousarray(array) for name, array in tensors.items() if array is not None}
        data = save(stored)
        write_bytes(directory, f"{RECONSTRUCTIONS}/{record.key}.safetensors", data)
        record = record.model_copy(update={"reconstructions": hashlib.sha256(data).hexdigest()})
        digests: dict[str, str] = {}
        store = partial(_store, directory, digests)
        shown = [store(f"{record.key}_{i}.png", image) for i, image in enumerate(self.shown)]
        before = [] if self.raw is None else list(self.raw)
        raw = [store(f"{record.key}_{i}_raw.png", image) for i, image in enumerate(before)]
        frames = [] if self.film is None else list(self.film.swapaxes(0, 1))  # (epochs, c, h, w) each
        films = [store(f"{record.key}_{i}_film.png", strip(film)) for i, film in enumerate(frames)]
        if self.originals is None:
            paths = {"pictures": shown, "pictures_raw": raw, "films": films, "film_captions": list(self.film_captions)}
            extra = {**record.extra, **{k: v for k, v in paths.items() if v}}
            return record.model_copy(update={"extra": extra, "picture_files": digests})
        scores = {name: record.metrics.get(name, []) for name in ("psnr", "ssim")}
        pictures = [  # an original is stored under a hash of its content, once
            Picture(
                original=store(f"original_{hashlib.sha256(png(original)).hexdigest()[:20]}.png", original),
                reconstruction=shown[i],
                raw=raw[i] if raw else None,
                film=films[i] if films else None,
                film_caption=self.film_captions[i] if films else "",
                label=self.labels[i],
                psnr=scores["psnr"][i] if scores["psnr"] else None,
                ssim=scores["ssim"][i] if scores["ssim"] else None,
            )
            for i, original in enumerate(self.originals)
        ]
        return record.model_copy(update={"pictures": pictures, "picture_files": digests})


@dataclass(frozen=True, eq=False)
class Strips:
    """Originals and reconstructions as rows of small pictures, one row under the other."""

    originals: Array  # (n, c, h, w)
    shown: Array  # (n, c, h, w), in the order of the originals
    by_epoch: Array | None = None  # (epochs, n, c, h, w), in the order of the originals

    def save(self, directory: Path, record: Record) -> Record:
        digests: dict[str, str] = {}

        def store(name: str, images: Array) -> str:
            return _store(directory, digests, f"{record.key}-{name}.png", strip(images))

        places: dict[str, Any] = {
            "original": store("original", self.originals),
            "reconstruction": store("reconstruction", self.shown),
        }
        if self.by_epoch is not None:
            places["epochs"] = [store(f"epoch{i}", epoch) for i, epoch in enumerate(self.by_epoch, 1)]
        extra = {**record.extra, "strips": places}
        return record.model_copy(update={"extra": extra, "picture_files": digests})


Evidence = Reconstructed | Strips
"""The pictures and tensors of one case."""


def strip(images: Array) -> Array:
    """Return the first images side by side on white.  # (n, c, h, w) -> (c, h, min(n, 16) * (w + gap) - gap)

    >>> strip(np.zeros((3, 1, 4, 4))).shape
    (1, 4, 16)
    """
    gap = np.ones((*images.shape[1:3], GAP))
    parts = [piece for image in images[:IN_A_STRIP] for piece in (gap, image)]
    return np.concatenate(parts[1:], axis=-1)


def png(image: Array) -> bytes:
    """Return one image as PNG; non-finite pixels become mid-grey.  # (c, h, w), pixels in [0, 1]

    >>> png(np.zeros((1, 2, 2)))[:4]
    b'\\x89PNG'
    """
    rgb = image if image.shape[0] == 3 else image[:1]
    finite = np.nan_to_num(rgb.astype(np.float64), nan=0.5)
    pixels = np.rint(finite.clip(0, 1) * 255).astype(np.uint8)
    buffer = io.BytesIO()
    Image.fromarray(pixels.transpose(1, 2, 0) if len(pixels) == 3 else pixels[0]).save(buffer, format="PNG")
    return buffer.getvalue()


def _store(directory: Path, digests: dict[str, str], name: str, image: Array) -> str:
    """Write one picture, note its SHA-256, and return its path relative to the directory; no figure depends on it."""
    data = png(image)
    path = write_bytes(directory, f"{PICTURES}/{name}", data, durable=False)
    digests[path] = hashlib.sha256(data).hexdigest()
    return path


def write_bytes(directory: Path, name: str, data: bytes, *, durable: bool = True) -> str:
    """Write a file into an output directory or one of its subfolders, and return its name."""
    try:
        make_folder(directory)
        write_atomic(directory / name, data, within=directory, durable=durable)
    except OSError as error:
        raise _not_written(directory / name, error) from error
    return name


def _not_written(path: Path, error: OSError) -> AuditError:
    return AuditError(
        f"Cannot write {path}: {error.strerror}; make room or fix permissions, then run the same command again: it "
        "continues where it stopped."
    )
