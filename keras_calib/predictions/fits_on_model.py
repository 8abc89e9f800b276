"""Fits on a model and data, by what fits on labels and logits."""

import inspect
from collections.abc import Iterable
from typing import Any, Self

import keras

from keras_calib.backend.errors import type_error
from keras_calib.inputs.options import ReadOptions
from keras_calib.predictions.batches import Batch
from keras_calib.predictions.collect import (
    joined,
    labels_and_logits,
    predicted_batches,
)
from keras_calib.predictions.outputs import read_as
from keras_calib.predictions.row_order import Told, told_by_batches

__all__ = ["FitsOnModel", "check_data_set"]


def check_data_set(model: Any, dataset: Any, others: tuple) -> None:
    """Raises TypeError if labels are given apart from the inputs."""
    if others:
        raise type_error(
            "`dataset` must hold inputs and labels together: pass the "
            "tuple `(x, y)`",
            arguments=[type(x).__name__ for x in (model, dataset, *others)],
        )


class FitsOnModel:
    """Abstract: whatever has `fit(labels, logits, sample_weight)`."""

    # Whether each output is a label of its own.
    reads_labels: bool
    # Whether `fit` takes batches, or arrays alone.
    fits_batches = True

    def fit_on(
        self,
        model: keras.Model,
        dataset: Iterable,
        *args: Any,
        from_logits: bool | None = None,
        ignore_class: int | None = None,
        output: str | int | None = None,
        pixels_per_image: int | None = None,
        seed: int = 0,
        steps: int | None = None,
        batch_size: int = 32,
        verbose: str | int = "auto",
        **options: Any,
    ) -> Self:
        """Runs a model over held-out data, fits on its logits, returns self.

        Use it when you have a model and data rather than logits. Samples count
        as they do in `model.evaluate`: those of weight 0, those of the
        ignored class and those that layers mask are left out.

        If the model returns probabilities, it takes their logs; a single
        output becomes log-odds. In use such a model needs the same step before
        the fitted layer: call it with `from_logits=False`. `export` adds the
        step by itself.

        Args:
            model: A Keras model that returns `(batch, ..., num_classes)`, or
                `(batch, ..., 1)` for the second of two classes, on one device
                or under a strategy. With several labels `(batch, ...,
                labels)`.
            dataset: Arrays or lists as a tuple `(x, y)` or
                `(x, y, sample_weight)`, or batches of such tuples: a
                `tf.data.Dataset`, a `PyDataset`, a generator, a torch loader
                or a list.
            *args: Nothing; `x, y` are refused with a hint.
            from_logits: Whether the model returns logits; None takes it from
                the loss that the model was compiled with.
            ignore_class: Class id to leave out, such as 255; None takes it
                from that loss.
            output: Name or position of the output to fit on, for a model that
                has several.
            pixels_per_image: Number of pixels of each image to keep, chosen
                by a hash, for dense outputs of classes; None keeps all.
            seed: Seed of that choice, and of `fit` if it draws.
            steps: Number of batches to use; None uses all.
            batch_size: Size of the batches of arrays.
            verbose: `"auto"` or 1 for a progress bar, 2 for a line at the
                end, 0 for silence.
            **options: Further arguments of `fit`. `groups` may be a function
                from the inputs of a batch to the groups of its rows. Groups
                that are given for all rows need data in a fixed order, which
                are then read twice.

        Raises:
            TypeError: If the model has several outputs and `output` is None,
                or `dataset` is no data set.
            ValueError: If `fit` rejects the data, if the data set does not end
                and `steps` is None, or if it is unknown whether the model
                returns logits.
        """
        check_data_set(model, dataset, args)
        reading = read_as(
            model, from_logits, ignore_class, output, self.reads_labels
        )
        fit: Any = self.fit  # type: ignore[attr-defined]  # of the subclass
        if "seed" in inspect.signature(fit).parameters:
            options["seed"] = seed
        groups = told_by_batches(options.get("groups"))

        def read(batch, reading):
            if isinstance(groups, Told):
                groups.note(batch.inputs, len(batch.outputs))
            return self.read_predicted(batch, reading)

        batches = predicted_batches(
            model,
            dataset,
            reading._replace(pixels_per_image=pixels_per_image, seed=seed),
            read,
            in_order=groups is not None and not isinstance(groups, Told),
            batch_size=batch_size,
            steps=steps,
            verbose=verbose,
        )
        options["ignore_class"] = reading.ignore_class
        if self.fits_batches:
            return fit(batches, **options)
        labels, logits, weight = joined(batches)
        if isinstance(groups, Told):
            options["groups"] = groups.take()
        return fit(labels, logits, sample_weight=weight, **options)

    def read_predicted(self, batch: Batch, reading: ReadOptions) -> tuple:
        """Labels, logits and weights of one batch, as `fit` takes them."""
        return labels_and_logits(batch, reading)
