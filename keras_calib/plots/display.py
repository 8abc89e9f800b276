"""Base of all displays: their figures, files, styles and texts."""

import base64
import copy
import importlib
import io
import re
from collections.abc import Callable, Sequence
from importlib.util import find_spec
from typing import Any, Self

import numpy as np

from keras_calib.backend.errors import value_error
from keras_calib.inputs.checks import check_flag, check_integer
from keras_calib.numerics.arrays import to_numpy
from keras_calib.numerics.results import call_text
from keras_calib.predictions.collect import seen
from keras_calib.predictions.outputs import read_as

__all__ = [
    "BLUE",
    "COLORS",
    "Display",
    "GREY",
    "ModelDisplay",
    "ORANGE",
    "as_picture",
    "draw_band",
    "legend",
    "line_style",
    "matplotlib_module",
    "plain",
    "printable",
    "show",
    "streamed",
    "titled",
]

# Okabe and Ito's palette, which colour-blind readers can distinguish.
COLORS = (
    "#0072B2",
    "#D55E00",
    "#009E73",
    "#CC79A7",
    "#E69F00",
    "#56B4E9",
    "#000000",
)
BLUE, ORANGE, GREY = COLORS[0], COLORS[1], "#999999"
# One fewer than the colours, so that 42 curves differ.
_DASHES = ("-", "--", "-.", ":", (0, (5, 1)), (0, (3, 1, 1, 1, 1, 1)))
# Characters that XML 1.0 forbids or nobody sees, except line ends and tabs.
_UNPRINTABLE = re.compile(
    "[\x00-\x08\x0b-\x1f\x7f-\x9f\u2028\u2029\ud800-\udfff\ufdd0-\ufdef"
    "\ufffe\uffff]"
)
# Longest name in a picture.
_LONGEST = 80


class Display:
    """A picture of arrays, which it keeps; a subclass has `_draw(*axes)`."""

    # Size of a figure in inches, and possible numbers of panels.
    _size: tuple[float, float] = (5.6, 4.2)
    _panels: tuple[int, ...] = (1,)

    def plot(self, ax: Any = None) -> Self:
        """Draws on axes and returns self.

        It keeps the axes as `axes_`, the first of them as `ax_`, and their
        figure as `figure_`.

        Args:
            ax: matplotlib axes to draw on, or a sequence of them for a
                display of several panels; None makes a figure with pyplot.

        Raises:
            ImportError: If matplotlib is not installed.
            ValueError: If there are fewer or more axes than panels.
        """
        if ax is None:
            make = matplotlib_module("pyplot").figure
            return self._on(self._axes(self._figure(make)))
        axes = [ax] if hasattr(ax, "figure") else list(ax)
        if len(axes) not in self._panels:
            panels = " or ".join(map(str, self._panels))
            raise value_error(f"`ax` must be {panels} axes", ax=len(axes))
        return self._on(axes)

    def to_png(self, dpi: int = 100) -> bytes:
        """The picture as a PNG file, in bytes.

        It does not change the figures or the backend of pyplot.

        Args:
            dpi: Dots per inch.
        """
        check_integer("dpi", dpi, 1)
        return self._file("png", dpi=dpi)

    def to_svg(self, size: tuple[float, float] | None = None) -> str:
        """The picture as an SVG file, with text in the reader's font.

        Equal displays give equal files.

        Args:
            size: Width and height in inches; None for those of the display.
        """
        style = {"svg.fonttype": "none", "svg.hashsalt": "calib"}
        sized = copy.copy(self)
        sized._size = self._size if size is None else size
        with matplotlib_module().rc_context(style):
            file = sized._file("svg", metadata={"Date": None, "Creator": None})
        return file.decode("utf-8")

    def __repr__(self) -> str:
        names = getattr(self, "__dataclass_fields__", ())
        facts = {name: getattr(self, name) for name in names}
        told = {name: x for name, x in facts.items() if x is not None}
        return call_text(type(self).__name__, told)

    def _repr_html_(self) -> str | None:
        # A notebook shows the figure of `plot` by itself.
        if hasattr(self, "figure_") or find_spec("matplotlib") is None:
            return None
        data = base64.b64encode(self.to_png()).decode()
        name = type(self).__name__
        return f'<img alt="{name}" src="data:image/png;base64,{data}"/>'

    def _file(self, kind: str, **options: Any) -> bytes:
        figure = self._figure(matplotlib_module("figure").Figure)
        copy.copy(self)._on(self._axes(figure))
        file = io.BytesIO()
        figure.savefig(file, format=kind, **options)
        return file.getvalue()

    def _figure(self, make: Any) -> Any:
        return make(figsize=self._size, layout="constrained")

    def _on(self, axes: Sequence) -> Self:
        self.axes_ = list(axes)
        self.ax_, self.figure_ = self.axes_[0], self.axes_[0].figure
        self._draw(*self.axes_)
        return self

    def _axes(self, figure: Any) -> list:
        """Axes of panels in a row."""
        return [*figure.subplots(1, self._panels[-1], squeeze=False).flat]

    def _draw(self, *axes: Any) -> None:
        raise NotImplementedError


