"""Initialisations by the names that a plan or the command line uses."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from fedglass.core.errors import UsageError, unknown_name
from fedglass.models.init import (
    FromFile,
    Initialisation,
    KaimingNormal,
    KaimingUniform,
    LeCunTruncatedNormal,
    Orthogonal,
    PyTorchDefault,
    Uniform,
)
from fedglass.models.transfer import Transfer

DRAWN: dict[str, Initialisation] = {
    "default": PyTorchDefault(),
    "kaiming_uniform": KaimingUniform(),
    "kaiming_normal": KaimingNormal(),
    "lecun": LeCunTruncatedNormal(),
    "orthogonal": Orthogonal(),
    "uniform": Uniform(),
}
READ: dict[str, Callable[[str], Initialisation]] = {"file": FromFile, "transfer": Transfer}
"""From a safetensors file, as `file:PATH` and `transfer:PATH`."""


def by_name(text: str) -> Initialisation:
    """One of `names`; those that read a file have its path after a colon.

    >>> by_name("lecun"), by_name("file:resnet18.safetensors")
    (LeCunTruncatedNormal(), FromFile(path='resnet18.safetensors', digest=''))
    """
    kind, _, path = text.partition(":")
    if kind in READ:
        if not path:
            raise UsageError(f"init = {text!r} names no weights file: write {kind}:PATH, such as {kind}:w.safetensors.")
        return READ[kind](path)
    if text not in DRAWN:
        raise unknown_name("initialisation", text, names())
    return DRAWN[text]


def located(text: str, folder: Path) -> str:
    """The same initialisation with its file's path taken from that folder.

    >>> located("transfer:w.safetensors", Path("plans")), located("lecun", Path("plans"))
    ('transfer:plans/w.safetensors', 'lecun')
    """
    kind, _, path = text.partition(":")
    return f"{kind}:{folder / Path(path).expanduser()}" if kind in READ and path else text


def names() -> dict[str, str]:
    """Name and one-line description of every initialisation."""
    parts = {name: part.__doc__ for name, part in DRAWN.items()}
    parts |= {f"{name}:PATH": part.__doc__ for name, part in READ.items()}
    return {name: (words or "").splitlines()[0] for name, words in parts.items()}
