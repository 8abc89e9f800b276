"""Several models over several seeds: means, tests and tables of a paper."""

import csv
import itertools
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import field
from functools import partial
from pathlib import Path
from typing import Any, Self

import numpy as np

from keras_calib.backend.errors import type_error, value_error
from keras_calib.backend.progress import shows_progress
from keras_calib.formulas.intervals import tail_of
from keras_calib.formulas.proper import (
    brier_losses_of_rows,
    log_losses,
    losses_of_rows,
)
from keras_calib.functional.comparison import (
    check_same_rows,
    p_over_seeds,
    replicates,
)
from keras_calib.functional.group_table import holm
from keras_calib.inputs.batch import standardize_arrays
from keras_calib.inputs.checks import check_in, check_integer
from keras_calib.inputs.given_metrics import of_predictions, told_key
from keras_calib.inputs.top_label import top_of_arrays
from keras_calib.metrics.registry import QUANTITIES, Rank, mode_of
from keras_calib.numerics.arrays import as_array
from keras_calib.numerics.results import Result
from keras_calib.predictions.predictions import Predictions

_DEFAULT = ("accuracy", "ece", "nll", "aurc")
_LOSSES: dict[str, Callable] = {
    "nll": partial(losses_of_rows, log_losses),
    "brier_score": brier_losses_of_rows,
}
_TOP1 = {k for k, x in QUANTITIES.items() if not getattr(x, "point", None)}
_TOP1 -= {*_LOSSES, "objectness_deviation", "ecce_maximum"}
_ARROWS = {"min": " ↓", "max": " ↑", None: ""}
_LATEX = {x: f"\\{x}" for x in "&%$#_{}"}
_LATEX |= {"\\": r"\textbackslash{}", "~": r"\textasciitilde{}", "^": r"\^{}"}
_LATEX |= {"±": r"$\pm$", "†": r"$^\dagger$", ">": "$>$", "<": "$<$"}
_LATEX |= {"↓": r"$\downarrow$", "↑": r"$\uparrow$"}
_LATEX |= {"\0": r"\textbf{", "\1": "}"}


