"""What is declared is checked against the messages themselves."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from fedglass.recordings import BundleWriter, read_bundle
from fedglass.recordings.observed import contradictions_of

from .federations import Real
from .test_readings import normalised

State = dict[str, Tensor]
CLIPPED = [{"name": "clip", "options": {"norm": 0.5}}]
NOISY = [{"name": "gaussian_noise", "options": {"std": 0.01}}]
START = {"w": torch.zeros(40, 50), "b": torch.zeros(50), "scale": torch.tensor(1.0)}


def words(folder: Path, index: int = 1) -> list[str]:
    return [found.text for found in contradictions_of(read_bundle(folder), index)]


def sent(folder: Path, change: Callable[[], State], defences: list[dict[str, Any]], **facts: Any) -> list[str]:
    writer = BundleWriter(folder, facts={"defences": defences})
    writer.round(1).sent(START)
    moved = change()
    writer.round(1).received("a", {name: tensor + moved[name] for name, tensor in START.items()}, facts=facts)
    return words(folder)


def small() -> State:
    return {"w": torch.full((40, 50), 0.001), "b": torch.full((50,), 0.01), "scale": torch.tensor(0.1)}


def test_an_honest_federation_is_as_it_was_said(tmp_path: Path) -> None:
    Real(model=normalised, sizes=(2, 4), steps=2, rounds=3).record(tmp_path / "b")
    bundle = read_bundle(tmp_path / "b")
    assert [found for index in bundle.rounds for found in contradictions_of(bundle, index)] == []


def test_a_clipped_update_passes(tmp_path: Path) -> None:
    assert sent(tmp_path / "b", small, CLIPPED) == []


def test_scalars_that_escape_the_clipping_are_named(tmp_path: Path) -> None:
    (found,) = sent(tmp_path / "b", lambda: {**small(), "scale": torch.tensor(7.0)}, CLIPPED)
    assert "0-d tensors escaped the clipping (scale)" in found
    assert "norm is 7 where at most 0.5" in found


def test_an_update_that_is_not_clipped_is_found(tmp_path: Path) -> None:
    (found,) = sent(tmp_path / "b", lambda: {**small(), "w": torch.ones(40, 50)}, CLIPPED)
    assert "was not clipped so" in found


def test_flower_s_name_of_the_bound_is_known(tmp_path: Path) -> None:
    declared = [{"name": "fixedclipping_mod", "options": {"clipping_norm": 0.5}}]
    assert sent(tmp_path / "b", lambda: {**small(), "scale": torch.tensor(7.0)}, declared) != []


def test_noise_that_is_not_there_is_found(tmp_path: Path) -> None:
    generator = torch.Generator().manual_seed(0)

    def noisy() -> State:
        return {name: 0.01 * torch.randn(tensor.shape, generator=generator) for name, tensor in START.items()}

    assert sent(tmp_path / "all", noisy, NOISY) == []
    (found,) = sent(tmp_path / "none", lambda: {**noisy(), "w": torch.full((40, 50), 1e-4)}, NOISY)
    assert "1 tensor(s) hold less (w)" in found
    (found,) = sent(tmp_path / "scalar", lambda: {**noisy(), "scale": torch.tensor(0.0)}, NOISY)
    assert "(scale)" in found


def test_what_two_sources_tell_differently_is_found(tmp_path: Path) -> None:
    writer = BundleWriter(tmp_path / "b")
    writer.round(1).sent(START)
    writer.training("a", 1, {"lr": 0.1, "steps": 2}, source="declared")
    writer.training("a", 1, {"lr": 0.2, "steps": 2, "batch_sizes": [3]}, source="read")
    disputed, counted = words(tmp_path / "b")
    assert disputed == "sources disagree on lr: 0.2 (read), 0.1 (declared)"
    assert counted == "1 batch sizes are recorded, but 2 local step(s)"


def test_batches_of_one_size_are_no_poisson_samples(tmp_path: Path) -> None:
    def found(folder: str, sizes: list[int], rate: float) -> list[str]:
        options = {"clip": 1.0, "noise_multiplier": 1.0, "sample_rate": rate}
        drawn = [{"name": "dpsgd_poisson", "options": options}]
        return sent(tmp_path / folder, small, drawn, batch_sizes=sizes, steps=len(sizes))

    told = "Poisson samples are declared, but all 20 batches have 4 example(s)"
    assert told in found("fixed", [4] * 20, 0.1)
    for folder, sizes, rate in (("drawn", [4] * 19 + [3], 0.1), ("few", [4] * 3, 0.1), ("all", [4] * 20, 1.0)):
        assert not any("Poisson samples" in text for text in found(folder, sizes, rate))


def test_more_examples_than_were_declared_may_be_the_same_ones_changed(tmp_path: Path) -> None:
    writer = Real(sizes=(2,), rounds=1).record(tmp_path / "b")
    for read, declared in ((8, 4), (4, 8)):
        writer.training("client 0", 1, {"examples": read}, source="read")
        writer.training("client 0", 1, {"examples": declared}, source="declared")
        assert ("augmented example" in " ".join(words(tmp_path / "b"))) == (read > declared)


def test_the_counter_contradicts_declared_steps_and_mode(tmp_path: Path) -> None:
    Real(model=normalised, steps=3, sizes=(2, 4)).record(tmp_path / "b")
    writer = BundleWriter(tmp_path / "b", resume=True)
    writer.training("client 0", 1, {"batch_norm": "frozen", "steps": 5}, source="declared")
    found = words(tmp_path / "b")
    assert 'sources disagree on batch_norm: "batch" (measured), "frozen" (declared)' in " ".join(found)
    assert any(said.startswith("sources disagree on steps") for said in found)


def test_counters_are_counted_from_what_the_client_loads(tmp_path: Path) -> None:
    """The mean of counters has decimals, the client's own counter has not."""
    name = "norm.num_batches_tracked"
    writer = BundleWriter(tmp_path / "b", facts={"rule": {"name": "mean"}})
    writer.round(1).sent({name: torch.tensor(7.25, dtype=torch.float64)})
    for client, steps in (("a", 2), ("b", 5)):
        facts = {"steps": steps, "batch_norm": "batch"}
        writer.round(1).received(client, {name: torch.tensor(7 + steps)}, examples=1, facts=facts)
    writer.round(1).aggregated({name: torch.tensor(10.5, dtype=torch.float64)})
    assert words(tmp_path / "b") == []
    BundleWriter(tmp_path / "b", resume=True).training("a", 1, {"steps": 3}, source="declared")
    assert words(tmp_path / "b") == ["sources disagree on steps: 2 (read), 2 (measured), 3 (declared)"]


def test_running_statistics_outside_the_clipping_are_named_aside(tmp_path: Path) -> None:
    Real(model=normalised, steps=3, sizes=(2, 4), lr=1e-4).record(tmp_path / "b", defences=CLIPPED)
    found = contradictions_of(read_bundle(tmp_path / "b"), 1)
    assert all(each.statistics_only for each in found)
    assert "norm.num_batches_tracked" in found[0].text


def test_a_mean_that_is_none_is_found(tmp_path: Path) -> None:
    Real().record(tmp_path / "b", rule={"name": "mean"})
    assert words(tmp_path / "b") == []
    writer = BundleWriter(tmp_path / "b", resume=True)
    writer.training("client 0", 2, {"examples": 40}, source="read")
    assert "not the mean" in " ".join(words(tmp_path / "b", 2))
