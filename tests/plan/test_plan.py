"""Plans: what they may say, and what is said when they are wrong."""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np
import pytest
import torch

from fedglass.attack.labels.given import OracleBatchLabels, OracleLabels
from fedglass.attack.labels.targets import SignRule
from fedglass.audit.audit import threat_model
from fedglass.audit.simulated import Simulated
from fedglass.cli.plans import DEMO, PLAN
from fedglass.core.errors import DataError, FedglassError, UsageError
from fedglass.core.optimisers import SGD, Adam, AdamW
from fedglass.core.types import BatchNorm, Training
from fedglass.data.dataset import ByWriter, Dirichlet, Iid, Sizes
from fedglass.federation.transcript import ParticipantsByRound
from fedglass.federation.views import AggregateView, ServerView, Together
from fedglass.plan.compile import compile_plan, defences_of, partition_of, read_job, views_of
from fedglass.plan.options import checked_options
from fedglass.plan.schema import AdversaryTable, parse_plan, read_plan

SMALL = """
[federation]
data = "photos"
size = 16
clients = 2
examples = 1
training.lr = 0.1
[[attacks]]
name = "inverting_gradients"
iterations = 3
"""


def compiled(text: str, folder: Path = Path()) -> Simulated:
    source = compile_plan(parse_plan(text), folder).sources[0]
    assert isinstance(source, Simulated)
    return source


def test_the_templates_are_sound_plans() -> None:
    assert len(compile_plan(parse_plan(PLAN), Path()).cases) == 4 + 2 * 3
    demo = compile_plan(parse_plan(DEMO), Path())
    assert [source.name for source in demo.sources] == [table.name for table in parse_plan(DEMO).federation]


def test_every_setting_that_the_template_comments_out_is_sound() -> None:
    """Uncommented, the federation's and the adversary's settings parse."""
    start = PLAN.index("# [recording]")
    end = PLAN.index("# ----", start)
    lines = (PLAN[:start] + PLAN[end:]).splitlines()
    settings = [line.removeprefix("# ") if re.match(r"# (\[\[|[a-z_]+ = )", line) else line for line in lines]
    plan = parse_plan("\n".join(settings))
    assert plan.federation[0].training.batch_size == 8
    assert plan.federation[0].relabel_classes == 100
    assert plan.federation[0].rule is not None
    assert [(g.clients, g.behaviour[0].name, g.defences) for g in plan.federation[0].group] == [([1], "sign_flip", [])]
    message, federation = (
        "".join(line.removeprefix("# ") for line in part.splitlines(keepends=True) if not line.startswith("# ..."))
        for part in PLAN[start:end].split("# ... or all messages", 1)
    )
    assert parse_plan(message + '[[attacks]]\nname = "idlg"').recording[0].after == "after.safetensors"
    _, _, bundle = federation.partition("\n")
    assert parse_plan(bundle + '[[attacks]]\nname = "idlg"').recording[0].bundle == "recorded"


def test_a_plan_becomes_the_federation_that_it_describes() -> None:
    source = compiled(
        SMALL.replace("training.lr = 0.1", "training = {lr = 0.5, epochs = 2, batch_size = 3}\nrounds = 2")
    )
    federation = source.federation
    assert len(federation.clients) == 2
    assert federation.clients[0].images.shape == (1, 3, 16, 16)
    assert federation.training == Training(0.5, 2, 3, BatchNorm.FROZEN)
    assert source.rounds == 2
    assert source.class_names is not None


