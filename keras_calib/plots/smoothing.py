"""What losses do to labels, drawn."""

from collections.abc import Sequence
from typing import Any

import numpy as np
from keras import ops

from keras_calib.analysis.regularizers import effective_labels
from keras_calib.backend.errors import value_error
from keras_calib.inputs.checks import check_above
from keras_calib.inputs.checks import check_integer
from keras_calib.numerics.arrays import to_numpy
from keras_calib.plots.display import COLORS
from keras_calib.plots.display import GREY
from keras_calib.plots.display import Display
from keras_calib.plots.loss_curves import NUM_POINTS
from keras_calib.plots.loss_curves import draw_curves
from keras_calib.plots.loss_curves import named_losses
from keras_calib.plots.loss_curves import read_each
from keras_calib.plots.texts import plain

__all__ = ["EffectiveLabelsDisplay", "SmoothingProfileDisplay"]


class EffectiveLabelsDisplay(Display):
    """Bars of prediction, label and effective labels of losses.

    Args:
        probs: What is predicted, `(num_classes,)`.
        label: The label, `(num_classes,)`.
        effective: Name of each loss to its effective labels
            `(num_classes,)`, as of `effective_labels`.
        class_names: Names of the classes, or None for their ids.

    Raises:
        ValueError: If shapes do not fit.

    Example:

    >>> from keras_calib import LabelSmoothing
    >>> display = EffectiveLabelsDisplay.from_losses(
    ...     LabelSmoothing(alpha=0.3, from_logits=True), 0, [2.0, 0.0, 1.0])
    >>> [round(float(q), 4) for q in display.effective["LabelSmoothing"]]
    [0.8, 0.1, 0.1]

    Reference:
        Park et al., ACLS: Adaptive and Conditional Label Smoothing for
        Network Calibration, ICCV 2023, figure 1,
        https://arxiv.org/abs/2308.11911
    """

    def __init__(
        self,
        probs: Any,
        label: Any,
        effective: dict[str, Any],
        *,
        class_names: Sequence[str] | None = None,
    ):
        self.probs = to_numpy(probs)
        self.label = to_numpy(label)
        self.effective = {name: to_numpy(q) for name, q in effective.items()}
        self.class_names = class_names
        names = self.probs if class_names is None else class_names
        for what, x in {
            "label": self.label,
            "class_names": names,
            **self.effective,
        }.items():
            if self.probs.ndim != 1 or np.shape(x)[:1] != self.probs.shape:
                raise value_error(
                    f"`{what}` and `probs` must have one entry per class",
                    probs=self.probs.shape,
                    **{what: np.shape(x)},
                )
        self._size = (max(4.0, 0.9 * len(self.probs) + 1.5), 3.6)

    @classmethod
    def from_losses(
        cls,
        losses: Any,
        label: int,
        logits: Any,
        *,
        class_names: Sequence[str] | None = None,
    ) -> "EffectiveLabelsDisplay":
        """Of one prediction.

        Args:
            losses: A loss, as in `effective_labels`, or a dict of them by
                name.
            label: Class id.
            logits: Logits `(num_classes,)`.
            class_names: As in the class.
        """
        logits = np.asarray(logits, "float32")
        if logits.ndim != 1:
            raise value_error(
                "`logits` must have shape (num_classes,)",
                **{"logits.shape": logits.shape},
            )
        labels, rows = np.array([label], "int32"), logits[None]
        found = {
            name: to_numpy(effective_labels(loss, labels, rows).labels)[0]
            for name, loss in named_losses(losses).items()
        }
        probs = to_numpy(ops.softmax(ops.convert_to_tensor(logits)))
        hard = np.eye(len(logits))[label]
        return cls(probs, hard, found, class_names=class_names)

    def _draw(self, ax: Any) -> None:
        series = {"prediction": self.probs, "label": self.label}
        series |= self.effective
        width = 0.8 / len(series)
        places = np.arange(len(self.probs))
        hatches = ("", "", "///", "...", "xxx", "\\\\\\", "+++")
        for i, (name, values) in enumerate(series.items()):
            ax.bar(
                places + (i + 0.5) * width - 0.4,
                values,
                width=width,
                color=GREY if i == 0 else COLORS[(i - 1) % len(COLORS)],
                hatch=hatches[i % len(hatches)],
                edgecolor="white",
                linewidth=0,
                label=plain(name),
            )
        names = places if self.class_names is None else self.class_names
        ax.axhline(0.0, color="black", linewidth=0.8)
        ax.set_xticks(places, [plain(name) for name in names])
        ax.set(
            xlabel="class",
            ylabel="probability",
            title="What losses ask for: effective labels",
        )
        ax.legend(framealpha=0.9, fontsize="small")


