"""Opacus is recorded as a defence that an audit can run again, in a loop of one's own and in a client of Flower."""

from __future__ import annotations

import warnings
from pathlib import Path
from typing import Any

import pytest
import torch
from click.testing import CliRunner
from torch import nn
from torch.nn import functional as F
from torch.utils.data import DataLoader, TensorDataset

with warnings.catch_warnings():
    warnings.simplefilter("ignore")
    from opacus import GradSampleModule, PrivacyEngine
    from opacus.utils.batch_memory_manager import BatchMemoryManager

from flwr.app import ArrayRecord, ConfigRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp.strategy import FedAvg
from tests.integration.flower.conftest import Federation

from fedglass.audit.audit import Job, run
from fedglass.audit.recorded import Recorded
from fedglass.cli.main import cli
from fedglass.data.catalogue import photos
from fedglass.models.catalogue import build
from fedglass.plan.bundles import open_bundle, recorded_bundle
from fedglass.plan.schema import AdversaryTable
from fedglass.plan.tables import BundleTable
from fedglass.recorders.flower import recorded, recording_mod
from fedglass.recorders.plain import recording
from fedglass.recordings.facts import RESERVATIONS, preferred
from fedglass.recordings.privacy import recorded_epsilons
from fedglass.recordings.reader import Bundle, read_bundle

pytestmark = pytest.mark.filterwarnings("ignore")
SHAPE, CLASSES = (3, 12, 12), 10
WHITENING = ((0.5,) * 3, (0.25,) * 3)


def data(count: int) -> TensorDataset:
    pictures = photos().resized(SHAPE[1]).subset(range(count))
    return TensorDataset((pictures.images - 0.5) / 0.25, torch.arange(count) % CLASSES)


def private(
    model: nn.Module, engine: PrivacyEngine, count: int, batch: int, noise: float = 1.0, **options: Any
) -> tuple[GradSampleModule, Any, DataLoader[Any]]:
    optimiser = torch.optim.SGD(model.parameters(), lr=0.01)
    loader: DataLoader[Any] = DataLoader(data(count), batch_size=batch, shuffle=True)
    asked = {"noise_multiplier": noise, "max_grad_norm": 1.0, **options}
    parts: Any = engine.make_private(module=model, optimizer=optimiser, data_loader=loader, **asked)
    return parts


def train(model: nn.Module, optimiser: Any, loader: Any, epochs: int) -> None:
    for _ in range(epochs):
        for images, labels in loader:
            optimiser.zero_grad()
            F.cross_entropy(model(images), labels).backward()
            optimiser.step()


def record(folder: Path, *, epochs: int = 1, count: int = 4, batch: int = 4, rounds: int = 1, **options: Any) -> Bundle:
    torch.manual_seed(0)
    model = build("lenet", shape=SHAPE, classes=CLASSES)
    for index in range(rounds):
        wrapped, optimiser, loader = private(model, PrivacyEngine(), count, batch, **options)
        with recording(folder, model, client="a", round=index, truth=True, architecture="lenet", whitening=WHITENING):
            train(wrapped, optimiser, loader, epochs)
        wrapped.remove_hooks()
    return read_bundle(folder)


def defence(bundle: Bundle, client: str = "a", index: int = 0) -> dict[str, Any]:
    (part,) = preferred(bundle.facts_of(client, index), "defences")
    return dict(part)


def audited(folder: Path, out: Path) -> str:
    """Audit a bundle by its certificate alone."""
    table = BundleTable(bundle=str(folder), truth=f"{folder}-truth")
    (source,) = recorded_bundle(table, AdversaryTable(), folder.parent, open_bundle(table, folder.parent))
    assert isinstance(source, Recorded)
    return str(run(Job([source], {}, ("psnr",)), out).verdict.state)


@pytest.mark.parametrize("poisson", [True, False])
def test_one_step_with_mu_1_is_clear(poisson: bool, tmp_path: Path) -> None:
    """All examples are in a Poisson sample of rate 1."""
    bundle = record(tmp_path / "b", poisson_sampling=poisson)
    assert defence(bundle) == {"name": "dpsgd", "options": {"clip": 1.0, "noise_multiplier": 1.0}}
    assert RESERVATIONS not in bundle.facts_of("a", 0)
    assert audited(tmp_path / "b", tmp_path / "out") == "clear"


def test_ten_steps_with_mu_3_are_not_clear(tmp_path: Path) -> None:
    bundle = record(tmp_path / "b", epochs=10)
    ((found,),) = recorded_epsilons(bundle).values()
    assert (found.declared, found.real) == (pytest.approx(17.856, abs=0.1), pytest.approx(17.856, abs=0.1))
    assert audited(tmp_path / "b", tmp_path / "out") == "inconclusive"