class Runs(Result):
    """Compare models that were trained with several seeds each.

    Use it for the table of a paper: the mean and the standard deviation of
    each metric over seeds, the best model, and those that are not shown to be
    worse. Print it, or take `to_markdown`, `to_latex`, `to_csv` or `to_frame`.
    `ReliabilityDisplay(runs.predictions)` and `RiskCoverageDisplay` draw means
    with bands over seeds.

    Another training differs by its seed, and another test set by its rows.
    The test of two models counts both. Its variance is that of means over
    seeds, as in Welch's t-test, and the covariance over rows of different
    seeds, from a bootstrap that repeats the same rows for all runs. Without
    predictions it is Welch's t-test, about these test rows. With one seed each
    it is about these trainings.

    The best model of a metric was chosen by the data. So Holm's correction
    counts all pairs of models of the metric, whichever is the best. It does
    not count metrics.

    Args:
        predictions: `{model: [Predictions of a seed, ...]}`, all of the same
            test rows. Models may have different numbers of seeds.
        metrics: Keys, functions, metric classes or new objects, as
            `keras_calib.metrics.get` takes them. By default accuracy, ECE, NLL
            and AURC, of those that there are.
        modes: `"min"`, `"max"` or None by the name of a metric, if this
            library does not know which is better.
        paired: Whether seeds at the same place of two models belong together,
            as with the same initial weights and order of the data.
        baseline: Model that each other one is compared with, in place of the
            best. Holm's correction then counts these comparisons.
        level: 1 less the probability that a metric has a false difference.
        num_draws: Number of replicates of the bootstrap, at least 2.
        seed: Seed of the replicates.
        verbose: As in `compare`.

    Raises:
        TypeError: If a run is no `Predictions`, or a metric is none.
        ValueError: If runs are not of the same rows, there is no run, two
            metrics have one name, or `paired` runs have no partner.

    Attributes:
        table: Columns by name: `metric`, `model`, number of `seeds` that have
            a value, `mean`, `sd`, whether it is the `best`, `difference` to
            the best or baseline, over pairs if `paired`, `p_value`, `p_holm`,
            `text`, and whether it is `marked`: not shown to be worse than the
            best, or shown to differ from the baseline.
        values: Value of each seed, by metric and model.
        predictions: As given, or None.
        legend: What the marks mean, and the test.

    Example:

    >>> runs = Runs.of_table({
    ...     "model": ["CE"] * 3 + ["MbLS"] * 3, "seed": [0, 1, 2] * 2,
    ...     "ece": [0.051, 0.055, 0.052, 0.021, 0.024, 0.025]})
    >>> print(runs.to_markdown().splitlines()[3])
    | MbLS | 3 | **0.0233 ± 0.0021** |

    Reference:
        Obuchowski and Rockette, Hypothesis Testing of Diagnostic Accuracy for
        Multiple Readers and Multiple Tests, Communications in Statistics 1995,
        https://doi.org/10.1080/03610919508813243 (rows and seeds); Holm, A
        Simple Sequentially Rejective Multiple Test Procedure, Scandinavian
        Journal of Statistics 1979
    """

    table: dict[str, np.ndarray]
    values: dict[str, dict[str, np.ndarray]]
    modes: dict[str, str | None]
    legend: str
    predictions: Any = field(default=None, compare=False, repr=False)

    @shows_progress
    def __init__(
        self,
        predictions: Mapping[str, Sequence[Predictions]],
        metrics: Sequence[Any] | None = None,
        *,
        modes: Mapping[str, str | None] | None = None,
        paired: bool = False,
        baseline: str | None = None,
        level: float = 0.95,
        num_draws: int = 200,
        seed: int = 0,
        verbose: str | int = "auto",
    ):
        check_integer("num_draws", num_draws, 2)
        if not all(type(x) in (list, tuple) for x in predictions.values()):
            raise type_error(
                "`predictions` must be a dict of lists of `Predictions`, one "
                "for each seed",
                predictions={k: type(x) for k, x in predictions.items()},
            )
        runs = {
            f"{model}[{i}]": p
            for model, own in predictions.items()
            for i, p in enumerate(own)
        }
        if not runs or not all(predictions.values()):
            rule = "`predictions` must have models with a run each"
            raise value_error(rule, predictions=predictions)
        check_same_rows(runs)
        first, *_ = given = [*runs.values()]
        if metrics is None:
            is_log = first.kind == "records"
            metrics = [x for x in _DEFAULT if not (is_log and x in _LOSSES)]
        named = _named(metrics)
        functions = [f(p) for f, _ in named.values() for p in given]
        found = np.array([f(first.sample_weight) for f in functions])
        drawn = replicates(functions, given, num_draws, seed)
        shape = len(named), len(runs)
        ends = np.cumsum([len(x) for x in predictions.values()])[:-1]
        values = {
            name: dict(zip(predictions, np.split(row, ends), strict=True))
            for name, row in zip(named, found.reshape(shape), strict=True)
        }
        units = [len({*p.units}) for p in given if p.units is not None]
        self._set(
            values,
            {k: mode for k, (_, mode) in named.items()} | {**(modes or {})},
            {k: [*range(len(x))] for k, x in predictions.items()},
            (paired, baseline, level),
            drawn.reshape(-1, *shape),
            (len(first), *units)[:2],
        )
        vars(self)["predictions"] = predictions

    @classmethod
    def of_table(
        cls,
        table: Any,
        metrics: Sequence[str] | None = None,
        *,
        model: str | Sequence[str] = "model",
        seed: str = "seed",
        where: Mapping[str, Any] | None = None,
        modes: Mapping[str, str | None] | None = None,
        paired: bool = False,
        baseline: str | None = None,
        level: float = 0.95,
    ) -> Self:
        """The same of finished results, a row for each run.

        Args:
            table: A `.csv` file, a pandas `DataFrame` or a dict of columns.
            metrics: Names of columns. An empty cell is a run without a value,
                such as one that diverged. By default those of accuracy, ECE,
                NLL and AURC that there are.
            model: Column of the model, or several that name it together.
            seed: Column of the seed, by which `paired` runs find each other.
            where: Value of a column that rows must have, by its name.
            modes, paired, baseline, level: As of `Runs`.

        Raises:
            ValueError: If a column is missing, a value is no number, or a
                model has two rows of a seed.
        """
        columns, where = _columns_of(table), dict(where or {})
        models = [model] if isinstance(model, str) else [*model]
        if metrics is None:
            metrics = [x for x in _DEFAULT if x in columns] or [*_DEFAULT]
        for name in (*models, seed, *metrics, *where):
            check_in("table", name, [*columns])
        found: dict[str, dict[str, list[float]]] = {}
        for number, cells in enumerate(zip(*columns.values(), strict=True), 1):
            row = dict(zip(columns, cells, strict=True))
            if any(str(row[k]) != str(x) for k, x in where.items()):
                continue
            own = found.setdefault(", ".join(str(row[k]) for k in models), {})
            if str(row[seed]) in own:
                raise value_error(
                    "`table` must have one row of each model and seed: name "
                    "more columns in `model`, or choose rows by `where`",
                    **{k: row[k] for k in (*models, seed)},
                    row=number,
                )
            own[str(row[seed])] = [_number(row[k], k, number) for k in metrics]
        if not found:
            raise value_error("`where` must leave a row", where=where)
        made = cls.__new__(cls)
        made._set(
            {
                name: {
                    k: np.array([*x.values()])[:, i] for k, x in found.items()
                }
                for i, name in enumerate(metrics)
            },
            {k: mode_of(k) for k in metrics} | {**(modes or {})},
            {k: [*x] for k, x in found.items()},
            (paired, baseline, level),
        )
        return made

    def to_markdown(
        self, beside: Mapping[tuple[str, str], str] | None = None
    ) -> str:
        """The table as Markdown, with the legend below.

        Args:
            beside: Texts to show in brackets, such as what a paper printed, by
                model and metric.
        """
        rows = self._lines("**{}**", beside or {})
        lines = [" | ".join(x.replace("|", "\\|") for x in row) for row in rows]
        lines = [f"| {line} |" for line in lines]
        lines.insert(1, "|---" * len(rows[0]) + "|")
        return "\n".join([*lines, "", self.legend])

    def to_latex(self) -> str:
        """The table as LaTeX, which needs the package `booktabs`."""
        rows = self._lines("\0{}\1", {})
        head, *body = (" & ".join(map(_latex, x)) + r" \\" for x in rows)
        columns = "l" + "r" * (len(rows[0]) - 1)
        return "\n".join(
            [
                rf"\begin{{tabular}}{{{columns}}}",
                *(r"\toprule", head, r"\midrule", *body, r"\bottomrule"),
                r"\end{tabular}",
                rf"\par\smallskip{{\footnotesize {_latex(self.legend)}}}",
            ]
        )

    __repr__ = Result.__str__

    def _columns(self) -> dict[str, Any]:
        return self.table

    def _shown(self) -> dict[str, Any]:
        head, *rows = self._lines("{} *", {})
        return dict(zip(head, zip(*rows, strict=True), strict=True))

    def _note(self) -> str:
        return self.legend.replace("Bold", "*", 1)

    def _lines(self, best: str, beside: Mapping) -> list[list[str]]:
        """Cells of the head and of each model, the `best` in this form."""
        titles = [f"{k}{_ARROWS[mode]}" for k, mode in self.modes.items()]
        lines: dict[str, list[str]] = {"": ["model", "seeds", *titles]}
        first = next(iter(self.values.values()))
        for k, x in enumerate(self.table["model"]):
            row = {name: column[k] for name, column in self.table.items()}
            line = lines.setdefault(x, [str(x), str(len(first[x]))])
            text = best.format(row["text"]) if row["best"] else row["text"]
            told = beside.get((x, row["metric"]))
            text += " †" * bool(row["marked"]) + (f" [{told}]" if told else "")
            line.append(text)
        return [*lines.values()]

    def _set(
        self,
        values: dict[str, dict[str, np.ndarray]],
        modes: dict[str, str | None],
        seeds: dict[str, list],
        options: tuple[bool, str | None, float],
        drawn: np.ndarray | None = None,
        counts: tuple[int, ...] = (),
    ) -> None:
        """Sets the fields: `drawn` has replicates `(draws, metrics, runs)`."""
        paired, baseline, level = options
        alpha, sizes = 2.0 * tail_of(level), [*map(len, seeds.values())]
        check_in("baseline", baseline, [*seeds, None])
        for mode in modes.values():
            check_in("modes", mode, [*_ARROWS])
        if paired and drawn is not None and len({*sizes}) > 1:
            rule = "`paired` must be False for different numbers of seeds"
            raise value_error(rule, seeds=dict(zip(seeds, sizes, strict=True)))
        rows: list[dict[str, Any]] = []
        for i, (metric, own) in enumerate(values.items()):
            of_metric = None if drawn is None else drawn[:, i]
            test = partial(_test, own, seeds, of_metric, counts, paired)
            for row in _rows(own, modes.get(metric), baseline, test, of_metric):
                p = row["p_holm"]
                marked = p <= alpha if baseline else p > alpha
                rows.append({"metric": metric, **row, "marked": marked})
        vars(self).update(
            table={k: np.array([x[k] for x in rows]) for k in rows[0]},
            values=values,
            modes={k: modes.get(k) for k in values},
            legend=_legend(sizes, counts, paired, baseline, alpha),
        )


