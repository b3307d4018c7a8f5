"""The training of image models, autoencoders, GANs and diffusion models, into folders that a plan can name."""

from __future__ import annotations

import io
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from types import MappingProxyType

import torch
from PIL import Image
from torch import Tensor, nn

from fedglass.core.errors import DataError, UsageError, unknown_name
from fedglass.core.files import write_atomic
from fedglass.core.identity import digest, of_tensor
from fedglass.core.resumable import TrainingProgress, writing_into
from fedglass.core.rng import derive, stream
from fedglass.data.dataset import Dataset
from fedglass.diffusion.autoencoders import Autoencoder, LatentSpace, ThreeLayers, lesson_of, settled
from fedglass.diffusion.denoiser import Denoiser, sample
from fedglass.diffusion.folder import AUTOENCODER, WEIGHTS, load_autoencoder, load_network, save_folder, save_network
from fedglass.diffusion.gan import Adversarial, CodeGan, Enhancer, adversarial_task
from fedglass.diffusion.networks import MaskedDiffusionTransformer, UNet
from fedglass.diffusion.stored import write_trained_on
from fedglass.diffusion.training import DenoisingTask, ImageModelTraining, TrainingOptions, masked_loss

PICTURE = "samples.png"
_SCALE = 2
"""Each pixel of a sample is drawn as a square of this side."""


def check_material(data: Dataset, folder: Path) -> None:
    """Refuse too few images, and a file instead of a folder."""
    if len(data) < 2:
        raise DataError(f"{data.name}: {len(data)} images are too few to learn from: bring more.")
    if folder.exists() and not folder.is_dir():
        raise UsageError(f"{folder} is a file: name a folder with -o.")


def pace(options: TrainingOptions) -> tuple[object, ...]:
    """Return the options that a resumed training must share with its start; steps and minutes may differ."""
    return options.lr, options.batch_size, options.average, options.clip, options.mirror, options.seed


def contact_sheet(images: Tensor, columns: int = 8) -> Image.Image:
    """Images in [0, 1] side by side.  # (n, c, h, w), grey or colour; of other channels the first is drawn"""
    shown = images if images.shape[1] in (1, 3) else images[:, :1]
    tiles = torch.nn.functional.pad(shown.clamp(0, 1), (1, 1, 1, 1), value=1.0)
    blank = torch.ones(-len(tiles) % columns, *tiles.shape[1:])
    rows = torch.cat([tiles, blank]).view(-1, columns, *tiles.shape[1:])  # (rows, columns, c, h, w)
    sheet = rows.permute(0, 3, 1, 4, 2).flatten(2, 3).flatten(0, 1)  # (rows h, columns w, c)
    pixels = (sheet * 255).round().to(torch.uint8).numpy()
    picture = Image.fromarray(pixels[..., 0] if pixels.shape[-1] == 1 else pixels)
    return picture.resize((picture.width * _SCALE, picture.height * _SCALE), Image.Resampling.NEAREST)


def _training(
    network: nn.Module,
    task: DenoisingTask,
    options: TrainingOptions,
    folder: Path,
    identity: str,
    write: Callable[[ImageModelTraining], None] | None = None,
) -> ImageModelTraining:
    """Return the training that the folder holds, or a new one.

    At every saving `write` stores what others read, and after that comes the state to resume from.
    """

    def save(training: ImageModelTraining) -> None:
        with writing_into(folder):
            if write is not None:
                write(training)
            training.write_state(folder, identity)

    training = ImageModelTraining(network, task, options, save)
    training.resume(folder, identity)
    return training


def _write_picture(folder: Path, images: Tensor) -> None:
    """Draw images in [-1, 1]."""
    buffer = io.BytesIO()
    contact_sheet((images + 1) / 2).save(buffer, format="PNG")
    write_atomic(folder / PICTURE, buffer.getvalue())


# The training of autoencoders: by themselves, or before a diffusion model that works in their latent space.


SHARE = 0.25
"""Of the time or the steps of the diffusion model that is trained after it."""
SHOWN = 16
"""Images in each part of the picture."""
JUDGED = 1000
"""Images that the reconstruction error is measured on."""


