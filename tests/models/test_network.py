"""Laws of the stateless caller, on small modules that try to break it."""

from __future__ import annotations

import copy

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from fedglass.core.errors import ModelError
from fedglass.core.tensors import buffers_of, weights_of
from fedglass.core.types import BatchNorm
from fedglass.models.catalogue import build
from fedglass.models.network import Network


class Tied(nn.Module):
    """Two layers share their weight, and the one registered first is executed last."""

    def __init__(self) -> None:
        super().__init__()
        self.last = nn.Linear(4, 4, bias=False)
        self.first = nn.Linear(4, 4)
        self.first.weight = self.last.weight

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.last(torch.tanh(self.first(x)))
        return out


class Recurrent(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.rnn = nn.GRU(4, 3, batch_first=True)
        self.fc = nn.Linear(3, 2)

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.fc(self.rnn(x)[0][:, -1])
        return out


class Attending(nn.Module):
    """Attention by PyTorch's own layer and by its function, both of which use fused kernels."""

    def __init__(self, *, layer: bool) -> None:
        super().__init__()
        self.layer = nn.TransformerEncoderLayer(4, 2, 8, batch_first=True) if layer else None
        self.fc = nn.Linear(4, 2)

    def forward(self, x: Tensor) -> Tensor:
        inner = self.layer(x) if self.layer is not None else F.scaled_dot_product_attention(x, x, x)
        out: Tensor = self.fc(inner.mean(1))
        return out


def norms() -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(1, 2, 3),
        nn.BatchNorm2d(2),
        nn.InstanceNorm2d(2, affine=True, track_running_stats=True),
        nn.Flatten(),
        nn.Linear(18, 2),
    )


def given(*shape: int) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(0))


def call(model: nn.Module, inputs: Tensor, batch_norm: BatchNorm = BatchNorm.FROZEN) -> Tensor:
    network = Network(model, buffers_of(model), batch_norm)
    return network(list(weights_of(model).values()), inputs)


def test_tied_parameters_move_together() -> None:
    model = Tied()
    weights = {name: w + 1 for name, w in weights_of(model).items()}
    expected = torch.func.functional_call(model, weights, (given(2, 4),))
    network = Network(model, {}, BatchNorm.FROZEN)
    assert torch.equal(network(list(weights.values()), given(2, 4)), expected)
    assert network.names == tuple(weights) == ("last.weight", "first.bias")


def test_the_head_is_the_layer_executed_last() -> None:
    model = Tied()
    network = Network(model, {}, BatchNorm.FROZEN)
    _, hidden = network.features(list(weights_of(model).values()), given(2, 4))
    assert network.head == ("last.weight", None)
    torch.testing.assert_close(hidden, torch.tanh(model.first(given(2, 4))))


def test_recurrent_layers_see_the_weights() -> None:
    model = Recurrent()
    weights = {name: w + 0.1 for name, w in weights_of(model).items()}
    expected = torch.func.functional_call(model, weights, (given(2, 5, 4),))
    network = Network(model, {}, BatchNorm.FROZEN)
    network([w * 0 for w in weights.values()], given(2, 5, 4))
    assert torch.equal(network(list(weights.values()), given(2, 5, 4)), expected)


@pytest.mark.parametrize("layer", [True, False])
def test_attention_is_differentiated_twice(layer: bool) -> None:
    model = Attending(layer=layer).eval()
    network = Network(model, {}, BatchNorm.FROZEN)
    weights = [w.requires_grad_() for w in weights_of(model).values()]
    inputs = given(2, 5, 4).requires_grad_()
    for _ in range(2):  # the first pass and the later ones take different ways
        logits = network(weights, inputs)
        torch.testing.assert_close(logits, model(inputs))
        gradients = torch.autograd.grad(F.cross_entropy(logits, torch.tensor([0, 1])), weights, create_graph=True)
        (second,) = torch.autograd.grad(torch.stack([g.square().sum() for g in gradients]).sum(), inputs)
        assert second.abs().max() > 0


def test_an_edited_list_is_seen() -> None:
    network = Network(nn.Linear(1, 1, bias=False), {}, BatchNorm.FROZEN)
    weights = [torch.ones(1, 1)]
    assert network(weights, torch.ones(1, 1)) == 1
    weights[0] = torch.full((1, 1), 2.0)
    assert network(weights, torch.ones(1, 1)) == 2


def test_batch_statistics_are_those_of_training_mode() -> None:
    model = norms()
    for layer in model.modules():
        if isinstance(layer, nn.BatchNorm2d):
            nn.init.constant_(layer.running_mean, 3.0)
    inputs = given(4, 1, 5, 5)
    assert torch.equal(call(model, inputs, BatchNorm.BATCH), copy.deepcopy(model).train()(inputs))
    assert torch.equal(call(model, inputs, BatchNorm.FROZEN), copy.deepcopy(model).eval()(inputs))