def test_poisson_samples_are_read_with_their_rate(tmp_path: Path) -> None:
    bundle = record(tmp_path / "b", epochs=3, count=12, batch=4, noise=2.0)
    assert defence(bundle) == {
        "name": "dpsgd_poisson",
        "options": {"clip": 1.0, "noise_multiplier": 2.0, "sample_rate": 1 / 3, "expected_batch_size": 4.0},
    }
    assert RESERVATIONS not in bundle.facts_of("a", 0)
    said = CliRunner().invoke(cli, ["record-info", str(tmp_path / "b")]).output
    assert "Contradictions" not in said
    assert "cannot be simulated" not in said
    ((found,),) = recorded_epsilons(bundle).values()
    assert found.declared == pytest.approx(found.real)


def test_an_accountant_that_counts_samples_that_are_none_is_contradicted(tmp_path: Path) -> None:
    ((found,),) = recorded_epsilons(record(tmp_path / "b", epochs=2, count=14, poisson_sampling=False)).values()
    assert found.exceeded


def test_an_engine_for_each_round_forgets_the_rounds_before(tmp_path: Path) -> None:
    ((found,),) = recorded_epsilons(record(tmp_path / "b", rounds=2)).values()
    assert (found.declared, found.real) == (pytest.approx(4.377, abs=0.01), pytest.approx(6.573, abs=0.01))
    assert found.exceeded


def test_batches_that_are_split_for_memory_are_one_sample(tmp_path: Path) -> None:
    torch.manual_seed(0)
    model = build("lenet", shape=SHAPE, classes=CLASSES)
    wrapped, optimiser, loader = private(model, PrivacyEngine(), 12, 6)
    splitting = BatchMemoryManager(data_loader=loader, max_physical_batch_size=2, optimizer=optimiser)
    with recording(tmp_path / "b", model, client="a", round=0), splitting as small:
        train(wrapped, optimiser, small, 1)
    facts = read_bundle(tmp_path / "b").facts_of("a", 0)
    assert preferred(facts, "steps") == 2
    assert preferred(facts, "loss") == "cross_entropy"
    (part,) = preferred(facts, "defences")
    assert (part["name"], part["options"]["sample_rate"]) == ("dpsgd_poisson", 0.5)
    assert RESERVATIONS not in facts


@pytest.mark.parametrize(
    ("options", "kind"), [({"clipping": "per_layer", "max_grad_norm": [1.0] * 8}, "DPPerLayerOptimizer")]
)
def test_other_clipping_is_named_and_gives_no_certificate(options: dict[str, Any], kind: str, tmp_path: Path) -> None:
    assert defence(record(tmp_path / "b", **options))["name"] == kind
    assert audited(tmp_path / "b", tmp_path / "out") == "inconclusive"


def test_a_client_of_flower_is_recorded_with_what_opacus_does(tmp_path: Path) -> None:
    app = ClientApp(mods=[recording_mod(tmp_path / "clients", truth=tmp_path / "bundle-truth", whitening=WHITENING)])

    @app.train()
    def _train(message: Message, context: Context) -> Message:
        model = build("lenet", shape=SHAPE, classes=CLASSES)
        model.load_state_dict(message.content["arrays"].to_torch_state_dict())
        wrapped, optimiser, loader = private(model, PrivacyEngine(), 12, 4)
        train(wrapped, optimiser, loader, 1)
        metrics = MetricRecord({"num-examples": 12, "partition-id": int(context.node_config["partition-id"])})
        # With the names of the wrapper, as people send them.
        content = RecordDict({"arrays": ArrayRecord(wrapped.state_dict()), "metrics": metrics})
        return Message(content=content, reply_to=message)

    options = {"fraction_evaluate": 0.0, "min_available_nodes": 2, "min_train_nodes": 2}
    strategy = recorded(FedAvg(**options), tmp_path / "bundle", clients=tmp_path / "clients", facts={"model": "lenet"})
    torch.manual_seed(0)
    first = ArrayRecord(build("lenet", shape=SHAPE, classes=CLASSES).state_dict())
    strategy.start(
        grid=Federation(app, nodes=(70, 80)), initial_arrays=first, num_rounds=1, train_config=ConfigRecord()
    )

    bundle = read_bundle(tmp_path / "bundle")
    assert defence(bundle, "client-1", 1)["name"] == "dpsgd_poisson"
    assert preferred(bundle.facts_of("client-1", 1), "examples") <= 12
    said = CliRunner().invoke(cli, ["record-info", str(tmp_path / "bundle")])
    assert said.exit_code == 0
    assert "Contradictions" not in said.output
    assert audited(tmp_path / "bundle", tmp_path / "out") == "inconclusive"
