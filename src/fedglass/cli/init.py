"""`fedglass init`: write a plan to start from."""

from __future__ import annotations

from pathlib import Path

import click

from fedglass.cli.options import Output, announce_named, answering, code_option, importable, model_option, public_option
from fedglass.core.errors import UsageError

# The plans that come with the command line.


PLAN = """\
# A fedglass plan: what is audited, against whom, by which attacks, and where the limit lies.
#   fedglass check THIS   says in plain words what it means
#   fedglass audit THIS -o out
title = "My first audit"
seed = 0         # the same plan and seed give the same records
repeats = 1      # how often each attack is played, from different starts

# ---- What is audited: a federation to simulate ... -------------------------------------------------------------
[federation]
data = "photos"          # `fedglass list datasets`; or your own: "npz:faces.npz", "folder:pictures", "idx:mnist" ...
size = 32                # bring the images to 32 x 32 (leave out to keep their size)
# classes = 10           # more classes than the data have
# relabel_classes = 100  # draw labels anew: a stand-in for data with more classes
clients = 2
examples = 1             # of each client; a list gives each its own number
partition = "iid"        # or "dirichlet" (with alpha = 0.5), "writers"
model = "lenet"          # `fedglass list models`; or your own: "package.module:factory", found with --code DIR
init = "uniform"         # `fedglass list initialisations`; or "file:weights.safetensors", "transfer:..."
rounds = 1
participation = 1.0      # share of the clients that each round calls
# rule = { name = "mean" }  # how the server combines the updates: `fedglass list rules`
# test_examples = 100    # kept from all clients, to measure the trained model

[federation.training]    # what a client does in a round
lr = 0.1
epochs = 1               # one epoch on all examples at once is FedSGD
# batch_size = 8         # more local steps: FedAvg
# batch_norm = "frozen"  # or "batch"
# optimiser = "sgd"      # takes momentum, nesterov and weight_decay; or "adam", "adamw": betas, eps and weight_decay
# shuffle = true         # or false: batches in file order; with steps = 40 in place of epochs the last may be cut short
# clip = 1.0             # the norm of a step's gradient; label_smoothing = 0.1 spreads that share of each label

# Clients that differ from the rest, by position; what is not said of them is as it is for all. One table a group.
# [[federation.group]]
# clients = [1]
# behaviour = { name = "sign_flip", factor = 2.0 }  # `fedglass list behaviours`; a list: one for each round
# rejoins_after = 3                                 # rejected updates in a row, after which it has a new name
# defences = []                                     # in place of [[defences]] below; empty: none
# training = { lr = 0.05, epochs = 2 }              # in place of [federation.training]

# ... or a message that your own federation has sent (then leave [federation] out):
# [recording]
# model = "mypackage.models:make"
# classes = 10
# before = "before.safetensors"    # the model's state_dict before the client trained
# after = "after.safetensors"      # and after; or update = "..." with after - before
# truth = "client.npz"             # images and labels, to score; without it: shape = [3, 32, 32], examples = 8
# whitening = { mean = [0.5, 0.5, 0.5], std = [0.25, 0.25, 0.25] }    # normalisation; none: mean 0.0, std 1.0
# training = { lr = 0.1, epochs = 1, batch_size = 8 }    # or lr = 0.1 and steps = 40, where no more is known
# defended = false                 # or true; left out: nobody knows, and nothing is put down to a defence
# ... or the messages of a federation that was recorded (docs/bundles.md; `fedglass init --from DIR` fills this in):
# [recording]
# bundle = "recorded"
# rounds = [1, 5]                  # some that show everybody if left out; whose = ["hospital a"]: whose messages

# ---- Against whom -----------------------------------------------------------------------------------------------
[adversary]
view = "server"            # sees a client's update; "aggregate": what the rule made of all (secure aggregation);
                           # "peer": a client that sees the global model before and after a round
client = "all"             # whose updates it looks at, or which ones the peer is: "all" (the default), 0 or [0, 3]
round = 0                  # in which round, counted from 0, or in several: [0, 24] (then rounds = 25)
# together = false         # if true, several rounds are explained by the same examples at once
knows_training = true      # learning rate, epochs and batch size
knows_labels = false       # ORACLE: the true labels; a real adversary has to recover them
# knows_batch_labels = false
# knows_steps = false      # the number of local steps alone
# knows_lr = true          # if false, the learning rate is withheld; curious_client_search looks for it
# knows_examples = true    # if false, so is the number of examples behind the message
# knows_kept = true        # if false, a peer is not told whose updates got through the rule
# public = "npz:such.npz"  # such data that it has, for blind guesses; left out: what no client has of [federation]'s

# ---- What protects the clients: `fedglass list defences` --------------------------------------------------------
# Federations with `defended = false` go without, for comparison. With `test_examples` in [federation] the audit
# also says how well the model that was trained with them does its work, and how well it would without.
# `sweep = { defence = "dpsgd", option = "noise_multiplier", values = [0.0, 0.1, 3.0] }` in [federation] plays it once
# for each value, and the report draws what is read over them, beside the best blind guess.
# [[defences]]
# name = "..."

# ---- By which attacks: `fedglass list attacks` ------------------------------------------------------------------
[[attacks]]
name = "inverting_gradients"
iterations = 600
tv = 0.01

[[attacks]]
name = "idlg"
iterations = 60
# label = "idlg, short"    # its name in the report
# refine = { name = "ddrm", model = "glyphs", factor = 2 }  # `fedglass list refinements`; the model may be a folder of
#                          # yours, made by `fedglass train diffusion`

# ---- When the audit fails, and when it passes ------------------------------------------------------------------------
[metrics]
names = ["psnr", "ssim", "rmse", "lpips"]

[gate]
metric = "psnr"            # an image counts as recovered when its PSNR
threshold = 20.0           # is above 20 dB (below, for lpips and rmse);
max_share = 0.0            # the audit fails when an attack recovers more than this share of the images
max_singling_out = 0.1     # ... or when a message names its records among 1,000 candidates more often than this
max_success = 0.05         # it passes only if a certificate bounds any adversary's success in naming a record by this
trust_declared = false     # true: a certificate may rest on declared noise that nothing can test
inconclusive_fails = true  # an audit that cannot tell exits with 3; false: with 0, and the report says so
"""