def test_given_buffers_replace_the_models_own() -> None:
    model = norms().eval()
    buffers = {k: b + 1 for k, b in buffers_of(model).items()}
    weights = weights_of(model)
    expected = torch.func.functional_call(model, {**weights, **buffers}, (given(2, 1, 5, 5),))
    network = Network(model, buffers, BatchNorm.FROZEN)
    assert torch.equal(network(list(weights.values()), given(2, 1, 5, 5)), expected)


@pytest.mark.parametrize("batch_norm", BatchNorm)
def test_nothing_given_is_changed(batch_norm: BatchNorm) -> None:
    model = norms().train()
    before = copy.deepcopy(model.state_dict())
    weights, buffers = weights_of(model), buffers_of(model)
    kept = copy.deepcopy((weights, buffers))
    network = Network(model, buffers, batch_norm)
    for _ in range(2):
        network.features([w * 2 for w in weights.values()], given(4, 1, 5, 5))
    assert all(torch.equal(t, before[k]) for k, t in model.state_dict().items())
    assert all(p.requires_grad and isinstance(p, nn.Parameter) for p in model.parameters())
    assert all(layer.training for layer in model.modules())
    for now, then in zip((weights, buffers), kept, strict=True):
        assert all(torch.equal(t, then[k]) for k, t in now.items())


def test_parameters_are_not_copied_and_buffers_are() -> None:
    model = norms()
    made = Network(model, buffers_of(model), BatchNorm.FROZEN)._module
    mine, theirs = (dict(module.named_parameters()) for module in (made, model))
    assert {name: p.data_ptr() for name, p in mine.items()} == {name: p.data_ptr() for name, p in theirs.items()}
    assert not any(p.requires_grad for p in mine.values())
    assert all(p.requires_grad for p in theirs.values())
    own = {b.data_ptr() for b in made.buffers()}
    assert not own & {b.data_ptr() for b in model.buffers()}


def test_features_leave_no_hooks_behind() -> None:
    model = build("mlp", shape=(1, 3, 3), classes=2)
    network = Network(model, {}, BatchNorm.FROZEN)
    network.features(list(weights_of(model).values()), given(2, 1, 3, 3))
    assert not any(layer._forward_pre_hooks for layer in network._module.modules())


@pytest.mark.parametrize("name", ["lenet", "resnet8", "vit"])
def test_works_inside_vmap_of_grad(name: str) -> None:
    """Per-example gradients, their features and a second derivative, against a loop with autograd."""
    model = build(name, shape=(1, 8, 8), classes=3)
    network = Network(model, buffers_of(model), BatchNorm.FROZEN)
    weights = list(weights_of(model).values())
    inputs, labels = given(3, 1, 8, 8), torch.tensor([0, 1, 2])

    def loss(weights: list[Tensor], image: Tensor, label: Tensor) -> Tensor:
        return F.cross_entropy(network(weights, image[None]), label[None])

    together = torch.func.vmap(torch.func.grad(loss), in_dims=(None, 0, 0))(weights, inputs, labels)
    live = [w.requires_grad_() for w in weights]
    for i in range(3):
        alone = torch.autograd.grad(loss(live, inputs[i], labels[i]), live)
        for got, expected in zip(together, alone, strict=True):
            torch.testing.assert_close(got[i], expected, rtol=1e-4, atol=1e-6)


def test_what_does_not_fit_is_said() -> None:
    network = Network(nn.Sequential(nn.Conv2d(1, 2, 1), nn.Flatten()), {}, BatchNorm.FROZEN)
    with pytest.raises(ModelError, match="has 2 parameters, got 1 tensors"):
        network([torch.zeros(1)], given(1, 1, 1, 1))
    with pytest.raises(ModelError, match="no dense layer"):
        _ = network.head
    with pytest.raises(ModelError, match="no dense layer"):
        network.features([torch.zeros(2, 1, 1, 1), torch.zeros(2)], given(1, 1, 1, 1))
    with pytest.raises(ModelError, match=r"'1\.running_mean' of the network is missing"):
        Network(norms(), {}, BatchNorm.FROZEN)
    wrong = buffers_of(norms()) | {"1.running_mean": torch.zeros(3)}
    with pytest.raises(ModelError, match=r"'1\.running_mean' of shape \(3,\) .* expected shape \(2,\)"):
        Network(norms(), wrong, BatchNorm.FROZEN)


def test_batch_statistics_of_one_value_are_refused_in_a_sentence() -> None:
    model = nn.Sequential(nn.Flatten(), nn.Linear(4, 3), nn.BatchNorm1d(3))
    network = Network(model, buffers_of(model), BatchNorm.BATCH)
    with pytest.raises(ModelError, match="refuses a batch of 1: Expected more than 1 value per channel"):
        network([*model.parameters()], torch.rand(1, 1, 2, 2))
