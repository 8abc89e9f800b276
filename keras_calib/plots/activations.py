"""Where a classifier looks in images, and what it sees there."""

from collections.abc import Sequence
from typing import Any

import keras
import numpy as np
from keras import ops

from keras_calib.analysis.activation_maps import class_activations
from keras_calib.backend.errors import value_error
from keras_calib.inputs.values import check_ids
from keras_calib.numerics.arrays import to_numpy
from keras_calib.plots.display import BLUE
from keras_calib.plots.display import ORANGE
from keras_calib.plots.display import Display
from keras_calib.plots.display import titled
from keras_calib.plots.pictures import as_picture
from keras_calib.plots.pictures import show
from keras_calib.plots.texts import plain

__all__ = ["ClassActivationDisplay"]

_TOP = 3
_SHAPES = {"boxes": "(n, boxes, 4)", "probs": "(n, num_classes)"}


class ClassActivationDisplay(Display):
    """Images, class activation maps over them, and the classes predicted.

    A column per image: the image, under the name of its class; the map over
    it, under the name of the class that the map is of; and below the most
    probable classes with their probabilities, the right one bold and blue, a
    wrong prediction orange. Boxes are drawn where they are given.

    Args:
        images: `(n, height, width)` or `(n, height, width, channels)` of 1 or
            3 channels.
        maps: Maps `(n, height, width)` in [0, 1], as of
            `class_activation_maps`.
        probs: Probabilities `(n, num_classes)`.
        classes: Whose maps they are, ids `(n,)`; None for the predicted
            classes.
        boxes: Boxes of objects `(n, boxes, 4)`, `[ymin, xmin, ymax, xmax]` as
            shares of the image, or None. Those without area in the image,
            such as rows that pad a batch, are left out.
        labels: Class ids `(n,)`, or None.
        class_names: Names of the classes, or None for their ids.
        name: Name of the model, for the title.

    Raises:
        ValueError: If shapes do not fit or a class id is out of range.

    Example:

    >>> import numpy as np
    >>> display = ClassActivationDisplay(
    ...     np.zeros((1, 8, 8)), np.ones((1, 8, 8)), np.array([[0.1, 0.9]]),
    ...     class_names=["cat", "dog"])
    >>> display.top_classes(0)
    [('dog', 0.9), ('cat', 0.1)]

    Reference:
        Krothapalli and Abbott, Adaptive Label Smoothing, 2020, figures 6 to
        8, https://arxiv.org/abs/2009.06432
    """

    def __init__(
        self,
        images: Any,
        maps: Any,
        probs: Any,
        *,
        classes: Any = None,
        boxes: Any = None,
        labels: Any = None,
        class_names: Sequence[str] | None = None,
        name: str | None = None,
    ):
        self.images = [as_picture("images", image) for image in images]
        self.maps, self.probs = to_numpy(maps), to_numpy(probs)
        if classes is None:
            classes = self.probs.argmax(axis=-1)
        self.classes = to_numpy(classes)
        self.boxes = None if boxes is None else to_numpy(boxes, "float64")
        self.labels = None if labels is None else to_numpy(labels)
        self.class_names = class_names
        self.name = name
        self._check()
        # The most probable first; of equal ones the first, as predicted.
        order = np.argsort(-self.probs, axis=-1, kind="stable")
        self.top = order[:, :_TOP]
        height, width = self.maps.shape[1:]
        side = min(max(1.9 * height / width, 1.0), 4.0)
        self._size = max(1.9 * len(self.images), 2.4), 2.0 * side + 1.4
        self._panels = (2 * len(self.images),)

    @classmethod
    def from_model(
        cls,
        model: keras.Model,
        images: Any,
        boxes: Any = None,
        labels: Any = None,
        class_names: Sequence[str] | None = None,
        *,
        classes: Any = None,
        layer: str | keras.layers.Layer | None = None,
        method: str = "grad_cam",
        from_logits: bool | None = None,
        batch_size: int = 32,
        name: str | None = None,
    ) -> "ClassActivationDisplay":
        """From a few images that a model classifies.

        Args:
            model: As in `class_activation_maps`.
            images: As in `class_activation_maps`, of 1 or 3 channels.
            boxes: As in the class.
            labels: As in the class.
            class_names: As in the class.
            classes: Class id of the maps, or ids `(n,)`; None for the
                predicted ones.
            layer: As in `class_activation_maps`.
            method: As in `class_activation_maps`.
            from_logits: As in `class_activation_maps`.
            batch_size: As in `class_activation_maps`.
            name: Name of the model, for the title.
        """
        seen = class_activations(
            model,
            images,
            classes=classes,
            layer=layer,
            method=method,
            from_logits=from_logits,
            batch_size=batch_size,
        )
        return cls(
            seen.images,
            seen.maps,
            to_numpy(ops.softmax(ops.convert_to_tensor(seen.logits))),
            classes=seen.classes,
            boxes=boxes,
            labels=labels,
            class_names=class_names,
            name=name,
        )

    def top_classes(self, index: int) -> list[tuple[str, float]]:
        """The most probable classes of an image, with their probabilities."""
        return [
            (self._class(k), float(self.probs[index, k]))
            for k in self.top[index]
        ]

    def _class(self, k: int) -> str:
        return str(k if self.class_names is None else self.class_names[k])

    def _check(self) -> None:
        count, shapes = len(self.images), {x.shape[:2] for x in self.images}
        if {self.maps.shape[1:]} != shapes or len(self.maps) != count:
            raise value_error(
                "`maps` must be one map for each image, of its height and "
                "width",
                **{"maps.shape": self.maps.shape, "images": count},
            )
        num_classes = self.probs.shape[-1] if self.probs.ndim == 2 else None
        for name, value, shape in (
            ("probs", self.probs, (count, num_classes)),
            ("classes", self.classes, (count,)),
            ("labels", self.labels, (count,)),
            ("boxes", self.boxes, (count, *np.shape(self.boxes)[1:2], 4)),
        ):
            if value is not None and value.shape != shape:
                meaning = _SHAPES.get(name, "(n,)")
                raise value_error(
                    f"`{name}` must have shape {meaning} for n images",
                    **{f"{name}.shape": value.shape, "images": count},
                )
        check_ids(self.classes, num_classes, "classes")
        if self.labels is not None:
            check_ids(self.labels, num_classes, "labels")
        if self.class_names is not None and (
            len(self.class_names) != num_classes
        ):
            raise value_error(
                "`class_names` must be one name for each class",
                class_names=len(self.class_names),
                num_classes=num_classes,
            )

    def _axes(self, figure: Any) -> list:
        grid = figure.subplots(2, len(self.images), squeeze=False)
        return [ax for column in grid.T for ax in column]

    def _draw(self, *axes: Any) -> None:
        for i, image in enumerate(self.images):
            above, below = axes[2 * i : 2 * i + 2]
            show(above, image, cmap="gray", vmin=0.0, vmax=1.0)
            title = "image"
            if self.labels is not None:
                title = self._class(int(self.labels[i]))
            # Of the same height over every image.
            name = self.name if i == 0 else ""
            above.set_title(titled(name if self.name else None, plain(title)))
            self._overlay(below, i)
            of = self._class(int(self.classes[i]))
            below.set_title(f"map of {plain(of)}", fontsize="small")
            for ax in (above, below):
                self._draw_boxes(ax, i)
            self._write_classes(below, i)

    def _overlay(self, ax: Any, i: int) -> None:
        image = self.images[i]
        # Without its colours, which those of the map would mix with.
        grey = image if image.ndim == 2 else image @ (0.299, 0.587, 0.114)
        show(ax, grey, cmap="gray", vmin=0.0, vmax=1.0)
        show(ax, self.maps[i], cmap="inferno", vmin=0.0, vmax=1.0, alpha=0.6)

    def _draw_boxes(self, ax: Any, i: int) -> None:
        from matplotlib.patches import Rectangle

        if self.boxes is None:
            return
        height, width = self.maps.shape[1:]
        for ymin, xmin, ymax, xmax in np.clip(self.boxes[i], 0.0, 1.0):
            if ymax <= ymin or xmax <= xmin:
                continue
            # Dashes of white and black show on any image.
            for color, style in (("black", "-"), ("white", "--")):
                ax.add_patch(
                    Rectangle(
                        (xmin * width - 0.5, ymin * height - 0.5),
                        (xmax - xmin) * width,
                        (ymax - ymin) * height,
                        fill=False,
                        edgecolor=color,
                        linestyle=style,
                        linewidth=1.5,
                    )
                )

    def _write_classes(self, ax: Any, i: int) -> None:
        label = None if self.labels is None else self.labels[i]
        classes = zip(self.top[i], self.top_classes(i), strict=True)
        for place, (k, (name, share)) in enumerate(classes):
            right, wrong = k == label, label is not None and place == 0
            ax.annotate(
                f"{plain(name)} {share:.2f}",
                (0.5, 0.0),
                xytext=(0.0, -4.0 - 12.0 * place),
                xycoords="axes fraction",
                textcoords="offset points",
                ha="center",
                va="top",
                fontsize="small",
                color=BLUE if right else ORANGE if wrong else "black",
                weight="bold" if right else "normal",
            )
