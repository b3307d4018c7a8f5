"""Every model of the catalogue keeps the same promises."""

from __future__ import annotations

from functools import cache

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from fedglass.core.errors import ModelError, UsageError
from fedglass.core.registry import names
from fedglass.core.rng import stream
from fedglass.core.tensors import buffers_of, weights_of
from fedglass.core.types import BatchNorm
from fedglass.models.catalogue import build
from fedglass.models.init import KaimingNormal, PyTorchDefault
from fedglass.models.large import densenet, densenet121, mobilenet_v2, resnet8, resnet18, resnet34
from fedglass.models.network import Network
from fedglass.models.vit import vit_sme

LARGE = [name for name in names("models") if name.startswith(("resnet18", "resnet34", "densenet", "mobilenet"))]
SMALL = [name for name in names("models") if name not in LARGE]
SHAPES = dict.fromkeys(SMALL, (2, 20, 16)) | dict.fromkeys([*LARGE, "short_densenet"], (3, 32, 32))


def model_of(name: str) -> nn.Module:
    return build(name, shape=SHAPES[name], classes=5) if name in LARGE else kept(name)


@cache
def kept(name: str) -> nn.Module:
    """A small model; for laws that cost too much on DenseNet-121, a network of the same parts."""
    if name != "short_densenet":
        return build(name, shape=SHAPES[name], classes=5)
    with torch.random.fork_rng(devices=[]):
        model = densenet(shape=SHAPES[name], classes=5, blocks=(2, 1))
    PyTorchDefault().apply(model, stream(0, name))
    return model


def images(name: str, n: int = 2) -> Tensor:
    return torch.randn(n, *SHAPES[name], generator=torch.Generator().manual_seed(1))


@pytest.mark.parametrize("name", [*names("models"), "short_densenet"])
def test_takes_any_shape_and_number_of_classes(name: str) -> None:
    model = model_of(name).eval()
    with torch.no_grad():
        logits = model(images(name))
    assert logits.shape == (2, 5)
    assert torch.isfinite(logits).all()
    assert not torch.equal(logits[0], logits[1])
    # An activation that works in place would spoil what a second derivative needs.
    assert not any(getattr(layer, "inplace", False) for layer in model.modules())


@pytest.mark.parametrize("name", [*SMALL, "short_densenet", "mobilenet_v2"])
@pytest.mark.parametrize("batch_norm", BatchNorm)
def test_a_gradient_can_be_inverted(name: str, batch_norm: BatchNorm) -> None:
    """The gradient of the squared norm of the gradient with respect to the images is finite and not zero."""
    model = model_of(name)
    network = Network(model, buffers_of(model), batch_norm)
    weights = [w.requires_grad_() for w in weights_of(model).values()]
    inputs = images(name).requires_grad_()
    loss = F.cross_entropy(network(weights, inputs), torch.tensor([0, 1]))
    gradients = torch.autograd.grad(loss, weights, create_graph=True)
    energy = torch.stack([g.square().sum() for g in gradients]).sum()
    (second,) = torch.autograd.grad(energy, inputs)
    assert torch.isfinite(second).all()
    assert second.abs().max() > 0


@pytest.mark.parametrize("name", [*SMALL, "short_densenet", "mobilenet_v2"])
def test_the_network_is_functional_call(name: str) -> None:
    model = model_of(name).eval()
    network = Network(model, buffers_of(model), BatchNorm.FROZEN)
    other = {key: w * 1.1 for key, w in weights_of(model).items()}
    expected = torch.func.functional_call(model, other, (images(name),))
    assert network.names == tuple(other)
    assert torch.equal(network(list(other.values()), images(name)), expected)


@pytest.mark.parametrize("name", [*SMALL, "short_densenet", "mobilenet_v2"])
def test_the_features_and_the_head_give_the_logits(name: str) -> None:
    model = model_of(name).eval()
    network = Network(model, buffers_of(model), BatchNorm.FROZEN)
    registered = network.head
    weights = weights_of(model)
    logits, hidden = network.features(list(weights.values()), images(name))
    assert network.head == registered
    weight, bias = network.head
    output = getattr(model, "output", nn.Identity())
    shift = None if bias is None else weights[bias]
    assert (bias is None) == name.startswith("curious")
    torch.testing.assert_close(output(F.linear(hidden, weights[weight], shift)), logits)


@pytest.mark.parametrize("name", SMALL)
def test_the_seed_alone_decides(name: str) -> None:
    before = torch.get_rng_state()
    again = weights_of(build(name, shape=SHAPES[name], classes=5))
    other = weights_of(build(name, shape=SHAPES[name], classes=5, seed=1))
    assert torch.equal(torch.get_rng_state(), before)
    assert all(torch.equal(w, again[key]) for key, w in weights_of(model_of(name)).items())
    assert any(not torch.equal(w, other[key]) for key, w in weights_of(model_of(name)).items())


