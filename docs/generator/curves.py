"""Pictures of the method pages, drawn with the library itself."""

import io

import keras
import matplotlib as mpl
import numpy as np
from matplotlib.figure import Figure

import keras_calib
from keras_calib.backend.gradients import value_and_grad

_CLASSES = 10
_COLORS = ("#0072B2", "#D55E00", "#009E73")
_DASHES = ("-", "--", "-.")
_TICKS = (0.01, 0.1, 0.5, 0.9, 0.99, 0.999, 0.9999)
_SHARE_RIGHT = 0.75


def pulls(losses):
    """What losses of one prediction do to the logit of the true class.

    The other logits are equal.

    Args:
        losses: Name to a loss, as `keras_calib.losses.effective_labels` takes
            it.
    """
    log_odds = np.linspace(-6.0, 9.5, 311)
    logits = _one_logit(log_odds)
    found = {
        name: _pull(loss, logits)
        for name, loss in {"cross entropy": _cross_entropy(), **losses}.items()
    }
    return _drawn(log_odds, found, "probability of the true class")


def pulls_of_batch(losses):
    """The same of losses of a batch, whose logits move together.

    All of 40 predictions are of one class and equally sure; 30 are right.
    """
    step = np.log(_SHARE_RIGHT / (1 - _SHARE_RIGHT)) + np.array([-0.01, 0.01])
    log_odds = np.sort(np.r_[np.linspace(-1.0, 9.5, 36), step])
    labels = np.zeros(40, "int32")
    labels[30:] = 1 + np.arange(10) % (_CLASSES - 1)
    row = np.eye(_CLASSES, dtype="float32")[0]

    def pull(loss, distance):
        gradient = value_and_grad(
            lambda d: loss(labels, keras.ops.ones((40, 1)) * row * d),
            np.float32(distance),
        )[1]
        return -float(gradient)

    found = {
        name: [pull(loss, x + np.log(_CLASSES - 1)) for x in log_odds]
        for name, loss in {"cross entropy": _cross_entropy(), **losses}.items()
    }
    return _drawn(log_odds, found, "confidence", mark=_SHARE_RIGHT)


def ranking():
    """Cross entropy and CRL between two neighbours of the same record."""
    log_odds = np.linspace(-1.5, 7.0, 171)
    neighbour = _one_logit(np.full(len(log_odds), np.log(0.8 / 0.2)))
    both = np.stack([_one_logit(log_odds), neighbour], axis=1)
    found = {"cross entropy": _pull(_cross_entropy(), both[:, 0])}
    for correctness in (0.9, 0.4):
        record = np.tile([correctness, 0.7], len(log_odds)).astype("float32")

        def loss(z, record=record):
            rows = keras.ops.reshape(z, (-1, _CLASSES))
            pairs = keras_calib.losses.correctness_ranking(rows, record)
            own = -keras.ops.log_softmax(z[:, 0])[:, 0]
            return keras.ops.sum(own) + keras.ops.sum(pairs)

        gradient = value_and_grad(loss, both.astype("float32"))[1]
        name = f"CRL, right in {10 * correctness:.0f} of 10"
        pull = -keras.ops.convert_to_numpy(gradient)[:, 0, 0]
        found[name] = pull
    return _drawn(log_odds, found, "probability of the true class")


def targets():
    """What CaPE's targets make of predictions that are twice too sure."""
    rng = np.random.default_rng(0)
    z = rng.normal(0.0, 3.0, 4000)
    truth = _sigmoid(z / 2)
    labels = (rng.random(4000) < truth).astype("int32")
    probs = _sigmoid(z)
    order = np.argsort(probs)
    found = {
        f'method="{method}"': keras.ops.convert_to_numpy(
            keras_calib.losses.cape_targets(
                labels, probs[:, None], method=method
            )
        )[order]
        for method in ("bins", "kernel")
    }
    return _drawn_map(probs[order], found, truth[order], "target")


