"""Measures the check of received models on crafted and honest ones: ROC of each sign, and of all signs together.

`python tools/measure_received.py FOLDER [DATA]` plays honest federations on the npz files of DATA and on the embedded
photos, keeps a line for each model in FOLDER/lines.jsonl, and prints the tables of docs/received-models.md. Thresholds
were chosen on two thirds of the federations, and are judged on the last third.
"""

from __future__ import annotations

import copy
import itertools
import json
import math
import sys
import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
from shared_data import data_folder
from torch import Tensor, nn
from torch.nn import functional as F

from fedglass import Client, Federation, Knows, ServerView, Training, build, load, recipe
from fedglass.attack.malicious_server import (
    Fishing,
    Imprint,
    PublicSample,
    TrapWeights,
    front_layers,
    imprint_rows,
    last_dense,
)
from fedglass.core import thresholds
from fedglass.core.rng import stream
from fedglass.federation.federation import observe
from fedglass.guard.received import ReceivedRequest
from fedglass.guard.report import GuardMemory

SIDE = 16
CLIENTS, EXAMPLES = 4, 400
ROUNDS = (0, 1, 2, 5, 10, 20)
"""Rounds of one local epoch before which client 0 receives a model that is looked at."""
CRAFTED_AT = (0, 5)
State = dict[str, Tensor]


def narrow_mlp(shape: tuple[int, int, int], classes: int) -> nn.Module:
    units = 128
    return nn.Sequential(
        nn.Flatten(), nn.Linear(math.prod(shape), units), nn.ReLU(), nn.Linear(units, units), nn.ReLU(),
        nn.Linear(units, classes),
    )  # fmt: skip