@pytest.mark.parametrize(
    ("keys", "training"),
    [
        ("", Training(0.5)),
        ("momentum = 0.9, nesterov = true, weight_decay = 0.1", Training(0.5, optimiser=SGD(0.9, 0.0, True, 0.1))),
        ('optimiser = "sgd", momentum = 0, nesterov = false', Training(0.5)),
        ('optimiser = "adam"', Training(0.5, optimiser=Adam())),
        ('optimiser = "adam", betas = [0.5, 0.9], eps = 1e-3', Training(0.5, optimiser=Adam((0.5, 0.9), 1e-3))),
        ('optimiser = "adamw"', Training(0.5, optimiser=AdamW())),
        ('optimiser = "adamw", weight_decay = 0.3', Training(0.5, optimiser=AdamW(weight_decay=0.3))),
        (
            "batch_size = 2, shuffle = false, steps = 3, clip = 1, label_smoothing = 0.1",
            Training(0.5, batch_size=2, shuffle=False, steps=3, clip=1.0, label_smoothing=0.1),
        ),
    ],
)
def test_a_plan_says_how_clients_train(keys: str, training: Training) -> None:
    text = SMALL.replace("training.lr = 0.1", f"training = {{lr = 0.5{', ' * bool(keys)}{keys}}}")
    assert compiled(text).federation.training == training


def test_the_seed_decides_data_and_weights() -> None:
    first, again, other = (compiled(text) for text in (SMALL, SMALL, "seed = 1\n" + SMALL))
    own = compiled("seed = 1\n" + SMALL.replace("clients = 2", "clients = 2\nseed = 0"))
    assert first.identity() == again.identity() == own.identity() != other.identity()


@pytest.mark.parametrize(
    ("client", "views"),
    [(1, [1]), ([1, 0, 1], [1, 0]), ("all", [0, 1, 2])],
)
def test_clients_to_look_at(client: object, views: list[int]) -> None:
    adversary = AdversaryTable.model_validate({"client": client})
    names = ("a", "b", "c")
    attendance = ParticipantsByRound(names, {0: names, 1: ("a", "c")})
    assert views_of(adversary, attendance) == tuple(ServerView(i) for i in views)
    assert views_of(AdversaryTable(view="aggregate", round=2), attendance) == (AggregateView(2),)
    both = views_of(AdversaryTable(client=[0, 1], round=[0, 2], together=True), attendance)
    assert both == tuple(Together((ServerView(client, 0), ServerView(client, 2))) for client in (0, 1))
    joined = views_of(AdversaryTable(view="aggregate", round=[0, 2], together=True), attendance)
    assert joined == (Together((AggregateView(0), AggregateView(2))),)


def test_all_are_those_that_take_part() -> None:
    attendance = ParticipantsByRound(("a", "b", "c"), {0: ("a", "b", "c"), 1: ("a", "c")})
    assert views_of(AdversaryTable(round=1), attendance) == (ServerView(0, 1), ServerView(2, 1))
    with pytest.raises(UsageError, match=r"adversary.round must be one of 0 to 1, got 2"):
        views_of(AdversaryTable(round=2), attendance)


def test_partitions() -> None:
    def rule(**table: object) -> object:
        text = {"data": "photos", "training": {"lr": 0.1}, **table}
        parsed = parse_plan(SMALL).federation[0].model_validate(text)
        return partition_of(parsed, [2, 2] if "examples" in table else None)

    assert rule() == Iid()
    assert rule(examples=2) == Sizes((2, 2))
    assert rule(partition="dirichlet", alpha=0.5) == Dirichlet(0.5)
    assert rule(partition="writers") == ByWriter()


def test_relabelled_stand_ins_and_more_classes() -> None:
    assert compiled(SMALL.replace("clients", "relabel_classes = 62\nclients")).federation.classes == 62
    assert compiled(SMALL.replace("clients", "classes = 30\nclients")).federation.classes == 30


def test_test_examples_are_nobodys_and_measured() -> None:
    source = compiled(SMALL.replace("clients", "test_examples = 20\nclients"))
    assert source.test is not None
    held = source.test.images.flatten(1)
    for client in source.federation.clients:
        assert not (torch.cdist(client.images.flatten(1), held) < 1e-6).any()
    (target, *_) = source.targets(lambda done, total: None)
    assert 0 <= target.utility["test accuracy"] <= 1


