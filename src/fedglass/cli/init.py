"""`fedglass init` writes a commented plan; the plans of the demo are here too."""

from __future__ import annotations

from pathlib import Path

import click

from fedglass.cli.options import (
    Output,
    announce_named,
    code_option,
    importable,
    model_option,
    output_options,
    public_option,
)
from fedglass.core.errors import UsageError

PLAN = """\
# A fedglass plan: what is audited, the adversary, the attacks, and the pass and fail criteria.
#   fedglass check THIS   validates it and prints the threat model
#   fedglass audit THIS -o out
title = "My first audit"
seed = 0         # the same plan and seed give the same records
repeats = 1      # runs of each attack, from different starting points

# ---- What is audited: a federation to simulate ... -------------------------------------------------------------
[federation]
data = "photos"          # `fedglass list datasets`; or your own: "npz:faces.npz", "folder:pictures", "idx:mnist" ...
size = 32                # bring the images to 32 x 32 (leave out to keep their size)
# classes = 10           # more classes than the data have
# relabel_classes = 100  # draw random labels: a stand-in for data with more classes
clients = 2
examples = 1             # per client; a list has one number for each client
partition = "iid"        # or "dirichlet" (with alpha = 0.5), "writers"
model = "lenet"          # `fedglass list models`; or your own: "package.module:factory", found with --code DIR
init = "uniform"         # `fedglass list initialisations`; or "file:weights.safetensors", "transfer:..."
rounds = 1
participation = 1.0      # share of the clients that take part in each round
# rule = { name = "mean" }  # how the server combines the updates: `fedglass list rules`
# test_examples = 100    # held out from all clients, to measure the trained model

[federation.training]    # what a client does in a round
lr = 0.1
epochs = 1               # one epoch on all examples at once is FedSGD
# batch_size = 8         # more local steps: FedAvg
# batch_norm = "frozen"  # or "batch"
# optimiser = "sgd"      # takes momentum, nesterov and weight_decay; or "adam", "adamw": betas, eps and weight_decay
# shuffle = true         # or false: batches in file order; steps = 40 instead of epochs may end within an epoch
# clip = 1.0             # largest gradient norm of a step; label_smoothing = 0.1 spreads that share of each label
# loss = "cross_entropy" # or another of `fedglass list losses`, such as { name = "mse_loss", reduction = "sum" }

# Clients that differ from the others, by position. Keys that are left out have the values above. One table per group.
# [[federation.group]]
# clients = [1]
# behaviour = { name = "sign_flip", factor = 2.0 }  # `fedglass list behaviours`; a list: one for each round
# rejoins_after = 3                                 # after so many rejected updates in a row it takes a new name
# defences = []                                     # instead of [[defences]] below; empty: none
# training = { lr = 0.05, epochs = 2 }              # instead of [federation.training]

# ... or a recorded message of your own federation (then leave [federation] out):
# [recording]
# model = "mypackage.models:make"
# classes = 10
# before = "before.safetensors"    # the model's state_dict before the client trained
# after = "after.safetensors"      # and after; or update = "..." with after - before
# truth = "client.npz"             # images and labels for scoring; without it: shape = [3, 32, 32], examples = 8
# whitening = { mean = [0.5, 0.5, 0.5], std = [0.25, 0.25, 0.25] }    # normalisation; none: mean 0.0, std 1.0
# training = { lr = 0.1, epochs = 1, batch_size = 8 }    # or lr = 0.1 and steps = 40, if nothing else is known
# defended = false                 # or true; left out: unknown
# ... or all messages of a recorded federation (docs/bundles.md; `fedglass init --from DIR` writes such a plan):
# [recording]
# bundle = "recorded"
# rounds = [1, 5]                  # left out: rounds that cover all clients; whose = ["hospital a"]: only its messages

# ---- The adversary -----------------------------------------------------------------------------------------------
[adversary]
view = "server"            # sees each client's update; "aggregate": sees only the aggregate (secure aggregation);
                           # "peer": a client that sees the global model before and after a round
client = "all"             # clients whose updates it sees, or that are the peer: "all" (the default), 0 or [0, 3]
round = 0                  # the audited round, counted from 0, or several: [0, 24] (then rounds = 25)
# together = false         # true: several rounds are attacked together, as messages of the same examples
knows_training = true      # learning rate, epochs and batch size
knows_labels = false       # ORACLE: the true labels; a real adversary has to recover them
# knows_batch_labels = false
# knows_steps = false      # only the number of local steps and the learning rate
# knows_lr = true          # false: the learning rate is unknown; curious_client_search looks for it
# knows_examples = true    # false: the number of examples in the message is unknown
# knows_kept = true        # false: a peer does not know which updates the rule accepted
# public = "npz:such.npz"  # similar public data; left out: the examples of [federation] that no client has

# ---- The defences of the clients: `fedglass list defences` --------------------------------------------------------
# Federations with `defended = false` have none, for comparison. With `test_examples` in [federation] the audit also
# measures the accuracy of the model with and without them.
# `sweep = { defence = "dpsgd", option = "noise_multiplier", values = [0.0, 0.1, 3.0] }` in [federation] runs the
# audit once for each value. The report plots the results next to the best blind guess.
# [[defences]]
# name = "..."

# ---- The attacks: `fedglass list attacks` ------------------------------------------------------------------
[[attacks]]
name = "inverting_gradients"
iterations = 600
tv = 0.01

[[attacks]]
name = "idlg"
iterations = 60
# label = "idlg, short"    # its name in the report
# refine = { name = "ddrm", model = "glyphs", factor = 2 }  # `fedglass list refinements`; the model may be a folder
#                          # that `fedglass train diffusion` wrote

# ---- When the audit passes and fails ------------------------------------------------------------------------
[metrics]
names = ["psnr", "ssim", "rmse", "lpips"]

[gate]
metric = "psnr"            # an image counts as recovered when its PSNR
threshold = 20.0           # is above 20 dB (below, for lpips and rmse);
max_share = 0.0            # the audit fails when an attack recovers more than this share of the images
max_singling_out = 0.1     # ... or when a message names its records among 1,000 candidates more often than this
max_success = 0.05         # it passes only if a certificate bounds any adversary's success in naming a record by this
trust_declared = false     # true: a certificate may rest on declared noise that cannot be tested
inconclusive_fails = true  # an inconclusive audit exits with 3; false: with 0, and the report says so
"""

