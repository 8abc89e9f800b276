"""Held-out images for local temperature scaling, read and checked."""

from collections.abc import Callable, Iterable
from typing import Any

import keras
import numpy as np

from keras_calib.backend.errors import value_error
from keras_calib.calibrators.fitting_data import FittingData
from keras_calib.calibrators.local_network import DenseData, TreeShape
from keras_calib.numerics.arrays import fits, shape_of, to_numpy

__all__ = [
    "check_maps",
    "filter_shapes",
    "image_of",
    "images_of",
    "joined_batches",
]


def check_maps(logits: Any, image: Any, channels: int | None) -> None:
    """Raises unless logits and image are maps of the same size."""
    shape = shape_of(logits)
    if len(shape) != 4:
        raise value_error(
            "`logits` must be those of images, (batch, height, width, "
            "num_classes)",
            **{"logits.shape": shape},
        )
    if image is None:
        return
    wanted = (*shape[:3], channels)
    if len(image.shape) != 4 or not fits(shape_of(image), wanted):
        raise value_error(
            "`image` must be (batch, height, width, channels), with a "
            "pixel for each pixel of the logits and the channels of `fit`",
            **{"image.shape": shape_of(image), "logits.shape": shape},
        )


def filter_shapes(tree: TreeShape, use_image: bool) -> dict[str, tuple]:
    """The shapes of fitted values by name; None is a number of channels."""
    size, filters = (tree.kernel_size,) * 2, tree.channels(use_image)
    return {
        "kernel": (*size, None, filters),
        "bias": (filters,),
        "image_kernel": (*size, None, 1),
        "image_bias": (1,),
    }


def image_of(inputs: Any) -> Any:
    """The image in the inputs of a model; ValueError for several inputs."""
    flat = keras.tree.flatten(inputs)
    if len(flat) != 1:
        raise value_error(
            "`use_image` needs a model of one input, the image; for others "
            "call `fit(labels, (logits, image))`",
            inputs=len(flat),
        )
    return flat[0]


def joined_batches(
    batches: Iterable, parts: Callable[[Any], tuple[Any, Any]]
) -> tuple[Any, Any, Any]:
    """Labels, logits (with images if used) and weights of all batches.

    `parts` splits what a batch has of logits into logits and image.
    """
    rows = []
    for batch in batches:
        labels, inputs, *weight = batch
        row = [labels, *parts(inputs), *(weight or [None])]
        rows.append([x if x is None else to_numpy(x) for x in row])
    kinds = {
        tuple(x if x is None else x.shape[1:] for x in row) for row in rows
    }
    if len(kinds) != 1:
        raise value_error(
            "batches must hold images of one size with the same kind of "
            "labels, and weights or none: crop them, or resize them",
            batches=len(rows),
            shapes=sorted(map(str, kinds))[:4],
        )
    labels, logits, image, weight = (
        None if column[0] is None else np.concatenate(column)
        for column in zip(*rows, strict=True)
    )
    return labels, logits if image is None else (logits, image), weight


def images_of(samples: FittingData, lead: tuple, image: Any) -> DenseData:
    """Samples as images again; pixels that do not count weigh 0."""
    logits = samples.logits.astype("float32", copy=False)
    weight = samples.weights()
    if samples.valid is not None:
        weight = np.where(samples.valid, weight, 0.0)
    # The NLL of pixels that count, whatever their number.
    weight = weight / weight.mean()
    if samples.labels.ndim == 2:
        labels = samples.soft_labels().astype("float32")
        labels = labels.reshape(*lead, -1)
    else:
        labels = np.where(weight > 0, samples.labels, 0).astype("int32")
        labels = labels.reshape(lead)
    if image is not None:
        image = to_numpy(image, "float32")
        if not np.isfinite(image).all():
            raise value_error(
                "`image` must be finite",
                not_finite=int(np.sum(~np.isfinite(image))),
            )
    return DenseData(
        labels,
        logits.reshape(*lead, -1),
        weight.astype("float32").reshape(lead),
        image,
    )
