r"""Draw a figure of the papers, of losses or of a trained network.

    python examples/papers/draw_figure.py loss_curves
    python examples/papers/draw_figure.py smoothing --losses=acls,mbls
    python examples/papers/draw_figure.py effective_labels --logits=6,3,0
    python examples/papers/draw_figure.py targets --alpha=0.25
    python examples/papers/draw_figure.py regularizers RUN --losses=mbls
    python examples/papers/draw_figure.py max_logit RUN
    python examples/papers/draw_figure.py normalized_logit RUN --p=4
    python examples/papers/draw_figure.py sorted_logits RUN --p=5
    python examples/papers/draw_figure.py activations RUN \
        --flagfile=examples/papers/recipes/setups/cifar10_small_resnet.flags \
        --data_dir=DIR

The first four need no data. Losses are recipes of recipes/losses, with the
margin of --margin.

RUN is the folder of a run, whose predictions on --part are drawn.
`activations` needs its model, and the flags of its set-up, which say where the
test images are. It draws the first --images of them: Grad-CAM, or Grad-CAM++
with --plus.

The picture is --out, by default work/figures/NAME.png.
"""

from pathlib import Path

import numpy as np
from absl import app, flags, logging
from config import recipe_flags
from config.script import start
from figures import activations, logits, losses, simplex
from results.runs import load_network, read_predictions
from runs.images import image_task

from keras_calib.predictions.batches import batches_of

recipe_flags.define()
_LOSSES = flags.DEFINE_list(
    "losses",
    ["cross_entropy", "label_smoothing", "label_relaxation", "mbls", "acls"],
    "Names of recipes of losses.",
)
_NUM_CLASSES = flags.DEFINE_integer(
    "num_classes", 10, "Number of classes of a made-up prediction."
)
_LOGITS = flags.DEFINE_list(
    "logits", ["6", "3", "0"], "A prediction whose label is the first class."
)
_ALPHA = flags.DEFINE_float(
    "alpha",
    0.25,
    "Strength of label smoothing and label relaxation, for targets.",
    lower_bound=0.0,
    upper_bound=1.0,
)
_HIGHEST = flags.DEFINE_float(
    "highest", 0.1, "Upper edge of the histogram of regularizers, in nats."
)
_P = flags.DEFINE_float("p", 4.0, "Order of the norm, and power of logits.")
_PART = flags.DEFINE_string("part", "test", "Data that the run predicted.")
_IMAGES = flags.DEFINE_integer("images", 6, "Number of images.")
_PLUS = flags.DEFINE_bool("plus", False, "Draw Grad-CAM++, not Grad-CAM.")
_OUT = flags.DEFINE_string("out", None, "Path of the picture.")

NEED_NO_RUN = ("effective_labels", "loss_curves", "smoothing", "targets")
NEED_A_RUN = (
    "activations",
    "max_logit",
    "normalized_logit",
    "regularizers",
    "sorted_logits",
)


def of_losses(name, setup):
    """A figure of losses alone."""
    if name == "targets":
        return simplex.draw_targets(_ALPHA.value)
    found = losses.losses_named(_LOSSES.value, setup)
    if name == "loss_curves":
        return losses.draw_loss_curves(found, _NUM_CLASSES.value)
    if name == "smoothing":
        return losses.draw_smoothing(found, _NUM_CLASSES.value)
    return losses.draw_effective_labels(found, np.array(_LOGITS.value, float))


def of_predictions(name, folder, setup):
    """A figure of what a run predicted."""
    labels, outputs = read_predictions(folder, _PART.value)
    if name == "max_logit":
        return logits.draw_max_logit(labels, outputs)
    if name == "normalized_logit":
        return logits.draw_normalized_logit(outputs, _P.value)
    if name == "sorted_logits":
        return logits.draw_sorted_logits(labels, outputs, _P.value)
    found = losses.losses_named(_LOSSES.value, setup)
    return losses.draw_regularizers(found, labels, outputs, _HIGHEST.value)


def of_images(folder, setup, method, options):
    """The activation maps of a run's network on its first test images."""
    task = image_task(setup, method, options)
    images, labels = next(batches_of(task.test))[:2]
    images, labels = images[: _IMAGES.value], labels[: _IMAGES.value]
    model = load_network(folder)
    maps, outputs = activations.activation_maps(model, images, plus=_PLUS.value)
    return activations.draw_activations(images, maps, labels, outputs)


def main(argv):
    logging.set_verbosity(logging.ERROR)
    name, *folders = argv[1:] or [None]
    if len(folders) != (name in NEED_A_RUN) or (
        name not in NEED_A_RUN + NEED_NO_RUN
    ):
        raise app.UsageError(
            f"Give one of {NEED_NO_RUN}, or one of {NEED_A_RUN} and the folder "
            f"of a run. Received: {argv[1:]}"
        )
    setup, method, options = recipe_flags.read()
    if name == "activations":
        figure = of_images(*folders, setup, method, options)
    elif folders:
        figure = of_predictions(name, *folders, setup)
    else:
        figure = of_losses(name, setup)
    path = Path(_OUT.value or f"work/figures/{name}.png")
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=150)
    print(path)


if __name__ == "__main__":
    start(main)
