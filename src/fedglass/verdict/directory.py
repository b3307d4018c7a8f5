"""The folder of an audit: `records.jsonl` is the source of truth, and everything else is derived from it.

One plan owns a folder (`claim`), and one process at a time works in it (`alone`). Records are appended one by one
(`RecordFile`); reconstructions and pictures of a case lie next to them (`Evidence`).
"""

from __future__ import annotations

import contextlib
import errno
import hashlib
import io
import json
import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray
from PIL import Image
from pydantic import ValidationError
from safetensors.numpy import save

from fedglass.core.errors import AuditError, UsageError
from fedglass.core.files import locked, make_folder, read_file, write_atomic
from fedglass.verdict.records import SCHEMA, Picture, Record

PLAN, CLAIM, RECORDS, LOCK = "plan.toml", "audit.json", "records.jsonl", ".lock"
SUMMARY, REPORT, PICTURES, RECONSTRUCTIONS = "summary.json", "report.html", "pictures", "reconstructions"
MOST_BYTES = 2**32
"""Of a file in an audit directory: larger ones are not read."""
IN_A_STRIP, GAP = 16, 2
"""Images, as in SME's figures, and the white pixels between them."""
Array = NDArray[Any]


@dataclass(frozen=True)
class RecordFile:
    """An append-only file of records that survives being killed at any moment."""

    path: Path

    def append(self, record: Record) -> None:
        """Add one record: a single write of a full line, on disk when this returns."""
        try:
            with locked(self.path) as fd:  # workers may share the file
                _repair_tail(fd)
                _write_all(fd, record.line())
        except OSError as error:
            raise AuditError(
                f"Cannot write {self.path}: {error.strerror}; make room or fix permissions, then run the "
                "same command again: it continues where it stopped."
            ) from error

    def read(self) -> list[Record]:
        """The latest record of every case, in the order in which the cases first appeared."""
        return list({record.key: record for record in self.history()}.values())

    def history(self) -> list[Record]:
        """Every record, a failed one before its repetition too; a torn last line is left out."""
        try:
            data = read_file(self.path, MOST_BYTES)
        except FileNotFoundError:
            return []
        except OSError as error:
            raise AuditError(f"Cannot read {self.path}: {error.strerror}; fix its permissions.") from error
        *lines, tail = data.split(b"\n")
        records = [self._parse(line, number) for number, line in enumerate(lines, 1)]
        return [*records, Record.model_validate_json(tail)] if _whole(tail) else records

    def keys_done(self) -> set[str]:
        """The cases that need not run again."""
        return {record.key for record in self.read() if record.status == "done"}

    def _parse(self, line: bytes, number: int) -> Record:
        try:
            return Record.model_validate_json(line)
        except ValidationError as error:
            refuse_other_version(self.path.parent, version_in(line))
            first = error.errors(include_url=False, include_input=False)[0]
            where = ".".join(map(str, first["loc"])) or "line"
            raise AuditError(
                f"{self.path} line {number} is not a record ({where}: {first['msg']}): delete that line to "
                "run its case again, or restore the file; if a newer fedglass wrote it, use that version."
            ) from error


def claim(directory: Path, digest: str) -> None:
    """Make the directory this plan's own, or say that it is another's or can not be written."""
    try:
        make_folder(directory)
        _check_owner(directory, digest)
        # Written even where it is already ours: that is how we learn that we may write.
        write_atomic(directory / CLAIM, json.dumps({"schema_version": SCHEMA, "plan_digest": digest}) + "\n")
    except OSError as error:
        raise unwritable(directory, error) from error


def unwritable(directory: Path, error: OSError) -> UsageError:
    """What to say of an output directory that can not be made or written."""
    return UsageError(
        f"Cannot write to the output directory {directory}: {error.strerror}; choose another one with -o."
    )


