"""The page on advice does what it says."""

from __future__ import annotations

import re
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch

from fedglass.core.optimisers import SGD
from fedglass.core.tensors import buffers_of, weights_of
from fedglass.core.types import Training
from fedglass.defend.dpsgd import DPSGD
from fedglass.defend.noise import normal
from fedglass.fl.local import schedule, train
from fedglass.models.catalogue import build
from fedglass.models.network import Network

PAGE = (Path(__file__).parents[2] / "docs" / "advise.md").read_text(encoding="utf-8")


def test_the_loop_on_the_page_trains_as_dpsgd_does(monkeypatch: pytest.MonkeyPatch) -> None:
    (program,) = re.findall(r"^```python\n(.*?)^```", PAGE, flags=re.DOTALL | re.MULTILINE)
    page: dict[str, Any] = {}
    exec(compile(program, "docs/advise.md", "exec"), page)
    page["BATCH"] = 3
    torch.manual_seed(0)
    model = build("lenet_tanh", shape=(1, 12, 12), classes=4)
    images, labels = torch.randn(8, 1, 12, 12), torch.arange(8) % 4
    training = Training(lr=page["LR"], optimiser=SGD(momentum=page["MOMENTUM"]), batch_size=3, epochs=page["EPOCHS"])
    batches = schedule(training, len(labels), torch.Generator().manual_seed(1))
    network, before = Network(model, buffers_of(model), training.batch_norm), list(weights_of(model).values())
    noise = torch.Generator().manual_seed(2)
    defence = DPSGD(page["CLIP"], page["NOISE"])
    expected = train(network, before, images, labels, batches, training, defence, noise)

    monkeypatch.setattr(torch, "randn_like", partial(normal, generator=noise.manual_seed(2)))
    torch.manual_seed(1)
    page["train"](model, images, labels)
    assert not torch.equal(before[0], expected[0])
    torch.testing.assert_close(list(weights_of(model).values()), expected)
