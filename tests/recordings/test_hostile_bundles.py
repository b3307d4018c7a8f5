"""No mutated bundle gives a traceback or is silently accepted.

`FEDGLASS_MUTATIONS=2000` asks for more of them.
"""

from __future__ import annotations

import os
import shutil
from collections import Counter
from pathlib import Path
from random import Random

import pytest

from fedglass.core.errors import FedglassError
from fedglass.recordings import read_bundle
from fedglass.recordings.observed import contradictions_of

from .mutations import DAMAGE, FORGERY, original

COUNT = int(os.environ.get("FEDGLASS_MUTATIONS", "200"))


def outcome(folder: Path) -> str:
    """What a reader says: refused in a sentence, found to be otherwise than told, or nothing."""
    try:
        bundle = read_bundle(folder)
    except FedglassError as error:
        return "refused" if "\n" not in str(error) and len(str(error)) < 1500 else f"refused at length: {error}"
    return "found" if any(contradictions_of(bundle, index) for index in bundle.rounds) else "accepted"


def test_the_original_is_accepted(tmp_path: Path) -> None:
    original(tmp_path / "bundle")
    assert outcome(tmp_path / "bundle") == "accepted"


def test_no_mutation_is_accepted(tmp_path: Path) -> None:
    original(tmp_path / "bundle")
    kinds = (*DAMAGE, *FORGERY)
    counts: Counter[tuple[str, str]] = Counter()
    for seed in range(COUNT):
        folder, mutation = tmp_path / "mutated" / str(seed), kinds[seed % len(kinds)]
        shutil.copytree(tmp_path / "bundle", folder)
        mutation(folder, Random(seed))
        said = outcome(folder)
        counts[mutation.__name__, said] += 1
        expected = ("refused",) if mutation in DAMAGE else ("refused", "found")
        assert said in expected, f"{mutation.__name__}, seed {seed}"
        shutil.rmtree(tmp_path / "mutated")
    assert sum(counts.values()) == COUNT
    for (name, said), count in sorted(counts.items()):
        print(f"{name}: {said} {count}")  # noqa: T201 # shown with -s


@pytest.mark.skipif(not hasattr(os, "geteuid") or os.geteuid() == 0, reason="the superuser may read everything")
def test_what_may_not_be_read_is_said(tmp_path: Path) -> None:
    original(tmp_path / "bundle")
    (tmp_path / "bundle" / "round-00001-sent.safetensors").chmod(0)
    with pytest.raises(FedglassError, match="Permission denied"):
        read_bundle(tmp_path / "bundle")