def train_autoencoder(
    data: Dataset, options: TrainingOptions, folder: Path, progress: TrainingProgress | None = None
) -> tuple[LatentSpace, ImageModelTraining, float]:
    """Train three convolutional layers, or continue the training that the folder holds.

    The folder receives the network, what it was trained on, and a picture: originals, what comes back of them, and what
    random codes decode to. Return the network as it is on disk, where its training stands, and the root of the mean
    squared error of what comes back, of pixels in [0, 1].
    """
    check_material(data, folder)
    images = 2 * data.images - 1
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(derive(options.seed, "autoencoder", "weights"))
        network = ThreeLayers(tuple(images.shape[1:]))
    identity = digest("three layers", repr(pace(options)), of_tensor(data.images))
    training = _training(network, lesson_of(images), options, folder, identity).run(progress)
    with writing_into(folder):
        write_trained_on(folder, data.name, len(data))
        _save(folder, network, training, images)
        stored = load_autoencoder(folder)
        with torch.no_grad():
            shown, judged = images[:SHOWN], images[:JUDGED]
            codes = torch.randn(len(shown), *stored.latent_shape, generator=stream(options.seed, "samples"))
            _write_picture(folder, torch.cat([shown, stored(shown), stored.decode(codes)]))
            error = float((stored(judged) - judged).square().mean().sqrt() / 2)
    return stored, training, error


def learned_autoencoder(
    images: Tensor, options: TrainingOptions, folder: Path, progress: TrainingProgress | None = None
) -> LatentSpace:
    """The autoencoder in the folder, which is trained on the images first, or on from where that was stopped.

    Once it is trained it stays as it is, however long the diffusion model is trained: its latents are what that has
    learned. The network is drawn from the global generator, which the caller seeds.
    """
    network = Autoencoder(tuple(images.shape[1:]))
    steps = None if options.steps is None else max(1, round(SHARE * options.steps))
    shorter = replace(options, steps=steps, minutes=None if options.minutes is None else SHARE * options.minutes)
    identity = digest("autoencoder", repr((options.lr, options.batch_size, options.seed)), of_tensor(images))
    training = _training(network, lesson_of(images), shorter, folder, identity)
    if not (folder / WEIGHTS).is_file():
        _save(folder, network, training.run(progress), images)
    return load_autoencoder(folder)


def _save(folder: Path, network: LatentSpace, training: ImageModelTraining, images: Tensor) -> None:
    """Write the network in half precision; all users read it from disk, so that all get the same codes."""
    save_network(folder, network, settled(network, training, images).state_dict())


# The training of a GAN: one that draws images from codes, or one that sharpens reconstructed images.


GANS = ("enhancer", "codes")
"""What can be trained, by the name that the command line has for it."""
GAN_BETAS = (0.5, 0.99)
"""Little momentum: the critic that it would lead away from changes all the time."""


def train_gan(
    data: Dataset,
    kind: str,
    factor: int,
    options: TrainingOptions,
    folder: Path,
    progress: TrainingProgress | None = None,
) -> ImageModelTraining:
    """Train a GAN, or continue the training that the folder holds.

    The folder receives the network, what it was trained on, and a picture: of codes, what they are drawn as; of an
    enhancer, originals, what it is shown of them, and what it makes of that. The generator is the averaged one.
    """
    if kind not in GANS:
        raise unknown_name("kind of GAN", kind, GANS)
    check_material(data, folder)
    images = 2 * data.images - 1
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(derive(options.seed, "gan", "weights"))
        shape = tuple(images.shape[1:])
        network: Adversarial = CodeGan(shape) if kind == "codes" else Enhancer(shape, factor)
    identity = digest("gan", kind, repr(network.options()), repr(pace(options)), of_tensor(data.images))

    def write(training: ImageModelTraining) -> None:
        critic = {name: tensor for name, tensor in network.state_dict().items() if name.startswith("critic.")}
        save_network(folder, network, training.averaged | critic)
        write_trained_on(folder, data.name, len(data))
        if training.share() >= 1:
            _write_picture(folder, _drawn_by(load_network(folder, "gans", "GAN"), images, options.seed))

    course = replace(options, betas=GAN_BETAS)
    return _training(network, adversarial_task(images), course, folder, identity, write).run(progress)


@torch.no_grad()
def _drawn_by(network: nn.Module, images: Tensor, seed: int) -> Tensor:
    draws = stream(seed, "samples")
    if isinstance(network, CodeGan):
        return network.generate(torch.randn(SAMPLES, network.code, generator=draws))
    assert isinstance(network, Enhancer), "the other kind"
    shown = images[:SHOWN]
    blurred = network.blurred(shown, draws)
    return torch.cat([shown, blurred, network.enhance(blurred)])


