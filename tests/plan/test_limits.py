"""What no audit can be asked for in earnest is refused in one sentence, at once."""

from __future__ import annotations

from pathlib import Path

import pytest

from fedglass.core.errors import UsageError
from fedglass.plan.compile import compile_plan
from fedglass.plan.options import checked_options
from fedglass.plan.schema import Plan, parse_plan
from fedglass.plan.tables import MOST_CASES, MOST_TURNS

PLAN = """
[federation]
data = "photos"
clients = 2
examples = 1
rounds = 1
training = { lr = 0.1 }
[adversary]
round = 0
[[attacks]]
name = "idlg"
[gate]
threshold = 20.0
"""
RECORDING = """
[recording]
model = "lenet"
classes = 10
before = "before.safetensors"
after = "after.safetensors"
truth = "truth.npz"
[[attacks]]
name = "idlg"
"""


def refused(text: str, words: str) -> None:
    with pytest.raises(UsageError, match=words) as caught:
        parse_plan(text)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("old", "new", "words"),
    [
        (
            "[federation]",
            "repeats = 99999999\n[federation]",
            "repeats: expected less than or equal to 10000, got 9999",
        ),
        ("clients = 2", "clients = 10000000", "federation.clients: expected less than or equal to 10000"),
        ("rounds = 1", "rounds = 1000000", "federation.rounds: expected less than or equal to 100000"),
        ("examples = 1", "examples = 10000000", "federation.examples: expected less than or equal to 1000000"),
        ("examples = 1", "test_examples = 10000000", "test_examples: expected less than or equal to 1000000"),
        ("examples = 1", "size = 4096", "federation.size: expected less than or equal to 2048"),
        ("examples = 1", "classes = 1000000000", "federation.classes: expected less than or equal to 100000"),
        ("lr = 0.1", "lr = 1e300", "federation.training.lr: expected less than or equal to 1000, got 1e"),
        ("lr = 0.1", "lr = 0.1, batch_size = 99999999", "batch_size: expected less than or equal to 1000000"),
        ("lr = 0.1", "lr = 0.1, epochs = 99999999", "epochs: expected less than or equal to 1000000"),
        ("lr = 0.1", "lr = 0.1, steps = 99999999", "steps: expected less than or equal to 1000000"),
        ("round = 0", "round = 100000", "adversary.round: expected less than 100000"),
        ("round = 0", f"round = {[0] * 10_001}", "adversary.round: expected .*at most 10,000 entries, got 10,001"),
        ("round = 0", f"client = {[0] * 10_001}", "adversary.client: expected .*at most 10,000 entries, got 10,001"),
        ("[gate]", '[[attacks]]\nname = "dlg"\n' * 100 + "[gate]", "attacks: expected at most 100 entries, got 101"),
        ("[gate]", "[metrics]\nnames = []\n[gate]", "metrics.names: expected at least 1 entries, got 0"),
        ("data =", f'name = "{"x" * 201}"\ndata =', "federation.name: expected at most 200 characters"),
        ("clients = 2\nexamples = 1\nrounds = 1", "clients = 10000\nrounds = 100000", "rounds x clients must be at mo"),
        ("rounds = 1", f"rounds = {'9' * 5000}", "not valid TOML: .*digits"),
    ],
)
def test_too_much_is_refused_before_anything_is_built(old: str, new: str, words: str) -> None:
    assert old in PLAN
    refused(PLAN.replace(old, new), words)


@pytest.mark.parametrize(
    ("old", "new", "words"),
    [
        ("threshold = 20.0", "threshold = true", "gate.threshold: expected a valid number, got True"),
        ("threshold = 20.0", "max_share = false", "gate.max_share: expected a valid number, got False"),
        ("lr = 0.1", "lr = true", "federation.training.lr: expected a valid number, got True"),
        ("clients = 2", "clients = true", "federation.clients: expected a valid integer, got True"),
        ("round = 0", "round = [true]", "adversary.round.*: expected a valid integer, got True"),
        ("round = 0", "client = true", "adversary.client: expected a valid integer, got True"),
        ("examples = 1", "participation = true", "federation.participation: expected a valid number, got True"),
        ("examples = 1", "whitening = { mean = [true], std = [1.0] }", r"whitening.mean\[0\]: expected a valid number"),
        ("[federation]", "seed = true\n[federation]", "seed: expected a valid integer, got True"),
    ],
)
def test_true_is_not_a_number(old: str, new: str, words: str) -> None:
    assert old in PLAN
    refused(PLAN.replace(old, new), words)


