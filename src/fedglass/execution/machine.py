"""The machine as records describe it: versions, devices, threads and memory."""

from __future__ import annotations

import contextlib
import ctypes
import gc
import platform
import sys
from collections.abc import Iterator
from pathlib import Path

import torch

from fedglass import __version__
from fedglass.core.errors import UsageError

DEVICES = ("auto", "cpu", "cuda", "cuda:N", "mps")


def device_named(name: str) -> torch.device:
    """Return the device of that name; `auto` is CUDA or MPS where present, and the CPU otherwise.

    >>> device_named("cpu")
    device(type='cpu')
    """
    cuda_devices = torch.cuda.device_count() if torch.cuda.is_available() else 0
    count_by_kind = {"cuda": cuda_devices, "mps": int(torch.backends.mps.is_available()), "cpu": 1}
    if name == "auto":
        return torch.device(next(kind for kind, count in count_by_kind.items() if count))
    kind, numbered, number = name.partition(":")
    if kind not in count_by_kind or (numbered and not (kind == "cuda" and number.isascii() and number.isdecimal())):
        raise UsageError(f"device must be one of {', '.join(DEVICES)}, got {name!r}.")
    if int(number or 0) >= count_by_kind[kind]:
        raise UsageError(f"device {name!r} was asked for, but torch finds none here: choose auto or cpu.")
    return torch.device(name)


def versions(device: torch.device) -> dict[str, str]:
    """Return the versions and settings that bit-identical records depend on, in addition to the plan."""
    return {
        "fedglass": __version__,
        "torch": torch.__version__,
        "python": platform.python_version(),
        "platform": f"{sys.platform}-{platform.machine()}",
        "device": device.type,
        "threads": str(torch.get_num_threads()),
    }


def use_worker_arithmetic() -> None:
    """Set up the arithmetic of a process that only runs jobs: one thread, full precision.

    A GPU then computes in single precision, not in TF32, which keeps 10 bits: replays compare all 24.
    """
    torch.set_num_threads(1)
    torch.backends.cuda.matmul.allow_tf32 = False
    torch.backends.cudnn.allow_tf32 = False


@contextlib.contextmanager
def repeatable_arithmetic() -> Iterator[None]:
    """Limit torch to one thread and full precision inside the context: sums then have one order on every machine."""
    threads = torch.get_num_threads()
    flags = torch.backends.cuda.matmul.allow_tf32, torch.backends.cudnn.allow_tf32
    use_worker_arithmetic()
    try:
        yield
    finally:
        torch.set_num_threads(threads)
        torch.backends.cuda.matmul.allow_tf32, torch.backends.cudnn.allow_tf32 = flags


def return_memory() -> None:
    """Give freed memory back to the system, where that is possible: the next peak is then that of one case alone."""
    gc.collect()
    with contextlib.suppress(OSError, AttributeError):
        ctypes.CDLL(None).malloc_trim(0)


def reset_peak() -> None:
    """Forget the highest memory use so far, where the system can."""
    with contextlib.suppress(OSError):
        Path("/proc/self/clear_refs").write_text("5")


def peak_mib() -> float | None:
    """Return the highest resident memory since `reset_peak` in MiB, or None where the system does not say."""
    with contextlib.suppress(OSError):
        for line in Path("/proc/self/status").read_text().splitlines():
            if line.startswith("VmHWM:"):
                return int(line.split()[1]) / 1024
    return None
