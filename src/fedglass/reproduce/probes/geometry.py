"""The geometry behind SME: gradients in a plane, and cosine along the segment."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from fedglass.analysis.segment import cosine_on_segment
from fedglass.analysis.subspace import local_path, shares_in_subspace, true_gradient
from fedglass.attack.parts import Progress
from fedglass.core.errors import UsageError
from fedglass.core.rng import stream
from fedglass.core.types import Observation
from fedglass.fl.local import schedule
from fedglass.models.network import Network
from fedglass.reproduce.experiment import Finding
from fedglass.rounds.truth import Truth


@dataclass(frozen=True)
class Geometry:
    """Trains the client step by step and measures along its way [Zhu, Yao, Blaschko, 2023, Sec. 5.1]."""

    points: int = 51
    """Values of alpha, from the weights before to those after."""

    def measure(self, seen: Observation, truth: Truth, seed: int, progress: Progress) -> Finding:
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
        return Finding(
            {"min_share": min(shares), "cosine_before": cosines[0], "cosine_best": max(cosines)},
            curves={"share": tuple(shares), "cosine": tuple(cosines)},
        )