def _rows(
    own: dict[str, np.ndarray],
    mode: str | None,
    baseline: str | None,
    test: Callable[[str, str], tuple[float, float]],
    drawn: np.ndarray | None,
) -> list[dict[str, Any]]:
    """The rows of the table of a metric, a model each."""
    kept = {k: x[~np.isnan(x)] for k, x in own.items()}
    mean = {
        k: float(np.mean(x)) if len(x) else math.nan for k, x in kept.items()
    }
    sd = {
        k: float(np.std(x, ddof=1))
        if len(x) > 1 and np.isfinite(x).all()
        else math.nan
        for k, x in kept.items()
    }
    values = [x for x in mean.values() if not math.isnan(x)]
    best = math.nan
    if mode and len(values) > 1:
        best = min(values) if mode == "min" else max(values)
    is_best = {k: math.isclose(x, best, rel_tol=1e-12) for k, x in mean.items()}
    first = baseline or next((k for k in own if is_best[k]), None)
    pairs = itertools.combinations(own, 2) if first else ()
    found = {x: test(*x) for x in pairs if baseline in (None, *x)}
    p = dict(zip(found, holm([x[1] for x in found.values()]), strict=True))
    errors = [x for x in sd.values() if x > 0.0]
    if drawn is not None and not errors:
        errors = [*np.std(drawn, axis=0)]
    error = float(np.median(errors)) if errors else 0.0
    digits = 4
    if 0.0 < error < math.inf:
        # Two digits of the deviation.
        digits = min(max(1 - math.floor(math.log10(error)), 0), 8)
    rows = []
    for k, x in mean.items():
        sign, pair = (
            (1.0, (k, first)) if (k, first) in p else (-1.0, (first, k))
        )
        difference, p_value = found.get(pair, (math.nan, math.nan))
        text = "-" if math.isnan(x) else f"{x:.{digits}f}"
        text += f" ± {sd[k]:.{digits}f}" if len(kept[k]) > 1 else ""
        if len(kept[k]) < len(own[k]):
            text += f" ({len(kept[k])} of {len(own[k])})"
        rows.append(
            {
                "model": k,
                "seeds": len(kept[k]),
                "mean": x,
                "sd": sd[k],
                "best": is_best[k],
                "difference": sign * difference + 0.0,
                "p_value": p_value,
                "p_holm": p.get(pair, math.nan),
                "text": text,
            }
        )
    return rows


