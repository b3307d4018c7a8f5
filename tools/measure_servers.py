"""Measures the check of received models under several servers, and with trap weights in a part of a dense layer.

`python tools/measure_servers.py FOLDER [DATA]` plays federations on the npz files of DATA and on the embedded photos,
writes a line of JSON for each model into FOLDER, and prints the counts of docs/received-models.md.
"""

from __future__ import annotations

import copy
import itertools
import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
from measure_received import (
    RATES,
    Received,
    Run,
    State,
    crafted,
    fresh,
    images_of,
    state_of,
    trained,
)
from shared_data import data_folder
from torch import nn

from fedglass.attack.malicious_server import PublicSample, TrapWeights, front_layers
from fedglass.core.rng import stream
from fedglass.core.thresholds import RARE_UNITS, UNEXPLAINED_CHANGE
from fedglass.guard.received import ReceivedRequest
from fedglass.guard.report import GuardMemory, ReceivedReport

NETWORKS = (
    ("mnist_10k", "lenet5"),
    ("cifar10_10k", "lenet5"),
    ("fashion_mnist_10k", "femnist_cnn"),
    ("cifar10_10k", "normalised"),
    ("mnist_10k", "narrow_mlp"),
    ("photos", "grouped"),
)
SERVERS = (("mean", "equal"), ("mean", "small"), ("adam", "equal"), ("adam", "small"), ("momentum", "equal"))
ROUNDS = (1, 2, 3, 5)
DENSE = (
    *(("cifar10_10k", "narrow_mlp", optimiser) for optimiser in ("sgd", "adam", "momentum")),
    *(("mnist_10k", "narrow_mlp", optimiser) for optimiser in ("sgd", "adam", "momentum")),
    *(("cifar10_10k", "mlp", optimiser) for optimiser in ("adam", "momentum")),
    *(("fashion_mnist_10k", "narrow_mlp", optimiser) for optimiser in ("sgd", "adam", "momentum")),
    ("mnist_10k", "mlp", "adam"),
)
LONG = tuple(
    (9500 + number, *network, *training)
    for number, (network, training) in enumerate(
        itertools.product(
            (
                *(("mnist_10k", "narrow_mlp"), ("fashion_mnist_10k", "narrow_mlp")),
                *(("mnist_10k", "mlp"), ("fashion_mnist_10k", "mlp"), ("cifar10_10k", "narrow_mlp")),
            ),
            (("adam", 0.001, 16), ("adam", 0.003, 32), ("sgd", 0.2, 16), ("momentum", 0.05, 32)),
        ),
        start=1,
    )
    if network[1] != "mlp" or training[0] == "adam"
)
"""Dense networks that are trained for 50 epochs: number, data, network, optimiser, learning rate, batch."""
Moments = dict[str, Any]


def stepped(kind: str, before: State, after: list[State], sizes: list[int], moments: Moments) -> State:
    """Return the next global model of a server: the mean by size, with momentum, or FedAdam."""
    shares = torch.tensor(sizes, dtype=torch.float64) / sum(sizes)
    following = {}
    for name, came in before.items():
        stacked = torch.stack([state[name].double() for state in after])
        mean = (shares.view(-1, *[1] * came.ndim) * stacked).sum(0)
        step = mean - came.double()
        if came.is_floating_point() and "running" not in name:
            if kind == "momentum":
                step = moments[name] = 0.9 * moments.get(name, 0) + step
            if kind == "adam":
                first, second = moments.get(name, (0, 0))
                first, second = moments[name] = 0.9 * first + 0.1 * step, 0.99 * second + 0.01 * step.square()
                step = 0.1 * first / (second.sqrt() + 1e-3)
        following[name] = (came.double() + step).to(came.dtype)
    return following


def federations(folder: Path) -> Iterator[dict[str, Any]]:
    """Yield the unexplained change of honest models and of crafted ones in their place."""
    for number, ((name, model), (server, sizes)) in enumerate(itertools.product(NETWORKS, SERVERS), start=1):
        index, optimiser = 1000 + number, tuple(RATES)[number % 3]
        run, data = Run(name, model, optimiser, RATES[optimiser], 16), images_of(name, folder)
        order = torch.randperm(len(data.labels), generator=stream(index, "run"))
        third = len(data.labels) // 4 if name == "photos" else 400
        counts = [third] * 3
        if sizes == "small":
            counts = [8, third, third] if name == "photos" else [32, 800, 800]
        *parts, rest = torch.split(order, [*counts, len(order) - sum(counts)])
        inputs, public = data.whitening.whiten(data.images), PublicSample(data.images[rest[:500]], data.whitening)
        network = fresh(run, tuple(data.images.shape[1:]), data.classes, index)
        moments: Moments = {}
        last, sent = State(), State()
        for turn in range(max(ROUNDS) + 1):
            rows = parts[0][:32]
            own = inputs[rows], data.labels[rows]
            got = Received(copy.deepcopy(network), last, sent, *own, *own, turn)
            variants = [("honest", network)] if turn in ROUNDS else []
            for kind, variant in itertools.product(("imprint", "trap", "fishing"), range(2)):
                if turn in (1, 5):
                    variants.append((kind, crafted(kind, got, public, stream(index, kind, turn, variant))[0]))
            for kind, received in variants:
                found = checked(received, GuardMemory(accepted=last, moved=sent), *own)
                figure = None if set(state_of(received)) != set(last) else found.figures.unexplained_change
                where = {"data": name, "model": model, "server": server, "sizes": sizes, "round": turn}
                yield {**where, "kind": kind, "figure": figure, "reasons": reasons_of(found)}
            before = state_of(network)
            seeds = (index * 1000 + turn * 10 + client for client in range(3))
            after = [
                state_of(trained(network, inputs[rows], data.labels[rows], run, seed))
                for rows, seed in zip(parts, seeds, strict=True)
            ]
            last, sent = before, {n: after[0][n] - t for n, t in before.items() if t.is_floating_point()}
            network.load_state_dict(stepped(server, before, after, counts, moments))