def test_oracle_labels_go_to_recipes_that_take_labels() -> None:
    told = "[adversary]\nknows_labels = true\n" + SMALL + '[[attacks]]\nname = "idlg"\n'
    attacks = compile_plan(parse_plan(told), Path()).attacks
    assert attacks["inverting_gradients"].labels == OracleLabels()  # type: ignore[attr-defined]
    assert attacks["idlg"].labels == SignRule()  # type: ignore[attr-defined]
    chosen = compile_plan(parse_plan(told.replace("iterations", 'labels = "sign_rule"\niterations', 1)), Path())
    assert chosen.attacks["inverting_gradients"].labels == SignRule()  # type: ignore[attr-defined]


def test_labels_of_batches_go_to_the_simulations_of_batches() -> None:
    told = "[adversary]\nknows_batch_labels = true\n" + SMALL
    with pytest.raises(UsageError, match=r"'inverting_gradients' uses adversary\.knows_batch_labels: leave it out"):
        compile_plan(parse_plan(told), Path())
    more = "".join(f'[[attacks]]\nname = "{name}"\n' for name in ("dlfa", "dlfa_shared", "dlfa_fedsgd_epoch", "sme"))
    attacks = compile_plan(parse_plan(told + more), Path()).attacks
    found = {name for name, attack in attacks.items() if attack.labels == OracleBatchLabels()}  # type: ignore[attr-defined]
    assert found == {"dlfa", "dlfa_shared"}


def test_an_attack_may_come_twice_under_two_names() -> None:
    job = compile_plan(parse_plan(SMALL + 'label = "short"\n[[attacks]]\nname = "inverting_gradients"\n'), Path())
    assert list(job.attacks) == ["short", "inverting_gradients"]


