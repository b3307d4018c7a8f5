"""The geometry behind SME: gradients in a plane, and cosine along the segment."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import ClassVar

import torch

from fedglass.analysis.segment import cosine_on_segment
from fedglass.analysis.subspace import local_path, shares_in_subspace, true_gradient
from fedglass.attack.parts import Progress
from fedglass.audit.probe import Finding
from fedglass.audit.target import Target
from fedglass.core.errors import UsageError
from fedglass.core.rng import stream
from fedglass.fl.local import schedule
from fedglass.models.network import Network
from fedglass.reproduce.cost import Load
from fedglass.reproduce.curves import Curve


@dataclass(frozen=True)
class Geometry:
    """Trains the client step by step and measures along its way [Zhu, Yao, Blaschko, 2023, Sec. 5.1]."""

    accelerated: ClassVar[bool] = False
    attack: ClassVar[None] = None

    points: int = 51
    """Values of alpha, from the weights before to those after."""

    def measure(self, target: Target, seed: int, progress: Progress) -> Finding:
        seen, truth = target.observation, target.known_truth
        training = seen.knows.training
        if training is None:
            raise UsageError("The geometry of a local training needs to know the training.")
        network = Network(seen.model, seen.buffers, training.batch_norm)
        inputs = seen.knows.whitening.whiten(truth.images)
        start = [seen.before[name] for name in network.names]
        batches = list(schedule(training, len(truth.labels), stream(seed, "path")))
        total = len(batches) + self.points
        gradients = []
        for step, at in enumerate(local_path(network, start, inputs, truth.labels, batches, training)):
            if step < len(batches):
                gradients.append(true_gradient(network, at, inputs, truth.labels))
            after = at
            progress(step, total)
        alphas = torch.linspace(0, 1, self.points).tolist()
        cosines = cosine_on_segment(network, start, after, inputs, truth.labels, alphas).tolist()
        shares = shares_in_subspace(gradients).tolist()
        progress(total, total)
        curves = (
            Curve("share in the 2-D subspace", "local step t", len(shares) - 1, shares),
            Curve("cosine", "α", 1, cosines),
        )
        measures = {"min_share": min(shares), "cosine_before": cosines[0], "cosine_best": max(cosines)}
        return Finding({"extra": {"measures": measures, "curves": [asdict(curve) for curve in curves]}})

    def seconds(self, load: Load) -> float:
        return (load.steps + self.points) * load.gradient(load.examples)
