"""`fedglass join` makes one bundle of several recordings; `fedglass record-info` says what a bundle holds."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from fedglass.cli.options import PATH, Output, output_options
from fedglass.core.text import EPSILON_MEANING, count, ranges, some, values_by_key

if TYPE_CHECKING:
    from fedglass.recordings.facts import FactSheet

NOTHING_TO_AUDIT = 3
"""The exit code for a recording of which no message can be audited."""
SHOWN_CLIENTS = 10
"""Names of clients in one line."""
MOST_LETTERS = 300
"""Characters of a recorder's sentence."""
MOST_LETTERS_OF_A_FACT = 100
NODE = "node-"
NODE_IDS = (
    "Some clients are named by Flower's node ids, which change in every run. Return the metric partition-id with each "
    "training to name them."
)
DEFENCE_UNKNOWN = (
    "No defence was recorded. Name it in a plan (fedglass init --from), such as recording.defended = "
    '[{ name = "dpsgd", clip = 1.0, noise_multiplier = 1.0 }], or set recording.defended = false if there is none.'
)
PUBLIC = (
    "Give the audit examples like the clients' that no client has, at least 200 of each class (--public DATA): they "
    "show what a guess without the messages reaches, and whether a message names its records."
)


@click.command(short_help="Make one bundle of what a server and its clients have recorded.")
@click.argument("into", type=PATH)
@click.argument("bundles", type=PATH, nargs=-1, required=True)
@output_options
def join(into: Path, bundles: tuple[Path, ...], output: Output) -> None:
    """Read every bundle of BUNDLES with every check and write what they hold together to the new folder INTO.

    Clients that a server and they themselves call by the same name are one. The clients' truths stay where they are.
    A single folder that Transcript.save has written becomes a bundle too.

    \b
    Examples:
      fedglass join whole/ server/bundle/ clients/*
      fedglass audit whole/ -o out --truth truths/
    """
    from fedglass.recordings.join import bundle_of_saved, is_saved
    from fedglass.recordings.join import join as join_bundles

    if len(bundles) == 1 and is_saved(bundles[0]):
        bundle = bundle_of_saved(bundles[0], into)
    else:
        bundle = join_bundles(into, list(bundles))
    output.say(f"{into}: {len(bundle.rounds)} round(s) of {len(bundle.clients)} client(s).")
    output.answer({"bundle": str(into), "rounds": list(bundle.rounds), "clients": list(bundle.clients)})


@click.command("record-info", short_help="Say what a recorded federation holds, and what is missing for which attack.")
@click.argument("bundle", type=PATH)
@output_options
@click.pass_context
def record_info(ctx: click.Context, bundle: Path, output: Output) -> None:
    """Check every file of BUNDLE and say what it holds, what contradicts it, and what is missing for which attack.

    No code is run, whatever the bundle names. The exit code is 3 if nothing in it can be audited.

    \b
    Examples:
      fedglass record-info recorded/
      fedglass record-info recorded/ --json
    """
    from fedglass.plan.draft import inspect_bundle
    from fedglass.recordings.reader import read_bundle

    info = inspect_bundle(read_bundle(bundle))
    for line in _lines(info):
        output.say(line)
    output.answer(info)
    if info["problem"]:
        ctx.exit(NOTHING_TO_AUDIT)


def _lines(info: Mapping[str, Any]) -> Iterator[str]:
    rounds = {round_["round"]: round_ for round_ in info["rounds"]}
    yield f"{info['bundle']}: {count(len(rounds), 'round')}, {count(len(info['clients']), 'client')}, complete."
    yield from (f"  {line}" for line in _fact_lines(info["facts"]))
    for line, indices in values_by_key((_round_line(round_), index) for index, round_ in rounds.items()).items():
        yield f"{_round_numbers(indices)}: {line}"
    facts_by_round = (
        ((message["client"], tuple(_fact_lines(message["facts"], ("config", "metrics")))), index)
        for index, round_ in rounds.items()
        for message in round_["messages"]
    )
    rounds_by_facts = values_by_key(facts_by_round).items()
    by_client = (((facts, tuple(indices)), client) for (client, facts), indices in rounds_by_facts)
    for (facts, rounds_of_facts), clients in values_by_key(by_client).items():
        yield f"{_client_names(clients)}, {_round_numbers(rounds_of_facts).lower()}:"
        yield from (f"  {fact}" for fact in facts or ["no facts were recorded"])
    if any(client.startswith(NODE) for client in info["clients"]):
        yield NODE_IDS
    yield from _audit_lines(info)


def _round_line(round_: Mapping[str, Any]) -> str:
    models, messages = [name for name in ("sent", "aggregated") if round_[name]], round_["messages"]
    missing = [message["client"] for message in messages if message["absent"] is not None]
    absent = f", absent: {_client_names(missing)}" if missing else ""
    personalised = [message["client"] for message in messages if message["sent_own"]]
    own_model = f", a model of its own for {_client_names(personalised)}" if personalised else ""
    messages_received = count(sum(message["received"] for message in messages), "message")
    return f"{' and '.join(models) or 'no global model'}{own_model}, {messages_received}{absent}"


