"""Write `requirements-*.lock`: the pins of a constraints file with the hashes of all their published files.

torch is left out, since users choose its CPU or CUDA build. `core` is what fedglass needs, and `dev` is all of
`constraints.txt`. The index is the one that pip is configured with; the files name no index, and hashes are those that
it states for the public packages.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import tomllib
import urllib.request
from importlib.metadata import PackageNotFoundError, requires
from pathlib import Path

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name, parse_sdist_filename, parse_wheel_filename

ROOT = Path(__file__).parents[1]
LEFT_OUT = ("torch",)
HEADER = """# The pins of {source} with the hashes of their files; `make lock` writes them.
# Install torch first, the build that you want, then:
#   pip install --require-hashes -r {name} && pip install --no-deps .
"""


def index() -> str:
    """Return the address of pip's index."""
    command = [sys.executable, "-m", "pip", "config", "get", "global.index-url"]
    configured = subprocess.run(command, capture_output=True, text=True, check=False).stdout.strip()
    return (os.environ.get("PIP_INDEX_URL") or configured or "https://pypi.org/simple").rstrip("/")


def pins(path: Path) -> dict[str, str]:
    """Return the versions of a constraints file by canonical name."""
    lines = (line.strip() for line in path.read_text(encoding="utf-8").splitlines())
    pairs = (line.split("==") for line in lines if line and not line.startswith("#"))
    return {canonicalize_name(name): version for name, version in pairs}


def needed(requirements: list[str]) -> set[str]:
    """Return the names of packages with all that they need in turn, as the installed ones state it."""
    names, todo = set[str](), [Requirement(text) for text in requirements]
    while todo:
        requirement = todo.pop()
        name = canonicalize_name(requirement.name)
        if name in names or name in LEFT_OUT or not (requirement.marker is None or requirement.marker.evaluate()):
            continue
        names.add(name)
        try:
            todo += [Requirement(text) for text in requires(name) or () if "extra ==" not in text]
        except PackageNotFoundError as error:
            raise SystemExit(f"{name} is not installed here: run `make lock`, which installs it.") from error
    return names


def hashes(name: str, version: str, address: str) -> list[str]:
    """Return the SHA-256 of every file of a version that the index lists."""
    request = urllib.request.Request(
        f"{address}/{name}/", headers={"Accept": "application/vnd.pypi.simple.v1+json, text/html;q=0.1"}
    )
    with urllib.request.urlopen(request) as answer:
        text = answer.read().decode()
        is_json = "json" in answer.headers.get("Content-Type", "")
    if is_json:
        files = [(file["filename"], file["hashes"].get("sha256", "")) for file in json.loads(text)["files"]]
    else:
        files = re.findall(r'href="(?:[^"#]*/)?([^"/#]+)#sha256=([0-9a-f]{64})"', text)
    return sorted({digest for file, digest in files if digest and version_of(file) == version})


def version_of(file: str) -> str:
    """Return the version in the name of a file; empty if it is neither a wheel nor a source archive."""
    try:
        parts = parse_wheel_filename(file) if file.endswith(".whl") else parse_sdist_filename(file)
    except ValueError:
        return ""
    return str(parts[1])


def lock(name: str, source: str, versions: dict[str, str], address: str) -> None:
    """Write one file."""
    lines = [HEADER.format(name=name, source=source)]
    for package, version in sorted(versions.items()):
        digests = hashes(package, version, address)
        if not digests:
            raise SystemExit(
                f"The index states no hash of {package} {version}: choose another index with PIP_INDEX_URL."
            )
        lines.append(" \\\n    ".join([f"{package}=={version}", *(f"--hash=sha256:{d}" for d in digests)]) + "\n")
    (ROOT / name).write_text("".join(lines), encoding="utf-8")


def main() -> None:
    """Write the files."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    every, address = pins(ROOT / "constraints.txt"), index()
    core = {name: every[name] for name in needed(project["dependencies"])}
    lock("requirements-core.lock", "constraints.txt that fedglass itself needs", core, address)
    dev = {name: version for name, version in every.items() if name not in LEFT_OUT}
    lock("requirements-dev.lock", "constraints.txt", dev, address)


if __name__ == "__main__":
    main()
