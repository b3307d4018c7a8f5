"""One registry: what is built in, what packages bring, what a user names, and what is wrong with each."""

from __future__ import annotations

import importlib
import importlib.util
import subprocess
import sys
from collections.abc import Callable
from importlib.metadata import EntryPoint
from pathlib import Path
from typing import Any

import pytest

from fedglass.core import registry
from fedglass.core.errors import DataError, ModelError, UsageError
from fedglass.core.metric_scale import Scale, scale_of
from fedglass.core.registry import KINDS, built_in, entries, factory, find, make, names, register, summaries
from fedglass.defend import defence
from fedglass.fl.aggregate.rule import WeightedMean
from fedglass.models.init import by_name
from fedglass.recipes import recipe

CODE = '''
from dataclasses import dataclass
from fedglass.core.registry import register
from fedglass.core.metric_scale import Scale
from fedglass.metrics.images import Metric
from fedglass.recipes.dlg import dlg
from fedglass.recipes.dlg import idlg

def plain(iterations: int = 5, *, restarts: int = 1):
    """DLG in few steps [Zhu et al., 2019].

    And more words.
    """
    return dlg(iterations, restarts)

def papered():
    return dlg()

papered.paper = "Somebody: Something, 2030, https://example.org"

@register("attacks", "described", summary="iDLG by another name", paper="Zhao et al., 2020")
def described():
    return idlg()

def nothing():
    """Returns no attack."""

def demanding(strength: float):
    return dlg()

def broken():
    raise KeyError("width")

@dataclass(frozen=True)
class Shout:
    volume: float = 2.0

    def release(self, leaving):
        return {name: self.volume * tensor for name, tensor in leaving.update.items()}

class Half:
    def run(self): ...
    def aggregate(self): ...
    def update(self): ...

@dataclass(frozen=True)
class Zero:
    def apply(self, model, generator):
        for tensor in model.parameters():
            tensor.data.zero_()

number = 3
brightness = Metric(lambda a, b: (a - b).mean((1, 2, 3)), Scale("Brightness", higher_leaks=False))
'''