# The published numbers of parameters, and a few of the names that torchvision's files hold.
PUBLISHED = {
    "resnet18": (
        resnet18,
        11_689_512,
        {"conv1.weight": (64, 3, 7, 7), "bn1.running_var": (64,), "layer1.0.conv1.weight": (64, 64, 3, 3)}
        | {"layer2.0.downsample.0.weight": (128, 64, 1, 1), "layer4.1.bn2.bias": (512,)}
        | {"fc.weight": (1000, 512), "fc.bias": (1000,)},
    ),
    "resnet34": (
        resnet34,
        21_797_672,
        {"layer3.5.conv2.weight": (256, 256, 3, 3), "layer4.0.downsample.1.running_mean": (512,)},
    ),
    "densenet121": (
        densenet121,
        7_978_856,
        {"features.conv0.weight": (64, 3, 7, 7), "features.norm0.weight": (64,)}
        | {"features.denseblock1.denselayer1.norm1.weight": (64,)}
        | {"features.denseblock3.denselayer24.conv2.weight": (32, 128, 3, 3)}
        | {"features.transition3.conv.weight": (512, 1024, 1, 1), "features.norm5.weight": (1024,)}
        | {"classifier.weight": (1000, 1024)},
    ),
    "mobilenet_v2": (
        mobilenet_v2,
        3_504_872,
        {"features.0.0.weight": (32, 3, 3, 3), "features.0.1.running_mean": (32,)}
        | {"features.1.conv.0.0.weight": (32, 1, 3, 3), "features.1.conv.1.weight": (16, 32, 1, 1)}
        | {"features.2.conv.2.weight": (24, 96, 1, 1), "features.17.conv.3.bias": (320,)}
        | {"features.18.0.weight": (1280, 320, 1, 1), "classifier.1.weight": (1000, 1280)},
    ),
}


@pytest.mark.parametrize("name", PUBLISHED)
def test_the_names_and_sizes_are_torchvisions(name: str) -> None:
    factory, count, some = PUBLISHED[name]
    with torch.device("meta"):
        model = factory(shape=(3, 224, 224), classes=1000)
    assert sum(p.numel() for p in model.parameters()) == count
    state = {key: tuple(t.shape) for key, t in model.state_dict().items()}
    assert {key: state.get(key) for key in some} == some


def test_the_sizes_of_the_papers() -> None:
    """768 numbers enter DLG's last layer at 32x32, 3136 and 8192 the first dense layers of the CNNs."""
    sizes = {
        ("lenet", (3, 32, 32), "fc.0.weight"): 768,
        ("lenet_tanh", (1, 28, 28), "fc1.weight"): 400,
        ("femnist_cnn", (1, 28, 28), "fc1.weight"): 3136,
        ("cifar_cnn", (3, 32, 32), "fc1.weight"): 8192,
        ("resnet8", (1, 28, 28), "fc1.weight"): 2048,
        ("mlp", (1, 28, 28), "body.0.weight"): 784,
        ("vit_sme", (1, 28, 28), "patch_embedding.weight"): 784,
    }
    for (name, shape, key), size in sizes.items():
        assert build(name, shape=shape, classes=62).state_dict()[key].shape[1] == size


def test_the_stem_follows_the_shape() -> None:
    assert build("resnet18", shape=(3, 65, 32), classes=2).state_dict()["conv1.weight"].shape[-1] == 7
    assert build("resnet18", shape=(3, 64, 64), classes=2).state_dict()["conv1.weight"].shape[-1] == 3


def test_a_dry_run_leaves_the_model_training() -> None:
    for model in (
        resnet8(shape=(1, 8, 8), classes=2),
        build("resnet8", shape=(1, 8, 8), classes=2),
    ):
        assert all(layer.training for layer in model.modules())
        assert all(b.device.type == "cpu" for b in model.buffers())
        assert torch.equal(model.get_buffer("bn1.running_mean"), torch.zeros(32))


def test_the_patches_of_the_transformer_are_the_image() -> None:
    """With one patch, the embedding is a dense layer over the pixels in the order (row, column, channel)."""
    model = vit_sme(shape=(3, 5, 4), classes=2)
    seen: list[Tensor] = []
    model.patch_embedding.register_forward_pre_hook(lambda _, given: seen.append(given[0]))
    inputs = torch.randn(2, 3, 5, 4, generator=torch.Generator().manual_seed(0))
    model(inputs)
    assert torch.equal(seen[0], inputs.permute(0, 2, 3, 1).reshape(2, 1, 60))


def test_an_initialisation_is_applied() -> None:
    model = build("cifar_cnn", shape=(3, 8, 8), classes=10, init=KaimingNormal())
    assert not model.get_parameter("fc2.bias").any()


def test_what_cannot_be_built_is_said() -> None:
    with pytest.raises(UsageError, match="Unknown model 'resnet81': did you mean 'resnet8'"):
        build("resnet81", shape=(3, 32, 32), classes=10)
    with pytest.raises(ModelError, match=r"'lenet_tanh' cannot take inputs of shape \(1, 4, 4\)"):
        build("lenet_tanh", shape=(1, 4, 4), classes=10)
    with pytest.raises(ModelError, match=r"'densenet121' cannot take inputs of shape \(1, 4, 4\)"):
        build("densenet121", shape=(1, 4, 4), classes=10)
    with pytest.raises(UsageError, match="classes must be at least 2, got 1"):
        build("mlp", shape=(1, 4, 4), classes=1)
    with pytest.raises(UsageError, match=r"shape must be three positive numbers .* got \(0, 4, 4\)"):
        build("mlp", shape=(0, 4, 4), classes=10)