# The training of a diffusion model on a set of images, into a folder that a plan can name.


SAMPLES = 64


SIZES: Mapping[str, tuple[tuple[int, ...], int, int]] = MappingProxyType(
    {"small": ((64, 72), 1, 2), "medium": ((64, 96, 128), 1, 2), "large": ((64, 128, 192), 2, 1)}
)
"""The widths of a U-Net, the smallest first, its blocks and its patch.

0.7, 2 and 9 million weights; the small one is at its best after some ten minutes on one core.
"""
TRANSFORMERS: Mapping[str, tuple[int, int, int, int]] = MappingProxyType(
    {"small": (4, 72, 6, 4), "medium": (8, 192, 8, 6), "large": (16, 384, 12, 6)}
)
"""A transformer's patches along the longer side, its width, its blocks and its heads.

0.7, 6 and 35 million weights; the large one is the paper's S and wants a graphics card.
"""


KINDS = ("ddpm", "transformer")
"""What can be trained, by the name that the command line has for it."""


def _untrained(kind: str, size: str, images: Tensor, data: Dataset) -> tuple[nn.Module, DenoisingTask]:
    """Return an untrained network for images in [-1, 1], or latents, and what it is to learn."""
    channels, height, width = images.shape[1:]
    shape = (channels, height, width)
    if kind == "ddpm":
        return UNet(shape, *SIZES[size]), DenoisingTask(images)
    patches, width, depth, heads = TRANSFORMERS[size]
    patch = -(-max(shape[1:]) // patches)
    network = MaskedDiffusionTransformer(shape, data.classes, patch, width, depth, heads=heads)
    return network, DenoisingTask(images, data.labels, loss=masked_loss())


def train_diffusion(
    data: Dataset,
    options: TrainingOptions,
    folder: Path,
    progress: TrainingProgress | None = None,
    *,
    kind: str = "ddpm",
    size: str = "small",
    autoencoder: bool = False,
) -> ImageModelTraining:
    """Train, or continue the training that the folder holds; it receives the model and a picture of its samples.

    `kind` and `size` are names of `KINDS` and `SIZES`. With `autoencoder` the network works in the latent space of an
    autoencoder, which is trained first.
    """
    for what, name, valid_names in (("kind", kind, KINDS), ("size", size, SIZES)):
        if name not in valid_names:
            raise unknown_name(f"{what} of diffusion model", name, valid_names)
    if autoencoder and kind != "transformer":
        raise UsageError("An autoencoder goes with --kind transformer: ddrm restores pixels, not latents.")
    check_material(data, folder)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(derive(options.seed, "diffusion", "weights"))
        images, decode = 2 * data.images - 1, None
        identity = digest(kind, size, repr(pace(options)), of_tensor(data.images), of_tensor(data.labels))
        if autoencoder:
            latent_space = learned_autoencoder(images, options, folder / AUTOENCODER, progress)
            images, decode = latent_space.latents_of(images), latent_space.decode
            identity = digest(identity, of_tensor(images))
        network, lesson = _untrained(kind, size, images, data)
    pictured = 0.0

    def write(training: ImageModelTraining) -> None:
        """Write the model, and a picture every quarter."""
        nonlocal pictured
        share = training.share()
        # Latents have no bounds.
        denoiser = Denoiser(training.network, lesson.schedule, lesson.prediction, clamp=decode is None)
        save_folder(folder, training.network, training.averaged, denoiser)
        if share >= 1 or share - pictured >= 0.25:
            pictured = share
            samples = _samples(training, denoiser)
            _write_picture(folder, samples if decode is None else decode(samples).detach())

    return _training(network, lesson, options, folder, identity, write).run(progress)


def _samples(training: ImageModelTraining, denoiser: Denoiser) -> Tensor:
    """Return samples of the averaged network, which for that time replaces the one that is trained."""
    network, task = training.network, training.task
    trained = {name: tensor.clone() for name, tensor in network.state_dict().items()}
    network.load_state_dict(training.averaged)
    network.eval()
    labels = None if task.labels is None else task.labels[:SAMPLES]
    shape = (SAMPLES if labels is None else len(labels), *task.images.shape[1:])
    noise = torch.randn(shape, generator=stream(training.options.seed, "samples"))
    samples = sample(denoiser, noise, 30, labels)
    network.load_state_dict(trained)
    network.train()
    return samples
