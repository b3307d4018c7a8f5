"""Where the clients' images come from."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

import pytest
import torch

from fedglass.core.errors import DataError, UsageError
from fedglass.core.types import Training
from fedglass.data.dataset import CIFAR100, FEMNIST
from fedglass.reproduce.image_sources import Population, populations
from fedglass.reproduce.paper import WarmUp
from fedglass.reproduce.run import warm_up_clients


@pytest.fixture(scope="module")
def embedded() -> dict[str, Population]:
    return populations(["femnist", "cifar100"], [], None, seed=0)


def test_embedded_images_stand_in_and_say_so(embedded: dict[str, Population]) -> None:
    femnist, cifar = (embedded[kind].dataset() for kind in ("femnist", "cifar100"))
    assert (femnist.shape, femnist.classes, femnist.whitening) == ((1, 28, 28), 62, FEMNIST)
    assert (cifar.shape, cifar.classes, cifar.whitening, len(cifar)) == ((3, 32, 32), 100, CIFAR100, 480)
    assert embedded["femnist"].describe() == "STAND-IN for FEMNIST: drawn characters with labels drawn from 62 classes"
    assert "STAND-IN for CIFAR100: crops of the embedded photographs" in embedded["cifar100"].describe()


def test_a_trained_network_is_given_the_datas_own_labels(embedded: dict[str, Population]) -> None:
    population = embedded["cifar100"]
    assert int(population.with_own_labels().dataset().labels.max()) < 10
    assert int(population.dataset().labels.max()) > 10
    assert population.with_own_labels().describe().endswith("with their own labels")


def test_a_stand_in_keeps_its_labels_where_that_is_asked_for(embedded: dict[str, Population], tmp_path: Path) -> None:
    """The same images with other labels, under another name; a user's own data have no others."""
    drawn, kept = embedded["cifar100"], populations(["cifar100"], [], None, 0, own_labels=True)["cifar100"]
    _, images, labels = kept.client(0, 20)
    assert torch.equal(images, drawn.client(0, 20)[1])
    assert torch.equal(labels, drawn.with_own_labels().client(0, 20)[2])
    assert kept.describe().endswith("with their own labels")
    assert kept.identity != drawn.identity
    with pytest.raises(UsageError, match="--own-labels is for stand-ins"):
        populations(["femnist"], [leaf(tmp_path / "data.json", [4])], None, 0, own_labels=True)


def test_a_client_is_one_writer(embedded: dict[str, Population]) -> None:
    population = embedded["femnist"]
    data = population.dataset()
    assert data.writers is not None
    for index in (0, 3):
        name, images, labels = population.client(index, 50)
        own = data.images[data.writers == index].flatten(1)
        assert len(images) == len(labels) == 50
        assert all(bool((own == image.flatten()).all(1).any()) for image in images)
        assert f"writer {index}" in name


def test_fewer_examples_of_a_client_are_the_first_of_more(embedded: dict[str, Population]) -> None:
    _, few, few_labels = embedded["femnist"].client(1, 10)
    _, many, many_labels = embedded["femnist"].client(1, 50)
    assert torch.equal(few, many[:10])
    assert torch.equal(few_labels, many_labels[:10])


def test_clients_and_seeds_differ(embedded: dict[str, Population]) -> None:
    _, first, _ = embedded["cifar100"].client(0, 20)
    _, second, _ = embedded["cifar100"].client(1, 20)
    _, other, _ = populations(["cifar100"], [], None, seed=1)["cifar100"].client(0, 20)
    assert not torch.equal(first, second)
    assert not torch.equal(first, other)


def test_more_clients_than_writers_are_refused(embedded: dict[str, Population]) -> None:
    population = embedded["femnist"]
    assert population.writers() == 50
    assert population.client(49, 20)[0] == "writer 49 (client 49)"
    population.check(48, 20, together=4)
    with pytest.raises(DataError, match="51 are needed, but there are 50: ask for at most --clients 50"):
        population.client(50, 20)
    with pytest.raises(DataError, match=r"52 are needed \(4 behind each message\), but .* at most --clients 12"):
        population.check(52, 20, together=4)
    embedded["cifar100"].check(1000, 20)


def test_too_many_examples_are_refused(embedded: dict[str, Population]) -> None:
    with pytest.raises(DataError, match="50, of whom 0 have 500 images or more: choose rows with fewer examples"):
        embedded["femnist"].client(0, 500)
    with pytest.raises(DataError, match="a client needs 500 images, but there are 480"):
        embedded["cifar100"].client(0, 500)


