"""Detections that were matched: `Predictions` whose rows are boxes."""

from typing import Any, Self

import numpy as np

from keras_calib.backend.errors import type_error, value_error
from keras_calib.inputs.outcomes import Outcomes
from keras_calib.predictions.columns import checked
from keras_calib.predictions.predictions import Predictions


class BoxPredictions(Predictions):
    """Detections and what became of them: a log with a row for each box.

    `match` makes it. Functions that take a log of `confidence` and `correct`
    take it: a box is correct if it found a true box of its class. Its unit is
    the index of its image, as boxes of one image depend on each other, and its
    group `"class"` is the predicted class id.

    Some of the rows, `p[rows]`, are of the images that have a box there.

    Args:
        correct: Whether each of n boxes found a true one, `(n,)`.
        confidence: Confidence in [0, 1], `(n,)`.
        classes: Predicted class ids `(n,)`.
        images: Index of the image of each box `(n,)`.
        overlap: Intersection over union with the box that it found, 0 if it
            found none, `(n,)`.
        features: Center x, center y, width and height `(n, 4)`, relative to
            the image. None without the sizes of the images.
        true_boxes: Number of true boxes of each image, without crowds,
            `(num_images,)`.
        max_detections: Most detections that an image can have, or None.

    Raises:
        ValueError: If lengths differ, or a value is out of range.

    Example:

    >>> from keras_calib.detection import match
    >>> truth = [{"boxes": [[0, 0, 10, 10]], "labels": [1]}]
    >>> found = [{"boxes": [[0, 0, 10, 8], [20, 0, 30, 9]],
    ...           "labels": [1, 1], "confidence": [0.9, 0.3]}]
    >>> match(truth, found)
    BoxPredictions(2 boxes of 1 images with 1 true boxes)

    Reference:
        Lin et al., Microsoft COCO, ECCV 2014, https://arxiv.org/abs/1405.0312
    """

    # A detector may find nothing in a batch.
    may_be_empty = True

    def __init__(
        self,
        correct: Any,
        confidence: Any,
        *,
        classes: Any,
        images: Any,
        overlap: Any,
        features: Any = None,
        true_boxes: Any,
        max_detections: int | None = None,
    ):
        super().__init__(
            correct=correct,
            confidence=confidence,
            units=images,
            groups={"class": classes},
        )
        own = {"overlap": overlap, "features": features}
        self._arrays = checked({**self._columns(), **own}, True)
        self._facts["true_boxes"] = np.asarray(true_boxes)
        self._facts["images"] = np.arange(len(true_boxes))
        self._facts["max_detections"] = max_detections

    @property
    def overlap(self) -> np.ndarray:
        """Overlap with the true box that each found, `(n,)`."""
        return self._columns()["overlap"]

    @property
    def features(self) -> np.ndarray | None:
        """Center, width and height, relative to the image, or None."""
        return self._columns().get("features")

    @property
    def num_images(self) -> int:
        """Number of images, with those without a detection."""
        return len(self._facts["images"])

    @property
    def num_true(self) -> int:
        """Number of true boxes of the images, without crowds."""
        return int(self._facts["true_boxes"][self._facts["images"]].sum())

    @property
    def max_detections(self) -> int | None:
        """Most detections that an image can have, or None."""
        return self._facts["max_detections"]

    def boxes(self) -> Outcomes:
        """The boxes as rows, with the places of their images and classes."""
        images = self._columns()["units"]
        return Outcomes(
            score=self.outputs,
            correct=self.labels,
            confidence=self.outputs,
            unit=np.searchsorted(self._facts["images"], images),
            group=self.groups["class"],
        )

    def __getitem__(self, rows: Any) -> Self:
        made = super().__getitem__(rows)
        images = np.unique(made._columns()["units"])
        made._facts = {**self._facts, "images": images}
        return made

    def __repr__(self) -> str:
        return (
            f"BoxPredictions({len(self):,} boxes of {self.num_images:,} images "
            f"with {self.num_true:,} true boxes)"
        )


def check_boxes(
    predictions: Any, num_classes: int | None = None, *, empty: bool = False
) -> None:
    """Raise unless there are matched boxes, or with `empty` none.

    Class ids must be below `num_classes`, if it is given.
    """
    if not isinstance(predictions, BoxPredictions):
        raise type_error(
            "`predictions` must be what `keras_calib.detection.match` returns",
            type=type(predictions).__name__,
        )
    if not empty and not len(predictions):
        raise value_error(
            "`predictions` must have a detection: lower the threshold of the "
            "detector",
            images=predictions.num_images,
        )
    largest = int(predictions.groups["class"].max(initial=-1))
    if num_classes is not None and largest >= num_classes:
        raise value_error(
            "`labels` of detections must be < `num_classes`",
            largest=largest,
            num_classes=num_classes,
        )
