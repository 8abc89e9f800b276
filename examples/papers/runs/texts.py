"""From the flags of a set-up of texts to its data and network."""

from functools import partial

import keras
from data.texts import read_vectors
from nets.catalogue import NETS

import keras_calib
from runs.training import Task


def text_task(sets, setup, options):
    """The task of texts.

    Args:
        sets: `TextSets`.
        setup: A `Setup`.
        options: `Options`.
    """
    ids, labels = sets.train
    if options.steps_per_epoch:
        count = options.steps_per_epoch * setup.batch_size
        ids, labels = ids[:count], labels[:count]
    shown = keras_calib.data.EpochBatches(
        ids,
        labels,
        batch_size=setup.batch_size,
        seed=options.seed,
        drop_remainder=True,
    )
    in_order = partial(keras_calib.data.EpochBatches, batch_size=256, seed=None)

    def network():
        # Words without a vector are zeros in the released code of MbLS.
        zeros = options.vectors and setup.tokens == "keras"
        seed = None if zeros else 0
        vectors = read_vectors(options.vectors, sets.words, seed=seed)
        choices = {
            "vectors": vectors,
            "trainable": setup.train_vectors,
            "pool_stride": setup.pool_stride,
        }
        if setup.dropout is not None:
            choices["dropout"] = setup.dropout
        inputs = keras.Input(ids.shape[1:], dtype="int32")
        net = NETS[setup.net](ids.shape[1:], sets.num_classes, **choices)
        return inputs, net(inputs)

    return Task(
        train=lambda epochs_done: shown,
        calibration=in_order(ids, labels),
        validation=sets.validation and in_order(*sets.validation),
        test=in_order(*sets.test),
        steps=len(shown),
        num_samples=len(labels),
        network=network,
    )
