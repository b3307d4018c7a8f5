"""The public names: cheap to import, and typed."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
from pathlib import Path

import pytest

import fedglass

ROOT = Path(__file__).parents[1]
OTHERS = ROOT / "examples" / "third_party_package" / "src" / "fedglass_huber"
"""A package that uses the public names."""
PAGES = {name: (ROOT / name).read_text(encoding="utf-8") for name in ("docs/python.md", "docs/extending.md")}


def test_the_three_lists_of_names_agree() -> None:
    tree = ast.parse(Path(fedglass.__file__).read_text(encoding="utf-8"))
    imports = [node for node in ast.walk(tree) if isinstance(node, ast.ImportFrom) and node.module]
    typed = {
        str(node.module): tuple(name.name for name in node.names)
        for node in imports
        if str(node.module).startswith("fedglass.")
    }
    assert typed == fedglass._PLACES
    assert {name for names in typed.values() for name in names} | {"__version__"} == set(fedglass.__all__)


def test_every_public_name_is_there() -> None:
    for name in fedglass.__all__:
        assert getattr(fedglass, name) is not None
        assert name in dir(fedglass)
    with pytest.raises(AttributeError, match="has no attribute 'Audti'"):
        fedglass.Audti  # noqa: B018


def test_the_package_is_cheap_to_import() -> None:
    code = "import sys, fedglass; dir(fedglass); assert not {'torch', 'numpy', 'pydantic'} & set(sys.modules)"
    subprocess.run([sys.executable, "-c", code], check=True)


def programs(page: str) -> list[str]:
    """The examples of a page that are no dialogue."""
    blocks = re.findall(r"^```python\n(.*?)^```", PAGES[page], flags=re.DOTALL | re.MULTILINE)
    return [block for block in blocks if not block.startswith(">>>")]


def test_a_type_checker_sees_the_pages_and_the_real_classes(tmp_path: Path) -> None:
    example = "\n".join(programs("docs/python.md"))
    (tmp_path / "extending.py").write_text("\n".join(programs("docs/extending.md")))
    revealed = [name for name in fedglass.__all__ if name != "__version__"]
    asked = [f"from fedglass import {', '.join(revealed)}", *(f"reveal_type({name})" for name in revealed)]
    (tmp_path / "example.py").write_text(f"{example}\nreveal_type(audit)\nreveal_type(result)\n")
    (tmp_path / "asked.py").write_text("\n".join(asked) + "\nfrom fedglass import Audti\n")
    (tmp_path / "mypy.ini").write_text(f"[mypy]\nstrict = true\nmypy_path = {ROOT / 'src'}\nfollow_imports = silent\n")
    # A cache that stays spares the next run the half minute that reading torch takes.
    kept = ROOT / ".mypy_cache" / "public"
    done = subprocess.run(
        [
            sys.executable,
            "-m",
            "mypy",
            "--config-file",
            "mypy.ini",
            "--cache-dir",
            kept,
            "example.py",
            "extending.py",
            "asked.py",
            OTHERS,
        ],
        capture_output=True,
        text=True,
        cwd=tmp_path,
    )
    errors = [line for line in done.stdout.splitlines() if ": error:" in line]
    assert len(errors) == 1, done.stdout + done.stderr
    assert 'has no attribute "Audti"' in errors[0]
    notes = re.findall(r'Revealed type is "(.*)"', done.stdout)
    assert len(notes) == len(revealed) + 2
    assert not [note for note in notes if note in ("Any", "builtins.object")]
    assert "fedglass.api.Audit" in notes
    assert "fedglass.audit.audit.AuditResult" in notes