def claimed_digest(directory: Path) -> str | None:
    """The digest of the plan that owns the directory, or None where none does.

    >>> claimed_digest(Path("no-such-directory")) is None
    True
    """
    path = directory / CLAIM
    try:
        content = json.loads(read_file(path, MOST_BYTES))
    except FileNotFoundError:
        return None
    except OSError as error:
        raise UsageError(f"Cannot read {path}: {error.strerror}; choose another directory.") from error
    except (ValueError, RecursionError):
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
            f"Another version of fedglass wrote {directory} (schema {version}, this one writes {SCHEMA}): choose "
            "another directory with -o. Its files stay as they are."
        )


def version_in(line: bytes) -> object:
    """Return the schema version that a line of JSON states, or None."""
    try:
        content = json.loads(line)
    except (ValueError, RecursionError):
        return None
    return content.get("schema_version") if isinstance(content, dict) else None


def _check_owner(directory: Path, digest: str) -> None:
    held = claimed_digest(directory)
    if held is None and (directory / RECORDS).exists():
        raise UsageError(
            f"The output directory {directory} holds {RECORDS} but no {CLAIM}, so it can not be told whose "
            "records they are: choose another directory with -o, or move them away."
        )
    if held is not None and held != digest:
        raise UsageError(
            f"The output directory {directory} holds another plan's records, or this one's by another version of "
            f"fedglass (plan digest {held[:12]}, this plan is {digest[:12]}): choose another directory with -o, or "
            "delete it to start over."
        )


def _write_all(fd: int, line: bytes) -> None:
    end = os.fstat(fd).st_size
    if os.write(fd, line) != len(line):
        os.ftruncate(fd, end)  # a full disk takes a part of the line: leave none of it
        raise OSError(errno.ENOSPC, "no space left for a whole record")
    os.fsync(fd)


def _repair_tail(fd: int) -> None:
    """End the last line if it is whole, cut it off if a kill tore it."""
    size = os.fstat(fd).st_size
    tail = b""
    while len(tail) < size and b"\n" not in tail:
        step = min(size - len(tail), 1 << 16)
        os.lseek(fd, size - len(tail) - step, os.SEEK_SET)
        tail = os.read(fd, step) + tail
    tail = tail.rpartition(b"\n")[2]
    if _whole(tail):
        _write_all(fd, b"\n")
    elif tail:
        os.ftruncate(fd, size - len(tail))


def _whole(tail: bytes) -> bool:
    """Whether text without its newline is nevertheless a complete record."""
    try:
        Record.model_validate_json(tail)
    except ValidationError:
        return False
    return True