def test_paths_are_relative_to_the_plan(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    images = np.zeros((3, 16, 16), np.uint8)
    np.savez(tmp_path / "own.npz", images=images, labels=np.array([0, 1, 2]))
    (tmp_path / "plan.toml").write_text(SMALL.replace('"photos"', '"npz:own.npz"'))
    monkeypatch.chdir("/")
    (source,) = read_job(tmp_path / "plan.toml").sources
    assert isinstance(source, Simulated)
    assert source.federation.classes == 3


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (("clients = 2", "client = 2"), r"federation.client is not a key of a plan: did you mean 'clients'\?"),
        (("training.lr = 0.1", "training.learning = 1"), "federation.training.learning is not a key"),
        (("[federation]", "[federations]"), r"federations is not a key of a plan: did you mean 'federation'\?"),
        (('data = "photos"', ""), "federation.data is missing"),
        (("clients = 2", 'clients = "two"'), "federation.clients: expected a valid integer, got 'two'"),
        (("clients = 2", "clients = 0"), "federation.clients: expected greater than or equal to 1, got 0"),
        (("training.lr = 0.1", "training.lr = -1.0"), "federation.training.lr: expected greater than 0, got -1.0"),
        (("training.lr = 0.1", "training.lr = nan"), "federation.training.lr: expected .*, got nan"),
        (("training.lr = 0.1", 'training = {lr = 1, optimiser = "rmsprop"}'), "training.optimiser: expected 'sgd', 'a"),
        (
            ("training.lr = 0.1", 'training = {lr = 1, optimiser = "adam", momentum = 0.9}'),
            'federation.training: momentum needs optimiser = "sgd", got optimiser = "adam": leave one of them out',
        ),
        (
            ("training.lr = 0.1", "training = {lr = 1, betas = [0.9, 0.99]}"),
            'federation.training: betas needs optimiser = "adam" or "adamw", got optimiser = "sgd"',
        ),
        (("training.lr = 0.1", "training = {lr = 1, nesterov = true}"), "training: nesterov needs a momentum above 0"),
        (
            ("training.lr = 0.1", "training = {lr = 1, momentum = 1.0}"),
            "training.momentum: expected less than 1, got 1",
        ),
        (("training.lr = 0.1", "training = {lr = 1, weight_decay = -1}"), "weight_decay: expected greater than or eq"),
        (
            ("training.lr = 0.1", "training = {lr = 1, steps = 3, epochs = 1}"),
            "steps replaces epochs, but",
        ),
        (("training.lr = 0.1", "training = {lr = 1, clip = 0.0}"), "training.clip: expected greater than 0, got 0.0"),
        (("training.lr = 0.1", "training = {lr = 1, shuffle = 0}"), "training.shuffle: expected .*bool"),
        (("training.lr = 0.1", "training = {lr = 1, label_smoothing = 1.0}"), "label_smoothing: expected less than 1"),
        (("training.lr = 0.1", 'partition = "dirichlet"\ntraining.lr = 0.1'), "alpha belongs to partition"),
        (("training.lr = 0.1", 'partition = "random"\ntraining.lr = 0.1'), "federation.partition: expected 'iid'"),
        (("examples = 1", "examples = [1, 1, 1]"), "one for each of the 2 clients, got 3 numbers"),
        (("name =", "nam ="), r"attacks\[0\].name is missing"),
        (("[[attacks]]", "[[attack]]"), "attack is not a key of a plan: did you mean 'attacks'"),
        (
            ("[federation]", '[adversary]\nview = "spy"\n[federation]'),
            "adversary.view: expected 'server', 'aggregate', 'peer' or 'malicious_server'",
        ),
        (("[federation]", "[adversary]\nknows_labels = 1\n[federation]"), "adversary.knows_labels: expected .*bool"),
        (("[federation]", "[gate]\nthreshold = 'x'\n[federation]"), "gate.threshold: expected .*number.*, got 'x'"),
        (("[federation]", "repeats = 0\n[federation]"), "repeats: expected greater than or equal to 1, got 0"),
        (("[federation]", "[federation"), "not valid TOML"),
    ],
)
def test_a_wrong_plan_gets_one_sentence(change: tuple[str, str], words: str) -> None:
    assert change[0] in SMALL
    with pytest.raises(UsageError, match=words) as caught:
        parse_plan(SMALL.replace(*change))
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (('"inverting_gradients"', '"inverting_gradient"'), "Unknown attack .*did you mean 'inverting_gradients'"),
        (("iterations = 3", "iteration = 3"), "attack 'inverting_gradients': Unknown option 'iteration'.*'iterations'"),
        (("iterations = 3", 'iterations = "3"'), "iterations must be of type int, got '3'"),
        (("iterations = 3", "iterations = 3.5"), "iterations must be of type int, got 3.5"),
        (("iterations = 3", "iterations = 0"), "iterations must be at least 1, got 0"),
        (("iterations = 3", "tv = -0.1"), "tv must be a finite number of at least 0, got -0.1"),
        (("iterations = 3", "tv = inf"), "tv must be a finite number"),
        (("iterations = 3", 'labels = "sing_rule"'), "Unknown labels 'sing_rule': did you mean 'sign_rule'"),
        (("iterations = 3", 'labels = "oracle"'), "'inverting_gradients' needs the true labels.*knows_labels = true"),
        (('"photos"', '"photo"'), "Unknown dataset 'photo': did you mean 'photos'"),
        (('"photos"', '"npz:nowhere.npz"'), "no such file or folder"),
        (("clients = 2", 'clients = 2\nmodel = "lenett"'), "Unknown model 'lenett': did you mean 'lenet'"),
        (("clients = 2", 'clients = 2\ninit = "kaiming"'), "Unknown initialisation 'kaiming': did you mean 'kaiming_"),
        (("clients = 2", 'clients = 2\ninit = "file:no.safetensors"'), "does not exist"),
        (("clients = 2", "clients = 20"), None),
        (("clients = 2", "clients = 30"), "federation.examples asks for 30 examples in all .*photos has 24"),
        (("examples = 1", "examples = 13"), "asks for 26 examples in all"),
        (("examples = 1", "test_examples = 24"), "test_examples must leave some of the 24"),
        (("clients = 2", "clients = 2\nclasses = 3"), r"labels must lie in \[0, 3\)"),
        (("[federation]", '[metrics]\nnames = ["pnsr"]\n[federation]'), "Unknown metric 'pnsr': did you mean 'psnr'"),
        (("[federation]", '[metrics]\nnames = ["ssim"]\n[federation]'), "gate.metric is 'psnr', which is not among"),
        (("[federation]", '[[defences]]\nname = "no such"\n[federation]'), "Unknown defence 'no such'"),
        (("[federation]", "[adversary]\nclient = 2\n[federation]"), "adversary.client must be one of 0 to 1, got 2"),
        (("[federation]", "[adversary]\nround = 1\n[federation]"), "adversary.round must be one of 0 to 0, got 1"),
    ],
)
def test_a_plan_that_can_not_be_met_gets_one_sentence(change: tuple[str, str], words: str | None) -> None:
    assert change[0] in SMALL
    text = SMALL.replace(*change)
    if words is None:
        compiled(text)
        return
    with pytest.raises(FedglassError, match=words) as caught:
        compile_plan(parse_plan(text), Path())
    assert isinstance(caught.value, UsageError)


