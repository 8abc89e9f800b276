"""Logits of a network, of its correct and of its wrong predictions."""

import keras
import numpy as np
from matplotlib.figure import Figure

import keras_calib
from keras_calib.plots.display import (
    BLUE,
    ORANGE,
    draw_band,
    legend,
    line_style,
)

_EDGES = (0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 1.0)


def draw_max_logit(labels, logits, width=0.05):
    """Xia et al., figure 9, right: the largest logit against confidence.

    Where the lines of correct and of wrong predictions lie apart, the largest
    logit tells more than the confidence.

    Args:
        labels: Class ids `(n,)`.
        logits: Shape `(n, num_classes)`.
        width: Width of the window of the means.
    """
    confidence = keras.ops.convert_to_numpy(keras_calib.functional.msp(logits))
    correct = logits.argmax(-1) == labels
    figure = Figure(figsize=(5.6, 4.2), layout="constrained")
    ax = figure.subplots()
    centers = np.linspace(0.0, 1.0, 201)
    kinds = {"correct": correct, "wrong": ~correct}
    for i, (name, rows) in enumerate(kinds.items()):
        highest = logits[rows].max(-1)
        line = sliding(confidence[rows], highest, centers, width)
        _draw_line(ax, centers, *line, name, i)
    ax.set(
        xlim=(0, 1),
        xlabel="confidence of the predicted class",
        ylabel="largest logit",
        title="Largest logit, mean ± deviation",
    )
    legend(ax, loc="upper left")
    return figure


def draw_normalized_logit(logits, p):
    """Xia et al., figure 19: normalized against plain largest logit.

    A line for each range of the confidence. Where it falls, normalization
    lowers samples whose logit is large for their confidence.

    Args:
        logits: Shape `(n, num_classes)`.
        p: Order of the norm.
    """
    confidence = keras.ops.convert_to_numpy(keras_calib.functional.msp(logits))
    score = keras.ops.convert_to_numpy(
        keras_calib.functional.p_norm(logits, p=p)
    )
    figure = Figure(figsize=(5.6, 4.2), layout="constrained")
    ax = figure.subplots()
    for i, (low, high) in enumerate(zip(_EDGES, _EDGES[1:], strict=False)):
        rows = (confidence > low) & (confidence <= high)
        if not rows.any():
            continue
        highest = logits[rows].max(-1)
        # The outer tenth is too sparse for a mean.
        first, last = np.quantile(highest, (0.05, 0.95))
        centers = np.linspace(first, last, 41)
        line = sliding(highest, score[rows], centers, (last - first) / 8)
        _draw_line(ax, centers, *line, f"{low:g} to {high:g}", i)
    ax.set(
        xlabel="largest logit",
        ylabel=f"largest logit over the {p:g}-norm",
        title="Normalized logit, mean ± deviation",
    )
    legend(ax, title="confidence")
    return figure


def draw_sorted_logits(labels, logits, p, top=20):
    """Xia et al., figure 18: sorted logits, plain, to a power, exponentials.

    Args:
        labels: Class ids `(n,)`.
        logits: Shape `(n, num_classes)`.
        p: The power.
        top: Number of the largest logits to draw.
    """
    correct = logits.argmax(-1) == labels
    ordered = -np.sort(-logits.astype("float64"), axis=-1)[:, :top]
    kinds = {
        "logit": ordered,
        f"logit to the power {p:g}": np.sign(ordered) * np.abs(ordered) ** p,
        "exponential of the logit": np.exp(ordered),
    }
    figure = Figure(figsize=(10.0, 3.6), layout="constrained")
    axes = figure.subplots(1, 3)
    ranks = np.arange(1, ordered.shape[-1] + 1)
    for ax, (what, values) in zip(axes, kinds.items(), strict=True):
        for name, rows, shift, color, marker in (
            ("correct", correct, -0.15, BLUE, "o"),
            ("wrong", ~correct, 0.15, ORANGE, "s"),
        ):
            if rows.any():
                ax.errorbar(
                    ranks + shift,
                    values[rows].mean(0),
                    yerr=values[rows].std(0),
                    color=color,
                    marker=marker,
                    markersize=3,
                    linewidth=1,
                    capsize=2,
                    label=name,
                )
        ax.set(xlabel="rank of the logit", ylabel=what)
    axes[2].set_yscale("log", nonpositive="clip")
    axes[1].set_title("Sorted logits, mean ± deviation")
    legend(axes[0])
    return figure


def sliding(places, values, centers, width, at_least=5):
    """Mean and deviation of the values whose places are in each window.

    Args:
        places: Shape `(n,)`.
        values: Shape `(n,)`.
        centers: Middles of the windows, which include both ends.
        width: Width of a window.
        at_least: Least number of values in a window; else NaN.
    """
    order = np.argsort(places, kind="stable")
    places, values = places[order], values[order].astype("float64")
    first = np.searchsorted(places, centers - width / 2, side="left")
    last = np.searchsorted(places, centers + width / 2, side="right")
    found = np.full((2, len(centers)), np.nan)
    for i, window in enumerate(map(slice, first, last)):
        if len(inside := values[window]) >= at_least:
            found[:, i] = inside.mean(), inside.std()
    return found


def _draw_line(ax, centers, mean, deviation, name, i):
    """A line of means, in a band of deviations."""
    style = line_style(i)
    draw_band(ax, centers, mean - deviation, mean + deviation, style["color"])
    ax.plot(centers, mean, label=name, **style)