class SmoothingProfileDisplay(Display):
    """How much losses smooth, against the logit of the right class.

    The other logits are 0. Left what is taken off the label of the predicted
    class, right what is added to each of the others.

    Args:
        logit: Logits of the right class, `(num_points,)`.
        predicted: Name of each loss to the smoothing of the predicted class,
            `(num_points,)`.
        other: Name of each loss to the mean smoothing of the others.

    Example:

    >>> from keras_calib import LabelSmoothing
    >>> display = SmoothingProfileDisplay.from_losses(
    ...     LabelSmoothing(alpha=0.3, from_logits=True), num_classes=3)
    >>> round(float(display.predicted["LabelSmoothing"][-1]), 4)
    0.2

    Reference:
        Park et al., ACLS: Adaptive and Conditional Label Smoothing for
        Network Calibration, ICCV 2023, section 3 and figure 1,
        https://arxiv.org/abs/2308.11911
    """

    _size = (8.4, 3.6)
    _panels = (2,)

    def __init__(
        self,
        logit: np.ndarray,
        predicted: dict[str, np.ndarray],
        other: dict[str, np.ndarray],
    ):
        self.logit = logit
        self.predicted = predicted
        self.other = other

    @classmethod
    def from_losses(
        cls, losses: Any, *, num_classes: int = 10, highest: float = 15.0
    ) -> "SmoothingProfileDisplay":
        """Of losses alone.

        Args:
            losses: A loss, as in `effective_labels`, or a dict of them by
                name. One that looks at the whole batch is read for each
                prediction alone.
            num_classes: Number of classes, at least 2.
            highest: Largest logit, above 0.
        """
        check_integer("num_classes", num_classes, 2)
        check_above("highest", highest, 0.0)
        logit = np.linspace(0.0, highest, NUM_POINTS)
        logits = np.zeros((NUM_POINTS, num_classes), "float32")
        logits[:, 0] = logit
        # 0 itself would be a tie.
        logits[0, 0] = 1e-3
        predicted, other = {}, {}
        for name, loss in named_losses(losses).items():

            def read(labels, rows, loss=loss):
                found = effective_labels(loss, labels, rows)
                smoothing = to_numpy(found.other_smoothing).sum(-1)
                return np.stack(
                    [
                        to_numpy(found.predicted_smoothing),
                        smoothing / (num_classes - 1),
                    ],
                    axis=-1,
                )

            found = read_each(loss, read, logits)
            predicted[name], other[name] = found.T
        return cls(logit, predicted, other)

    def _axes(self, figure: Any) -> list:
        return list(figure.subplots(1, 2))

    def _draw(self, *axes: Any) -> None:
        for ax, curves, title in (
            (axes[0], self.predicted, "taken off the predicted class"),
            (axes[1], self.other, "added to each other class"),
        ):
            draw_curves(ax, self.logit, curves)
            ax.set(
                xlabel="logit of the right class, the others 0",
                ylabel="smoothing",
                title=title,
            )
        axes[0].legend(framealpha=0.9, fontsize="small")
