"""Estimate the time of published experiments, and run the unfinished cases of a re-creation.

The warm-ups come first, each once in a directory, then the cases by the audit's engine.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import cache, partial
from pathlib import Path

from safetensors.torch import save
from torch import nn

from fedglass.audit.cost import TIMED_STEPS, Workload, duration, gradient_seconds
from fedglass.audit.play import Work, play_unfinished
from fedglass.audit.public_data import accuracy, sample_examples
from fedglass.audit.target import AuditProgress, RoundProgress
from fedglass.core.identity import digest, identity_text
from fedglass.core.rng import derive
from fedglass.core.text import count
from fedglass.execution.executor import Executor, client_trainer, persistent
from fedglass.execution.machine import device_named, repeatable_arithmetic
from fedglass.federation.client import Client, TrainClients, train_sequentially
from fedglass.models.catalogue import build
from fedglass.reproduce.cases import Cell, ClientTrial, TrialCase, cases_of
from fedglass.reproduce.image_sources import KINDS, MOST_WRITERS, Population
from fedglass.reproduce.messages import (
    clients_of_message,
    federation_of,
    network_of,
    played_federation,
    simulated_message,
)
from fedglass.reproduce.paper import Experiment, Setup, WarmUp
from fedglass.verdict.directory import RECORDS, RecordFile, alone, write_bytes
from fedglass.verdict.records import Record

TRAINED, STATES = "trained", "states"


def network_file(trial: ClientTrial, directory: Path, rounds: int | None = None) -> Path | None:
    """Return the file of the trial's network after its warm-up, or after fewer rounds of it; None without a warm-up."""
    setup = trial.experiment.setup
    if setup.warm_up is None:
        return None
    warm_up = setup.warm_up if rounds is None else replace(setup.warm_up, rounds=rounds)
    facts = (setup.data, setup.network, setup.init, setup.gradient, warm_up)
    key = digest(identity_text(facts, "The trained network"), trial.population.identity, str(trial.seed))[:32]
    return directory / TRAINED / f"{key}.safetensors"


def cases_without_network(cases: Sequence[TrialCase], directory: Path) -> list[TrialCase]:
    """Return one case for each network that is not trained yet."""
    warm = {path: case for case in cases if (path := network_file(case.subject, directory)) is not None}
    return [case for path, case in warm.items() if not path.is_file()]


def train_network(
    trial: ClientTrial, directory: Path, progress: RoundProgress, answers: TrainClients = train_sequentially
) -> float:
    """Train the network of the trial's warm-up unless it has a file, and return its accuracy."""
    setup, population, seed = trial.experiment.setup, trial.population, trial.seed
    path = network_file(trial, directory)
    assert path is not None
    with repeatable_arithmetic():
        if not path.is_file():
            done, weights = _shorter(trial, directory)
            model = warm_up_network(setup, population, seed, progress, done, weights, answers)
            write_bytes(directory, f"{TRAINED}/{path.name}", save(model.state_dict()))
        data = population.dataset()
        return accuracy(network_of(setup, seed, str(path)), data.whitening, sample_examples(data, seed))


def warm_up_network(
    setup: Setup,
    population: Population,
    seed: int,
    progress: RoundProgress,
    done: int = 0,
    weights: str | None = None,
    answers: TrainClients = train_sequentially,
) -> nn.Module:
    """Train a network for the rounds of the setup's warm-up; `weights` is its file after `done` of them."""
    model, warm_up = network_of(setup, seed, weights), setup.warm_up
    if warm_up is None:
        return model
    clients = warm_up_clients(warm_up, population)
    share = warm_up.participation(len(clients))
    plan = replace(setup, training=warm_up.training)
    for index in range(done, warm_up.rounds):
        # One round at a time, each with a seed of its own: it does not matter where a shorter warm-up has ended.
        federation = federation_of(plan, model, clients, derive(seed, "warm-up", index), share)
        model.load_state_dict(dict(federation.run(train_clients=answers).rounds[0].after), strict=False)
        progress(index + 1, warm_up.rounds)
    return model


def warm_up_clients(warm_up: WarmUp, population: Population) -> list[Client]:
    """Return the clients of a warm-up; each round calls some of them."""
    writers = population.writers(warm_up.examples)
    population.check(1, warm_up.examples)
    count = MOST_WRITERS if writers is None else min(writers, MOST_WRITERS)
    members = (population.client(i, warm_up.examples) for i in range(count))
    return [Client(name, images, labels) for name, images, labels in members]


def _shorter(trial: ClientTrial, directory: Path) -> tuple[int, str | None]:
    """Return rounds and file of the longest shorter warm-up that is there: one of 10 rounds continues that of 5."""
    warm_up = trial.experiment.setup.warm_up
    for rounds in range(0 if warm_up is None else warm_up.rounds - 1, 0, -1):
        path = network_file(trial, directory, rounds)
        if path is not None and path.is_file():
            return rounds, str(path)
    return 0, None


Play = Callable[[Sequence[TrialCase], AuditProgress, float | None], dict[str, Record]]
"""Function that runs unfinished cases, with the time at which attacks are stopped, and returns all records by key."""


