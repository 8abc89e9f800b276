"""Measures of runs against one hyperparameter: means, a test, a picture."""

import re

import numpy as np
from absl import app
from scipy.stats import page_trend_test

from results.pairs import LEVEL, mean_text, p_equation, spread

# What is drawn into one panel, and the legend.
_SUFFIXES = {
    "": "as trained",
    "_norm": "normalised logits",
    "_norm_raw": "normalised, uncentred",
}
_COLORS = ("#0072B2", "#D55E00", "#009E73")


def rows_of(setups, option, method, at_zero):
    """Rows of runs by the value of one argument of their loss.

    Args:
        setups: As of `comparisons.grouped`.
        option: Name of the argument, as it stands in `options`.
        method: Runs of this method count, and of those whose name begins
            with it and an underscore.
        at_zero: Method whose runs have the value 0, or None. Where the
            method has runs of the value 0 itself, these are not taken.

    Returns:
        `{set-up: {value: {seed: row}}}`, values in order. Runs that
        diverged, held data out or were tuned are left out.

    Raises:
        app.UsageError: If there are no such runs, two of one value and seed,
            or runs whose other options differ.
    """
    found, others = {}, {}
    pattern = re.compile(rf"(?:^| ){re.escape(option)}=(\S+)")
    for setup, methods in setups.items():
        own, zero = {}, {}
        for name, rows in methods.items():
            for row in rows.values():
                plain = not row.get("tuned") and "held out" not in name
                if row["diverged"] or not plain:
                    continue
                text = str(row["options"])
                match = pattern.search(text)
                if f"{row['method']}_".startswith(f"{method}_") and match:
                    rest = pattern.sub("", text).strip()
                    others.setdefault(setup, {}).setdefault(rest, name)
                    _add(own, float(match[1]), row, name)
                elif row["method"] == at_zero:
                    _add(zero, 0.0, row, name)
        if own:
            found[setup] = dict(sorted({**zero, **own}.items()))
    if not found:
        raise app.UsageError(
            f"Name runs whose `options` have {option}=, of --method. "
            f"Received: --of={option}, --method={method}"
        )
    for setup, rest in others.items():
        if len(rest) > 1:
            raise app.UsageError(
                f"Runs of one trend must differ in {option} and seed alone; "
                "choose other folders or --method. "
                f"Received: {setup}: {list(rest.values())} with {list(rest)}"
            )
    return found


def page(table):
    """Page's test of a trend, two-sided.

    Args:
        table: Values `(seeds, settings)`, settings in order.

    Returns:
        `("rises" or "falls", p)`, or None of fewer than two seeds or three
        settings. p is twice the smaller of the two one-sided values.
    """
    table = np.asarray(table, float)
    if table.ndim < 2 or table.shape[0] < 2 or table.shape[1] < 3:
        return None
    up, down = (
        page_trend_test(part).pvalue for part in (table, table[:, ::-1])
    )
    word = "rises" if up <= down else "falls"
    return word, float(min(1.0, 2 * min(up, down)))


def summaries(values, measures):
    """What the runs of one set-up say of each measure.

    Args:
        values: `{value: {seed: row}}`.
        measures: Names of columns of the rows.

    Returns:
        `{measure: dict}` with `cells`, `{value: numbers}`; `seeds`, those
        that have each value; `trend`, of `page` on these. Measures that no
        run has are left out.
    """
    found = {}
    for measure in measures:
        cells = {
            value: {
                s: row[measure] for s, row in rows.items() if measure in row
            }
            for value, rows in values.items()
        }
        cells = {value: own for value, own in cells.items() if own}
        if not cells:
            continue
        seeds = sorted(set.intersection(*(set(own) for own in cells.values())))
        table = [[own[seed] for own in cells.values()] for seed in seeds]
        found[measure] = {
            "cells": {v: list(own.values()) for v, own in cells.items()},
            "seeds": seeds,
            "trend": page(table),
        }
    return found


def markdown(option, values, found):
    """A table of one set-up: a row per value, and one of the test.

    Args:
        option: Name of what varies.
        values: `{value: {seed: row}}`.
        found: As of `summaries`.
    """
    lines = [
        f"| {option} | seeds | " + " | ".join(found) + " |",
        "|---|---|" + "---|" * len(found),
    ]
    for value, rows in values.items():
        cells = [
            mean_text(part["cells"].get(value, ())) for part in found.values()
        ]
        lines.append(f"| {value:g} | {len(rows)} | " + " | ".join(cells) + " |")
    tests = [_test(part) for part in found.values()]
    lines.append("| trend | | " + " | ".join(tests) + " |")
    return "\n".join(lines)


def draw(option, setups, path):
    """Means and standard deviations against the value, a row per set-up.

    Args:
        option: Name of what varies.
        setups: `{set-up: summaries}`.
        path: Path of the PNG file.
    """
    import matplotlib.pyplot as plt

    bases = list(
        dict.fromkeys(
            _parts(name)[0] for found in setups.values() for name in found
        )
    )
    figure, grid = plt.subplots(
        len(setups),
        len(bases),
        figsize=(3.6 * len(bases) + 0.4, 2.7 * len(setups) + 0.6),
        squeeze=False,
        layout="constrained",
    )
    drawn = {}
    for axes, (setup, found) in zip(grid, setups.items(), strict=True):
        for ax, base in zip(axes, bases, strict=True):
            for name, part in found.items():
                if _parts(name)[0] != base:
                    continue
                suffix = _parts(name)[1]
                label = _SUFFIXES[suffix]
                drawn[label] = ax.errorbar(
                    list(part["cells"]),
                    [np.mean(own) for own in part["cells"].values()],
                    [spread(own) for own in part["cells"].values()],
                    marker="o",
                    ms=4,
                    lw=1.4,
                    capsize=2.5,
                    color=_COLORS[list(_SUFFIXES).index(suffix)],
                )
            ax.set_title(base.replace("_", " "), fontsize=10)
            ax.set_xlabel(option)
            ax.grid(alpha=0.3)
            ax.spines[["top", "right"]].set_visible(False)
        axes[0].set_ylabel(setup)
    figure.legend(
        drawn.values(),
        drawn,
        loc="outside upper center",
        ncols=len(drawn),
        frameon=False,
    )
    figure.savefig(path, dpi=150)
    plt.close(figure)


def _add(rows, value, row, name):
    own = rows.setdefault(value, {})
    if row["seed"] in own:
        raise app.UsageError(
            "Runs of one trend must differ in value or seed. "
            f"Received: {name}, value={value:g}, seed={row['seed']} twice"
        )
    own[row["seed"]] = row


def _parts(name):
    """A measure without what was done to the logits, and that."""
    for suffix in sorted(_SUFFIXES, key=len, reverse=True):
        if suffix and name.endswith(suffix):
            return name.removesuffix(suffix), suffix
    return name, ""


def _test(part):
    if part["trend"] is None:
        return "-"
    word, p = part["trend"]
    return f"{word}, {p_equation(p)}" + ("*" if p < LEVEL else "")
