"""Write the software bill of materials of fedglass, as CycloneDX 1.6: `python tools/bill.py dist/fedglass.cdx.json`.

It lists what `requirements-core.lock` pins with its hashes, and torch as `constraints.txt` pins it. Licences are those
that the installed packages state. `make dist` writes it next to wheel and source archive.
"""

from __future__ import annotations

import json
import re
import sys
from importlib.metadata import PackageNotFoundError, metadata
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]
_LINE = re.compile(r"^([a-z0-9-]+)==(\S+)((?: \\\n    --hash=sha256:[0-9a-f]{64})+)$", re.MULTILINE)
_TORCH = re.compile(r"^torch==(\S+)$", re.MULTILINE)


def bill() -> dict[str, Any]:
    """Return the content of the file."""
    locked = (ROOT / "requirements-core.lock").read_text(encoding="utf-8")
    (torch,) = _TORCH.findall((ROOT / "constraints.txt").read_text(encoding="utf-8"))
    parts = [
        component(name, version, re.findall("[0-9a-f]{64}", text)) for name, version, text in _LINE.findall(locked)
    ]
    fedglass = component("fedglass", metadata("fedglass")["Version"], [], kind="application")
    components = [*parts, component("torch", torch, [])]
    return {
        "bomFormat": "CycloneDX",
        "specVersion": "1.6",
        "version": 1,
        "metadata": {"component": fedglass},
        "components": components,
        "dependencies": [{"ref": fedglass["bom-ref"], "dependsOn": [part["bom-ref"] for part in components]}],
    }


def component(name: str, version: str, hashes: list[str], kind: str = "library") -> dict[str, Any]:
    """Return one package, with the hashes of all its published files."""
    address = f"pkg:pypi/{name}@{version}"
    parts = {"type": kind, "bom-ref": address, "name": name, "version": version, "purl": address}
    licences = licences_of(name)
    return {
        **parts,
        **({"licenses": licences} if licences else {}),
        **({"hashes": [{"alg": "SHA-256", "content": digest} for digest in hashes]} if hashes else {}),
    }


def licences_of(name: str) -> list[dict[str, Any]]:
    """Return the licence that an installed package states; nothing if it is not installed or states none."""
    try:
        stated = metadata(name)
    except PackageNotFoundError:
        return []
    for expression in stated.get_all("License-Expression") or []:
        return [{"expression": expression}]
    classes = [text.split(" :: ")[-1] for text in stated.get_all("Classifier") or [] if text.startswith("License :: ")]
    names = classes or [text for text in stated.get_all("License") or [] if text and "\n" not in text]
    return [{"license": {"name": text}} for text in names]


if __name__ == "__main__":
    Path(sys.argv[1]).write_text(json.dumps(bill(), indent=2) + "\n", encoding="utf-8")
