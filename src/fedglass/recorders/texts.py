"""Reservations of a recorder about a training, by identifier, and the sentences that tell them to users."""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum


class Reservation(StrEnum):
    """Something in a client's training that fedglass's own training does not have."""

    ODD_BATCHES = "odd_batches"
    SEVERAL_OPTIMISERS = "several_optimisers"
    CARRIED_STATE = "carried_state"
    DIFFERENT_OPTIONS = "different_options"
    DIFFERENT_RATES = "different_rates"
    UNKNOWN_LOSS = "unknown_loss"
    PENALTY = "penalty"
    WEIGHTED_LOSS = "weighted_loss"
    OTHER_TARGETS = "other_targets"
    CHANGED_OUTPUTS = "changed_outputs"
    SCALED_LOSS = "scaled_loss"
    CHANGED_GRADIENTS = "changed_gradients"
    MIXED_BATCH_NORM = "mixed_batch_norm"
    DROPOUT = "dropout"
    RANDOM_NETWORK = "random_network"
    SEVERAL_INPUTS = "several_inputs"
    SEVERAL_NETWORKS = "several_networks"
    WRITTEN_BY_HAND = "written_by_hand"
    MIXED_PRECISION = "mixed_precision"
    ACCUMULATED_GRADIENTS = "accumulated_gradients"
    UNSEEN_PASS = "unseen_pass"
    DIFFERENT_PARAMETERS = "different_parameters"
    OBSERVATION_FAILED = "observation_failed"


SENTENCES: Mapping[Reservation, str] = {
    Reservation.ODD_BATCHES: "The batches do not make whole epochs, for example because the last one is dropped.",
    Reservation.SEVERAL_OPTIMISERS: "Several optimisers took steps: {optimisers}.",
    Reservation.CARRIED_STATE: "The optimiser carried its state over from an earlier round.",
    Reservation.DIFFERENT_OPTIONS: "The options of the optimiser differ between parameter groups or steps.",
    Reservation.DIFFERENT_RATES: "The learning rate differs between steps or parameters.",
    Reservation.UNKNOWN_LOSS: "The loss was not computed by a function of torch.nn.functional.",
    Reservation.PENALTY: "The objective also depends on the weights directly, as a proximal term does.",
    Reservation.WEIGHTED_LOSS: "Examples or classes had different weights in the loss.",
    Reservation.OTHER_TARGETS: "The targets of the loss are not one class for each example.",
    Reservation.CHANGED_OUTPUTS: "The loss was computed on changed outputs of the network, such as scaled ones.",
    Reservation.SCALED_LOSS: "The objective is the mean loss times {factor}.",
    Reservation.CHANGED_GRADIENTS: "Gradients were changed between backward and the step, as by noise or compression.",
    Reservation.MIXED_BATCH_NORM: "Some batch normalisation layers used the statistics of the batch, others did not.",
    Reservation.DROPOUT: "Dropout was active.",
    Reservation.RANDOM_NETWORK: "The network drew random numbers, as dropout does.",
    Reservation.SEVERAL_INPUTS: "The network has several input tensors; the first one is taken as the image.",
    Reservation.SEVERAL_NETWORKS: "Several networks were trained; it is unknown which of them was sent.",
    Reservation.WRITTEN_BY_HAND: "Weights were changed outside of optimiser steps, for example by averaging.",
    Reservation.MIXED_PRECISION: "Automatic mixed precision was on.",
    Reservation.ACCUMULATED_GRADIENTS: "Gradients of several forward passes were accumulated in a step.",
    Reservation.UNSEEN_PASS: "A step was taken without a visible forward pass.",
    Reservation.DIFFERENT_PARAMETERS: "Not all steps trained the same parameters.",
    Reservation.OBSERVATION_FAILED: "Observation of this client's training failed; no training facts were recorded.",
}

NO_STEP = (
    "No torch optimizer step was observed for client %r, so its training is not recorded: it ran in another thread or "
    "process, or without torch.optim."
)
