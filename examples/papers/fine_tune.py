r"""A few epochs with another loss, beginning from a trained network.

    python examples/papers/fine_tune.py \
        --begin_with=work/runs/cifar10_resnet20_cpu/cross_entropy/seed0 \
        --flagfile=examples/papers/recipes/setups/cifar10_resnet20_cpu.flags \
        --flagfile=examples/papers/recipes/losses/acls.flags --data_dir=DIR \
        --epochs=3 --learning_rate=0.01 --schedule=cosine

trains the last layer alone for --head_epochs, then all layers for --epochs.
Papers name retraining as the price of their losses: this is what a part of it
buys. Written as train_classifier.py writes, in folders METHOD_tuned_head and
METHOD_tuned.
"""

import keras
from absl import app, flags, logging
from config import recipe_flags
from config.script import start
from config.strategies import check_batch_size, scope
from results.runs import load_network, read_flags, read_row, run_folder
from runs.images import image_task
from runs.training import run

recipe_flags.define()
_BEGIN = flags.DEFINE_string(
    "begin_with", None, "Folder of a run, with model.keras.", required=True
)
_HEAD_EPOCHS = flags.DEFINE_integer(
    "head_epochs", 1, "Number of epochs that train the last layer alone."
)


def fine_tune(model, task, setup, method, options, head_epochs, **extra):
    """Trains the head, then the whole; a row of results of each.

    Args:
        model: A trained functional model; its variables change.
        task: The `Task` whose data are trained on.
        setup: A `Setup`, of the second part.
        method: A `Method`.
        options: `Options`.
        head_epochs: Epochs of the first part; the rate stays the same.
        **extra: More columns of the rows, and what makes them other runs.
    """
    extra["head_epochs"] = head_epochs
    task = task._replace(network=lambda: (model.inputs[0], model.outputs[0]))
    rows = []
    layers = [layer for layer in _layers(model) if layer.weights]
    parts = [("tuned", setup, True)]
    if head_epochs:
        head = setup._replace(
            epochs=head_epochs, schedule="constant", warmup_epochs=0
        )
        parts.insert(0, ("tuned_head", head, False))
    for name, part, whole in parts:
        for layer in layers:
            layer.trainable = whole
        layers[-1].trainable = True
        named = method._replace(method=f"{method.method}_{name}")
        folder = run_folder(options.workdir, setup, named, options.seed)
        rows.append(run(task, part, named, options, folder, **extra))
    return rows


def _layers(model):
    """The layers of a model and of those inside it, in their order."""
    for layer in model.layers:
        if isinstance(layer, keras.Model):
            yield from _layers(layer)
        else:
            yield layer


def main(_):
    logging.set_verbosity(logging.ERROR)
    setup, method, options = recipe_flags.read()
    recipe_flags.check_task(setup, "classification")
    check_batch_size(
        setup.batch_size, options.strategy, options.logical_devices
    )
    with scope(options.strategy, options.logical_devices):
        model = load_network(_BEGIN.value)
    begun = read_row(_BEGIN.value)
    if begun["seed"] != options.seed or begun.get("resampled"):
        # Its training data would be among those it is tested on.
        raise app.UsageError(
            "`--seed` must be that of the run in `--begin_with`, which must "
            "not be trained with --resample. Received: "
            f"--seed={options.seed}, a run with seed={begun['seed']}, "
            f"resampled={begun.get('resampled', False)}"
        )
    before = read_flags(_BEGIN.value)
    other = {
        name: (before[name], getattr(setup, name))
        for name in ("data", "validation", "validation_of", "stratified")
        if name in before and before[name] != getattr(setup, name)
    }
    if other:
        raise app.UsageError(
            "The set-up must hold out the same data as the run in "
            f"`--begin_with`: give its flags. Received: (there, here)={other}"
        )
    task = image_task(setup, method, options)
    for row in fine_tune(
        model,
        task,
        setup,
        method,
        options,
        _HEAD_EPOCHS.value,
        begin_with=_BEGIN.value,
    ):
        for name, value in row.items():
            print(f"{name:26}{value}")


if __name__ == "__main__":
    start(main)