@contextmanager
def ready_to_run(directory: Path, executor: Executor) -> Iterator[Play]:
    """Yield a function that runs cases in a directory; the workers stay for the context.

    One command at a time in a directory: two would run the same cases and train the same networks twice.
    """
    with alone(directory), persistent(executor) as ready:
        states = (directory / STATES).absolute()

        def play(cases: Sequence[TrialCase], progress: AuditProgress, deadline: float | None) -> dict[str, Record]:
            def prepared(todo: Sequence[TrialCase]) -> list[Work]:
                accuracies = _train_networks(todo, directory, progress, client_trainer(ready))
                paths = [network_file(case.subject, directory) for case in todo]
                works = [
                    _work(case, path, {} if path is None else {"accuracy": accuracies[path]}, deadline)
                    for case, path in zip(todo, paths, strict=True)
                ]
                return [replace(work, states=states) for work in works]

            play_unfinished(cases, directory, ready, prepared, progress, cut_short=True)
            keys = {case.key for case in cases}
            return {record.key: record for record in RecordFile(directory / RECORDS).read() if record.key in keys}

        yield play


def run(cells: Sequence[Cell], directory: Path, executor: Executor, progress: AuditProgress) -> dict[str, Record]:
    """Run the unfinished cases, and failed ones again; return the records of all cases by key."""
    with ready_to_run(directory, executor) as play:
        return play(cases_of(cells), progress, None)


def _train_networks(
    cases: Sequence[TrialCase], directory: Path, progress: AuditProgress, answers: TrainClients
) -> dict[Path, float]:
    """Train the networks that the cases start from, which they share; return their accuracies by file."""
    accuracies: dict[Path, float] = {}
    for trial in (case.subject for case in cases):
        path, network = network_file(trial, directory), trial.experiment.setup.network

        def trained(done: int, total: int, network: str = network) -> None:
            progress.trained(f"{network} for {total} rounds", done, total)

        if path is not None and path not in accuracies:
            accuracies[path] = train_network(trial, directory, trained, answers)
    return accuracies


def _work(case: TrialCase, network: Path | None, utility: Mapping[str, float], deadline: float | None) -> Work:
    trial, experiment = case.subject, case.subject.experiment
    device = device_named("auto" if experiment.probe.accelerated else "cpu")
    if experiment.setup.federation_run is not None:
        target = partial(played_federation, experiment, trial.population, trial.client, trial.seed)
    else:
        clients = clients_of_message(experiment.setup, trial.population, trial.client)
        weights = None if network is None else str(network)
        target = partial(simulated_message, experiment, clients, trial.seed, weights, utility)
    return Work(case, target, device, deadline)


GradientTimer = Callable[[str, str, int], float]
"""Return the seconds that one plain gradient takes, given network, kind of data and number of examples."""


@cache
def time_gradient(network: str, data: str, examples: int) -> float:
    """Measure the seconds of one plain gradient of that many examples, on one thread."""
    kind = KINDS[data]
    return gradient_seconds(build(network, shape=kind.shape, classes=kind.classes), kind.shape, examples)


def experiment_seconds(experiment: Experiment, timer: GradientTimer = time_gradient) -> float:
    """Estimate how long one case of an experiment takes on one core."""
    setup, training = experiment.setup, experiment.supposed or experiment.setup.training
    gradient = partial(timer, setup.network, setup.data)
    load = Workload(training, setup.examples, gradient, setup.clients)
    # Of clients that train for many rounds all are simulated, of a message those behind it.
    run = setup.federation_run
    trainings = 1 if run is None else run.rounds * setup.clients
    before = None if run is None else run.before
    trained = load if before is None else replace(load, examples=before.examples, training=before.training)
    return trainings * trained.training_seconds() + experiment.probe.seconds(load)


def warm_up_seconds(trial: ClientTrial, timer: GradientTimer = time_gradient) -> float:
    """Estimate how long the trial's network is trained beforehand, on one core."""
    setup, population = trial.experiment.setup, trial.population
    warm_up = setup.warm_up
    if warm_up is None:
        return 0.0
    examples = warm_up.examples or len(population.dataset()) // (population.writers() or 1)
    load = Workload(warm_up.training, examples, partial(timer, setup.network, setup.data))
    clients = population.writers(warm_up.examples) or MOST_WRITERS
    called = max(1, round(warm_up.participation(clients) * clients))
    return warm_up.rounds * called * load.training_seconds()


def describe_cost(
    cases: Iterable[TrialCase],
    workers: int,
    untrained: Iterable[TrialCase] = (),
    timer: GradientTimer = time_gradient,
) -> str:
    """Return the total cost as one sentence, or say that nothing is left to run.

    `untrained` are the cases with a network that has to be trained first.
    """
    costs = [experiment_seconds(case.subject.experiment, timer) for case in cases]
    if not costs:
        return "Nothing is left to run."
    alike = max(costs) < 1.5 * min(costs)
    one_run = f"about {duration(costs[0])}" if alike else f"{duration(min(costs))} to {duration(max(costs))}"
    running = min(workers, len(costs))
    wall = max(sum(costs) / running, max(costs))
    training = max((warm_up_seconds(case.subject, timer) for case in untrained), default=0.0)
    before = f", after about {duration(training)} of training the network" if training else ""
    return (
        f"{count(len(costs), 'run')}, {one_run} each on one core, about {duration(wall)} in all with "
        f"{count(running, 'worker')} (estimated from {TIMED_STEPS} timed steps){before}."
    )
