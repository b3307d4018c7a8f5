"""Federated averaging as one writes it by hand, with the two lines that record it."""

import copy

import torch
from network import Net
from torch import Tensor, nn

import fedglass

LR, MOMENTUM, STEPS, ROUNDS = 0.1, 0.9, 2, 2
MEAN, STD = (0.5, 0.5, 0.5), (0.25, 0.25, 0.25)


def private_images(client: int) -> tuple[Tensor, Tensor]:
    """A photograph that stands for what the client would not show."""
    data = fedglass.load("photos", size=16)
    rows = torch.arange(client, client + 1)
    return data.images[rows], data.labels[rows] % 4


def train(model: nn.Module, images: Tensor, labels: Tensor) -> None:
    """Local steps with momentum."""
    mean, std = (torch.tensor(values).view(3, 1, 1) for values in (MEAN, STD))
    optimiser = torch.optim.SGD(model.parameters(), lr=LR, momentum=MOMENTUM)
    for _ in range(STEPS):
        optimiser.zero_grad()
        nn.functional.cross_entropy(model((images - mean) / std), labels).backward()
        optimiser.step()


def averaged(states: list[dict[str, Tensor]]) -> dict[str, Tensor]:
    return {name: torch.stack([state[name] for state in states]).mean(0) for name in states[0]}


if __name__ == "__main__":
    torch.manual_seed(0)
    model = Net()
    for turn in range(1, ROUNDS + 1):
        replies = []
        for client in range(2):
            own = copy.deepcopy(model)
            with fedglass.recording(
                "bundle", own, client=f"client-{client}", round=turn, truth=True, whitening=(MEAN, STD)
            ):
                train(own, *private_images(client))
            replies.append(own.state_dict())
        model.load_state_dict(averaged(replies))
        fedglass.record_aggregate("bundle", model, round=turn)
