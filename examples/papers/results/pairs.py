"""Methods beside the first one, on the same seeds: verdicts, a picture."""

from typing import NamedTuple

import numpy as np

from keras_calib.functional.comparison import p_over_seeds
from keras_calib.functional.group_table import holm

# p below which a difference holds, after the correction for all tests of it.
LEVEL = 0.05
_ACCURACY, _ECE = 0, 2
# Okabe and Ito's palette: told apart by colour-blind readers.
_COLORS = {
    "beats": "#0072B2",
    "trades": "#E69F00",
    "fails": "#D55E00",
    "equals": "#777777",
    "-": "#000000",
}
_MEANINGS = {
    "beats": "lower ECE, accuracy not lower",
    "trades": "lower ECE, lower accuracy",
    "fails": "higher ECE or lower accuracy alone",
    "equals": "no difference that these seeds show",
}


class Row(NamedTuple):
    """A method beside the first one of its task.

    Attributes:
        values: Accuracy, NLL, ECE, AECE and 1000 AURC, `(seeds, 5)`.
        leads: Accuracies minus those of the first method on the same seeds.
        gap: Mean ECE minus that of the first method on the same seeds.
        error: Standard error of `gap`, 0 for one seed.
        ece: "lower", "equal" or "higher", by a paired t-test at 5 % after
            Holm's correction for both tests of all methods of the task. "-"
            for the first method, and for one seed.
        accuracy: The same comparison of accuracies.
        verdict: "beats", "trades", "fails" or "equals", as in the legend of
            the picture, or "-".
    """

    task: str
    method: str
    values: np.ndarray
    leads: np.ndarray
    gap: float
    error: float
    ece: str
    accuracy: str
    verdict: str


def summarize(values):
    """Rows of `{task: {method: (seeds, 5)}}`; without seeds that are NaN."""
    rows = []
    for task, methods in values.items():
        first = np.array(next(iter(methods.values())))
        kept, differences = {}, {}
        for method, found in methods.items():
            made = np.isfinite(found).all(axis=1)
            kept[method] = np.array(found)[made]
            differences[method] = kept[method] - first[made]
        tested = [m for m, g in differences.items() if len(g) > 1][1:]
        corrected = holm(
            [
                p_of_pairs(differences[method][:, at])
                for method in tested
                for at in (_ECE, _ACCURACY)
            ]
        ).reshape(-1, 2)
        p = dict(zip(tested, corrected, strict=True))
        for method, gaps in differences.items():
            found = kept[method]
            error = spread(gaps)[_ECE] / np.sqrt(len(gaps))
            words = [
                _compared(gaps[:, at], p[method][place]) if method in p else "-"
                for place, at in enumerate((_ECE, _ACCURACY))
            ]
            rows.append(
                Row(
                    task,
                    method,
                    found,
                    gaps[:, _ACCURACY],
                    gaps[:, _ECE].mean(),
                    error,
                    *words,
                    _verdict(*words),
                )
            )
    return rows


def draw(rows, path):
    """ECE, and what it costs in accuracy: a dot per seed, a bar at the mean."""
    import matplotlib.pyplot as plt

    baseline = rows[0].method.replace("_", " ")
    tasks = {}
    for row in sorted(rows, key=lambda row: row.values[:, _ECE].mean()):
        tasks.setdefault(row.task, []).append(row)
    figure, grid = plt.subplots(
        len(tasks),
        2,
        figsize=(9.5, 2.0 + 0.33 * len(rows)),
        height_ratios=[len(part) + 0.4 for part in tasks.values()],
        sharex="col",
        squeeze=False,
        layout="constrained",
    )
    for (left, right), part in zip(grid, tasks.values(), strict=True):
        first = next(row.values for row in rows if row.task == part[0].task)
        left.set_title(part[0].task, loc="left", fontsize=10, weight="bold")
        left.axvline(first[:, _ECE].mean(), color="k", ls="--", lw=0.9)
        right.axvline(0, color="k", ls="--", lw=0.9)
        for place, row in enumerate(part):
            _draw_seeds(left, place, row.values[:, _ECE], row.verdict)
            _draw_seeds(right, place, 100 * row.leads, row.verdict)
        left.set_yticks(range(len(part)), [row.method for row in part])
        right.set_yticks(range(len(part)), [])
        for ax in (left, right):
            ax.set_ylim(len(part) - 0.4, -0.6)
            ax.grid(axis="x", alpha=0.3)
            ax.spines[["top", "right"]].set_visible(False)
    left.set_xlim(left=0)
    left.set_xlabel("ECE, 15 bins (lower is better)")
    right.set_xlabel(f"accuracy less that of {baseline}, in points")
    figure.legend(
        handles=[
            plt.Line2D([], [], marker="o", ls="", color=_COLORS[v], label=text)
            for v, text in _MEANINGS.items()
            if any(row.verdict == v for row in rows)
        ],
        title=f"Beside {baseline} (dashed) on the same seeds: t-tests of pairs "
        f"at {LEVEL:.0%},\nafter Holm's correction for all tests of a set-up",
        loc="outside upper center",
        ncols=2,
        frameon=False,
    )
    figure.savefig(path, dpi=150)
    plt.close(figure)


def _draw_seeds(ax, place, values, verdict):
    color = _COLORS[verdict]
    ax.scatter(values, [place] * len(values), color=color, alpha=0.5, s=22)
    ax.plot([values.mean()] * 2, [place - 0.3, place + 0.3], color, lw=2.5)


def p_of_pairs(gaps):
    """p-value of a two-sided t-test of two or more paired differences."""
    return p_over_seeds(gaps, np.zeros(len(gaps)), paired=True)


def p_text(p):
    """Three decimals, or that it is below 0.001."""
    return "< 0.001" if p < 0.001 else f"{p:.3f}"


def p_equation(p):
    """`p = 0.012`, or `p < 0.001`."""
    return f"p {p_text(p)}" if p < 0.001 else f"p = {p_text(p)}"


def mean_text(values):
    """Mean and deviation over seeds, of several; "-" of none."""
    if not len(values):
        return "-"
    text = f"{np.mean(values):.4f}"
    if len(values) == 1 or not np.isfinite(values).all():
        return text
    return f"{text} ± {spread(values):.4f}"


def _compared(gaps, p):
    """What a corrected p says of paired differences; "-" if all are 0."""
    if not gaps.any():
        return "-"
    if p >= LEVEL:
        return "equal"
    return "lower" if gaps.mean() < 0 else "higher"


def _verdict(ece, accuracy):
    if ece == "lower":
        return "trades" if accuracy == "lower" else "beats"
    if ece == "higher" or accuracy == "lower":
        return "fails"
    return ece if ece == "-" else "equals"


def spread(values):
    """Standard deviation over seeds; 0 of one."""
    return np.std(values, axis=0, ddof=min(1, len(values) - 1))
