"""Base of all displays: their figures, files, styles and texts."""

import base64
import copy
import importlib
import io
import re
import textwrap
from collections.abc import Mapping, Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, Self

import numpy as np

from keras_calib.backend.errors import value_error
from keras_calib.backend.files import path_of, replacing
from keras_calib.inputs.checks import MODES, check_in, check_integer
from keras_calib.numerics.arrays import to_numpy
from keras_calib.numerics.results import call_text, with_interval

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


class _Look(NamedTuple):
    """How the caller of `plot` wants it."""

    label: str | None = None
    color: Any = None
    title: str | None = None
    legend: bool = True
    line: Mapping[str, Any] = {}


class Display:
    """A picture of what it was made from; a subclass has `_draw(*axes)`."""

    # Size of a figure in inches, and possible numbers of panels.
    _size: tuple[float, float] = (5.6, 4.2)
    _panels: tuple[int, ...] = (1,)
    _look = _Look()
    name: str | None = None
    # A number of each model by its name, and what the number is.
    values: Mapping[Any, float] = {}
    _measure = ""

    if not TYPE_CHECKING:

        def __getattr__(self, name: str) -> Any:
            told = f"`{type(self).__name__}` has no attribute `{name}`"
            if len(self.__dict__.get("models", ())) > 1:
                told += " of several models: `models` and `values` have each"
            raise AttributeError(told)

    def plot(
        self,
        ax: Any = None,
        *,
        label: str | None = None,
        color: Any = None,
        title: str | None = None,
        legend: bool = True,
        **line: Any,
    ) -> Self:
        """Draws on axes and returns self.

        It keeps the axes as `axes_`, the first of them as `ax_`, and their
        figure as `figure_`. Several displays may be drawn on the same axes.

        Args:
            ax: matplotlib axes to draw on, or a sequence of them for a
                display of several panels; None makes a figure with pyplot.
            label: Name of the curve in the legend; None takes that of the
                model, or what is drawn. Several models have their own names.
            color: Colour of the curve; a list of one for each model.
            title: Title of the first panel; None says what is shown.
            legend: Whether to draw a legend.
            **line: Options of `matplotlib.lines.Line2D` for the curve, such as
                `linestyle`.

        Raises:
            ImportError: If matplotlib is not installed.
            ValueError: If there are fewer or more axes than panels.
        """
        models = getattr(self, "models", getattr(self, "curves", ()))
        if label is not None and len(models) > 1:
            raise value_error(
                "`label` must be None for several models: give a dict of them "
                "by name",
                label=label,
            )
        self._look = _Look(label, color, title, legend, line)
        if ax is None:
            make = matplotlib_module("pyplot").figure
            return self._on(self._axes(self._figure(make)))
        axes = [ax] if hasattr(ax, "figure") else list(ax)
        if len(axes) not in self._panels:
            panels = " or ".join(map(str, self._panels))
            raise value_error(f"`ax` must be {panels} axes", ax=len(axes))
        return self._on(axes)

    def save(self, path: Any, *, dpi: int = 100) -> Path:
        """Writes the picture, whole or not at all, as it was last plotted.

        Args:
            path: File that ends in `.pdf`, `.png` or `.svg`.
            dpi: Dots per inch of a `.png` file.

        Returns:
            The path.

        Raises:
            ImportError: If matplotlib is not installed.
            ValueError: If the path has another ending, or is a folder.
        """
        path = path_of(path)
        kind = path.suffix.lower()
        if kind not in (".pdf", ".png", ".svg"):
            raise value_error(
                "`path` must end in .pdf, .png or .svg", path=str(path)
            )
        if kind == ".svg":
            picture = self.to_svg().encode("utf-8")
        elif kind == ".png":
            picture = self.to_png(dpi)
        else:
            picture = self._file("pdf", metadata={"CreationDate": None})
        with replacing(path) as file:
            file.write(picture)
        return path

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
        # Names of what was drawn end in _.
        told = {
            name: x
            for name, x in vars(self).items()
            if not isinstance(x, dict | None) and "_" not in (name[0], name[-1])
        }
        for name, value in self.values.items():
            of = f" of {name}" if len(self.values) > 1 else ""
            told[self._measure + of] = value
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

    def _title(self, text: str, *, named: bool = True) -> str:
        """The title that the caller wants, or a text below the model's name."""
        if self._look.title is not None:
            return plain(self._look.title)
        if self.name is None or not named:
            return text
        return f"{plain(self.name)}\n{text}"

    def _style(self, i: int) -> dict[str, Any]:
        """Options of matplotlib for the i-th of several curves, as wanted."""
        style = line_style(i)
        colors = self._look.color
        if isinstance(colors, list):
            style["color"] = colors[i % len(colors)]
        elif colors is not None and i == 0:
            style["color"] = colors
        return {**style, **self._look.line}

    def _legend(self, ax: Any) -> None:
        """A legend below a figure that is all ours, else on the axes."""
        if not self._look.legend:
            return
        figure = ax.figure
        kind = type(figure.get_layout_engine()).__name__
        ours = {*figure.axes} <= {*self.axes_} or figure.legends
        if kind != "ConstrainedLayoutEngine" or not ours:
            legend(ax)
            return
        for earlier in [*figure.legends]:
            earlier.remove()
        # Letters of the small font that are as wide as the figure.
        room = int(figure.bbox.width / figure.dpi * 15.0) - 8
        told = {
            # No escape is cut in two.
            textwrap.fill(text, room).replace("\\\n$", "\\$\n"): thing
            for x in figure.axes
            for thing, text in zip(*x.get_legend_handles_labels(), strict=True)
        }
        columns = 1 + (max(map(len, told)) < room // 2 - 4)
        style = {"fontsize": "small", "frameon": False, "borderpad": 0.0}
        place = {"loc": "outside lower center", "ncols": columns}
        figure.legend([*told.values()], [*told], **place, **style)


class ModelsDisplay(Display):
    """Base of displays of one or several models, which have one `mode`.

    A subclass has `_read`, which maps what is given of a model to what is
    drawn of it, in `models` by name. Those and numbers of one model alone are
    attributes too: several have no first one.
    """

    def __init__(self, predictions: Any, mode: str, name: str | None):
        check_in("mode", mode, MODES)
        given = by_model(predictions, name)
        self.models = {k: self._read(x, mode) for k, x in given.items()}
        modes = {str(k): _mode_of(x, mode) for k, x in given.items()}
        if len({*modes.values()}) > 1:
            raise value_error("models must have one `mode`", **modes)
        self.name, self.mode = name, next(iter(modes.values()))

    def _read(self, given: Any, mode: str) -> Any:
        raise NotImplementedError


def _mode_of(given: Any, mode: str) -> str:
    """The mode of a metric, which has its own, or the one that is asked for."""
    given = given[0] if type(given) in (list, tuple) else given
    if not hasattr(given, "summary"):
        return mode
    is_binary = getattr(given.summary, "is_binary", False)
    return "binary" if is_binary else "top_label"


def by_model(given: Any, name: str | None = None) -> dict[str | None, Any]:
    """One thing, a list or a dict of them, by the name of the model."""
    if type(given) in (list, tuple):
        given = {f"model {k}": x for k, x in enumerate(given, start=1)}
    if not isinstance(given, Mapping):
        return {name: given}
    if not given:
        raise value_error(
            "`predictions` must be of at least one model", predictions=given
        )
    return dict(given)


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


def draw_rows(
    ax: Any, values: Any, errors: Any, names: list[str], marked: list[bool]
) -> None:
    """Draws values with their bars as rows from the top; some are diamonds."""
    ax.axvline(0.0, color=GREY, linestyle="--")
    for place, mark in enumerate(marked):
        ax.errorbar(
            values[place],
            place,
            xerr=errors[place],
            fmt="D" if mark else "o",
            color=ORANGE if mark else BLUE,
            capsize=3,
        )
    ax.set(yticks=range(len(names)), yticklabels=names)
    ax.set(ylim=(len(names) - 0.5, -0.5))


def legend(ax: Any, **options: Any) -> None:
    """A small, translucent legend, where it hides least."""
    # Else a long name would leave no room for the axes.
    ax.legend(framealpha=0.9, fontsize="small", **options).set_in_layout(False)


def draw_band(
    ax: Any, x: Any, low: Any, high: Any, color: str, label: str | None = None
) -> None:
    """Draws a pale area between two curves."""
    style = {"color": color, "alpha": 0.2, "linewidth": 0}
    ax.fill_between(x, low, high, label=label, **style)


def short(value: float) -> str:
    """A number of a title, which has no interval."""
    return with_interval(value, None, None, digits=3)[0]


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