@contextlib.contextmanager
def alone(directory: Path) -> Iterator[None]:
    """Make the directory and hold it, or say that another process does.

    The system lets go of the lock when its process ends, however that happens: the file itself means nothing.
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


class Evidence(Protocol):
    """What a case leaves to look at."""

    def save(self, directory: Path, record: Record) -> Record:
        """Write it, and return the record that points at it."""
        ...


@dataclass(frozen=True, eq=False)
class Reconstructed:
    """Every reconstructed image beside its original; pixels in [0, 1]."""

    found: Array  # (m, c, h, w): as the attack returned them
    found_labels: Array  # (m,)
    shown: Array  # (n, c, h, w): as scored, in the order of the originals
    originals: Array | None = None  # (n, c, h, w)
    labels: tuple[str, ...] = ()
    """The true classes in words or digits."""
    raw: Array | None = None  # (n, c, h, w): as `shown`, before the images were refined; None where nothing was
    found_raw: Array | None = None  # (m, c, h, w): as `found`, before the images were refined
    film: Array | None = None  # (epochs, n, c, h, w): `shown` on the way of its refinement
    film_captions: tuple[str, ...] = ()

    def save(self, directory: Path, record: Record) -> Record:
        tensors = {"images": self.found, "labels": self.found_labels, "raw": self.found_raw}
        held = {name: np.ascontiguousarray(array) for name, array in tensors.items() if array is not None}
        write_bytes(directory, f"{RECONSTRUCTIONS}/{record.key}.safetensors", save(held))
        shown = [store_picture(directory, f"{record.key}_{i}.png", image) for i, image in enumerate(self.shown)]
        before = [] if self.raw is None else list(self.raw)
        raw = [store_picture(directory, f"{record.key}_{i}_raw.png", image) for i, image in enumerate(before)]
        frames = [] if self.film is None else list(self.film.swapaxes(0, 1))  # (epochs, c, h, w) each
        films = [store_picture(directory, f"{record.key}_{i}_film.png", strip(each)) for i, each in enumerate(frames)]
        if self.originals is None:
            told = {"pictures": shown, "pictures_raw": raw, "films": films, "film_captions": list(self.film_captions)}
            return record.model_copy(update={"extra": {**record.extra, **{k: v for k, v in told.items() if v}}})
        scores = {name: record.metrics.get(name, []) for name in ("psnr", "ssim")}
        pictures = [
            Picture(
                original=_original(directory, original),
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
        return record.model_copy(update={"pictures": pictures})


@dataclass(frozen=True, eq=False)
class Strips:
    """Originals and what was made of them as rows of small pictures, to be laid under each other."""

    originals: Array  # (n, c, h, w)
    shown: Array  # (n, c, h, w), in the order of the originals
    by_epoch: Array | None = None  # (epochs, n, c, h, w), in the order of the originals

    def save(self, directory: Path, record: Record) -> Record:
        def store(name: str, images: Array) -> str:
            return store_picture(directory, f"{record.key}-{name}.png", strip(images))

        places: dict[str, Any] = {
            "original": store("original", self.originals),
            "reconstruction": store("reconstruction", self.shown),
        }
        if self.by_epoch is not None:
            places["epochs"] = [store(f"epoch{i}", epoch) for i, epoch in enumerate(self.by_epoch, 1)]
        return record.model_copy(update={"extra": {**record.extra, "strips": places}})


def strip(images: Array) -> Array:
    """The first images side by side on white.  # (n, c, h, w) -> (c, h, min(n, 16) * (w + gap) - gap)

    >>> strip(np.zeros((3, 1, 4, 4))).shape
    (1, 4, 16)
    """
    gap = np.ones((*images.shape[1:3], GAP))
    parts = [piece for image in images[:IN_A_STRIP] for piece in (gap, image)]
    return np.concatenate(parts[1:], axis=-1)


def png(image: Array) -> bytes:
    """The picture of one image; broken pixels are shown as mid-grey.  # (c, h, w), pixels in [0, 1]

    >>> png(np.zeros((1, 2, 2)))[:4]
    b'\\x89PNG'
    """
    rgb = image if image.shape[0] == 3 else image[:1]
    finite = np.nan_to_num(rgb.astype(np.float64), nan=0.5)
    pixels = np.rint(finite.clip(0, 1) * 255).astype(np.uint8)
    buffer = io.BytesIO()
    Image.fromarray(pixels.transpose(1, 2, 0) if len(pixels) == 3 else pixels[0]).save(buffer, format="PNG")
    return buffer.getvalue()


def _original(directory: Path, image: Array) -> str:
    """Named by its content, so that the same original is kept once."""
    name = f"original_{hashlib.sha256(png(image)).hexdigest()[:20]}.png"
    return store_picture(directory, name, image)


def store_picture(directory: Path, name: str, image: Array) -> str:
    """Write one picture; its path relative to the directory."""
    return write_bytes(directory, f"{PICTURES}/{name}", png(image))


def write_bytes(directory: Path, name: str, data: bytes) -> str:
    """Write a file of an output directory, whose name may lead into its subfolders, and return that name."""
    try:
        make_folder(directory)
        write_atomic(directory / name, data, within=directory)
    except OSError as error:
        raise AuditError(
            f"Cannot write {directory / name}: {error.strerror}; make room or fix permissions, then run the same "
            "command again: it continues where it stopped."
        ) from error
    return name
