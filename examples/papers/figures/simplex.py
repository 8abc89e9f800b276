"""Targets of label smoothing and label relaxation among three classes."""

import numpy as np
from matplotlib.figure import Figure

import keras_calib

# Where each class is certain: below on the left, below on the right, above.
# Of height 1, so that a probability is the distance to the opposite side.
_CORNERS = np.array([[0.0, 0.0], [2.0, 0.0], [1.0, np.sqrt(3.0)]]) / np.sqrt(3)
_OBSERVED = 1
_BLUE, _ORANGE = "#0072B2", "#D55E00"
# Predictions whose loss is shown; the last two are in the set.
_OUTSIDE = np.array([[0.6, 0.3, 0.1], [0.15, 0.45, 0.4], [0.1, 0.1, 0.8]])
_INSIDE = np.array([[0.1, 0.88, 0.02], [0.03, 0.8, 0.17]])


def on_plane(probs):
    """Points `(..., 2)` of distributions `(..., 3)`.

    The probability of a class is the distance of its point to the side of the
    triangle that lies opposite the corner of the class.
    """
    return np.asarray(probs) @ _CORNERS


def targets_of(loss, probs, label=_OBSERVED):
    """What a loss asks for in place of the label, for each prediction.

    The distribution whose cross entropy pulls in the same direction: that of
    label smoothing, and the nearest of those that label relaxation allows.

    Args:
        loss: A loss of `keras_calib`, on logits.
        probs: Predictions `(n, 3)`, above 0.
        label: The observed class.

    Returns:
        Distributions `(n, 3)`.
    """
    logits = np.log(np.asarray(probs, "float64"))
    labels = np.full(len(logits), label)
    return np.asarray(
        keras_calib.losses.effective_labels(loss, labels, logits).labels
    )


def draw_targets(alpha, num_points=200):
    """Label Relaxation, figure 1: both targets, in two triangles.

    Left, label smoothing pulls every prediction to one distribution between the
    label and the uniform one. Right, label relaxation allows all distributions
    of the shaded set, and pulls a prediction outside to the nearest of them.
    Grey lines are of equal loss.

    Args:
        alpha: Argument of both losses.
        num_points: Predictions along a side, for the lines of equal loss.
    """
    figure = Figure(figsize=(10, 4.5), layout="constrained")
    axes = figure.subplots(1, 2)
    options = {"from_logits": True}
    smoothing = keras_calib.LabelSmoothing(alpha=alpha, **options)
    relaxation = keras_calib.LabelRelaxation(alpha=alpha, **options)
    for ax, loss in zip(axes, (smoothing, relaxation), strict=True):
        _draw_losses(ax, loss, num_points)
        _draw_triangle(ax)
    uniform = np.full((1, 3), 1 / 3)
    own = targets_of(smoothing, uniform)
    _draw_smoothing(axes[0], own, uniform)
    _draw_relaxation(axes[1], relaxation, alpha)
    axes[0].set_title(f"Label smoothing, $\\alpha$ = {alpha:g}", pad=12)
    axes[1].set_title(f"Label relaxation, $\\alpha$ = {alpha:g}", pad=12)
    return figure


def _draw_losses(ax, loss, num_points):
    """Lines of equal loss over the least, at equal steps of its root."""
    steps = (np.arange(num_points) + 0.5) / num_points
    first, second = np.meshgrid(steps, steps)
    # All of the triangle, without its sides, where logits are infinite.
    probs = np.stack(
        [first * (1 - second), first * second, 1 - first], -1
    ).reshape(-1, 3)
    labels = np.full(len(probs), _OBSERVED)
    losses = np.asarray(loss.call(np.eye(3)[labels], np.log(probs)))
    levels = np.linspace(0.0, 1.5, 13)[1:] ** 2
    ax.tricontour(
        *on_plane(probs).T,
        losses - losses.min(),
        levels,
        colors="0.75",
        linewidths=0.7,
    )


def _draw_triangle(ax):
    ax.fill(*_CORNERS.T, fill=False, edgecolor="k", lw=1.2)
    names = ["class 1", "class 2\n(observed)", "class 3"]
    places = [("right", "top"), ("left", "top"), ("center", "bottom")]
    for corner, name, (ha, va) in zip(_CORNERS, names, places, strict=True):
        away = 0.03 * (corner - _CORNERS.mean(axis=0))
        ax.text(*(corner + away), name, ha=ha, va=va, fontsize=9)
    ax.set_aspect("equal")
    ax.set_axis_off()
    ax.margins(0.12, 0.05)


def _draw_smoothing(ax, own, uniform):
    corner, target, middle = (
        on_plane(x)[0] for x in (np.eye(3)[[_OBSERVED]], own, uniform)
    )
    ax.plot(*zip(corner, middle, strict=True), color="0.4", ls=":", lw=1)
    _arrow(ax, corner, target, _ORANGE)
    for point, name, color, away in (
        (corner, "$p$", "k", (5, 6)),
        (target, "$p^s$", _ORANGE, (-12, -15)),
        (middle, "$u$", "0.4", (-12, 4)),
    ):
        _dot(ax, point, color)
        _name(ax, point, name, color, away)
    for number, point in enumerate(on_plane(_OUTSIDE), 1):
        _arrow(ax, point, target, _BLUE)
        _dot(ax, point, _BLUE)
        _name(ax, point, rf"$\hat{{p}}_{number}$", _BLUE, (-20, 2))


def _draw_relaxation(ax, loss, alpha):
    # All that give the observed class 1 - alpha and more.
    edge = np.eye(3) * alpha + np.eye(3)[_OBSERVED] * (1 - alpha)
    ax.fill(*on_plane(edge).T, color=_ORANGE, alpha=0.2, lw=0)
    inside = on_plane(edge.mean(axis=0))
    ax.annotate(
        r"$\mathcal{Q}^\alpha$",
        inside,
        (inside[0] + 0.12, inside[1] + 0.28),
        color=_ORANGE,
        arrowprops={"arrowstyle": "-", "color": _ORANGE, "lw": 0.7},
    )
    corner = on_plane(np.eye(3)[_OBSERVED])
    _dot(ax, corner, "k")
    _name(ax, corner, "$p$", "k")
    nearest = on_plane(targets_of(loss, _OUTSIDE))
    for number, pair in enumerate(
        zip(on_plane(_OUTSIDE), nearest, strict=True), 1
    ):
        _arrow(ax, *pair, _BLUE)
        _dot(ax, pair[0], _BLUE)
        _name(ax, pair[0], rf"$\hat{{p}}_{number}$", _BLUE, (-20, 2))
        _dot(ax, pair[1], _ORANGE)
    free = on_plane(targets_of(loss, _INSIDE))
    ax.plot(*free.T, "o", mfc="white", mec=_ORANGE, ms=6, zorder=4)


def _arrow(ax, start, end, color):
    style = {"arrowstyle": "-|>", "color": color, "shrinkA": 4, "shrinkB": 4}
    ax.annotate("", end, start, arrowprops=style)


def _dot(ax, point, color):
    ax.plot(*point, "o", color=color, ms=6, zorder=4)


def _name(ax, point, name, color, away=(5, 6)):
    ax.annotate(
        name, point, away, textcoords="offset points", color=color, zorder=5
    )