DEMO = """\
# The plan of `fedglass demo`: two small federations and a search that begins with what exact methods read.
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


@click.command(short_help="Write a commented plan to start from.")
@click.argument("path", type=click.Path(path_type=Path), default="plan.toml")
@click.option("--force", is_flag=True, help="Overwrite a file that is there.")
@click.option("--from", "bundle", type=click.Path(path_type=Path), help="A recorded federation that the plan audits.")
@model_option
@public_option
@code_option
@answering
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
    """Write a commented plan to PATH (plan.toml by default), ready to be audited as it is.

    With --from the plan is that of a recorded federation: the attacks that its facts allow, and what is missing.

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
        raise UsageError(f"{path} is there already: choose another name, or --force to overwrite it.") from error
    except OSError as error:
        raise UsageError(f"Cannot write {path}: {error.strerror}; choose another place.") from error
    output.say(f"Wrote {path}. Next: fedglass check {path}")
    output.answer({"path": str(path)})


def _from_bundle(bundle: Path, plan: Path, model: str | None, public: str | None, output: Output) -> str:
    """The plan of a bundle, whose folder it names as seen from its own."""
    import os

    from fedglass.plan.draft import draft

    announce_named(model, public, output)
    beside = os.path.relpath(bundle.resolve(), plan.resolve().parent)
    made = draft(bundle, path=beside, model=model, public=public)
    if made.problem:
        output.note(f"The plan is not ready yet: {made.problem}")
    return made.text