def grouped(shape: tuple[int, int, int], classes: int) -> nn.Module:
    """A small convolutional network with GroupNorm."""
    return nn.Sequential(
        nn.Conv2d(shape[0], 16, 3, padding=1), nn.GroupNorm(4, 16), nn.ReLU(), nn.MaxPool2d(2),
        nn.Conv2d(16, 32, 3, padding=1), nn.GroupNorm(4, 32), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten(),
        nn.Linear(32 * (SIDE // 4) ** 2, 64), nn.ReLU(), nn.Linear(64, classes),
    )  # fmt: skip


def normalised(shape: tuple[int, int, int], classes: int) -> nn.Module:
    """A small convolutional network with BatchNorm, and one between its dense layers."""
    return nn.Sequential(
        nn.Conv2d(shape[0], 16, 3, padding=1), nn.BatchNorm2d(16), nn.ReLU(), nn.MaxPool2d(2),
        nn.Conv2d(16, 32, 3, padding=1), nn.BatchNorm2d(32), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten(),
        nn.Linear(32 * (SIDE // 4) ** 2, 64), nn.BatchNorm1d(64), nn.ReLU(), nn.Linear(64, classes),
    )  # fmt: skip


OWN = {"narrow_mlp": narrow_mlp, "grouped": grouped, "normalised": normalised}


@dataclass(frozen=True)
class Run:
    """One honest federation."""

    data: str
    model: str
    optimiser: str = "sgd"
    lr: float = 0.05
    batch: int = 16
    one_class_heavy: bool = False
    """Whether most of each client's examples are of two classes."""
    own: int = 64
    """Examples that the client checks with."""
    gap: int = 1
    """Rounds since the client last took part."""
    frozen: bool = False
    """Whether only the last layer is trained, behind a backbone that was trained on other data."""


MODELS = ("mlp", "narrow_mlp", "femnist_cnn", "lenet5", "grouped", "normalised", "resnet8")
DATA = ("mnist_10k", "fashion_mnist_10k", "cifar10_10k", "photos")
RATES = {"sgd": 0.1, "momentum": 0.02, "adam": 0.001}
CHOSEN_ON, JUDGED_ON = (*range(16), *range(28, 44)), range(44, 62)
"""The federations on which the thresholds were chosen, and those of the tables."""
RUNS = {
    i: Run(
        DATA[i % 4],
        MODELS[i % 7],
        optimiser := tuple(RATES)[i % 3],
        RATES[optimiser],
        (8, 16, 32, 64)[(i // 4) % 4],
        one_class_heavy=i % 5 == 2,
        own=(8, 16, 32, 64)[(i // 4) % 4] if i % 2 else 256,
        gap=3 if i % 4 == 3 else 1,
        frozen=i % 6 == 5 and MODELS[i % 7] != "mlp",
    )
    for i in (*CHOSEN_ON, *JUDGED_ON)
}


def images_of(name: str, folder: Path) -> Any:
    return load(name if name == "photos" else f"npz:{folder / name}.npz", size=SIDE)


def fresh(run: Run, shape: tuple[int, int, int], classes: int, seed: int) -> nn.Module:
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        if run.model in OWN:
            return OWN[run.model](shape, classes)
        return build(run.model, shape=shape, classes=classes, seed=seed)


def trained(model: nn.Module, x: Tensor, y: Tensor, run: Run, seed: int, epochs: int = 1) -> nn.Module:
    """One client's local training."""
    model = copy.deepcopy(model).train()
    moving = [p for p in model.parameters() if p.requires_grad]
    options: dict[str, Any] = {"momentum": 0.9} if run.optimiser == "momentum" else {}
    rule = (torch.optim.Adam if run.optimiser == "adam" else torch.optim.SGD)(moving, lr=run.lr, **options)
    for epoch in range(epochs):
        order = torch.randperm(len(y), generator=stream(seed, "order", epoch))
        for rows in torch.split(order, run.batch):
            if len(rows) > 1:
                rule.zero_grad()
                torch.autograd.backward(F.cross_entropy(model(x[rows]), y[rows]))
                rule.step()
    return model


@dataclass(frozen=True)
class Received:
    """What one client receives before a round, with what it remembers."""

    model: nn.Module
    last: State | None
    sent: State | None
    inputs: Tensor
    labels: Tensor
    """One batch, from which the server is to read."""
    own: Tensor
    """The inputs of the examples that the client checks with."""
    own_labels: Tensor
    round: int


def state_of(model: nn.Module) -> State:
    return {name: tensor.detach().clone() for name, tensor in model.state_dict().items()}


def honest(index: int, run: Run, folder: Path) -> tuple[list[Received], PublicSample]:
    """Play a federation honestly and return what client 0 receives."""
    data, draws = images_of(run.data, folder), stream(index, "run")
    shape, classes = tuple(data.images.shape[1:]), data.classes
    clients = 2 if run.data == "photos" else CLIENTS
    per_client = min(EXAMPLES, len(data.labels) // (clients + 1))
    order = torch.randperm(len(data.labels), generator=draws)
    if run.one_class_heavy:
        order = torch.cat([order[data.labels[order] % 5 == c % 5][:per_client] for c in range(clients)] + [order])
        seen: dict[int, None] = dict.fromkeys(order.tolist())
        order = torch.tensor(list(seen))
    inputs = data.whitening.whiten(data.images)
    parts = [order[i * per_client : (i + 1) * per_client] for i in range(clients)]
    rest = order[clients * per_client :][:500]
    public = PublicSample(data.images[rest], data.whitening)
    model = fresh(run, shape, classes, index)
    if run.frozen:
        model = with_backbone(model, run, shape, classes, index, folder)
    received, memory = [], dict[int, tuple[State, State]]()
    batch, own = parts[0][: max(run.batch, 8)], parts[0][: run.own]
    for number in range(max(ROUNDS) + 1):
        if number in ROUNDS:
            last, sent = memory.get(number - run.gap, (None, None))
            network, examples = copy.deepcopy(model), (inputs[batch], data.labels[batch], inputs[own], data.labels[own])
            received.append(Received(network, last, sent, *examples, number))
        before = state_of(model)
        after = [
            state_of(trained(model, inputs[rows], data.labels[rows], run, index * 1000 + number * 10 + c))
            for c, rows in enumerate(parts)
        ]
        mean = {n: torch.stack([a[n].double() for a in after]).mean(0).to(t.dtype) for n, t in before.items()}
        sent = {n: after[0][n] - t for n, t in before.items() if t.is_floating_point()}
        memory[number] = before, sent
        model.load_state_dict(mean)
    return received, public


def with_backbone(model: nn.Module, run: Run, shape: Any, classes: int, index: int, folder: Path) -> nn.Module:
    """Train on other data of the same shape, then renew the last layer and freeze the others."""
    other = images_of("fashion_mnist_10k" if shape[0] == 1 else "cifar10_10k", folder)
    rows = torch.randperm(len(other.labels), generator=stream(index, "backbone"))[:512]
    x = other.whitening.whiten(other.images[rows])
    model = trained(model, x, other.labels[rows] % classes, run, index, epochs=8)
    last = last_dense(model)
    assert last is not None
    with torch.random.fork_rng():
        torch.manual_seed(index)
        last.reset_parameters()
    for p in model.parameters():
        p.requires_grad_(any(p is own for own in last.parameters()))
    return model


# Crafted models, with variants that make them harder to see.


def one_of(draws: torch.Generator, *values: Any) -> Any:
    return values[int(torch.randint(len(values), (1,), generator=draws))]


def crafted(kind: str, got: Received, public: PublicSample, draws: torch.Generator) -> tuple[nn.Module, dict[str, Any]]:
    """Return a crafted model and how it was varied."""
    if kind == "fishing":
        return fished(got, draws)
    units = one_of(draws, 32, 64, 128, 256)
    part = Imprint(units) if kind == "imprint" else TrapWeights(one_of(draws, 0.02, 0.05, 0.1), units)
    model = part.craft(got.model, public)
    layers = front_layers(model, got.inputs[:1])
    assert layers is not None
    first, second = layers
    how: dict[str, Any] = {"units": first.out_features, "block": front_layers(got.model, got.inputs[:1]) is None}
    honest_first = front_layers(got.model, got.inputs[:1])
    with torch.no_grad():
        if kind == "imprint" and (h := one_of(draws, "mean", "random")) == "random":
            direction = torch.randn(first.in_features, generator=draws) / first.in_features**0.5
            values = public.inputs.flatten(1) @ direction
            gain = 1 / (first.out_features * float(values.std()))
            weight, bias = imprint_rows(direction, values, first.out_features, gain)
            first.weight.copy_(weight)
            first.bias.copy_(bias)
            how["h"] = h
        how["noise"] = noise = one_of(draws, 0.0, 0.0, 0.1, 0.3, 1.0)
        lengths = first.weight.norm(dim=1, keepdim=True)
        shift = torch.randn(first.weight.shape, generator=draws)
        first.weight.add_(noise * lengths * shift / shift.norm(dim=1, keepdim=True))
        shift = torch.randn(second.weight.shape, generator=draws)
        second.weight.add_(noise * second.weight.norm(dim=1, keepdim=True) * shift / shift.norm(dim=1, keepdim=True))
        if one_of(draws, True, False):
            how["rescaled"] = True
            factor = 10 ** (torch.rand(len(first.bias), generator=draws) - 0.5)
            first.weight.mul_(factor[:, None])
            first.bias.mul_(factor)
        order = torch.randperm(len(first.bias), generator=draws)
        first.weight.copy_(first.weight[order])
        first.bias.copy_(first.bias[order])
        share = one_of(draws, 1.0, 1.0, 0.5, 0.25, 0.1) if honest_first is not None else 1.0
        if share < 1 and honest_first is not None:  # the other units stay honest
            how["share"] = share
            kept = torch.randperm(len(first.bias), generator=draws)[int(share * len(first.bias)) :]
            first.weight[kept] = honest_first[0].weight[kept]
            first.bias[kept] = honest_first[0].bias[kept]
    return model, how


def fished(got: Received, draws: torch.Generator) -> tuple[nn.Module, dict[str, Any]]:
    target = int(got.labels[0])
    how = {
        "variant": one_of(draws, "class", "class", "small rows", "scaled row", "feature", "bias only"),
        "bias": one_of(draws, 1000.0, 100.0, 20.0, 10.0),
        "scale": one_of(draws, 10.0, 100.0),
    }
    model = Fishing(target, how["bias"]).craft(got.model, PublicSample(torch.zeros(1, 1, 1, 1), None))  # type: ignore[arg-type]
    last, old = last_dense(model), last_dense(got.model)
    assert last is not None
    assert old is not None
    with torch.no_grad():
        if how["variant"] == "small rows":
            kept = last.weight[target].clone()
            last.weight.copy_(old.weight / how["scale"])
            last.weight[target] = kept
        elif how["variant"] == "scaled row":
            last.weight.copy_(old.weight)
            last.weight[target] *= how["scale"]
        elif how["variant"] == "feature":
            last.weight.zero_()
            last.weight[target, int(torch.randint(last.in_features, (1,), generator=draws))] = how["scale"]
            last.bias.zero_()
            last.bias[target] = -how["scale"] * float(torch.rand(1, generator=draws))
        elif how["variant"] == "bias only":
            last.weight.copy_(old.weight)
    return model, how


def read_by(kind: str, model: nn.Module, got: Received) -> float:
    """Return the share of a batch's images that the server reads, with errors below 5 % of the inputs' variance.

    For fishing return the share of one example in the gradient in front of the last layer.
    """
    model = copy.deepcopy(model).eval()
    if kind == "fishing":
        last, held = last_dense(model), list[Tensor]()
        if last is None:
            return 0.0
        last.register_forward_pre_hook(lambda layer, args: held.append(args[0]))
        for p in model.parameters():
            p.requires_grad_(True)
        loss = F.cross_entropy(model(got.inputs), got.labels, reduction="sum")
        norms = torch.autograd.grad(loss, held[0])[0].flatten(1).norm(dim=1)
        return float(norms.max() / norms.sum()) if float(norms.sum()) else 0.0
    model = model.double().requires_grad_(True)
    layers = front_layers(model, got.inputs[:1])
    if layers is None:
        return 0.0
    first: Any = layers[0]
    loss = F.cross_entropy(model(got.inputs.double()), got.labels)
    u, v = torch.autograd.grad(loss, [first.weight, first.bias])
    if kind == "imprint":
        order = (first.bias / first.weight.norm(dim=1)).argsort(descending=True)
        u, v = u[order], v[order]
        u, v = u[:-1] - u[1:], v[:-1] - v[1:]
    rows = v != 0
    images = u[rows] / v[rows, None]
    if not len(images):
        return 0.0
    errors = torch.cdist(got.inputs.flatten(1).double(), images).square().min(1).values / images.shape[1]
    spread = got.inputs.double().var()
    return float((errors < 0.05 * spread).sum()) / len(errors)


def renewed(kind: str, model: nn.Module, got: Received) -> nn.Module:
    """Return the crafted model with fresh weights in the crafted layers; for fishing, the honest model."""
    if kind == "fishing":
        return got.model
    model = copy.deepcopy(model)
    layers = front_layers(model, got.inputs[:1])
    assert layers is not None
    with torch.random.fork_rng():
        torch.manual_seed(0)
        for layer in layers:
            layer.reset_parameters()
    return model


def figures(model: nn.Module, got: Received) -> dict[str, Any]:
    """Return figures and reasons without and with a memory of the last accepted model."""
    state, memories = state_of(model), {"first": GuardMemory()}
    if got.last is not None:
        memories["later"] = GuardMemory(accepted=got.last, moved=got.sent)
    checked: dict[str, Any] = {"later": None, "seconds": 0.0}
    for when, memory in memories.items():
        start = time.process_time()
        report = ReceivedRequest(state, "block", memory, model, got.own, got.own_labels).report()
        checked["seconds"] = max(checked["seconds"], time.process_time() - start)
        checked[when] = {**asdict(report.figures), "reasons": [reason.value for reason in report.reasons]}
    return checked


def lines(index: int, run: Run, folder: Path) -> Iterator[dict[str, Any]]:
    received, public = honest(index, run, folder)
    where = {"run": index, "data": run.data, "model": run.model, "batch": run.batch, "optimiser": run.optimiser}
    for got in received:
        yield {**where, "round": got.round, "kind": "honest", "frozen": run.frozen, **figures(got.model, got)}
        if got.round in CRAFTED_AT:
            for kind in ("imprint", "trap", "fishing"):
                draws = stream(index, kind, got.round)
                model, how = crafted(kind, got, public, draws)
                reads = {"read": read_by(kind, model, got), "read_fresh": read_by(kind, renewed(kind, model, got), got)}
                yield {**where, "round": got.round, "kind": kind, "how": how, **reads, **figures(model, got)}


# The tables.

SIGNS = {
    "parallel_rows": "imprint",
    "lone_units": "trap",
    "rare_units": "trap",
    "class_row": "fishing",
    "class_bias": "fishing",
    "unexplained_change": "",
}
"""Figure -> the attack that it is a sign of; an unexplained change is one of all."""
FIGURES = "| {} | {} of {} | {:.3f} | {:.0%} | {:g} | {} of {} | {} of {} |"
KINDS = "| {} | {} | {} of {} | {} of {} | {} of {} |"


def area(honest_values: list[float], crafted_values: list[float]) -> float:
    """Return the area under the ROC curve: how often a crafted model has the larger figure."""
    pairs = [(c > h) + 0.5 * (c == h) for c in crafted_values for h in honest_values]
    return sum(pairs) / len(pairs)


def table_of_figures(every: list[dict[str, Any]]) -> Iterator[str]:
    """Yield a row for each figure, of the federations that thresholds were not chosen on."""
    half = [line for line in every if line["run"] in JUDGED_ON]
    for name, attack in SIGNS.items():
        limit = getattr(thresholds, name.upper())

        def values(lines: list[dict[str, Any]], name: str = name) -> list[float]:
            found = [(line["later"] or line["first"])[name] for line in lines]
            return [value for value in found if value is not None]

        fair = values([line for line in half if line["kind"] == "honest"])
        crafted_lines = [line for line in half if line["kind"] == attack or (not attack and line["kind"] != "honest")]
        bad = values(crafted_lines)
        better = values([line for line in crafted_lines if line["read"] > line["read_fresh"]])
        # The best threshold on these federations that at most 2 % of its honest models exceed.
        cut = sorted(fair, reverse=True)[int(0.02 * len(fair))]
        yield FIGURES.format(
            name, len(bad), len(fair), area(fair, bad), sum(v > cut for v in bad) / len(bad), limit,
            sum(v > limit for v in fair), len(fair), sum(v > limit for v in better), len(better),
        )  # fmt: skip


def refused(line: dict[str, Any], when: str) -> bool:
    """Return whether a model is refused, without or with a memory of the last accepted one."""
    return bool(line[when] and line[when]["reasons"])


def table_of_models(every: list[dict[str, Any]]) -> Iterator[str]:
    """Yield a row for each kind, of seen and unseen federations: refused in a first round, later, if more is read."""
    for kind in ("honest", "imprint", "trap", "fishing"):
        for part, runs in (("seen", CHOSEN_ON), ("unseen", JUDGED_ON)):
            first = [line for line in every if line["kind"] == kind and line["run"] in runs]
            later = [line for line in first if line["later"]]
            reads = [line for line in first if line.get("read", 0) > line.get("read_fresh", 0)]
            yield KINDS.format(
                kind, part, sum(refused(line, "first") for line in first), len(first),
                sum(refused(line, "first") for line in reads), len(reads),
                sum(refused(line, "later") for line in later), len(later),
            )  # fmt: skip


def slipped(every: list[dict[str, Any]]) -> Iterator[str]:
    """Yield the crafted models that are accepted in a first round and from which more is read than from a fresh one."""
    for line in every:
        if line["kind"] != "honest" and not refused(line, "first") and line["read"] > line["read_fresh"]:
            figures = {name: round(value, 3) for name, value in line["first"].items() if isinstance(value, float)}
            read = f"{line['read']:.2f} instead of {line['read_fresh']:.2f}"
            yield f"{line['kind']} {line['data']} {line['model']} batch {line['batch']} {line['how']} {read} {figures}"


def play(folder: Path, shared: Path) -> list[dict[str, Any]]:
    """Return the lines of all runs; those that are missing in the folder are played."""
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / "lines.jsonl"
    done = {json.loads(line)["run"] for line in path.read_text().splitlines()} if path.exists() else set()
    for index, run in RUNS.items():
        if index not in done:
            text = "".join(json.dumps(line) + "\n" for line in lines(index, run, shared))
            with path.open("a") as file:
                file.write(text)
    return [line for line in map(json.loads, path.read_text().splitlines()) if line["run"] in RUNS]


READ = "| {} | {} | {} | {} | {:.1f} dB | {:.1f} dB |"


def table_of_reading(shared: Path) -> Iterator[str]:
    """Yield what a simulated server reads of CIFAR-10 images: those above 20 dB, the best PSNR, and a blind guess's.

    The blind guess is the mean of the public images. The labels of a batch are its own; fishing is after the first.
    """
    data, attacks = load(f"npz:{shared / 'cifar10_10k.npz'}"), ("imprint", "trap_weights", "fishing")
    for name, model, size in itertools.product(attacks, ("mlp", "lenet"), (4, 16, 64)):
        order = torch.randperm(len(data.labels), generator=stream(size, "reading"))
        rows, rest = order[:size], order[size : size + 2000]
        public = PublicSample(data.images[rest], data.whitening)
        attack: Any = recipe(name, **({"target": int(data.labels[rows[0]])} if name == "fishing" else {}))
        crafted = attack.sends.craft(build(model, shape=data.shape, classes=data.classes), public)
        client = Client("client 0", data.images[rows], data.labels[rows])
        federation = Federation(crafted, [client], Training(lr=0.1), data.classes, data.whitening)
        observation, truth = observe(federation, ServerView(), Knows())
        images = attack.run(observation).images
        blind = psnr(public.images.mean(0, keepdim=True), truth.images)
        read = psnr(images, truth.images) if len(images) else torch.zeros(size)
        yield READ.format(name, model, size, int((read > 20).sum()), float(read.max()), float(blind.max()))


def psnr(images: Tensor, truth: Tensor) -> Tensor:
    """Return the PSNR of each true image, by the image that shows it best, at most 100 dB."""
    errors = torch.cdist(truth.flatten(1).double(), images.flatten(1).double()).square() / truth[0].numel()
    return -10 * errors.min(1).values.clamp(min=1e-10).log10()


if __name__ == "__main__":
    torch.set_num_threads(1)
    shared = data_folder(sys.argv[2] if len(sys.argv) > 2 else "")
    every = play(Path(sys.argv[1]), shared)
    for rows in (table_of_figures(every), table_of_models(every), slipped(every), table_of_reading(shared)):
        sys.stdout.write("\n".join(rows) + "\n\n")