def _test(
    own: dict[str, np.ndarray],
    seeds: dict[str, list],
    drawn: np.ndarray | None,
    counts: tuple[int, ...],
    paired: bool,
    a: str,
    b: str,
) -> tuple[float, float]:
    """Difference and p-value of two models, of seeds that have a value."""
    x, y = (dict(zip(seeds[k], own[k], strict=True)) for k in (a, b))
    x, y = ({k: v for k, v in z.items() if not math.isnan(v)} for z in (x, y))
    if paired:
        x, y = ({k: z[k] for k in x if k in y} for z in (x, y))
    if not x or not y:
        return math.nan, math.nan
    covariance = None
    if drawn is not None:
        runs = [(model, k) for model, ids in seeds.items() for k in ids]
        used = [*((a, k) for k in x), *((b, k) for k in y)]
        found = drawn[:, [runs.index(run) for run in used]]
        covariance = np.cov(found[np.isfinite(found).all(axis=1)].T)
    first, second = (np.array([*z.values()]) for z in (x, y))
    difference = float(first.mean()) - float(second.mean())
    options = covariance, *counts[-1:]
    return difference, p_over_seeds(first, second, *options, paired=paired)


def _named(metrics: Any) -> dict[str, tuple[Callable, str | None]]:
    """What makes a function of `Predictions`, and the mode, by name."""
    if isinstance(metrics, str) or not isinstance(metrics, Sequence):
        metrics = [metrics]
    found: dict[str, tuple[Callable, str | None]] = {}
    for metric in metrics:
        key = told_key("metrics", metric)
        name = key or getattr(metric, "name", None) or metric.__name__
        if name in found:
            raise value_error(
                "`metrics` must have different names: pass `name=`", name=name
            )
        mode = mode_of(key) if key else getattr(metric, "mode", None)
        found[name] = partial(_function, metric, key), mode
    return found


