"""What every display shares: its figure, and files of it."""

import copy
import io
from collections.abc import Sequence
from typing import Any

from keras_calib.backend.errors import value_error
from keras_calib.inputs.checks import check_integer
from keras_calib.plots.texts import plain

__all__ = [
    "BLUE",
    "COLORS",
    "Display",
    "GREEN",
    "GREY",
    "LIGHT_BLUE",
    "ORANGE",
    "figure_and_canvas",
    "line_style",
    "titled",
]

_ABSENT = "Plots need matplotlib: pip install 'keras-calib[plots]'"
# Okabe and Ito's palette: told apart by colour-blind readers.
COLORS = (
    "#0072B2",
    "#D55E00",
    "#009E73",
    "#CC79A7",
    "#E69F00",
    "#56B4E9",
    "#000000",
)
BLUE, ORANGE, GREEN, LIGHT_BLUE = COLORS[0], COLORS[1], COLORS[2], COLORS[5]
GREY = "#999999"
# One fewer than the colours: 42 curves before a pair comes again.
_DASHES = ("-", "--", "-.", ":", (0, (5, 1)), (0, (3, 1, 1, 1, 1, 1)))


class Display:
    """A picture of arrays that are kept; its base class draws it.

    A subclass has `_draw(*axes)`, and `_axes(figure)` if it has more than one
    panel.
    """

    # Inches of a figure of its own, and how many panels it may have.
    _size: tuple[float, float] = (5.6, 4.2)
    _panels: tuple[int, ...] = (1,)

    def plot(self, ax: Any = None) -> "Display":
        """Draws on axes, and returns self.

        The axes are kept as `axes_`, the first of them as `ax_`, and their
        figure as `figure_`.

        Args:
            ax: matplotlib axes to draw on, or a sequence of them where the
                display has several panels; None makes a figure with pyplot.

        Raises:
            ImportError: If matplotlib is not installed.
            ValueError: If there are fewer or more axes than panels.
        """
        if ax is None:
            figure = _pyplot().figure(figsize=self._size, layout="constrained")
            return self._on(self._axes(figure))
        axes = [ax] if hasattr(ax, "figure") else list(ax)
        if len(axes) not in self._panels:
            panels = " or ".join(map(str, self._panels))
            raise value_error(f"`ax` must be {panels} axes", ax=len(axes))
        return self._on(axes)

    def to_png(self, dpi: int = 100) -> bytes:
        """The picture as a PNG file, in bytes.

        Drawn on a figure of its own: the figures and the backend of pyplot
        are left as they are, so that this may run beside other drawing.

        Args:
            dpi: Dots per inch.
        """
        check_integer("dpi", dpi, 1)
        return self._file("png", dpi=dpi)

    def to_svg(self) -> str:
        """The picture as an SVG file: text stays text, in the reader's font.

        Equal displays give equal files.
        """
        figure_and_canvas()
        import matplotlib as mpl

        with mpl.rc_context({"svg.fonttype": "none", "svg.hashsalt": "calib"}):
            file = self._file("svg", metadata={"Date": None, "Creator": None})
        return file.decode("utf-8")

    def _file(self, kind: str, **options: Any) -> bytes:
        figure_class, canvas_class = figure_and_canvas()
        figure = figure_class(figsize=self._size, layout="constrained")
        canvas = canvas_class(figure)
        copy.copy(self)._on(self._axes(figure))
        file = io.BytesIO()
        canvas.print_figure(file, format=kind, **options)
        return file.getvalue()

    def _on(self, axes: Sequence) -> "Display":
        self.axes_ = list(axes)
        self.ax_, self.figure_ = self.axes_[0], self.axes_[0].figure
        self._draw(*self.axes_)
        return self

    def _axes(self, figure: Any) -> list:
        return [figure.add_subplot()]

    def _draw(self, *axes: Any) -> None:
        raise NotImplementedError


def line_style(i: int) -> dict[str, Any]:
    """How the i-th of several lines is drawn, as options of matplotlib."""
    return {
        "color": COLORS[i % len(COLORS)],
        "linestyle": _DASHES[i % len(_DASHES)],
        "linewidth": 1.5,
    }


def titled(name: str | None, text: str) -> str:
    """A title below the name of a model, if it has one."""
    return text if name is None else f"{plain(name)}\n{text}"


def figure_and_canvas() -> tuple[type, type]:
    """matplotlib's classes to draw with into a file, without pyplot."""
    try:
        from matplotlib.backends.backend_agg import FigureCanvasAgg
        from matplotlib.figure import Figure
    except ImportError as error:
        raise ImportError(_ABSENT) from error
    return Figure, FigureCanvasAgg


def _pyplot() -> Any:
    try:
        import matplotlib.pyplot as plt
    except ImportError as error:
        raise ImportError(_ABSENT) from error
    return plt