class ModelDisplay(Display):
    """A display that can be made from a model and a data set."""

    # Of labels, predictions and how to read these, and of a model.
    _of_arrays: Callable[..., Any]
    _of_model: Callable[..., Any]

    @classmethod
    def from_predictions(
        cls,
        labels: Any,
        probs: Any,
        *,
        from_logits: bool = False,
        sample_weight: Any = None,
        ignore_class: int | None = None,
        votes: bool = False,
        **options: Any,
    ) -> Self:
        """Makes the display from a whole data set.

        Args:
            labels: Class ids `(n, ...)` or one-hot or soft labels.
            probs: Probabilities `(n, ..., num_classes)`.
            from_logits: Whether `probs` are logits.
            sample_weight: Weights of the shape of the class ids, or `(n,)`.
            ignore_class: Class id to leave out.
            votes: Whether labels are rows of annotators' votes, as in `ece`.
            **options: Arguments of the class, such as `name` or `mode`. For
                displays of bins also `num_bins`, the number of bins of equal
                width. None takes 15, or 10 of each class in
                `ClasswiseReliabilityDisplay`.
        """
        reading = {
            "from_logits": from_logits,
            "sample_weight": sample_weight,
            "ignore_class": ignore_class,
            "votes": votes,
        }
        return cls._of_arrays(labels, probs, reading, **options)

    @classmethod
    def from_model(
        cls,
        model: Any,
        data: Any,
        *,
        from_logits: bool | None = None,
        ignore_class: int | None = None,
        output: str | int | None = None,
        batch_size: int = 32,
        steps: int | None = None,
        **options: Any,
    ) -> Self:
        """Makes the display from a model's predictions on a data set.

        `ClasswiseReliabilityDisplay` keeps all predictions in memory; the
        others stream them.

        Args:
            model: A Keras model.
            data: Arrays `(x, y)` or `(x, y, sample_weight)`, or a data set of
                such batches.
            from_logits: Whether the model returns logits; None takes it from
                the loss that the model was compiled with.
            ignore_class: Class id to leave out; None takes it from that loss.
            output: Name or position of the output, for a model that has
                several.
            batch_size: Batch size for arrays.
            steps: Largest number of batches; None for all.
            **options: Other options of `from_predictions` or `from_metric`.
        """
        reading = from_logits, ignore_class, output
        source = data, batch_size, steps
        return cls._of_model(model, source, reading, **options)


def streamed(
    make: Callable,
    model: Any,
    source: tuple[Any, int, Any],
    reading: tuple,
    *,
    votes: bool = False,
) -> Any:
    """The metric, updated with a model's predictions in fixed memory."""
    check_flag("votes", votes)
    options = read_as(model, *reading)
    metric = make(
        from_logits=options.from_logits,
        ignore_class=options.ignore_class,
        labels="votes" if votes else "classes",
    )
    return seen(metric, model, *source, options.output)


def matplotlib_module(name: str = "") -> Any:
    """matplotlib or a module of it; ImportError says what to install."""
    try:
        return importlib.import_module(f"matplotlib.{name}".rstrip("."))
    except ImportError as error:
        raise ImportError(
            "Plots need matplotlib: pip install 'keras-calib[plots]'"
        ) from error


def line_style(i: int) -> dict[str, Any]:
    """Options of matplotlib for the i-th of several lines."""
    return {
        "color": COLORS[i % len(COLORS)],
        "linestyle": _DASHES[i % len(_DASHES)],
        "linewidth": 1.5,
    }


def legend(ax: Any, **options: Any) -> None:
    """A small, translucent legend."""
    # Else a long name would leave no room for the axes.
    ax.legend(framealpha=0.9, fontsize="small", **options).set_in_layout(False)


def draw_band(
    ax: Any, x: Any, low: Any, high: Any, color: str, label: str | None = None
) -> None:
    """Draws a pale area between two curves."""
    style = {"color": color, "alpha": 0.2, "linewidth": 0}
    ax.fill_between(x, low, high, label=label, **style)


def titled(name: str | None, text: str) -> str:
    """A title below the name of a model, if it has one."""
    return text if name is None else f"{plain(name)}\n{text}"


def printable(text: str) -> str:
    """A text with escapes for what XML and HTML in UTF-8 cannot hold."""
    return _UNPRINTABLE.sub(lambda x: ascii(x[0])[1:-1], text)


def plain(text: Any) -> str:
    """A text for matplotlib to draw literally, on one line."""
    text = printable(str(text)).replace("\t", " ").replace("\n", " ")
    if len(text) > _LONGEST:
        text = text[: _LONGEST - 1] + "…"
    # matplotlib omits names with a leading underscore from legends.
    text = f" {text}" if text.startswith("_") else text
    # It reads text between two dollar signs as a formula.
    return text.replace("$", r"\$")


def as_picture(name: str, image: Any) -> np.ndarray:
    """An image in [0, 1], `(h, w)` or `(h, w, 3)`.

    Values from 0 to 1 are kept, values from 0 to 255 divided by 255. Others,
    such as standardized ones, are stretched to their range. Raises ValueError
    if it is no image, or not finite.
    """
    image = to_numpy(image)
    shape, counts = image.shape, image.dtype.kind in "iu"
    image = image.astype("float64")
    if len(shape) == 3 and shape[-1] == 1:
        image = image[..., 0]
    if image.ndim not in (2, 3) or shape[2:] not in ((), (1,), (3,)):
        raise value_error(
            f"`{name}` must have shape (height, width), or (height, "
            "width, channels) with 1 or 3 channels",
            **{f"{name}.shape": shape},
        )
    low, high = image.min(), image.max()
    if not np.isfinite([low, high]).all():
        raise value_error(f"`{name}` must be finite", minimum=low, maximum=high)
    if low >= 0.0 and high <= 255.0:
        return image / 255.0 if counts or high > 1.0 else image
    return (image - low) / max(high - low, 1e-9)


def show(ax: Any, values: Any, cmap: Any = "gray", **options: Any) -> Any:
    """Draws pixels in [0, 1] as given, without ticks; returns the image."""
    options = {"vmin": 0.0, "vmax": 1.0, **options}
    drawn = ax.imshow(values, interpolation="nearest", cmap=cmap, **options)
    ax.set(xticks=[], yticks=[])
    return drawn
