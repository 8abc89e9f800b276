"""Class activation maps over images, with the predicted classes."""

import dataclasses
from collections.abc import Sequence
from typing import Any, Self

import keras
import numpy as np
from keras import ops

from keras_calib.analysis.activation_maps import class_activations
from keras_calib.backend.errors import value_error
from keras_calib.inputs.values import check_ids
from keras_calib.numerics.arrays import to_numpy
from keras_calib.plots.display import (
    BLUE,
    ORANGE,
    Display,
    as_picture,
    matplotlib_module,
    plain,
    show,
    titled,
)

__all__ = ["ClassActivationDisplay"]

_TOP = 3


@dataclasses.dataclass(eq=False, repr=False)
class ClassActivationDisplay(Display):
    """Images with class activation maps and the most probable classes.

    Use it to see whether a classifier looks at the object or at its context.
    Each image has a column: the image under its class, then the map under the
    class of the map. Below are the most probable classes with their
    probabilities. The right class is bold and blue, a wrong prediction orange.

    Args:
        images: `(n, height, width)` or `(n, height, width, channels)` of 1 or
            3 channels.
        maps: Maps `(n, height, width)` in [0, 1], as
            `class_activation_maps` returns them.
        probs: Probabilities `(n, num_classes)`.
        classes: Class ids of the maps `(n,)`; None for the predicted ones.
        boxes: Boxes of objects `(n, boxes, 4)`, `[ymin, xmin, ymax, xmax]` as
            shares of the image, or None. Boxes without area, such as rows
            that pad a batch, are not drawn.
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

    images: Any
    maps: Any
    probs: Any
    _: dataclasses.KW_ONLY
    classes: Any = None
    boxes: Any = None
    labels: Any = None
    class_names: Sequence[str] | None = None
    name: str | None = None

    def __post_init__(self):
        self.images = [as_picture("images", image) for image in self.images]
        self.maps, self.probs = to_numpy(self.maps), to_numpy(self.probs)
        if self.classes is None:
            self.classes = self.probs.argmax(axis=-1)
        self.classes = to_numpy(self.classes)
        if self.boxes is not None:
            self.boxes = to_numpy(self.boxes, "float64")
        if self.labels is not None:
            self.labels = to_numpy(self.labels)
        self._check()
        # Among equally probable classes the first one is the predicted one.
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
        name: str | None = None,
        **options: Any,
    ) -> Self:
        """Makes the display from a model and a few images.

        Args:
            model: A Keras classifier of images, as `class_activation_maps`
                takes it.
            images: Images as the model takes them, of 1 or 3 channels.
            boxes: Boxes of objects `(n, boxes, 4)`, or None.
            labels: Class ids `(n,)`, or None.
            class_names: Names of the classes, or None for their ids.
            classes: Class ids of the maps `(n,)`, or one for all images; None
                for the predicted ones.
            name: Name of the model, for the title.
            **options: `layer`, `method`, `from_logits` and `batch_size` of
                `class_activation_maps`.
        """
        found = class_activations(model, images, classes=classes, **options)
        return cls(
            found.images,
            found.maps,
            to_numpy(ops.softmax(ops.convert_to_tensor(found.logits))),
            classes=found.classes,
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
        count, num_classes = len(self.images), self.probs.shape[-1]
        sizes = {image.shape[:2] for image in self.images}
        names, boxes = self.class_names, np.shape(self.boxes)[1:2]
        for name, value, *shapes in (
            ("maps", self.maps, *((count, *size) for size in sizes)),
            ("probs", self.probs, (count, num_classes)),
            ("classes", self.classes, (count,)),
            ("labels", self.labels, (count,)),
            ("boxes", self.boxes, (count, *boxes, 4)),
            ("class_names", names, (num_classes,)),
        ):
            if value is not None and [np.shape(value)] != shapes:
                raise value_error(
                    f"`{name}` must have shape "
                    + " and ".join(map(str, shapes))
                    + ", as the images or classes do",
                    **{f"{name}.shape": np.shape(value)},
                )
        for name in ("classes", "labels"):
            if getattr(self, name) is not None:
                check_ids(getattr(self, name), num_classes, name)

    def _axes(self, figure: Any) -> list:
        return [*figure.subplots(2, len(self.images), squeeze=False).T.flat]

    def _draw(self, *axes: Any) -> None:
        for i, image in enumerate(self.images):
            above, below = axes[2 * i : 2 * i + 2]
            show(above, image)
            title = "image"
            if self.labels is not None:
                title = self._class(int(self.labels[i]))
            # Two lines above every image keep images at one height.
            name = self.name if i == 0 else ""
            above.set_title(titled(name if self.name else None, plain(title)))
            # Grey, as colours would mix with those of the map.
            grey = image if image.ndim == 2 else image @ (0.299, 0.587, 0.114)
            show(below, grey)
            show(below, self.maps[i], "inferno", alpha=0.6)
            of = self._class(int(self.classes[i]))
            below.set_title(f"map of {plain(of)}", fontsize="small")
            for ax in (above, below):
                self._draw_boxes(ax, i)
            self._write_classes(below, i)

    def _draw_boxes(self, ax: Any, i: int) -> None:
        if self.boxes is None:
            return
        rectangle = matplotlib_module("patches").Rectangle
        height, width = self.maps.shape[1:]
        scale = (height, width, height, width)
        for box in np.clip(self.boxes[i], 0.0, 1.0) * scale:
            (top, left), (bottom, right) = box[:2] - 0.5, box[2:] - 0.5
            if bottom <= top or right <= left:
                continue
            # Dashes of white and black show on any image.
            for color, style in (("black", "-"), ("white", "--")):
                ax.add_patch(
                    rectangle(
                        (left, top),
                        right - left,
                        bottom - top,
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
