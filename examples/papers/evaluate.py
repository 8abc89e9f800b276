r"""A trained network on other data than it was tested on.

    python examples/papers/evaluate.py work/runs/imagenet_resnet50_lssc \
        --flagfile=examples/papers/recipes/setups/imagenet_resnet50_lssc.flags \
        --data_dir=DIR --on=imagenet_v2 --on=imagenet_sketch
    python examples/papers/evaluate.py work/runs/fashion_mnist_dense \
        --on=notmnist.npz --foreign

predicts each set of --on with each run's model: a TFDS data set of the same
classes, or an .npz file with test_images and test_labels; of images of other
classes, --foreign: each answer is wrong then. Written into the run's folder:
predictions, and the measures as evaluation_NAME.csv. Runs that diverged, and
cells of grids, are left out.
"""

from pathlib import Path

import keras
import numpy as np
from absl import app
from absl import flags
from absl import logging
from config import recipe_flags
from data.images import batches
from data.large_images import evaluation_batches
from results.runs import load_network
from results.runs import measures
from results.runs import predict
from results.runs import save_predictions
from results.runs import usable_runs
from results.runs import write_row

import keras_calib

recipe_flags.define()
_ON = flags.DEFINE_multi_string("on", None, "Data to predict.", required=True)
_FOREIGN = flags.DEFINE_bool("foreign", False, "None of the classes are known.")


def load(name, setup, options, model):
    """Batches of the test data called `name`, as a model takes them."""
    if not name.endswith(".npz"):
        data = keras_calib.from_tfds(
            name,
            "test",
            data_dir=options.data_dir,
            download=options.download,
            without_boxes="keep",
        )
        setup = setup._replace(image_size=list(model.input_shape[1:3]))
        found = evaluation_batches(data, setup, model.output_shape[-1])
        # Read in colour, grey images have three equal channels.
        channels = model.input_shape[-1]
        return found.map(lambda x, *rest: (x[..., :channels], *rest))
    with np.load(name) as arrays:
        images, labels = arrays["test_images"], arrays["test_labels"]
    images = images if images.ndim == 4 else images[..., None]
    return batches((images, np.ravel(labels).astype("int32")), 256)


def parts_of(names):
    """What predictions on each set of --on are called."""
    parts = [
        Path(name).stem if name.endswith(".npz") else name.replace("/", "_")
        for name in names
    ]
    if len({"test", "validation", *parts}) < 2 + len(parts):
        raise app.UsageError(
            "`--on` must have other names than the run's own data, and "
            f"different ones. Received: --on={names}, of which the results "
            f"are called {parts}"
        )
    return parts


def main(argv):
    logging.set_verbosity(logging.ERROR)
    setup, _, options = recipe_flags.read()
    parts = parts_of(_ON.value)
    for folder in usable_runs(argv[1:], "model.keras"):
        model = load_network(folder)
        for name, part in zip(_ON.value, parts, strict=True):
            data = load(name, setup, options, model)
            labels, logits = predict(model, data)
            if _FOREIGN.value:
                labels = np.full_like(labels, -1)
            save_predictions(folder, part, labels, logits)
            if _FOREIGN.value:
                confidence = keras_calib.msp(logits)
                row = {"confidence": float(keras.ops.mean(confidence))}
            else:
                row = measures(labels, logits)
            write_row(folder, row, f"evaluation_{part}.csv")
            print(folder, part, row)


if __name__ == "__main__":
    app.run(main)
