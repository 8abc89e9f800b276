r"""Measure trained networks on further data.

    python examples/papers/evaluate.py work/runs/imagenet_mask_resnet50 \
        --flagfile=examples/papers/recipes/setups/imagenet_mask_resnet50.flags \
        --data_dir=DIR --annotations=BOXES --context \
        --on=V2=imagenet_v2/matched-frequency --on=imagenet_sketch
    python examples/papers/evaluate.py work/runs/fashion_mnist_dense \
        --on=notmnist.npz --foreign

The script predicts each data set of --on with each run's model. It is a TFDS
data set of the same classes, or an .npz file with test_images and test_labels.
Give --foreign for images of other classes, for which each answer is wrong. The
form --on=NAME=DATA gives the data the name of a paper's table. With
--on=val=validation it measures the run's own predictions on its validation
data.

--context takes the set-up's test images whose objects are known, and paints all
objects over by the mean pixel of the training data.

The run's folder gets the predictions, and the measures as evaluation_NAME.csv
or evaluation_context.csv. Make tables of them with compare.py --on=NAME. Runs
that diverged, and cells of grids, are left out.
"""

import re
from pathlib import Path

import keras
import numpy as np
from absl import app, flags, logging
from config import recipe_flags
from config.script import start
from data.images import batches
from data.large_images import context_batches, evaluation_batches, mapped
from results.runs import (
    load_network,
    measures,
    predict,
    read_predictions,
    save_predictions,
    usable_runs,
    write_row,
)

import keras_calib

recipe_flags.define()
_ON = flags.DEFINE_multi_string(
    "on", [], "Data set to predict: DATA, or NAME=DATA."
)
_CONTEXT = flags.DEFINE_bool(
    "context", False, "Predict test images with their objects painted out."
)
_FOREIGN = flags.DEFINE_bool(
    "foreign",
    False,
    "Count every answer as wrong: the images are of other classes.",
)
# Of a run, which has predicted them; and of the images without objects.
_OWN, _BARE = "validation", "context"


def load(name, setup, options, model):
    """Batches of the test data called `name`, as a model takes them."""
    if not name.endswith(".npz"):
        data = keras_calib.data.from_tfds(
            name,
            "test",
            data_dir=options.data_dir,
            download=options.download,
            without_boxes="keep",
        )
        data = mapped(setup, data.class_names)(data)
        setup = setup._replace(image_size=list(model.input_shape[1:3]))
        found = evaluation_batches(data, setup, model.output_shape[-1])
        # Read in colour, grey images have three equal channels.
        channels = model.input_shape[-1]
        return found.map(lambda x, *rest: (x[..., :channels], *rest))
    with np.load(name) as arrays:
        images, labels = arrays["test_images"], arrays["test_labels"]
    images = images if images.ndim == 4 else images[..., None]
    return batches((images, np.ravel(labels).astype("int32")), 256)


def parts_of(names, context=False):
    """`{what predictions are called: data}` of each set of --on.

    With `context`, None for the images without their objects.

    Raises:
        app.UsageError: If two have one name, or that of the run's own data.
    """
    found = {}
    for text in names:
        called, data = re.fullmatch(r"(?:([\w.-]+)=)?(.+)", text).groups()
        found[called or _part(data)] = data
    taken = {"test", "validation", *([_BARE] if context else [])}
    if taken & set(found) or len(found) < len(names) or not (names or context):
        raise app.UsageError(
            "`--on` must name at least one data set, unless --context is "
            "given. Names must differ from each other and from the run's own "
            f"data: give them as --on=NAME=DATA. Received: --on={names}, of "
            f"which the results are called {list(found)}"
        )
    return found | ({_BARE: None} if context else {})


def _part(name):
    if name.endswith(".npz"):
        return Path(name).stem
    return name.replace("/", "_")


def main(argv):
    logging.set_verbosity(logging.ERROR)
    setup, _, options = recipe_flags.read()
    parts = parts_of(_ON.value, _CONTEXT.value)
    context = None
    if _CONTEXT.value:
        context = context_batches(setup, options)
        if next(iter(context), None) is None:
            raise app.UsageError(
                "`--context` needs test images whose objects are known. "
                f"Received: --data={setup.data}, "
                f"--annotations={options.annotations}, which have none"
            )
    for folder in usable_runs(argv[1:], "model.keras"):
        model = load_network(folder)
        for part, name in parts.items():
            if name is None:
                labels, logits = predict(model, context)
            elif name == _OWN:
                labels, logits = read_predictions(folder, _OWN)
            else:
                data = load(name, setup, options, model)
                labels, logits = predict(model, data)
            if _FOREIGN.value:
                labels = np.full_like(labels, -1)
            save_predictions(folder, part, labels, logits)
            if _FOREIGN.value:
                confidence = keras_calib.functional.msp(logits)
                row = {"confidence": float(keras.ops.mean(confidence))}
            else:
                row = measures(labels, logits)
            write_row(folder, row, f"evaluation_{part}.csv")
            print(folder, part, row)


if __name__ == "__main__":
    start(main)
