"""Test data mixed with others: what is accepted of both, and a picture."""

import keras
import numpy as np

import keras_calib
from results.runs import read_predictions
from results.selections import log_odds, scores_of

# What is drawn of each run: its name, its line, and how dark its bar is.
_DRAWN = {"msp": ("softmax", "-", 1.0), "norm": ("normalised", "--", 0.55)}
# Okabe and Ito's palette.
_COLORS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9")
# Coverages of the points of a curve.
_SHARES = np.arange(1, 501) / 500


def mixed(folder, other, coverage=0.1):
    """What a run's scores accept of its test data and others together.

    Args:
        folder: Folder of a run.
        other: Name of predictions on the other data, which evaluate.py made.
        coverage: Share of both that is accepted.

    Returns:
        A row, and curves `{score: risks (500,)}` at coverages 0.002, 0.004 to
        1. For each of `selections.scores_of` the row has the AURC of both
        together. It also has the shares of the accepted that are errors on
        the test data and on the other data. With --foreign of evaluate.py,
        which the row states, all other data are errors.
    """
    parts = [read_predictions(folder, part) for part in ("test", other)]
    labels, logits = (np.concatenate(both) for both in zip(*parts, strict=True))
    others = np.repeat([False, True], [len(part[0]) for part in parts])
    predicted = np.argmax(logits, axis=-1)
    wrong = predicted != labels
    # An unknown class is none of the logits': any that is not predicted.
    known = np.where(wrong, (predicted + 1) % logits.shape[-1], predicted)
    places = np.round(_SHARES * len(labels)).astype(int).clip(1)
    row, curves = {}, {}
    for name, score in scores_of(folder).items():
        values = (
            log_odds(logits)
            if name == "msp"
            else keras.ops.convert_to_numpy(score(logits))
        )
        row[f"aurc_mixed_{name}"] = keras_calib.aurc(
            known, logits, score=lambda _, x=values: x, from_logits=True
        )
        order = np.argsort(-values, kind="stable")
        accepted = order[: round(coverage * len(labels))]
        for origin, part in (("own", ~others), ("other", others)):
            errors = (wrong & part)[accepted]
            row[f"errors_{origin}_{name}"] = float(errors.mean())
        curves[name] = wrong[order].cumsum()[places - 1] / places
    return {**row, "foreign": bool((parts[1][0] == -1).all())}, curves


def draw_mixtures(found, path, coverage=0.1):
    """Risk against coverage of the mixture, and errors at one coverage.

    Args:
        found: `{name: results of mixed, one per seed}`; means are drawn.
        path: Path of the PNG file.
        coverage: The coverage that was given to `mixed`.

    Reference:
        Xia et al., Understanding Why Label Smoothing Degrades Selective
        Classification and How to Fix It, 2024, figures 8 and 11.
    """
    import matplotlib.pyplot as plt

    figure, (left, right) = plt.subplots(
        1,
        2,
        figsize=(10, 3.2 + 0.45 * len(found)),
        layout="constrained",
    )
    ticks, highest, handles = {}, 0.0, []
    for place, (name, runs) in enumerate(found.items()):
        color = _COLORS[place % len(_COLORS)]
        handles.append(plt.Rectangle((0, 0), 1, 1, color=color, label=name))
        for down, (score, (title, line, dark)) in enumerate(_DRAWN.items()):
            risk = np.mean([curves[score] for _, curves in runs], axis=0)
            left.plot(_SHARES, risk, line, color=color)
            own, other = (
                np.mean([row[f"errors_{origin}_{score}"] for row, _ in runs])
                for origin in ("own", "other")
            )
            at = place + 0.38 * down - 0.19
            bar = {"height": 0.34, "edgecolor": color, "alpha": dark}
            right.barh(at, own, color=color, **bar)
            right.barh(at, other, left=own, color="white", hatch="///", **bar)
            right.text(own + other, at, f" {own + other:.3f}", va="center")
            ticks[at] = title
            highest = max(highest, own + other)
    left.axvline(coverage, color="black", lw=0.8, ls=(0, (1, 2)))
    left.set(
        xlim=(0, 1),
        ylim=(0, None),
        xlabel="coverage of test and other data together",
        ylabel="risk (error rate of the accepted)",
    )
    right.set_yticks(list(ticks), ticks.values())
    right.invert_yaxis()
    right.set_xlim(0, max(1.15 * highest, 1e-3))
    right.set_xlabel(f"errors among the surest {coverage:.0%}")
    grey = {"color": "#555555"}
    handles += [
        plt.Line2D([], [], ls=line, label=title, **grey)
        for title, line, _ in _DRAWN.values()
    ]
    for title, look in (("test data", {}), ("other data", {"hatch": "////"})):
        look = {"facecolor": "white" if look else "#555555", **look}
        handles.append(
            plt.Rectangle(
                (0, 0), 1, 1, edgecolor="#555555", label=title, **look
            )
        )
    figure.legend(
        handles=handles,
        loc="outside upper center",
        ncols=min(len(handles), 4),
        frameon=False,
        fontsize=9,
    )
    for ax in (left, right):
        ax.grid(alpha=0.3, axis="both" if ax is left else "x")
        ax.set_axisbelow(True)
        ax.spines[["top", "right"]].set_visible(False)
    figure.savefig(path, dpi=150)
    plt.close(figure)
