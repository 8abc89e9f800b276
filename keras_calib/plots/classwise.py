"""Reliability diagrams of the probability of every class."""

import dataclasses
from collections.abc import Sequence
from typing import Any, Self

import numpy as np

from keras_calib.backend.errors import value_error
from keras_calib.functional.classwise import ClasswiseBins, classwise_bins
from keras_calib.inputs.checks import check_integer
from keras_calib.numerics.arrays import safe_divide
from keras_calib.plots.display import BLUE, GREY, ORANGE, plain, titled
from keras_calib.plots.reliability import BinsDisplay
from keras_calib.predictions.collect import predicted
from keras_calib.predictions.outputs import read_as

__all__ = ["ClasswiseReliabilityDisplay"]


@dataclasses.dataclass(eq=False, repr=False)
class ClasswiseReliabilityDisplay(BinsDisplay):
    """Reliability diagrams of the worst classes, a panel per class.

    Use it to find classes with wrong probabilities: a model with a calibrated
    confidence can still be wrong about rare classes. A panel shows the share
    of the class against its probability, over all samples.

    Args:
        bins: Sums of the bins of each class, arrays
            `(num_classes, num_bins)`.
        classes: Ids of the classes to draw; None for the worst.
        max_panels: Number of worst classes to draw, at most.
        class_names: Names of the classes, or None for their ids.
        name: Name of the model, for the title.

    Raises:
        ValueError: If a class does not exist, or names do not fit.

    Example:

    >>> display = ClasswiseReliabilityDisplay.from_predictions(
    ...     [0, 1], [[0.8, 0.2], [0.6, 0.4]], num_bins=10)
    >>> [round(float(x), 4) for x in display.errors]
    [0.4, 0.4]

    Reference:
        Nixon et al., Measuring Calibration in Deep Learning, CVPR Workshops
        2019, https://arxiv.org/abs/1904.01685
    """

    _bins_of = staticmethod(classwise_bins)
    _num_bins = 10

    bins: ClasswiseBins
    _: dataclasses.KW_ONLY
    classes: Sequence[int] | None = None
    max_panels: int = 12
    class_names: Sequence[str] | None = None
    name: str | None = None

    def __post_init__(self):
        check_integer("max_panels", self.max_panels, 1)
        # Calibration error of each class, whose mean is the classwise ECE.
        self.errors = np.abs(self.bins.residual).sum(-1) / self.bins.total
        self.classwise_ece = float(self.errors.mean())
        classes, num_classes = self.classes, len(self.errors)
        if classes is None:
            order = np.argsort(-self.errors, kind="stable")
            classes = order[: self.max_panels]
        for k in classes:
            check_integer("classes", k)
        self.classes = [int(k) for k in classes]
        if not self.classes or not {*self.classes} <= {*range(num_classes)}:
            raise value_error(
                "`classes` must be ids of classes of the model",
                classes=self.classes,
                num_classes=num_classes,
            )
        names = self.class_names
        if names is not None and len(names) != num_classes:
            raise value_error(
                "`class_names` must have a name for each class",
                names=len(names),
                num_classes=num_classes,
            )
        self._panels = (len(self.classes),)
        columns = min(4, len(self.classes))
        self._grid = -(-len(self.classes) // columns), columns
        self._size = (max(2.2 * columns + 0.4, 3.6), 2.2 * self._grid[0] + 0.8)

    @classmethod
    def _of_model(
        cls,
        model: Any,
        source: tuple[Any, int, Any],
        reading: tuple,
        **options: Any,
    ) -> Self:
        read = read_as(model, *reading)
        found = predicted(model, *source, read.output)
        return cls.from_predictions(
            found.labels,
            found.outputs,
            from_logits=read.from_logits,
            sample_weight=found.sample_weight,
            ignore_class=read.ignore_class,
            **options,
        )

    def _axes(self, figure: Any) -> list:
        axes = figure.subplots(
            *self._grid, sharex=True, sharey=True, squeeze=False
        )
        for ax in axes[:, 0]:
            ax.set_ylabel("share of the class")
        drawn, empty = np.split(axes.reshape(-1), self._panels)
        for ax in empty:
            ax.remove()
        for ax in drawn[-self._grid[1] :]:
            ax.set_xlabel("probability")
            ax.tick_params(labelbottom=True)
        figure.suptitle(
            titled(self.name, f"classwise ECE {self.classwise_ece:.4f}"),
            fontsize="medium",
        )
        return list(drawn)

    def _draw(self, *axes: Any) -> None:
        width = 0.8 / self.bins.weight.shape[-1]
        for ax, k in zip(axes, self.classes or (), strict=True):
            weight = self.bins.weight[k]
            filled = weight > 0
            p = safe_divide(self.bins.probability[k], weight)[filled]
            share = safe_divide(self.bins.positive[k], weight)[filled]
            ax.plot([0, 1], [0, 1], color=GREY, linestyle="--", linewidth=1)
            ax.bar(
                p, p - share, bottom=share, width=width, color=ORANGE, alpha=0.4
            )
            # Points grow with the share of the samples.
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
