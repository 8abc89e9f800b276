"""Reliability of the probability of every class."""

from collections.abc import Sequence
from typing import Any

import keras
import numpy as np

from keras_calib.backend.errors import value_error
from keras_calib.functional.classwise import ClasswiseBins
from keras_calib.functional.classwise import classwise_bins
from keras_calib.inputs.checks import check_integer
from keras_calib.numerics.arrays import safe_divide
from keras_calib.plots.display import BLUE
from keras_calib.plots.display import GREY
from keras_calib.plots.display import ORANGE
from keras_calib.plots.display import Display
from keras_calib.plots.display import titled
from keras_calib.plots.texts import plain
from keras_calib.predictions.collect import predicted
from keras_calib.predictions.outputs import read_as

__all__ = ["ClasswiseReliabilityDisplay"]


class ClasswiseReliabilityDisplay(Display):
    """Share of each class against its probability, a panel per class.

    Of every sample, not only of those that are predicted to be of the class:
    a model whose largest probabilities are right can still be wrong about
    rare classes.

    Args:
        bins: What the bins of each class hold, arrays
            `(num_classes, num_bins)`.
        classes: Ids of the classes to draw; None for the worst.
        max_panels: How many of the worst are drawn.
        class_names: Names of the classes, or None for their ids.
        name: Name of the model, for the title.

    Raises:
        ValueError: If a class is not there, or names do not fit.

    Example:

    >>> display = ClasswiseReliabilityDisplay.from_predictions(
    ...     [0, 1], [[0.8, 0.2], [0.6, 0.4]], num_bins=10)
    >>> [round(float(x), 4) for x in display.errors]
    [0.4, 0.4]

    Reference:
        Nixon et al., Measuring Calibration in Deep Learning, CVPR Workshops
        2019, https://arxiv.org/abs/1904.01685
    """

    def __init__(
        self,
        bins: ClasswiseBins,
        *,
        classes: Sequence[int] | None = None,
        max_panels: int = 12,
        class_names: Sequence[str] | None = None,
        name: str | None = None,
    ):
        check_integer("max_panels", max_panels, 1)
        self.bins = bins
        # Calibration error of each class, whose mean is the classwise ECE.
        self.errors = np.abs(bins.residual).sum(-1) / bins.total
        self.classwise_ece = float(self.errors.mean())
        if classes is None:
            order = np.argsort(-self.errors, kind="stable")
            classes = order[:max_panels]
        self.classes = [int(k) for k in classes]
        num_classes = len(self.errors)
        if not self.classes or not all(
            0 <= k < num_classes for k in self.classes
        ):
            raise value_error(
                "`classes` must be ids of classes of the model",
                classes=self.classes,
                num_classes=num_classes,
            )
        if class_names is not None and len(class_names) != num_classes:
            raise value_error(
                "`class_names` must have a name for each class",
                names=len(class_names),
                num_classes=num_classes,
            )
        self.class_names = class_names
        self.name = name
        self._panels = (len(self.classes),)
        self._columns = min(4, len(self.classes))
        rows = -(-len(self.classes) // self._columns)
        self._size = (max(2.2 * self._columns + 0.4, 3.6), 2.2 * rows + 0.8)

    @classmethod
    def from_predictions(
        cls,
        labels: Any,
        probs: Any,
        *,
        num_bins: int = 10,
        from_logits: bool = False,
        sample_weight: Any = None,
        ignore_class: int | None = None,
        **options: Any,
    ) -> "ClasswiseReliabilityDisplay":
        """From a whole data set.

        Args:
            labels: As in `classwise_ece`.
            probs: As in `classwise_ece`.
            num_bins: Number of bins of each class.
            from_logits: Whether `probs` are logits.
            sample_weight: As in `classwise_ece`.
            ignore_class: Class id that does not count.
            **options: Of the class, such as `class_names`.
        """
        bins = classwise_bins(
            labels,
            probs,
            num_bins=num_bins,
            from_logits=from_logits,
            sample_weight=sample_weight,
            ignore_class=ignore_class,
        )
        return cls(bins, **options)

    @classmethod
    def from_model(
        cls,
        model: keras.Model,
        data: Any,
        *,
        num_bins: int = 10,
        from_logits: bool | None = None,
        ignore_class: int | None = None,
        output: str | int | None = None,
        batch_size: int = 32,
        steps: int | None = None,
        **options: Any,
    ) -> "ClasswiseReliabilityDisplay":
        """From what a model predicts, which must fit in memory.

        Args:
            model: A Keras model.
            data: As in `Calibrator.fit_on`.
            num_bins: Number of bins of each class.
            from_logits: As in `ReliabilityDisplay.from_model`.
            ignore_class: As in `ReliabilityDisplay.from_model`.
            output: As in `ReliabilityDisplay.from_model`.
            batch_size: As in `ReliabilityDisplay.from_model`.
            steps: As in `ReliabilityDisplay.from_model`.
            **options: Of the class, such as `class_names`.
        """
        reading = read_as(model, from_logits, ignore_class, output)
        found = predicted(model, data, batch_size, steps, reading.output)
        return cls.from_predictions(
            found.labels,
            found.outputs,
            num_bins=num_bins,
            from_logits=reading.from_logits,
            sample_weight=found.sample_weight,
            ignore_class=reading.ignore_class,
            **options,
        )

    def _axes(self, figure: Any) -> list:
        rows = -(-len(self.classes) // self._columns)
        axes = figure.subplots(
            rows, self._columns, sharex=True, sharey=True, squeeze=False
        )
        for ax in axes.flat[len(self.classes) :]:
            ax.remove()
        left, below = axes[:, 0], axes.flat[: len(self.classes)]
        for ax in left:
            ax.set_ylabel("share of the class")
        for ax in below[-self._columns :]:
            ax.set_xlabel("probability")
            ax.tick_params(labelbottom=True)
        figure.suptitle(
            titled(self.name, f"classwise ECE {self.classwise_ece:.4f}"),
            fontsize="medium",
        )
        return list(below)

    def _draw(self, *axes: Any) -> None:
        width = 0.8 / self.bins.weight.shape[-1]
        for ax, k in zip(axes, self.classes, strict=True):
            weight = self.bins.weight[k]
            filled = weight > 0
            p = safe_divide(self.bins.probability[k], weight)[filled]
            share = safe_divide(self.bins.positive[k], weight)[filled]
            ax.plot([0, 1], [0, 1], color=GREY, linestyle="--", linewidth=1)
            ax.bar(
                p, p - share, bottom=share, width=width, color=ORANGE, alpha=0.4
            )
            # The area of a point is the share of the samples.
            ax.scatter(
                p,
                share,
                s=8.0 + 60.0 * np.sqrt(weight[filled] / self.bins.total),
                color=BLUE,
                zorder=3,
            )
            text = str(k if self.class_names is None else self.class_names[k])
            ax.set_title(
                f"{plain(text)}: {self.errors[k]:.4f}", fontsize="small"
            )
            ax.set(xlim=(-0.03, 1.03), ylim=(-0.03, 1.03))