def test_a_gate_that_could_never_be_judged_is_refused(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.delenv("FEDGLASS_LPIPS", raising=False)
    monkeypatch.setenv("HOME", str(tmp_path))
    with pytest.raises(UsageError, match=r"gate.metric 'lpips' cannot be computed: LPIPS needs network weights"):
        compile_plan(parse_plan('[gate]\nmetric = "lpips"\nthreshold = 0.1\n' + SMALL), Path())


def test_a_plan_needs_exactly_one_kind_of_source() -> None:
    with pytest.raises(UsageError, match="either"):
        parse_plan('[[attacks]]\nname = "idlg"')


def test_unreadable_plans(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="fedglass init"):
        read_plan(tmp_path / "none.toml")
    (tmp_path / "binary.toml").write_bytes(b"\xff\xfe")
    with pytest.raises(UsageError, match="not UTF-8"):
        read_plan(tmp_path / "binary.toml")
    (tmp_path / "long.toml").write_bytes(b"#" * (2**20 + 1))
    with pytest.raises(UsageError, match="has more than"):
        read_plan(tmp_path / "long.toml")


def test_options_of_other_kinds() -> None:
    def make(at: tuple[float, ...] = (), flag: bool = False, part: object = None) -> None: ...

    assert checked_options("x", make, {"at": [1, 0.5], "flag": True}) == {"at": (1.0, 0.5), "flag": True}
    with pytest.raises(UsageError, match="Unknown option 'part'"):
        checked_options("x", make, {"part": "anything"})


def test_no_defence_is_plain_training() -> None:
    assert repr(defences_of([])) == "Protection(gradient=MeanGradient(), release=AsIs())"


def test_too_few_examples_of_a_partition() -> None:
    text = SMALL.replace("examples = 1", 'examples = 12\npartition = "dirichlet"\nalpha = 0.1')
    with pytest.raises(DataError, match="but the partition gives it"):
        compile_plan(parse_plan(text), Path())


def test_the_threat_model_names_every_assumption() -> None:
    text = "[adversary]\nknows_training = false\nknows_labels = true\n" + SMALL
    said = "\n".join(
        line for title, lines in threat_model(compile_plan(parse_plan(text), Path())) for line in (title, *lines)
    )
    for words in (
        "2 clients with 1 private example each",
        "The server's rule is mean: the mean of the updates",
        "training: not known",
        "labels: ORACLE: the true labels",
        "The server sees the update of each client by itself.",
        "PSNR above 20 dB",
        "No defence",
    ):
        assert words in said


@pytest.mark.parametrize("name", ["dlfa", "dlfa_shared", "dlfa_fedsgd"])
def test_a_simulation_without_its_training_is_refused_before_anything_runs(name: str) -> None:
    text = "[adversary]\nknows_training = false\n" + SMALL.replace("inverting_gradients", name)
    with pytest.raises(UsageError, match=f"attack '{name}': .*needs .*batch size.*adversary.knows_training = true"):
        compile_plan(parse_plan(text), Path())


def test_a_federation_may_go_without_the_plans_defences() -> None:
    clip = '[[defences]]\nname = "clip"\nnorm = 1.0\n'
    said = compiled(clip + SMALL).protection()
    assert set(said.values()) == {("Defended by Clip(norm=1.0).",)}
    bare = compiled(clip + SMALL.replace("clients", "defended = false\nclients")).protection()
    assert set(bare.values()) == {()}
