"""Initialisations by the names that a plan or the command line uses."""

from __future__ import annotations

from pathlib import Path

from fedglass.core.errors import UsageError
from fedglass.core.paths import located_at, names_path, split_path
from fedglass.core.registry import entries, make
from fedglass.models.init import Initialisation

KIND = "initialisations"


def by_name(text: str) -> Initialisation:
    """One of `names`; those that read a file have its path after a colon.

    >>> by_name("lecun"), by_name("file:resnet18.safetensors")
    (LeCunTruncatedNormal(), FromFile(path='resnet18.safetensors', digest=''))
    """
    name, path = split_path(KIND, text)
    if path == "":
        raise UsageError(f"init = {text!r} names no weights file: write {name}:PATH, such as {name}:w.safetensors.")
    part: Initialisation = make(KIND, text) if path is None else make(KIND, name, path=path)
    return part


def located(text: str, folder: Path) -> str:
    """The same initialisation with its file's path taken from that folder.

    >>> located("transfer:w.safetensors", Path("plans")), located("lecun", Path("plans"))
    ('transfer:plans/w.safetensors', 'lecun')
    """
    return located_at(KIND, text, folder)


def names() -> dict[str, str]:
    """Name and one-line description of every initialisation."""
    return {names_path(entry): entry.summary for entry in entries(KIND) if not entry.problem}