def test_whole_numbers_are_numbers() -> None:
    plan = parse_plan(PLAN.replace("20.0", "20").replace("0.1", "1"))
    assert (plan.gate.threshold, plan.federation[0].training.lr) == (20.0, 1.0)


def test_the_cases_are_counted_before_they_are_made() -> None:
    def plan(**adversary: object) -> Plan:
        table = "\n".join(f"{key} = {value}" for key, value in adversary.items())
        return parse_plan("repeats = 5\n" + PLAN.replace("round = 0", table))

    assert plan().cases == 2 * 5
    assert plan(client=0).cases == 5
    assert plan(client=[0, 1, 0]).cases == 2 * 5
    assert plan(round=[0, 1, 2]).cases == 2 * 3 * 5
    assert plan(view='"aggregate"', round=[0, 1]).cases == 2 * 5
    many = PLAN.replace("clients = 2", "clients = 10000").replace("[federation]", "repeats = 11\n[federation]")
    refused(many, f"asks for 110,000 cases .*at most {MOST_CASES:,}: ask for fewer repeats")
    assert MOST_TURNS > MOST_CASES


def test_the_count_is_that_of_the_audit() -> None:
    plan = parse_plan("repeats = 3\n" + PLAN.replace("round = 0", "client = [1, 1]"))
    cases = compile_plan(plan, Path()).cases
    assert len([case for case in cases if case.facts["attack"] in {a.name for a in plan.attacks}]) == plan.cases == 3


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"iterations": 10**9}, "iterations must be at most 10,000,000, got 1000000000"),
        ({"restarts": 10**6}, "restarts must be at most 10,000"),
        ({"tv": 1e300}, r"tv must be at most 1,000,000,000, got 1e\+300"),
        ({"tv": True}, "tv must be of type float, got True"),
        ({"iterations": True}, "iterations must be of type int, got True"),
        ({"at": [True, 2]}, r"at must be of type tuple\[float, ...\], got \[True, 2\]"),
        ({"at": ["5"]}, r"at must be of type tuple\[float, ...\], got \['5'\]"),
        ({"at": [1, 1e10]}, "at must be at most 1,000,000,000"),
    ],
)
def test_options_have_limits_too(options: dict[str, object], words: str) -> None:
    def recipe(iterations: int = 10, restarts: int = 1, tv: float = 0.1, at: tuple[float, ...] = ()) -> None: ...

    with pytest.raises(UsageError, match=words):
        checked_options("attack 'x'", recipe, options)


def test_normalisation_is_asked_for_with_the_line_for_none() -> None:
    refused(
        RECORDING,
        r"recording.whitening is missing: it states how the clients normalised .* if they did not normalise, "
        r"whitening = \{ mean = \[0.0, 0.0, 0.0\], std = \[1.0, 1.0, 1.0\] \}, with one number for each channel",
    )
    grey = RECORDING.replace('truth = "truth.npz"', "shape = [1, 8, 8]\nexamples = 1")
    refused(grey, r"whitening = \{ mean = \[0.0\], std = \[1.0\] \}")
    several = RECORDING.replace("[recording]", "[[recording]]")
    refused(several, r"recording\[0\].whitening is missing: it states how the clients normalised")


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("seed = 0x" + "f" * 10_000, "more than 64 bits"),
        ("seed = " + "9" * 5000, "not valid TOML"),
        ("attacks = [{ name = 'idlg', iterations = 0x" + "f" * 10_000 + " }]", "more than 64 bits"),
        (".".join("a" * 20_000) + " = 1", "a key of more than 20 parts"),
        (" . ".join(["'a'"] * 20_000) + " = 1", "a key of more than 20 parts"),
        ("[" + ".".join("a" * 20_000) + "]", "a key of more than 20 parts"),
        (".".join([r'"\""'] * 20_000) + " = 1", "a key of more than 20 parts"),
        ('# "\n' + ".".join([r'"\""'] * 20_000) + " = 1", "a key of more than 20 parts"),
        ('a = [ """b"""", {' + ".".join(["'\"'"] * 20_000) + " = 1}]", "a key of more than 20 parts"),
        ("a = [ '''b'''', {" + ".".join(['"\'"'] * 20_000) + " = 1}]", "a key of more than 20 parts"),
        ("a = " + "[" * 20_000, "nested too deep"),
    ],
)
def test_texts_that_the_parser_cannot_take_are_refused(text: str, words: str) -> None:
    refused(text, words)


def test_long_texts_and_lists_are_no_long_keys() -> None:
    values = ", ".join(["0.25"] * 1000)
    path = "/".join(["a-b"] * 1000)
    refused(f"title = '{path}'\nx = [{values}]", "x is not a key of a plan")