DEMO = """\
# The plan of `fedglass demo`: two small federations, and a search that starts from the results of exact methods.
title = "Demo"
seed = 0

[[federation]]
name = "photos, one gradient"
data = "photos"
size = 32
clients = 2
examples = 1
model = "lenet"
init = "uniform"
training = { lr = 0.1 }

[[federation]]
name = "glyphs, federated averaging"
data = "glyphs"
clients = 1
examples = 2
partition = "writers"
model = "lenet_tanh"
training = { lr = 0.05, epochs = 2, batch_size = 1 }

[adversary]
view = "server"
client = "all"

[[attacks]]
name = "inverting_gradients"
start = "exact"
iterations = 200

[gate]
metric = "psnr"
threshold = 20.0
"""

PEER_DEMO = """\
# The second plan of `fedglass demo`: a client reads its peers.
title = "Demo: a client reads its peers"
seed = 0

[[federation]]
name = "three clients, one character each"
data = "glyphs"
clients = 3
examples = 1
model = "lenet_tanh"
training = { lr = 0.05, epochs = 2 }

[adversary]
view = "peer"
client = 0

[[attacks]]
name = "curious_client"
iterations = 150
refine = { name = "ddrm", model = "glyphs", factor = 2 }
"""


@click.command(short_help="Write a commented plan.")
@click.argument("path", type=click.Path(path_type=Path), default="plan.toml")
@click.option("--force", is_flag=True, help="Overwrite an existing file.")
@click.option(
    "--from", "bundle", type=click.Path(path_type=Path), help="Folder of a recorded federation that the plan audits."
)
@model_option
@public_option
@code_option
@output_options
@click.pass_context
def init(
    ctx: click.Context,
    path: Path,
    force: bool,
    bundle: Path | None,
    model: str | None,
    public: str | None,
    folders: tuple[Path, ...],
    output: Output,
) -> None:
    """Write a commented plan to PATH (plan.toml by default). It can be audited without changes.

    With --from the plan audits a recorded federation with the attacks that are possible there. It lists missing facts.

    \b
    Examples:
      fedglass init plan.toml && fedglass check plan.toml && fedglass audit plan.toml -o out
      fedglass init plan.toml --from recorded/
    """
    if bundle is None:
        if model is not None or public is not None or folders:
            raise UsageError("--model, --public and --code belong to a recorded federation: add --from.")
        text = PLAN
    else:
        ctx.with_resource(importable(folders))
        text = _from_bundle(bundle, path, model, public, output)
    try:
        with path.open("w" if force else "x", encoding="utf-8", newline="\n") as file:
            file.write(text)
    except FileExistsError as error:
        raise UsageError(f"{path} already exists: choose another name, or --force to overwrite it.") from error
    except OSError as error:
        raise UsageError(f"Cannot write {path}: {error.strerror}; choose another place.") from error
    output.say(f"Wrote {path}. Next: fedglass check {path}")
    output.answer({"path": str(path)})


def _from_bundle(bundle: Path, plan: Path, model: str | None, public: str | None, output: Output) -> str:
    """Return the plan of a bundle, with the bundle's path relative to the plan."""
    import os

    from fedglass.plan.draft import draft

    announce_named(model, public, output)
    path = os.path.relpath(bundle.resolve(), plan.resolve().parent)
    drafted = draft(bundle, path=path, model=model, public=public)
    if drafted.problem:
        output.note(f"The plan is not ready yet: {drafted.problem}")
    return drafted.text
