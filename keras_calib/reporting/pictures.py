"""Pictures inside the page: diagrams, and thumbnails of samples."""

import base64
import io
from typing import Any

import keras
import numpy as np
from scipy.ndimage import binary_dilation, binary_erosion

from keras_calib.formulas.binned_intervals import accuracy_interval
from keras_calib.formulas.bins import BinSums
from keras_calib.formulas.cumulative import CumulativeCurve
from keras_calib.numerics.arrays import to_numpy
from keras_calib.plots import CumulativeDisplay
from keras_calib.plots.display import (
    BLUE,
    GREY,
    ORANGE,
    Display,
    as_picture,
    draw_rows,
    matplotlib_module,
    plain,
)

# Inches of a wide diagram, about as wide as a phone, where text must be
# readable, and of the small one of a label.
WIDE, _SMALL = (4.4, 3.8), (2.7, 2.5)
# Longest name above a picture.
_LONGEST = 24
# Steps of a curve of cumulative differences, at most.
_STEPS = 400
# Groups in a picture, at most.
_MOST_GROUPS = 24
# Pixels of the longer side of a thumbnail, at most.
_THUMBNAIL = 96


def diagram(
    display: Display, text: str, size: tuple[float, float]
) -> dict[str, str]:
    """A display as a data URI, with a text for those who cannot see it.

    `size` is its width and height in inches.
    """
    svg = display.to_svg(size).encode("utf-8")
    return {"uri": _data_uri(svg, "image/svg+xml"), "text": text}


def cumulative_diagram(
    differences: CumulativeCurve, when: str, size: tuple[float, float]
) -> dict[str, str]:
    """Cumulative differences as a picture; `when` names the stage or is ""."""
    share, difference = differences.share, differences.difference
    # The histogram has more cells than a picture could show.
    places = np.searchsorted(share, np.linspace(0.0, 1.0, _STEPS) - 1e-12)
    places = np.union1d(places, [difference.argmin(), difference.argmax()])
    thinned = CumulativeCurve(
        share[places], difference[places], differences.deviation
    )
    text = (
        f"Confidence less correctness {when}".rstrip()
        + ", summed: it rises where the model is overconfident."
    )
    display = CumulativeDisplay(thinned, name=when.capitalize() or None)
    return diagram(display, text, size)


class _GroupsDisplay(Display):
    """Gaps of groups with their intervals."""

    def __init__(self, rows: list[dict[str, Any]]):
        self.rows = rows
        self._size = (4.4, 1.2 + 0.24 * len(rows))

    def _draw(self, ax: Any) -> None:
        keys = [f"confidence_gap{end}" for end in ("", "_low", "_high")]
        gaps = 100.0 * np.array([[x[k] for k in keys] for x in self.rows])
        value, low, high = gaps.T
        errors = np.stack([value - low, high - value], axis=-1)[..., None]
        names = [plain(f"{x['attribute']} {x['group']}") for x in self.rows]
        draw_rows(ax, value, errors, names, list((low > 0) | (high < 0)))
        ax.set_xlabel("confidence less accuracy, points")


def group_picture(rows: list[dict[str, Any]]) -> dict[str, str] | None:
    """Gaps of the worst groups as a picture, None without any."""
    rows = [x for x in rows if not x["too_few"]][:_MOST_GROUPS]
    if not rows:
        return None
    display = _GroupsDisplay(rows)
    text = (
        "Confidence less accuracy by group, with intervals that hold "
        "together; diamonds are groups whose interval excludes 0."
    )
    return diagram(display, text, display._size)


