"""Held-out data run through a model, batch by batch."""

import itertools
from collections.abc import Iterable
from collections.abc import Iterator
from typing import Any

import keras
import numpy as np
from keras import ops

from keras_calib.checks import check_integer
from keras_calib.checks import invalid
from keras_calib.numerics import to_numpy
from keras_calib.pixels import sample_pixels
from keras_calib.predictions.batches import cut_arrays
from keras_calib.predictions.batches import each_batch
from keras_calib.predictions.batches import num_batches
from keras_calib.predictions.outputs import reads_logits
from keras_calib.predictions.outputs import to_model_logits

__all__ = ["predicted_arrays", "predicted_batches"]

# Size of the batches that arrays are cut into, as in Keras.
_BATCH = 32


def predicted_batches(
    model: keras.Model,
    dataset: Iterable,
    *,
    from_logits: bool | None,
    ignore_class: int | None,
    pixels_per_image: int | None,
    seed: int,
    steps: int | None,
    verbose: str | int,
) -> Iterator[tuple]:
    """Batches of labels, logits and, if there are any, weights.

    Args:
        model: A Keras model with one output.
        dataset: Batches `(x, y)` or `(x, y, sample_weight)`, or a tuple of
            such arrays.
        from_logits: Whether the model returns logits, or None.
        ignore_class: Class id that does not count, or None.
        pixels_per_image: How many pixels of each image to keep, or None.
        seed: Seed of the choice of pixels.
        steps: Number of batches to use, or None for all.
        verbose: `"auto"`, 0, 1 or 2 as in Keras.

    Returns:
        An iterator of `(labels, logits)` or `(labels, logits, weights)`.
    """
    from_logits = reads_logits(model, from_logits)
    if steps is not None:
        check_integer("steps", steps, 1)
    if pixels_per_image is not None:
        check_integer("pixels_per_image", pixels_per_image, 1)
    if isinstance(dataset, tuple) and not all(
        isinstance(part, tuple) for part in dataset
    ):
        dataset = list(cut_arrays(dataset, _BATCH))
    total = steps
    if total is None:
        total = num_batches(
            dataset, "`steps` must be given for a data set that does not end"
        )

    def run():
        bar = keras.utils.Progbar(
            total, verbose=1 if verbose == "auto" else verbose
        )
        done = 0
        for batch in itertools.islice(each_batch(dataset), steps):
            x, y, weight = keras.utils.unpack_x_y_sample_weight(batch)
            if y is None:
                raise ValueError(
                    invalid("`dataset` must give labels: (x, y)", y=None)
                )
            if not len(y):
                continue
            logits = _logits(model, x, from_logits)
            yield _chosen(
                to_numpy(y),
                logits,
                weight,
                ignore_class,
                pixels_per_image,
                seed,
            )
            done += 1
            bar.update(done, finalize=False)
        bar.update(done, finalize=True)

    return run()


def predicted_arrays(
    model: keras.Model,
    dataset: Iterable,
    *,
    from_logits: bool | None,
    steps: int | None,
    verbose: str | int,
) -> tuple[np.ndarray, np.ndarray, np.ndarray | None]:
    """Labels, logits and weights of a data set, in arrays.

    Args:
        model: As in `predicted_batches`.
        dataset: As in `predicted_batches`.
        from_logits: As in `predicted_batches`.
        steps: As in `predicted_batches`.
        verbose: As in `predicted_batches`.

    Returns:
        Labels `(n, ...)`, logits `(n, ..., num_classes)`; weights, or None.

    Raises:
        ValueError: If there is no batch, or some have weights and some not.
    """
    batches = predicted_batches(
        model,
        dataset,
        from_logits=from_logits,
        ignore_class=None,
        pixels_per_image=None,
        seed=0,
        steps=steps,
        verbose=verbose,
    )
    batches = list(batches)
    sizes = sorted({len(batch) for batch in batches})
    if len(sizes) != 1:
        raise ValueError(
            invalid(
                "`dataset` must have batches, of which all have weights or "
                "none has",
                batches=len(batches),
                **{"arrays in a batch": sizes},
            )
        )
    columns = [
        np.concatenate([to_numpy(part) for part in parts])
        for parts in zip(*batches, strict=True)
    ]
    weight = columns[2] if len(columns) == 3 else None
    return columns[0], columns[1], weight


def _logits(model: keras.Model, x: Any, from_logits: bool) -> np.ndarray:
    outputs = model.predict_on_batch(x)
    if not hasattr(outputs, "shape"):
        raise ValueError(
            invalid(
                "`model` must have one output", outputs=type(outputs).__name__
            )
        )
    logits = to_numpy(to_model_logits(outputs, from_logits))
    if outputs.shape[-1] == 1:
        # Labels of such a model can be probabilities of the second class.
        logits = logits[..., 1:] - logits[..., :1]
    return logits


def _chosen(
    labels: np.ndarray,
    logits: np.ndarray,
    weight: Any,
    ignore_class: int | None,
    pixels_per_image: int | None,
    seed: int,
) -> tuple:
    """The batch, or the chosen pixels of its images."""
    batch = (labels, logits) if weight is None else (labels, logits, weight)
    if pixels_per_image is None or logits.ndim < 3:
        return batch
    images, num_classes = len(logits), logits.shape[-1]
    logits = logits.reshape(images, -1, num_classes)
    soft = num_classes > 1 and labels.size == logits.size
    labels = labels.reshape(images, logits.shape[1], -1)
    ids = labels.argmax(-1) if soft else labels[..., 0]
    ids = ops.convert_to_tensor(ids.astype("int32"))
    valid = None if ignore_class is None else ops.not_equal(ids, ignore_class)
    places = to_numpy(sample_pixels(ids, valid, pixels_per_image, seed))
    rows = np.arange(images)[:, None]
    labels = labels if soft else labels[..., 0]
    chosen = (labels[rows, places], logits[rows, places])
    if weight is None:
        return chosen
    weight = to_numpy(weight)
    if weight.size == images * logits.shape[1]:
        weight = weight.reshape(images, -1)[rows, places]
    return *chosen, weight