def dense_networks(folder: Path) -> Iterator[dict[str, Any]]:
    """Yield the units that fire rarely in honest dense networks, and with trap weights in a part of the first layer."""
    short = ((9000 + number, *row, RATES[row[2]], 16) for number, row in enumerate(DENSE, start=1))
    for index, name, model, optimiser, lr, batch in (*short, *LONG):
        run, data = Run(name, model, optimiser, lr, batch), images_of(name, folder)
        long, shares = index > 9500, (0.1, 0.25, 0.5, 0.75)
        kind, looks = ("dense, long", [0, 1, 2, 5, 10, 20, 30, 50]) if long else ("dense", [0, 1, 3, 5, 10, 20])
        order = torch.randperm(len(data.labels), generator=stream(index, "r"))
        inputs, own, rows = data.whitening.whiten(data.images), order[2000:2256], order[:600]
        public = PublicSample(data.images[order[2400:2900]], data.whitening)
        network = fresh(run, tuple(data.images.shape[1:]), data.classes, index)
        for epoch in range(max(looks) + 1):
            models = [(kind, network, part) for part in (own, rows)] if epoch in looks else []
            for share in shares if epoch in (0, 5, 20) and not long else ():
                models.append((f"trap {share}", trapped(network, public, inputs[own[:1]], share, index), own))
            for (what, received, part), size in itertools.product(models, (8, 16, 32, 64, 256)):
                found = checked(received, GuardMemory(), inputs[part[:size]], data.labels[part[:size]])
                where = {"kind": f"{what}, {size} examples", "data": name, "model": model, "epoch": epoch}
                lone = found.figures.lone_first_units
                yield {**where, "figure": found.figures.rare_units, "lone": lone, "reasons": reasons_of(found)}
            network = trained(network, inputs[rows], data.labels[rows], run, index * 100 + epoch)


def checked(received: nn.Module, memory: GuardMemory, inputs: torch.Tensor, labels: torch.Tensor) -> ReceivedReport:
    return ReceivedRequest(state_of(received), "block", memory, received, inputs, labels).report()


def reasons_of(report: ReceivedReport) -> list[str]:
    return [reason.value for reason in report.reasons]


def trapped(network: nn.Module, public: PublicSample, inputs: torch.Tensor, share: float, seed: int) -> nn.Module:
    """Return the network with trap weights in a share of its first layer, with outgoing weights of a tenth."""
    layers = front_layers(TrapWeights(0.05, 256).craft(network, public), inputs)
    model = copy.deepcopy(network)
    own = front_layers(model, inputs)
    assert layers is not None
    assert own is not None
    (first, second), units = own, len(own[0].bias)
    rows = torch.randperm(units, generator=stream(seed, "t"))[: int(share * units)]
    with torch.no_grad():
        first.weight[rows], first.bias[rows] = layers[0].weight[rows], layers[0].bias[rows]
        second.weight[:, rows] *= 0.1
    return model


def counts_of(lines: list[dict[str, Any]]) -> Iterator[str]:
    """Yield for each kind the number of models, of those beyond the limit and refused, and the largest figure."""
    for kind in dict.fromkeys(line["kind"] for line in lines):
        mine = [line for line in lines if line["kind"] == kind]
        figures = [line["figure"] for line in mine if line["figure"] is not None]
        limit = RARE_UNITS if kind.endswith("examples") else UNEXPLAINED_CHANGE
        beyond, reasons = sum(figure > limit for figure in figures), [set(line["reasons"]) for line in mine]
        named = {reason: sum(reason in r for r in reasons) for reason in sorted(set().union(*reasons))}
        yield (
            f"{kind}: {beyond} of {len(figures)} beyond {limit:g}, largest {max(figures):.3g}; "
            f"{sum(map(bool, reasons))} of {len(mine)} refused, for {named}"
        )


def main(folder: Path, data: Path) -> None:
    torch.set_num_threads(1)
    folder.mkdir(parents=True, exist_ok=True)
    lines = [*federations(data), *dense_networks(data)]
    (folder / "servers.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    sys.stdout.write("\n".join(counts_of(lines)) + "\n")


if __name__ == "__main__":
    main(Path(sys.argv[1]), data_folder(sys.argv[2] if len(sys.argv) > 2 else ""))
