r"""Trains a classifier of texts by a recipe: a set-up and a loss.

    python examples/papers/train_text.py \
        --data_dir=DIR --vectors=glove.6B.100d.txt \
        --flagfile=examples/papers/recipes/setups/newsgroups20.flags \
        --flagfile=examples/papers/recipes/losses/mbls.flags

trains a global pooling convolutional network on 20 Newsgroups, as MbLS does.
Without --data_dir scikit-learn downloads the texts; without --vectors those of
words begin as random numbers, so add --train_vectors. What is written is what
train_classifier.py writes.
"""

from absl import logging
from config import recipe_flags
from config.script import start
from config.strategies import check_batch_size
from data.images import resampled, split
from data.texts import read_texts
from results.runs import run_folder
from runs.texts import text_task
from runs.training import run

recipe_flags.define()


def main(_):
    logging.set_verbosity(logging.ERROR)
    setup, method, options = recipe_flags.read()
    recipe_flags.check_task(setup, "text")
    check_batch_size(
        setup.batch_size, options.strategy, options.logical_devices
    )
    sets = read_texts(setup, options)
    if setup.test_share:
        sets = resampled(sets, options.seed, setup.test_share)
    sets = split(
        sets,
        setup.validation,
        stratified=setup.stratified,
        seed=options.seed,
    )
    row = run(text_task(sets, setup, options), setup, method, options)
    for name, value in row.items():
        print(f"{name:26}{value}")
    print(run_folder(options.workdir, setup, method, options.seed))


if __name__ == "__main__":
    start(main)
