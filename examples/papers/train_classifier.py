r"""Train a classifier of images by a recipe: a set-up and a loss.

    python examples/papers/train_classifier.py
    python examples/papers/train_classifier.py --data_dir=DIR \
        --flagfile=examples/papers/recipes/setups/cifar10_resnet50.flags \
        --flagfile=examples/papers/recipes/losses/acls.flags

The first line trains a small network on scikit-learn's digits in seconds. All
recipes, and the numbers that papers print for them, are in recipes/README.md.
Any flag after the files changes them. After a kill, add --resume.

--workdir gets a folder per set-up, method and seed. It holds:

- log.csv with the calibration of each epoch on the validation data
- predictions on validation and test data
- results.csv with the measures before and after repair
- the model as .keras file and as SavedModel
"""

from absl import logging
from config import recipe_flags
from config.script import start
from config.strategies import check_batch_size
from results.runs import run_folder
from runs.images import image_task
from runs.training import run

recipe_flags.define()


def main(_):
    logging.set_verbosity(logging.ERROR)
    setup, method, options = recipe_flags.read()
    recipe_flags.check_task(setup, "classification")
    check_batch_size(
        setup.batch_size, options.strategy, options.logical_devices
    )
    row = run(image_task(setup, method, options), setup, method, options)
    for name, value in row.items():
        print(f"{name:26}{value}")
    print(run_folder(options.workdir, setup, method, options.seed))


if __name__ == "__main__":
    start(main)