@pytest.fixture
def mine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    (tmp_path / "registry_mine.py").write_text(CODE)
    (tmp_path / "registry_wrong.py").write_text("raise __import__('zipfile').BadZipFile('not even an OSError')\n")
    (tmp_path / "registry_quits.py").write_text("raise SystemExit('no')\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.delitem(sys.modules, "registry_mine", raising=False)
    monkeypatch.setattr(registry, "_REGISTERED", {kind: dict(known) for kind, known in registry._REGISTERED.items()})
    importlib.invalidate_caches()
    return "registry_mine"


@pytest.fixture
def installed(mine: str, monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    """Pretends that a package with these entry points is installed."""

    def pretend(kind: str, **points: str) -> None:
        found = [EntryPoint(name, value, f"fedglass.{kind}") for name, value in points.items()]
        monkeypatch.setattr(registry, "entry_points", lambda group: found if group == f"fedglass.{kind}" else [])

    return pretend


@pytest.mark.parametrize("kind", KINDS)
def test_every_built_in_part_is_found_and_described(kind: str) -> None:
    found = built_in(kind)
    assert found
    for name, entry in found.items():
        assert find(kind, name) is entry
        assert entry.summary
        assert entry.summary[-1] != "."
        assert not entry.paper or "http" in entry.paper
        assert entry.origin == "built in"
    assert list(found) == [entry.name for entry in entries(kind)][: len(found)]
    assert set(summaries(kind)) == set(names(kind))


def imported_by(code: str) -> set[str]:
    """The modules of fedglass that a fresh interpreter has imported after some code."""
    show = "import sys; print(*(name for name in sys.modules if name.startswith('fedglass')))"
    done = subprocess.run([sys.executable, "-c", f"{code}\n{show}"], capture_output=True, text=True, check=True)
    return set(done.stdout.split())


def test_for_one_part_the_modules_of_the_others_are_left_alone() -> None:
    asked = "from fedglass.core.registry import find, origin_of\n"
    found = imported_by(asked + "find('attacks', 'dlg'), find('attacks', 'dlfa_published'), find('models', 'vit')")
    assert {"fedglass.recipes.dlg", "fedglass.recipes.dlfa", "fedglass.models.vit"} <= found
    assert not {"fedglass.recipes.exact", "fedglass.recipes.coarse_to_fine", "fedglass.models.large"} & found
    # Nothing is called like this one: all modules are asked.
    assert "fedglass.recipes.coarse_to_fine" in imported_by(asked + "find('attacks', 'invg_scaled')")


def test_parts_of_one_file_stand_together_in_their_order() -> None:
    found = list(built_in("attacks"))
    assert found[:3] == ["coarse_to_fine", "coarse_to_fine_published", "coarse_to_fine_pruned"]
    assert found.index("idlg_adam") == found.index("invg") + 1
    assert found.index("idlg") == found.index("dlg") + 1


def test_a_kind_whose_package_is_not_there_is_empty(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(registry, "KINDS", {**KINDS, "moods": registry.PartKind("mood", "fedglass.no_such")})
    assert built_in("moods") == {}
    assert entries("moods") == ()
    with pytest.raises(UsageError, match="Unknown mood 'good'"):
        find("moods", "good")


@pytest.mark.parametrize(
    ("kind", "name", "said"),
    [
        ("attacks", "idgl", "Unknown attack 'idgl': did you mean 'idlg'"),
        ("rules", "maen", "Unknown rule 'maen': did you mean 'mean'"),
        ("models", "lenett", "Unknown model 'lenett': did you mean 'lenet'"),
        ("initialisations", "lecum", "did you mean 'lecun'"),
        ("attaks", "dlg", "Unknown kind of parts 'attaks': did you mean 'attacks'"),
    ],
)
def test_an_unknown_name_is_answered_with_the_nearest(kind: str, name: str, said: str) -> None:
    with pytest.raises(UsageError, match=said):
        find(kind, name)


def test_a_user_names_parts_of_his_own(mine: str) -> None:
    assert recipe(f"{mine}:plain", iterations=7) == recipe("dlg", iterations=7)
    assert repr(defence(f"{mine}:Shout", volume=3.0)) == "Shout(volume=3.0)"
    assert repr(by_name(f"{mine}:Zero")) == "Zero()"
    assert make("rules", "fedglass.fl.aggregate.rule:WeightedMean") == WeightedMean()
    assert scale_of(f"{mine}:brightness") == Scale("Brightness", higher_leaks=False)
    entry = find("attacks", f"{mine}:plain")
    assert (entry.summary, entry.paper) == ("DLG in few steps.", "Zhu et al., 2019")
    assert entry.origin == f"{mine}:plain"
    assert find("attacks", f"{mine}:papered").paper == "Somebody: Something, 2030, https://example.org"


@pytest.mark.parametrize(
    ("kind", "name", "said"),
    [
        ("attacks", "no_such_package.x:make", "attack '.*' does not import: ModuleNotFoundError: .*is in PYTHONPATH"),
        ("attacks", "registry_mine:plian", "module 'registry_mine' has no 'plian', .* did you mean 'plain'"),
        ("attacks", "registry_wrong:plain", "does not import: BadZipFile: not even an OSError"),
        ("attacks", "registry_quits:plain", "does not import: SystemExit: no"),
        ("attacks", "registry_mine:", "not of the form 'package.module:name'"),
        ("attacks", "registry-mine:plain", "not of the form 'package.module:name'"),
        ("attacks", "registry_mine:number", "attack '.*' is int, expected a function or a class that makes one"),
        ("attacks", "registry_mine:broken", "attack '.*' failed: KeyError: 'width'"),
        (
            "attacks",
            "registry_mine:nothing",
            "made NoneType, which has no method run or check or energy_of: return the attack",
        ),
        ("attacks", "registry_mine:demanding", "Attack '.*' needs the option 'strength'"),
        ("attacks", "registry_mine:Half", "made Half, which has no method check or energy_of: .* with all of run, che"),
        ("defences", "registry_mine:plain", "made Attack, which has no method release or gradient: .* with one of rel"),
        ("rules", "registry_mine:Half", "made Half, which has no method init: return the rule"),
        ("behaviours", "registry_mine:Half", "made Half, which has no method examples or describe: return the behav"),
    ],
)
def test_what_is_wrong_with_it_is_said_in_a_sentence(mine: str, kind: str, name: str, said: str) -> None:
    with pytest.raises(UsageError, match=said):
        make(kind, name)


def test_the_error_is_that_of_its_kind(mine: str) -> None:
    with pytest.raises(ModelError, match="does not import"):
        find("models", "no_such_package:net")
    with pytest.raises(DataError, match="does not import"):
        find("datasets", "no_such_package:read")
    with pytest.raises(UsageError, match=r"expected a fedglass.Metric"):
        scale_of(f"{mine}:plain")


def test_an_installed_package_brings_parts(installed: Callable[..., None]) -> None:
    installed("attacks", mine="registry_mine:plain", other="registry_mine:described")
    assert recipe("mine") == recipe("dlg", iterations=5)
    assert {"mine", "other"} <= set(names("attacks"))
    found = {entry.name: entry for entry in entries("attacks")}
    assert found["mine"].summary == "DLG in few steps."
    assert (found["other"].summary, found["other"].paper) == ("iDLG by another name", "Zhao et al., 2020")
    assert "described" not in found, "it is listed under the name of its entry point"
    assert found["mine"].origin == "package of registry_mine:plain"
    with pytest.raises(UsageError, match="Unknown attack 'mien': did you mean 'mine'"):
        recipe("mien")


def test_a_broken_package_breaks_nothing_else(installed: Callable[..., None]) -> None:
    installed("attacks", bad="registry_wrong:plain", gone="registry_mine:gone", good="registry_mine:plain")
    found = {entry.name: entry for entry in entries("attacks")}
    assert "bad' of package of registry_wrong:plain" in found["bad"].problem
    assert "BadZipFile" in found["bad"].problem
    assert "has no attribute 'gone'" in found["gone"].problem
    assert not found["good"].problem
    assert "bad" not in summaries("attacks")
    assert recipe("good") == recipe("dlg", iterations=5)
    with pytest.raises(UsageError, match=r"'bad' .* does not load: BadZipFile: .* Repair or uninstall that package"):
        recipe("bad")


def test_what_is_built_in_wins(installed: Callable[..., None]) -> None:
    installed("attacks", dlg="registry_mine:described")
    assert recipe("dlg") == recipe("fedglass.recipes.dlg:dlg")
    (ignored,) = (entry for entry in entries("attacks") if entry.problem)
    assert ignored.problem == "It is ignored, since a built-in attack has the name 'dlg': rename one of the two."
    assert names("attacks").count("dlg") == 1


def test_a_script_registers_parts_of_its_own(mine: str) -> None:
    @register("rules", "mine", summary="the mean by another name")
    def again() -> WeightedMean:
        return WeightedMean()

    @register("rules", "mean", summary="not the mean")
    def other() -> None: ...

    assert make("rules", "mine") == make("rules", "mean") == WeightedMean()
    assert factory("rules", "mine") is again
    listed = [entry for entry in entries("rules") if not entry.built_in]
    assert [(entry.name, bool(entry.problem)) for entry in listed] == [("mine", False), ("mean", True)]


def test_two_built_in_parts_of_one_name_are_refused(monkeypatch: pytest.MonkeyPatch, mine: str) -> None:
    again: Any = {"__name__": "fedglass.recipes.other", "register": register}
    with pytest.raises(UsageError, match=r"fedglass.recipes.other registers the attack 'dlg', which is built in"):
        exec("@register('attacks', 'dlg', summary='x')\ndef dlg(): ...", again)


def test_the_package_of_every_kind_is_there() -> None:
    assert [kind for kind, about in KINDS.items() if importlib.util.find_spec(about.package) is None] == []
