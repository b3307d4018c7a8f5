"""Every threshold that decides a check, in one table: name, value, meaning, and where the value comes from.

Checks, audit, guard and recordings compare with these. They are here because `recordings` lies below `checks`, and both
need them. Limits of effort, such as numbers of replays or of candidates, stay with the code that spends it.
"""

from __future__ import annotations

import math

# --- The replay of a claimed training (checks.replay) ---

REPLAY_ROUNDING = 0.02
"""Relative error up to which a message counts as explained. Another device or half precision may make as much."""
REPLAY_NEAR = 1.5
"""How many times farther than replays in different orders lie from each other a message may lie from the nearest."""
REPLAY_FAINT = 1e-5
"""Share of itself by which a tensor must have moved to be compared: rounding alone may make less."""
MOST_UNDECIDED = 0.25
"""Share of entries decided by rounding beyond which a replay proves nothing."""
UNDECIDED_TENSOR = 0.5
"""Share of undecided entries from which on a whole tensor is left to rounding: the others agree by chance."""
LOUDEST_ROUNDING = 3.0
"""How many times longer than in any replay undecided entries may be: rounding does not make more of them."""

# --- Traces of a training (checks.consistency) ---

SURE = 0.5
"""Probability from which on a network is sure of an image."""
EQUAL_SIZES = 0.04
"""Sizes that differ by less than this share count as equal: weights of single precision, moved by a small rate."""
PILED_SIZES = 0.25
"""Share of equal sizes from which on steps are Adam's. Measured: plain SGD has at most 0.05."""
SCATTERED_SIZES = 0.1
"""Share of equal sizes below which one step is not Adam's. Measured: Adam has at least 0.68."""
LARGEST_OVER_MEDIAN = 3.0
"""How many times the median the largest of Adam's steps may be. Measured: that of SGD is 12 and more."""
STEP_ROUNDING = 2.0**-20
"""Share of a weight up to which a local step moves it by its rounding alone: 8 x 2^-23. Many such steps are equal."""
MOVED_ENTRIES = 16
"""Entries of a tensor that must have moved for its sizes to be compared, in at least two tensors."""
LARGEST_ADAM_EPS = 1e-6
"""Adam's eps up to which its first step is as long as the learning rate at nearly every entry."""
LARGEST_BEYOND = 30.0
"""How many times larger a message may be than the same training gives on the most surprising of other images.
Measured: the network's Jacobian differs by a factor of 2 between images."""
SMALLEST_BELOW = 1000.0
"""How many times smaller a message may be than the same training gives on the least surprising of other images."""

# --- Clipping: how far beyond its declared bound a norm may lie ---

CLIP_SLACK_ARITHMETIC = 0.05
"""In an audit without the data, where clipping inside local steps bounds the whole update."""
CLIP_SLACK_RECORDED = 1e-3
"""In a recording: rounding, and the quantisation of secure aggregation. A recorded mean may differ by as much."""
CLIP_SLACK_GUARD = 1e-5
"""In the guard: rounding of a norm that was clipped in single precision."""

# --- Noise ---

NOISE_LEVEL = 1e-3
"""Chance that noise as declared is refuted, over all tests of one message."""
NOISE_SHARE = 0.9
"""Share of the deviation of several noisy local steps that must be there: it is known from a few replays alone."""
NOISE_WIDTHS = 6.0
"""Standard deviations by which the size of a tensor's noise may differ by chance, where only its size is tested."""
REPLAY_SPREAD = 0.1
"""Spread of replays, in std of the noise, from which on the residual is not the noise and nothing can be tested."""
POOLED_ENTRIES = 64
"""Entries below which tensors are tested together. Measured: asymptotic tests of 1 x 64 gave only false alarms."""

# --- A message that is the same for all records (checks.distances) ---

EQUAL_CANDIDATES = 100
"""Candidates that must give the same message, bit for bit, where no absence does: half of the game's least number."""
HALF_PRECISION_VALUES = 32
"""Different values from which on a message that a half-precision type holds was rounded to it: by chance a value in
single precision lies on such a grid once in 2^13 times."""

# --- The candidate game (checks.singling_out) ---