def _function(metric: Any, key: str | None, p: Predictions) -> Callable:
    """The metric of predictions as a function of weights of the rows.

    What is known of each row is read once: its loss, or its correctness and
    confidence, or its rank if only the order matters.
    """
    if p.kind != "classes" or key not in {*_LOSSES, *_TOP1}:
        return of_predictions("metrics", key or metric, p, {})
    read, lead = standardize_arrays(p, None, drop=False), p.shape
    mask = None if read.mask is None else np.asarray(read.mask)

    def flat(weight: Any) -> Any:
        if weight is None:
            return None if mask is None else mask.astype("float64")
        weight = as_array(weight, "sample_weight", "float64")
        weight = weight.reshape(weight.shape + (1,) * (len(lead) - weight.ndim))
        weight = np.broadcast_to(weight, lead).reshape(-1)
        return weight if mask is None else weight * mask

    if key in _LOSSES:
        losses = _LOSSES[key](read, "float64")
        losses = losses if mask is None else np.where(mask, losses, 0.0)
        return lambda x: float(np.average(losses, weights=flat(x)))
    top = top_of_arrays(read)
    sure = top.confidence
    if isinstance(QUANTITIES[key], Rank):
        sure = np.unique(top.score, return_inverse=True)[1] / len(top.score)
    log = Predictions(correct=top.correct, confidence=sure)
    value = of_predictions("metrics", key, log, {})
    return lambda x: value(flat(x))


def _columns_of(table: Any) -> dict[str, list]:
    """Columns of a file, of a data frame or of a dict."""
    if hasattr(table, "to_dict"):
        return table.to_dict("list")
    if isinstance(table, Mapping):
        return {k: [*x] for k, x in table.items()}
    with Path(table).open(newline="", encoding="utf-8") as file:
        head, *rows = csv.reader(file)
    return {k: [x[i] for x in rows] for i, k in enumerate(head)}


def _number(cell: Any, name: str, row: int) -> float:
    try:
        return math.nan if cell in ("", None) else float(cell)
    except (TypeError, ValueError):
        raise value_error(
            "`metrics` must be columns of numbers", **{name: cell}, row=row
        ) from None


def _legend(
    seeds: list[int],
    counts: tuple[int, ...],
    paired: bool,
    baseline: str | None,
    alpha: float,
) -> str:
    """What the cells and marks mean, and which test they are of."""
    least, most, models = min(seeds), max(seeds), len(seeds)
    number = f"{least}" if least == most else f"{least} to {most}"
    told = f"Mean ± standard deviation over {number} seeds"
    told = "One seed each" if most == 1 else told
    if counts:
        units = f" of {counts[-1]:,} units" if len(counts) > 1 else ""
        told += f", {counts[0]:,} test rows{units}"
    told += ". Bold: best."
    pairs = models - 1 if baseline else models * (models - 1) // 2
    if not pairs or (most == 1 and not counts):
        return told
    mark = f"differs from {baseline} (p <=" if baseline else ""
    mark = mark or "not shown to be worse (p >"
    test = "a t-test of pairs" if paired else "Welch's t-test"
    test += " over seeds" + (" and rows" if counts else ", on these rows")
    if most == 1:
        test = "a bootstrap of rows, without the differences of seeds"
    told += f" †: {mark} {alpha:g}) by {test}"
    return f"{told}; Holm's correction for {pairs} pairs of a metric."


def _latex(text: str) -> str:
    return "".join(_LATEX.get(x, x) for x in text)
