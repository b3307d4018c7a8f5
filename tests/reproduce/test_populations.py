"""Where the clients' images come from."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch

from fedglass.core.errors import DataError
from fedglass.data.whitening import CIFAR100, FEMNIST
from fedglass.reproduce.populations import Population, populations


@pytest.fixture(scope="module")
def embedded() -> dict[str, Population]:
    return populations(["femnist", "cifar100"], [], None, seed=0)


def test_embedded_images_stand_in_and_say_so(embedded: dict[str, Population]) -> None:
    femnist, cifar = (embedded[kind].dataset() for kind in ("femnist", "cifar100"))
    assert (femnist.shape, femnist.classes, femnist.whitening) == ((1, 28, 28), 62, FEMNIST)
    assert (cifar.shape, cifar.classes, cifar.whitening, len(cifar)) == ((3, 32, 32), 100, CIFAR100, 480)
    assert embedded["femnist"].words() == "STAND-IN for FEMNIST: drawn characters with labels drawn from 62 classes"
    assert "STAND-IN for CIFAR100: crops of the embedded photographs" in embedded["cifar100"].words()


def test_a_trained_network_is_given_the_datas_own_labels(embedded: dict[str, Population]) -> None:
    population = embedded["cifar100"]
    assert int(population.dataset(own_labels=True).labels.max()) < 10
    assert int(population.dataset().labels.max()) > 10
    assert population.words(own_labels=True).endswith("with their own labels")


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


def test_more_clients_than_writers_go_round_with_another_shuffle(embedded: dict[str, Population]) -> None:
    population = embedded["femnist"]
    writers = population.writers()
    assert writers == 50
    name, images, _ = population.client(0, 20)
    again, others, _ = population.client(writers, 20)
    assert name.split(" (")[0] == again.split(" (")[0]
    assert name != again
    assert not torch.equal(images, others)


def test_too_many_examples_are_refused(embedded: dict[str, Population]) -> None:
    with pytest.raises(DataError, match="client 0 needs 500 images, but writer 0 has 60"):
        embedded["femnist"].client(0, 500)


def test_a_users_data_take_the_place_of_the_stand_in(tmp_path: Path) -> None:
    pixels = [[round(i / 784, 3)] * 784 for i in range(3)]
    leaf = {"users": ["ann"], "num_samples": [3], "user_data": {"ann": {"x": pixels, "y": [1, 61, 5]}}}
    path = tmp_path / "all_data.json"
    path.write_text(json.dumps(leaf))
    found = populations(["femnist", "cifar100"], [f"leaf:{path}"], None, 0)
    assert not found["femnist"].stand_in
    assert "STAND-IN" not in found["femnist"].words()
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
    assert found["femnist"].words() == (
        "STAND-IN for FEMNIST: handwritten digits of 12 writers with labels drawn from 62 classes"
    )
    name, images, labels = found["femnist"].client(11, 50)
    assert (name, len(images), len(labels.unique()) > 20) == ("writer 11 (client 11)", 50, True)
    assert found["cifar100"].client(0, 200)[1].shape == (200, 3, 32, 32)