LEAST_CANDIDATES = 20
"""Candidates of a record's label below which the game is not played: a rank among fewer says nothing."""
ENOUGH_CANDIDATES = 200
"""Candidates of a record's label below which a rate decides nothing."""
FEW_RECORDS = 8
"""Records below which ranks decide and not a rate: a rate of 7 of 7 still has a lower limit of .59."""
FEW_PUBLIC_GRADIENTS = 100
"""Public gradients below which a message that names no record says little. Measured: 20 find .28 where 400 find .91."""
RARE_RANK = 1 / 1000
"""Rank of a single record that decides, as a share of all candidates."""
GAME_LEVEL = 0.05
"""Share of wrong limits over all messages together."""
SAME_AS_PRIVATE = 0.95
"""Correlation from which a candidate shows what a private record shows. Measured: noise of .05 on CIFAR-10 stays above
in 99 % of the images, and 0.4 % of them have another image of their class above."""
SAME_IN_POOL = 0.98
"""The same between two candidates, which is stricter. Measured: 62 % of Fashion-MNIST have an image of their class
above .95."""
SAME_ERROR = 1e-3
"""Mean squared error, 30 dB, up to which images are the same whatever their correlation: flat ones have none."""
GRADIENT_ROUNDING = 1e-4
"""Share of a gradient below which what is left of it is rounding, in single precision."""
UNMOVED_ENTRIES = 0.05
"""Share of entries that are exactly zero from which they are left out everywhere: frozen layers, or a pruned update."""
GRADIENTS_AGREE = 1e-3
"""Distance between the sum of the examples' gradients and the gradient of the batch, as a share of its size."""

# --- Pictures (audit.scoring) ---

DECOY_CONTRAST = 0.5
"""Share of the images' contrast by which a decoy's pixels must differ for it to show something else."""
SAME_PICTURE = 0.9
"""Correlation from which on pictures show the same. Measured: other smooth pictures reach 0.7 somewhere."""
FLAT_PICTURE = 1e-6
"""Share of a picture's length that its contrast must have to be more than rounding."""

# --- The guard ---

PIXEL_SLACK = 1e-3
"""Distance outside of [0, 1] up to which a pixel is rounding on its way through a whitening."""
LOST_PRECISION = 0.01
"""Share of a tensor's update that may be lost in the rounding of the weights."""
SAME_STEP = 0.999
"""Cosine from which on the global model's step is taken for one client's update."""


# --- Received models (guard.received); measured by tools/measure_received.py, docs/received-models.md ---

PARALLEL_ROWS = 0.8
"""Cosine from which on rows of a dense layer repeat one direction. Measured: honest 0.66; imprints 0.92 and more, those
with as much noise as rows 0.57."""
LONE_UNITS = 0.1
"""Share of units that fire for one example alone, beyond that under other weights. Measured: honest 0.12, traps in all
rows 0.16 and more, but for one."""
RARE_UNITS = 0.06
"""Share of a first dense layer's units that fire rarely, beyond that under other weights. Measured: honest 0.04, but up
to 0.6 in wide networks that Adam trained; traps in half of the rows 0.06 and more, with 64 own examples but for one."""
TOLD_APART = 0.2
"""Share of the own examples that parallel units of a layer tell from all others. Measured: honest 0.125, imprints in a
quarter of the rows 0.38."""
CLASS_ROW = 4.0
"""How many times longer than the median row the longest row of the last layer may be. Measured: 1.5, fishing 6.8."""
CLASS_BIAS = 2.0
"""Distance of a class bias from the median of all classes. Measured: 0.55, fishing by biases 10."""
UNEXPLAINED_CHANGE = 16.0
"""How many times farther than the median tensor one may move, in units of the own update. Measured: honest 12.7, under
FedAdam and among clients of unequal size, too; 148 of 160 crafted models beyond it."""


def largest_norm(clip: float, slack: float, std: float = 0.0, entries: int = 0) -> float:
    """Return the largest norm of an update that was clipped, with noise of some std on so many entries.

    >>> largest_norm(1.0, 0.05)
    1.05
    """
    noise = std * math.sqrt(entries) * (1 + NOISE_WIDTHS / math.sqrt(2 * entries)) if std else 0.0
    return (clip + noise) * (1 + slack)


def least_noise(std: float, entries: int) -> float:
    """Return the least root mean square of entries with independent noise; zero or less where it bounds nothing.

    >>> least_noise(1.0, 1800), least_noise(1.0, 18)
    (0.9, 0.0)
    """
    return std * (1 - NOISE_WIDTHS / math.sqrt(2 * entries))