def confidence_maps(calibrators):
    """What calibrators do to the probability of the second of two classes."""
    rng = np.random.default_rng(0)
    z = rng.normal(0.0, 3.0, 6000)
    labels = (rng.random(6000) < _true_share(z)).astype("int32")
    logits = np.stack([np.zeros_like(z), z], axis=1)
    grid = np.linspace(0.002, 0.998, 499)
    z = np.log(grid) - np.log1p(-grid)
    found = {}
    for name, calibrator in calibrators.items():
        calibrator.fit(labels, logits)
        mapped = calibrator(np.stack([np.zeros_like(z), z], axis=1))
        probs = keras.ops.convert_to_numpy(keras.ops.softmax(mapped))
        found[name] = probs[:, 1]
    return _drawn_map(grid, found, _true_share(z), "probability after")


def _true_share(z):
    """Overconfident, more so of the first class, and shifted."""
    return _sigmoid(np.where(z < 0, 0.4, 0.7) * z - 0.5)


def _sigmoid(z):
    return 1.0 / (1.0 + np.exp(-z))


def _one_logit(log_odds):
    logits = np.zeros((len(log_odds), _CLASSES))
    logits[:, 0] = log_odds + np.log(_CLASSES - 1)
    return logits


def _cross_entropy():
    return keras.losses.SparseCategoricalCrossentropy(from_logits=True)


def _pull(loss, logits):
    """Minus the gradient by the true logit: the label asked for less p."""
    logits = logits.astype("float32")
    asked = keras_calib.losses.effective_labels(
        loss, np.zeros(len(logits), "int32"), logits
    )
    p = keras.ops.softmax(keras.ops.convert_to_tensor(logits))
    return keras.ops.convert_to_numpy(asked.labels - p)[:, 0]


def _drawn(log_odds, found, what, mark=None):
    figure, ax = _axes()
    ax.axhline(0.0, color="#999999", linewidth=0.8)
    if mark is not None:
        ax.axvline(np.log(mark / (1 - mark)), color="#999999", linestyle=":")
    for i, (name, pull) in enumerate(found.items()):
        style = {"color": "black", "linestyle": ":"}
        if i:
            style = {"color": _COLORS[i - 1], "linestyle": _DASHES[i - 1]}
        ax.plot(log_odds, pull, label=name, linewidth=1.8, **style)
    # A penalty without bound would leave the rest flat.
    low = max(-1.05, min(-0.1, *(np.min(pull) for pull in found.values())))
    high = min(2.6, max(np.max(pull) for pull in found.values()))
    shown = [p for p in _TICKS if log_odds[0] <= np.log(p / (1 - p))]
    ax.set_xticks([np.log(p / (1 - p)) for p in shown], map(str, shown))
    ax.set(
        xlim=(log_odds[0], log_odds[-1]),
        ylim=(low - 0.03, 1.05 * high),
        xlabel=f"{what} (log-odds scale)",
        ylabel="pull on its logit\n(minus the gradient)",
    )
    return _svg(figure, ax)


def _drawn_map(p, found, truth, what):
    figure, ax = _axes()
    ax.plot([0, 1], [0, 1], color="#999999", linewidth=0.8, label="no change")
    ax.plot(p, truth, color="black", linestyle="--", label="true probability")
    for i, (name, values) in enumerate(found.items()):
        ax.plot(p, values, color=_COLORS[i], linewidth=1.8, label=name)
    ax.set(
        xlim=(0, 1),
        ylim=(0, 1),
        xlabel="probability of the second class before",
        ylabel=what,
    )
    return _svg(figure, ax)


def _axes():
    figure = Figure(figsize=(5.4, 3.4), layout="constrained")
    ax = figure.add_subplot()
    ax.spines[["top", "right"]].set_visible(False)
    ax.grid(alpha=0.25)
    return figure, ax


def _svg(figure, ax):
    ax.legend(frameon=False, fontsize=10)
    file = io.BytesIO()
    style = {"svg.fonttype": "none", "svg.hashsalt": "calib"}
    with mpl.rc_context(style):
        figure.savefig(file, format="svg", metadata={"Date": None})
    return file.getvalue()