class _LabelDisplay(Display):
    """Shares with a label against its probability, of one or two stages."""

    def __init__(self, name: str, bins: list[BinSums]):
        self.label, self.bins = name, bins

    def _draw(self, ax: Any) -> None:
        name, top = self.label, 0.0
        if len(name) > _LONGEST:
            name = f"{name[: _LONGEST - 1]}…"
        styles = ((ORANGE, "s"), (BLUE, "o"))[-len(self.bins) :]
        for sums, (color, marker) in zip(self.bins, styles, strict=True):
            filled = sums.weight > 0
            x, y = sums.mean_confidence[filled], sums.accuracy[filled]
            low, high = (end[filled] for end in accuracy_interval(sums))
            ax.errorbar(
                x,
                y,
                yerr=np.maximum([y - low, high - y], 0.0),
                fmt=marker,
                markersize=4,
                color=color,
                capsize=2,
                linewidth=1,
            )
            top = max(top, *x, *y)
        # A rare label would lie in a corner.
        top = min(1.0, 1.2 * top + 0.02)
        ax.plot([0, top], [0, top], color=GREY, linestyle="--", linewidth=1)
        ax.set(
            xlim=(-0.02 * top, 1.02 * top),
            ylim=(-0.02 * top, 1.02 * top),
            xlabel="probability of the label",
            ylabel="share with the label",
            title=plain(name),
        )
        ax.locator_params(nbins=4)


def label_diagram(name: str, bins: list[BinSums]) -> dict[str, str]:
    """Shares with a label by its probability, of the bins of each stage."""
    text = f"{name}: share of examples with it by its probability"
    return diagram(_LabelDisplay(name, bins), text, _SMALL)


def shown(sample: Any) -> dict[str, str | None]:
    """A sample as a thumbnail or as a text; both are None of other samples."""
    found: dict[str, str | None] = {"thumbnail": None, "text": None}
    if sample is None:
        return found
    sample = np.asarray(sample)
    if sample.dtype.kind in "OSU":
        value = sample.reshape(-1)[0] if sample.size == 1 else sample.tolist()
        if isinstance(value, bytes):
            value = value.decode("utf-8", "replace")
        return {**found, "text": str(value)[:300]}
    if sample.ndim == 2:
        sample = sample[..., None]
    if sample.ndim != 3 or sample.shape[-1] not in (1, 3, 4):
        return found
    return {**found, "thumbnail": _data_uri(_png(sample), "image/png")}


def region_picture(crop: dict[str, np.ndarray] | None) -> str | None:
    """Input, labels, predictions and confidence, wrong pixels outlined."""
    if crop is None:
        return None
    colors = np.array(matplotlib_module().colormaps["tab20"].colors)
    tiles = [crop["image"]] if "image" in crop else []
    tiles += [colors[crop[x] % len(colors)] for x in ("label", "predicted")]
    tiles.append(crop["confidence"][..., None])
    scale = max(1, _THUMBNAIL // max(crop["wrong"].shape))
    wrong = (crop["wrong"] > 0).repeat(scale, 0).repeat(scale, 1)
    inner = binary_erosion(wrong, border_value=1)
    shown = []
    for tile in tiles:
        rgb = np.broadcast_to(tile, (*tile.shape[:2], 3)).astype("float64")
        rgb[~crop["counted"]] = 0.8
        rgb = rgb.repeat(scale, 0).repeat(scale, 1)
        rgb[binary_dilation(wrong) & ~inner] = 0.0
        rgb[wrong & ~inner] = (1.0, 1.0, 0.0)
        shown += [rgb, np.ones((len(rgb), 4, 3))]
    return _data_uri(_file(np.concatenate(shown[:-1], 1)), "image/png")


def _png(image: np.ndarray) -> bytes:
    """An image `(height, width, channels)` as a small PNG file."""
    pixels = as_picture("inputs", np.nan_to_num(image)[..., :3])
    pixels = pixels.reshape(*image.shape[:2], -1).astype("float32")
    scale = _THUMBNAIL / max(pixels.shape[:2])
    if scale < 1.0:
        size = [max(1, round(scale * side)) for side in pixels.shape[:2]]
        pixels = keras.ops.image.resize(
            pixels, size, antialias=True, data_format="channels_last"
        )
    pixels = np.clip(to_numpy(pixels), 0.0, 1.0)
    return _file(np.broadcast_to(pixels, (*pixels.shape[:2], 3)))


def _file(rgb: np.ndarray) -> bytes:
    file = io.BytesIO()
    matplotlib_module("image").imsave(file, rgb, format="png")
    return file.getvalue()


def _data_uri(data: bytes, kind: str) -> str:
    return f"data:{kind};base64,{base64.b64encode(data).decode('ascii')}"
