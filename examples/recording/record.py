"""One client's turn in plain PyTorch, and the lines that record it for an audit. fedglass is not needed here."""

import numpy as np
import torch
from network import make
from safetensors.torch import save_file
from torch import Tensor, nn

LR = 0.1
MEAN, STD = 0.5, 0.25


def private_images() -> tuple[Tensor, Tensor]:
    """Two coloured discs on shaded ground, which stand for what the client would not show."""
    y, x = torch.meshgrid(torch.linspace(0, 1, 16), torch.linspace(0, 1, 16), indexing="ij")
    ground = torch.stack([x, y, 1 - x])
    images = []
    for centre, colour in (((0.35, 0.4), (0.9, 0.2, 0.1)), ((0.6, 0.65), (0.1, 0.3, 0.9))):
        inside = (x - centre[0]) ** 2 + (y - centre[1]) ** 2 < 0.06
        images.append(torch.where(inside, torch.tensor(colour)[:, None, None], 0.2 + 0.5 * ground))
    return torch.stack(images), torch.tensor([1, 3])


def train(model: nn.Module, images: Tensor, labels: Tensor) -> None:
    """One step of SGD on all examples."""
    optimiser = torch.optim.SGD(model.parameters(), lr=LR)
    loss = nn.functional.cross_entropy(model((images - MEAN) / STD), labels)
    loss.backward()
    optimiser.step()


if __name__ == "__main__":
    torch.manual_seed(0)
    model = make()
    images, labels = private_images()

    # ---- Recording: the state before, the state after, and what the truth is, to score by.
    def state() -> dict[str, Tensor]:
        return {name: tensor.detach().clone().contiguous() for name, tensor in model.state_dict().items()}

    save_file(state(), "before.safetensors")
    train(model, images, labels)
    save_file(state(), "after.safetensors")
    np.savez("truth.npz", images=images.numpy(), labels=labels.numpy())  # pixels in [0, 1], before normalisation
