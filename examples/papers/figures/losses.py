"""What losses ask of a prediction, and what they add to cross entropy."""

from pathlib import Path

import keras
import numpy as np
from absl import app, flags
from config import recipe_flags
from config.losses import build_loss
from matplotlib.figure import Figure

import keras_calib
from keras_calib.plots.display import COLORS, GREY, legend, line_style

_RECIPES = Path(__file__).parents[1] / "recipes" / "losses"
_NUM_POINTS = 241


def losses_named(names, setup):
    """The losses of some recipes, by their names.

    Args:
        names: Names of files of `recipes/losses`.
        setup: A `Setup`, whose margin they get.

    Raises:
        app.UsageError: If a name is not that of a recipe with a loss.
    """
    found = {}
    for name in names:
        path = _RECIPES / f"{name}.flags"
        if path.is_file():
            values = flags.FlagValues()
            recipe_flags.define(values)
            values(["", f"--flagfile={path}"])
            _, method, _ = recipe_flags.read(values)
            found[name] = build_loss(method, setup)
        if found.get(name) is None:
            raise app.UsageError(
                "`--losses` must name recipes of recipes/losses, whose model "
                f"has no loss of its own. Received: --losses={name}"
            )
    return found


def loss_curves(losses, num_classes):
    """Losses of one prediction against the probability of its label.

    The rest of the probability is spread evenly over the other classes.

    Args:
        losses: Losses on logits, by name.
        num_classes: Number of classes, at least 2.

    Returns:
        Probabilities `(num_points,)`, and the values of each loss there.
    """
    p = np.linspace(0.002, 0.998, _NUM_POINTS)
    others = np.log((1.0 - p) / (num_classes - 1))
    logits = np.repeat(others[:, None], num_classes, axis=1)
    logits[:, 0] = np.log(p)

    def values(loss, labels, rows):
        if isinstance(loss, keras.losses.CategoricalCrossentropy):
            labels = np.eye(num_classes)[labels]
        return loss.call(labels, rows)

    return p, _of_each(values, losses, logits)


def smoothing(losses, num_classes, highest=15.0):
    """What losses take off the predicted class, and add to each other one.

    Args:
        losses: Losses on logits, by name.
        num_classes: Number of classes, at least 2.
        highest: Largest logit of the right class; the others are 0.

    Returns:
        Logits of the right class `(num_points,)`, and by the name of a loss
        both smoothings, `(num_points, 2)`.
    """
    logits = np.zeros((_NUM_POINTS, num_classes))
    logits[:, 0] = np.linspace(0.0, highest, _NUM_POINTS)
    # At 0 all classes would tie.
    logits[0, 0] = 1e-3

    def both(loss, labels, rows):
        found = keras_calib.losses.effective_labels(loss, labels, rows)
        other = np.sum(found.other_smoothing, axis=-1) / (num_classes - 1)
        return np.stack([found.predicted_smoothing, other], axis=-1)

    return logits[:, 0], _of_each(both, losses, logits)


def draw_loss_curves(losses, num_classes):
    """Label Relaxation, figure 2: losses against the probability."""
    p, found = loss_curves(losses, num_classes)
    figure = Figure(figsize=(5.6, 4.2), layout="constrained")
    ax = figure.subplots()
    for i, (name, values) in enumerate(found.items()):
        ax.plot(p, values, label=name, **line_style(i))
    # The end of a logarithm would flatten all other curves.
    high = max(np.quantile(values, 0.97) for values in found.values())
    low = min(0.0, *(values.min() for values in found.values()))
    ax.set(
        xlim=(0, 1),
        ylim=(low - 0.03 * high, 1.05 * high),
        xlabel="probability of the label",
        ylabel="loss (nats)",
        title=f"Losses of one prediction of {num_classes} classes",
    )
    legend(ax)
    return figure


def draw_smoothing(losses, num_classes):
    """ACLS, figure 1: smoothing against the logit."""
    logit, found = smoothing(losses, num_classes)
    figure = Figure(figsize=(8.4, 3.6), layout="constrained")
    axes = figure.subplots(1, 2)
    titles = "taken off the predicted class", "added to each other class"
    for side, (ax, title) in enumerate(zip(axes, titles, strict=True)):
        for i, (name, both) in enumerate(found.items()):
            ax.plot(logit, both[:, side], label=name, **line_style(i))
        what = "logit of the right class, the others 0"
        ax.set(xlabel=what, ylabel="smoothing", title=title)
    legend(axes[0])
    return figure


def draw_effective_labels(losses, logits):
    """ACLS, table 2, at one prediction of class 0: bars of what is asked for.

    Args:
        losses: Losses on logits, by name.
        logits: Logits `(num_classes,)`.
    """
    rows = np.asarray(logits, "float32")[None]
    prediction = keras.ops.convert_to_numpy(keras.ops.softmax(rows))[0]
    series = {"prediction": prediction, "label": np.eye(len(prediction))[0]}
    for name, loss in losses.items():
        found = keras_calib.losses.effective_labels(loss, [0], rows)
        series[name] = keras.ops.convert_to_numpy(found.labels)[0]
    figure = Figure(figsize=(5.6, 4.2), layout="constrained")
    ax = figure.subplots()
    width, places = 0.8 / len(series), np.arange(len(prediction))
    colors = (GREY, *COLORS)
    for i, (name, values) in enumerate(series.items()):
        style = {"width": width, "color": colors[i % len(colors)]}
        ax.bar(places + (i + 0.5) * width - 0.4, values, label=name, **style)
    ax.axhline(0.0, color="black", linewidth=0.8)
    ax.set_xticks(places)
    ax.set(xlabel="class", ylabel="probability", title="Effective labels")
    legend(ax)
    return figure


def draw_regularizers(losses, labels, logits, highest):
    """ACLS, figure 3: the distribution of what losses add to cross entropy.

    Args:
        losses: Losses on logits, by name.
        labels: Class ids `(n,)`.
        logits: Shape `(n, num_classes)`.
        highest: Upper edge of the histogram, to which values are clipped.
    """
    figure = Figure(figsize=(5.6, 4.2), layout="constrained")
    ax = figure.subplots()
    for i, (name, loss) in enumerate(losses.items()):
        found = keras_calib.losses.regularizer_histogram(
            loss, labels, logits, limits=(0.0, highest)
        )
        text = f"{name} (0 for {100.0 * found.inactive_share:.1f} %)"
        shares = found.counts / found.counts.sum()
        ax.stairs(shares, found.edges, label=text, **line_style(i))
    ax.set(
        yscale="log",
        xlabel="regularizer (nats; the ends hold what lies beyond)",
        ylabel="share of samples",
        title="What losses add to cross entropy",
    )
    legend(ax)
    return figure


def _of_each(function, losses, logits):
    """Values of a function of each loss and rows of logits of class 0."""
    logits = logits.astype("float32")
    labels, found = np.zeros(len(logits), "int32"), {}
    for name, loss in losses.items():
        # A loss of the whole batch gets one prediction at a time.
        alone = isinstance(loss, keras_calib.losses.BatchCoupledLoss)
        size = 1 if alone else len(logits)
        found[name] = np.concatenate(
            [
                np.asarray(function(loss, labels[:size], logits[i : i + size]))
                for i in range(0, len(logits), size)
            ]
        )
    return found
