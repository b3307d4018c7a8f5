"""Plans with peers, groups of clients, behaviours, rules and several rounds."""

from __future__ import annotations

from pathlib import Path

import pytest

from fedglass.audit.audit import run, threat_model
from fedglass.audit.simulated import Simulated
from fedglass.core.errors import DataError, UsageError
from fedglass.core.types import Training
from fedglass.defend.noise import Clip
from fedglass.federation.behaviours import Honest, PerRound, RejoinAfterRejection, SignFlip
from fedglass.federation.peer import PeerView
from fedglass.federation.views import ServerView
from fedglass.fl.aggregate.rule import WeightedMean
from fedglass.fl.release import AsIs
from fedglass.plan.compile import compile_plan
from fedglass.plan.schema import parse_plan

PLAN = """
[federation]
data = "photos"
size = 16
clients = 4
examples = 1
rounds = 3
training = { lr = 0.1 }
rule = { name = "mean" }

[[federation.group]]
clients = [1]
behaviour = { name = "sign_flip", factor = 2.0 }

[[federation.group]]
clients = [2, 3]
behaviour = [{ name = "honest" }, { name = "sign_flip" }]
defences = []
training = { lr = 0.05 }

[adversary]
view = "peer"
client = [0, 3]
round = [0, 2]

[[defences]]
name = "clip"
norm = 1.0

[[attacks]]
name = "inverting_gradients"
iterations = 2

[metrics]
names = ["psnr", "ssim"]
"""


def source(text: str = PLAN) -> Simulated:
    (one,) = compile_plan(parse_plan(text), Path()).sources
    assert isinstance(one, Simulated)
    return one


def test_groups_differ_from_the_rest() -> None:
    clients = source().federation.clients
    assert [c.behaviour for c in clients] == [
        Honest(),
        SignFlip(2.0),
        *(PerRound((Honest(), SignFlip())),) * 2,
    ]
    assert [c.release for c in clients] == [Clip(1.0), Clip(1.0), AsIs(), AsIs()]
    assert [c.training for c in clients] == [None, None, Training(0.05), Training(0.05)]
    assert source().federation.aggregator == WeightedMean()


def test_views_of_several_rounds_and_participants() -> None:
    assert source().views == (PeerView(0, 0), PeerView(3, 0), PeerView(0, 2), PeerView(3, 2))
    server = source(PLAN.replace('"peer"', '"server"').replace("[0, 2]", "1").replace("[0, 3]", '"all"'))
    assert server.views == tuple(ServerView(client, 1) for client in range(4))


def test_a_poison_is_told_and_never_as_a_defence(tmp_path: Path) -> None:
    job = compile_plan(parse_plan(PLAN), Path())
    lines = [line for _, lines in threat_model(job) for line in lines]
    assert "Client 1 sends its update with the sign flipped, times 2." in lines
    assert "Client 0, client 1: Defended by clip (norm 1): the update scaled down to a maximal L2 norm." in lines
    assert not any("Defended" in line and "Flip" in line for line in lines)
    records = run(job, tmp_path).searches
    assert len(records) == 4
    for record in records:
        assert record.defences is not None
        assert not any("Flip" in line for line in record.defences)
        assert record.behaviours[0] == "Client 1 sends its update with the sign flipped, times 2."
        assert record.participants == record.accepted == [f"client {i}" for i in range(4)]
    first = next(record for record in records if "client 0, a participant" in record.view)
    assert first.client == "client 1, client 2, client 3"
    assert first.defences == ["Client 1: Defended by Clip(norm=1.0).", "Client 2, client 3: No defence."]
    assert len(first.metrics["psnr"]) == 3  # its own picture is not scored
    assert {record.round for record in records} == {1, 3}


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (("clients = [1]", "clients = [7]"), "group.clients must be among 0 to 3, got 7"),
        (("clients = [1]", "clients = [2]"), "client 2 occurs twice"),
        (('name = "sign_flip", factor', 'name = "sing_flip", factor'), "did you mean 'sign_flip'"),
        (("factor = 2.0", "factr = 2.0"), "did you mean 'factor'"),
        (('rule = { name = "mean" }', 'rule = { name = "maen" }'), "did you mean 'mean'"),
        (("round = [0, 2]", "round = [0, 5]"), "adversary.round must be one of 0 to 2, got 5"),
        (("clients = 4\nexamples = 1", "clients = 4\nparticipation = 0.25\nexamples = 1"), "did not take part|alone"),
        (('[{ name = "honest" }, { name = "sign_flip" }]', '"rude"'), r"group\[1\].behaviour: expected a valid list"),
    ],
)
def test_what_can_not_be_is_refused(change: tuple[str, str], words: str) -> None:
    assert change[0] in PLAN
    with pytest.raises(UsageError, match=words):
        source(PLAN.replace(*change))


def test_a_group_may_come_back_under_new_names() -> None:
    text = PLAN.replace("clients = [1]\n", "clients = [1]\nrejoins_after = 2\n")
    assert source(text).federation.clients[1].behaviour == RejoinAfterRejection(SignFlip(2.0), 2)
    lines = [line for _, lines in threat_model(compile_plan(parse_plan(text), Path())) for line in lines]
    told = "Client 1 sends its update with the sign flipped, times 2, and comes back under a new name when 2 of its"
    assert any(line.startswith(told) for line in lines)
    assert not any("Defended" in line and "name" in line for line in lines)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (
            ('{ name = "mean" }', '{ name = "krum", byzantine = 2 }'),
            "needs at least 7 clients in a round .*got 4: lower",
        ),
        (('{ name = "mean" }', '{ name = "balance", phi = 1.0 }'), r"federation\.server_examples"),
        (('name = "sign_flip", factor = 2.0', 'name = "backdoor", side = 99'), "99 pixels does not fit into images of"),
        (('name = "sign_flip", factor = 2.0', 'name = "backdoor", target = 999'), "target must be one of the classes"),
        (("clients = [1]\n", "clients = [1]\nrejoins_after = 0\n"), "rejoins_after"),
    ],
)
def test_what_a_rule_or_a_behaviour_can_not_do_is_one_sentence(change: tuple[str, str], words: str) -> None:
    assert change[0] in PLAN
    with pytest.raises((UsageError, DataError), match=words) as refusal:
        source(PLAN.replace(*change))
    assert "\n" not in str(refusal.value)


def test_a_peer_of_one_client_is_refused() -> None:
    text = PLAN[: PLAN.index("[[federation.group]]")].replace("clients = 4", "clients = 1")
    text += PLAN[PLAN.index("[adversary]") :].replace("[0, 3]", "0")
    with pytest.raises(UsageError, match="is alone in round 0, but a peer needs other participants"):
        source(text)


def test_single_tables_stand_for_lists_of_one() -> None:
    text = PLAN.replace("[[defences]]", "[defences]").replace("[[attacks]]", "[attacks]")
    first = text.index("[[federation.group]]", text.index("[[federation.group]]") + 1)
    single = text[:first].replace("[[federation.group]]", "[federation.group]") + text[text.index("[adversary]") :]
    assert [c.behaviour for c in source(single).federation.clients][1] == SignFlip(2.0)
