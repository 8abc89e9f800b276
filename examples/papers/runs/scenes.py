"""From the flags of a set-up of scenes to its data and network."""

from functools import partial

import keras
import numpy as np
from absl import app
from config.losses import label_kind, remembers
from data.scenes import evaluation_batches, training_batches
from nets.catalogue import SEGMENTERS
from nets.deeplab import before_interpolation
from results.pixels import PixelMeter

from keras_calib.backend.late import tensorflow as tf
from runs.images import normalizer
from runs.training import Task


def scene_task(scenes, setup, method, options):
    """The task of images and masks.

    Args:
        scenes: `Scenes`.
        setup: A `Setup`.
        method: A `Method`.
        options: `Options`.

    Raises:
        app.UsageError: If the method is not for pixels, or there is no such
            network.
    """
    if label_kind(method) != "ids" or remembers(method):
        raise app.UsageError(
            "`--method` must not mix images, record samples or measure "
            "objects, because it is trained on pixels. Received: "
            f"{method.method}"
        )
    if setup.net not in SEGMENTERS:
        raise app.UsageError(
            f"`--net` must be one of {sorted(SEGMENTERS)}. "
            f"Received: --net={setup.net}"
        )
    mean, deviation = (
        np.asarray(part, "float32") for part in normalizer(setup, None)
    )
    # Images of different sizes do not go into one batch.
    sizes = scenes.test.element_spec["image"].shape[:2]
    batch_size = 1 if None in sizes else 8
    if None in sizes:
        # TensorFlow pads dilated convolutions wrongly, and then fails, where
        # images so far have had one width and several heights.
        tf.config.optimizer.set_experimental_options(
            {"constant_folding": False}
        )

    def network():
        inputs = keras.Input((None, None, 3))
        scaled = keras.layers.Normalization(
            mean=mean, variance=deviation**2, dtype="float32"
        )(inputs)
        build = SEGMENTERS[setup.net]
        net = build(
            (None, None, 3),
            len(scenes.names),
            weights=setup.weights,
            output_stride=setup.output_stride,
        )
        return inputs, net(scaled)

    evaluated = {
        part: data and evaluation_batches(data, batch_size)
        for part, data in (
            ("validation", scenes.validation),
            ("test", scenes.test),
        )
    }
    return Task(
        train=lambda done: training_batches(
            scenes,
            setup,
            seed=options.seed,
            first_epoch=done,
            steps=options.steps_per_epoch,
        ),
        calibration=None,
        steps=options.steps_per_epoch or scenes.count // setup.batch_size,
        num_samples=scenes.count,
        network=network,
        predictor=before_interpolation if setup.before_interpolation else None,
        meter=partial(
            PixelMeter,
            len(scenes.names),
            scenes.void,
            background=setup.background,
            per=setup.per,
            batch_size=setup.batch_size,
        ),
        **evaluated,
    )