def leaf(path: Path, counts: Sequence[int]) -> str:
    """A file with a writer for each count of images; all pixels of an image are its number."""
    numbers = iter(range(sum(counts)))
    data = {f"u{i}": {"x": [[next(numbers) / 100] * 784 for _ in range(n)], "y": [i] * n} for i, n in enumerate(counts)}
    path.write_text(json.dumps({"users": list(data), "num_samples": list(counts), "user_data": data}))
    return f"leaf:{path}"


def test_writers_of_too_few_images_are_passed_over(tmp_path: Path) -> None:
    found = populations(["femnist"], [leaf(tmp_path / "data.json", [4, 1, 3, 2, 5])], None, 0)["femnist"]
    assert [found.client(i, 3)[2].unique().tolist() for i in range(3)] == [[0], [2], [4]]
    assert [found.client(i, 1)[2].unique().tolist() for i in range(5)] == [[i] for i in range(5)]
    assert (found.writers(), found.writers(3)) == (5, 3)
    with pytest.raises(DataError, match="there are 5, of whom 3 have 3 images or more: ask for at most --clients 3"):
        found.client(3, 3)


def test_a_client_of_the_papers_own_data_has_its_writers_first_images(tmp_path: Path) -> None:
    found = populations(["femnist"], [leaf(tmp_path / "data.json", [4, 30])], None, 0)["femnist"]
    assert found.client(0, 10)[1][:, 0, 0, 0].mul(100).round().tolist() == [4.0 + i for i in range(10)]


def test_a_warm_up_passes_over_them_too(tmp_path: Path) -> None:
    source = leaf(tmp_path / "data.json", [4, 1, 3])
    found = populations(["femnist"], [source], None, 0)["femnist"]
    clients = warm_up_clients(WarmUp(1, Training(0.1), examples=3), found)
    assert [client.labels.tolist() for client in clients] == [[0] * 3, [2] * 3]


def test_data_are_given_once_and_used(tmp_path: Path) -> None:
    first, second = (leaf(tmp_path / name, [1]) for name in ("a.json", "b.json"))
    with pytest.raises(UsageError, match=r"a\.json and --data .*b\.json are both taken for FEMNIST"):
        populations(["femnist"], [first, second], None, 0)
    with pytest.raises(UsageError, match=r"these are FEMNIST's, but the rows chosen need CIFAR100's \(3, 32, 32\)"):
        populations(["cifar100"], [first], None, 0)
    with pytest.raises(UsageError, match="these are CelebA-HQ's, but the rows chosen need FEMNIST's"):
        populations(["femnist"], ["celeba=photos"], None, 0)


def test_a_users_data_take_the_place_of_the_stand_in(tmp_path: Path) -> None:
    pixels = [[round(i / 784, 3)] * 784 for i in range(3)]
    content = {"users": ["ann"], "num_samples": [3], "user_data": {"ann": {"x": pixels, "y": [1, 61, 5]}}}
    path = tmp_path / "all_data.json"
    path.write_text(json.dumps(content))
    found = populations(["femnist", "cifar100"], [f"leaf:{path}"], None, 0)
    assert not found["femnist"].stand_in
    assert "STAND-IN" not in found["femnist"].describe()
    assert sorted(found["femnist"].dataset().labels.tolist()) == [1, 5, 61]
    assert found["cifar100"].stand_in


def test_data_that_are_missing_or_of_another_shape_are_refused(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="No such file or folder"):
        populations(["femnist"], [str(tmp_path / "none.json")], None, 0)
    with pytest.raises(DataError, match=r"shape \(3, 64, 64\); expected FEMNIST"):
        populations(["femnist"], ["photos"], None, 0)
    with pytest.raises(DataError, match="no such folder"):
        populations(["femnist"], [], tmp_path / "none", 0)


def test_a_folder_without_the_file_falls_back_to_embedded_images(tmp_path: Path) -> None:
    assert populations(["femnist"], [], tmp_path, 0)["femnist"].source == "glyphs"


def test_the_shared_stand_ins(shared_data: Path) -> None:
    found = populations(["femnist", "cifar100"], [], shared_data, 0)
    assert found["femnist"].describe() == (
        "STAND-IN for FEMNIST: handwritten digits of 12 clients with labels drawn from 62 classes"
    )
    name, images, labels = found["femnist"].client(11, 50)
    assert (name, len(images), len(labels.unique()) > 20) == ("writer 11 (client 11)", 50, True)
    assert found["cifar100"].client(0, 200)[1].shape == (200, 3, 32, 32)