def _round_numbers(indices: Iterable[int]) -> str:
    """Return the numbers of rounds, with runs as ranges.

    >>> _round_numbers([1, 2, 3, 7])
    'Rounds 1 to 3, 7'
    """
    numbers = sorted(set(indices))
    return f"Round{'' if len(numbers) == 1 else 's'} {ranges(numbers)}"


def _client_names(names: Iterable[str]) -> str:
    """Return names, each once; of many, the first ones."""
    return some(list(dict.fromkeys(names)), SHOWN_CLIENTS)


def _audit_lines(info: Mapping[str, Any]) -> Iterator[str]:
    """Yield what contradicts the bundle, the epsilons in it, and what an audit of it would do."""
    from fedglass.core.facts import Fact

    fact_words = {fact: fact.words for fact in Fact}
    if any("lr" in message["facts"] for round_ in info["rounds"] for message in round_["messages"]):
        # The learning rate is known, but it is that of a training that cannot be simulated.
        fact_words |= {Fact.TRAINING: "a training that can be simulated", Fact.LR: "the learning rate of plain SGD"}
    if info["findings"]:
        yield "Contradictions:"
        for finding in info["findings"]:
            client = f", {finding['client']}" if finding["client"] else ""
            yield f"  round {finding['round']}{client}: {finding['words']}"
    if info["epsilons"]:
        yield "Epsilon:"
        for words, clients in values_by_key((e["words"], e["client"]) for e in info["epsilons"]).items():
            yield f"  {_client_names(filter(None, clients)) or 'the federation'}: {words}"
        yield f"  {EPSILON_MEANING}"
    if info["adaptive_clipping"]:
        yield "Clipping is adaptive: its epsilon is not computed."
    if info["problem"]:
        yield info["problem"]
        return
    scope = info["scope"]
    yield (
        f"fedglass simulates networks of {scope['inputs']} with the optimisers {', '.join(scope['optimisers'])} and "
        f"the losses {', '.join(scope['losses'])}."
    )
    reasons = ((("; ".join(found["why"]), found["client"]), found["round"]) for found in info["not_simulated"])
    for (why, client), indices in values_by_key(reasons).items():
        yield f"{client}, {_round_numbers(indices).lower()}: the training cannot be simulated, because {why}."
    if info["needed"]:
        yield f"Missing: {', '.join(info['needed'])}. No attack runs before a plan gives it in its table [recording]."
    messages = "each client's message" if info["view"] == "server" else "the aggregate alone"
    yield f"An audit looks at {messages} of {_round_numbers(info['looked_at']).lower()}."
    yield from (f"  left out: {reason}" for reason in info["left_out"])
    possible = [attack["name"] for attack in info["attacks"] if attack["possible"]]
    allowing = "other facts allow then" if info["needed"] else "facts allow"
    yield f"Attacks that the {allowing}: {', '.join(possible) or 'none'}"
    impossible = [attack for attack in info["attacks"] if not attack["possible"]]
    without_loss = [attack for attack in impossible if Fact.LOSS.value in attack["missing"]]
    if without_loss:
        yield (
            f"  {count(len(without_loss), 'attack')} by gradient matching "
            f"{'lacks' if len(without_loss) == 1 else 'lack'} {Fact.LOSS.words}: name it as training.loss in a plan."
        )
    for attack in impossible:
        if attack not in without_loss:
            yield f"  {attack['name']} lacks {', '.join(fact_words[Fact(fact)] for fact in attack['missing'])}"
    sheets = [info["facts"], *(message["facts"] for round_ in info["rounds"] for message in round_["messages"])]
    if not any("defences" in sheet for sheet in sheets):
        yield DEFENCE_UNKNOWN
    yield PUBLIC


def _fact_lines(sheet: FactSheet, without: tuple[str, ...] = ()) -> Iterator[str]:
    """Yield each fact with its source; a recorder's sentences, which say what cannot be relied on, are in full."""
    from fedglass.recordings.facts import RESERVATION_IDS, RESERVATIONS

    for name, values in sheet.items():
        if name == RESERVATIONS:
            for value in values.values():
                sentences = value if isinstance(value, list) else [value]
                yield from (f"the recorder says: {str(sentence)[:MOST_LETTERS]}" for sentence in sentences)
        elif name not in (RESERVATION_IDS, *without):
            yield f"{name} = " + ", ".join(f"{_shortened(value)} ({source})" for source, value in values.items())


def _shortened(value: object) -> str:
    """Return a fact in one line; a long list of one number, such as sizes of batches, as how often it stands there.

    >>> _shortened([16, 16]), _shortened([16] * 625)
    ('[16, 16]', '625 times 16')
    """
    if isinstance(value, list) and len(value) > 4 and all(item == value[0] for item in value):
        return f"{len(value)} times {json.dumps(value[0])}"
    text = json.dumps(value)
    return text if len(text) <= MOST_LETTERS_OF_A_FACT else text[:MOST_LETTERS_OF_A_FACT] + "..."
