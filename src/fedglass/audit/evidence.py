"""The images of a case on disk: reconstructions as safetensors, and pairs of pictures to look at."""

from __future__ import annotations

import hashlib
import io
from pathlib import Path

import torch
from PIL import Image
from safetensors.torch import save
from torch import Tensor

from fedglass.audit.play import Outcome
from fedglass.audit.records import PICTURES, Picture, Record, write_atomic
from fedglass.core.errors import AuditError

RECONSTRUCTIONS = "reconstructions"


def save_outcome(directory: Path, outcome: Outcome) -> Record:
    """Write the images, and return the record that points at them."""
    found, record = outcome.reconstruction, outcome.record
    if found is None or outcome.shown is None:
        return record
    tensors = {"images": found.images.detach().cpu().contiguous(), "labels": found.labels.detach().cpu()}
    write_bytes(directory / RECONSTRUCTIONS / f"{record.key}.safetensors", save(tensors))
    shown = [_picture(directory, f"{record.key}_{i}", image) for i, image in enumerate(outcome.shown)]
    if outcome.originals is None:
        return record.model_copy(update={"extra": {**record.extra, "pictures": shown}})
    truth = [_original(directory, image) for image in outcome.originals]
    scores = {name: record.metrics.get(name, []) for name in ("psnr", "ssim")}
    pictures = [
        Picture(
            original=truth[i],
            reconstruction=shown[i],
            label=outcome.labels[i],
            psnr=scores["psnr"][i] if scores["psnr"] else None,
            ssim=scores["ssim"][i] if scores["ssim"] else None,
        )
        for i in range(len(truth))
    ]
    return record.model_copy(update={"pictures": pictures})


def png(image: Tensor) -> bytes:
    """The picture of one image; broken pixels are shown as mid-grey.  # (c, h, w), pixels in [0, 1]

    >>> png(torch.zeros(1, 2, 2))[:4]
    b'\\x89PNG'
    """
    channels = image.shape[0]
    rgb = image if channels == 3 else image[:1]
    pixels = torch.nan_to_num(rgb.double(), nan=0.5).clamp(0, 1).mul(255).round().to(torch.uint8)
    array = pixels.permute(1, 2, 0).numpy() if channels == 3 else pixels[0].numpy()
    buffer = io.BytesIO()
    Image.fromarray(array).save(buffer, format="PNG")
    return buffer.getvalue()


def _original(directory: Path, image: Tensor) -> str:
    """Named by its content, so that the same original is kept once."""
    data = png(image)
    return _store(directory, f"original_{hashlib.sha256(data).hexdigest()[:20]}.png", data)


def _picture(directory: Path, name: str, image: Tensor) -> str:
    return _store(directory, f"{name}.png", png(image))


def _store(directory: Path, name: str, data: bytes) -> str:
    write_bytes(directory / PICTURES / name, data)
    return f"{PICTURES}/{name}"


def write_bytes(path: Path, data: bytes) -> None:
    """`write_atomic` into a folder that is made where needed, with words for whoever's disk is full."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        write_atomic(path, data)
    except OSError as error:
        raise AuditError(
            f"Cannot write {path}: {error.strerror}; make room or fix permissions, then run the same command "
            "again: it continues where it stopped."
        ) from error
