"""Several models over several seeds: means, tests and tables of a paper."""

import csv
import itertools
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import field
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Annotated, Any, Self, TypedDict, Unpack

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
from keras_calib.inputs.checks import (
    check_flag,
    check_in,
    check_integer,
    check_keys,
)
from keras_calib.inputs.given_metrics import of_predictions, told_key
from keras_calib.inputs.options import explaining, filled
from keras_calib.inputs.top_label import top_of_arrays
from keras_calib.metrics.registry import QUANTITIES, Rank, mode_of
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


class RunsOptions(TypedDict, total=False):
    """How models are compared over seeds.

    Attributes:
        modes: `"min"`, `"max"` or None by the name of a metric, if this
            library does not know which is better.
        paired: Whether seeds at the same place of two models belong together,
            as with the same initial weights and order of the data. Others are
            left out of the test.
        baseline: Model that each other one is compared with, in place of the
            best. Holm's correction then counts these pairs.
        level: 1 less the probability that a metric has a false difference.
    """

    modes: Mapping[str, str | None] | None
    paired: Annotated[bool, False]
    baseline: str | None
    level: Annotated[float, 0.95]


@explaining(RunsOptions)
class Runs(Result):
    """Compare models that were trained with several seeds each.

    Use it for the table of a paper: mean and standard deviation of each metric
    over seeds, the best model, and those that are not shown to be worse. Print
    it, or take `to_markdown`, `to_latex`, `to_csv` or `to_frame`.
    `ReliabilityDisplay(runs.predictions)` and `RiskCoverageDisplay` draw means
    with bands over seeds.

    Another training differs by its seed, and another test set by its rows. The
    t-test of two models counts both. It has the variance of each mean over
    seeds, as Welch's, and the covariance of different seeds over rows, by a
    bootstrap that repeats the same rows for all. Results of a table are tested
    over seeds alone, and one seed each over rows alone.

    The data chose the best model. So Holm's correction counts all pairs of
    models of a metric, whichever is the best. It does not count metrics.

    Args:
        predictions: `{model: [Predictions of a seed, ...]}`, all of the same
            test rows. Models may have different numbers of seeds.
        metrics: Keys, functions, metric classes or new objects, as
            `keras_calib.metrics.get` takes them. By default accuracy, ECE, NLL
            and AURC, of those that there are.
        num_draws: Number of replicates of the bootstrap, at least 2.
        seed: Seed of the replicates.
        verbose: As in `compare`.
        **options: How they are compared:

    Raises:
        TypeError: If a run is no `Predictions`, or a metric is none.
        ValueError: If runs are not of the same rows, there is no run, or two
            metrics have one name.

    Attributes:
        table: Columns by name. `mean` and `sd` are of the `seeds` that have a
            value, and `text` shows both. `difference` is to the `best` or the
            baseline, over pairs if `paired`, with `p_value` and `p_holm`.
            Those `marked` are not shown to be worse than the best, or they
            differ from the baseline.
        values: Value of each seed, NaN for none, by metric and model.
        modes: Whether the least or the largest value is best, by metric.
        legend: What the marks mean, and the test.
        predictions: As given, or None.

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
        num_draws: int = 200,
        seed: int = 0,
        verbose: str | int = "auto",
        **options: Unpack[RunsOptions],
    ):
        given = filled("Runs", options, RunsOptions)
        check_integer("num_draws", num_draws, 2)
        if not isinstance(predictions, Mapping):
            raise type_error(
                "`predictions` must be a dict of lists of `Predictions`, one "
                "of each seed, by the name of the model",
                predictions=type(predictions).__name__,
            )
        kinds = {k: type(x).__name__ for k, x in predictions.items()}
        if not {*kinds.values()} <= {"list", "tuple"}:
            raise type_error(
                "`predictions` must be a dict of lists of `Predictions`, one "
                "for each seed",
                predictions=kinds,
            )
        if not predictions or not all(predictions.values()):
            rule = "`predictions` must have models with a run each"
            raise value_error(rule, predictions=predictions)
        runs = {
            f"{model}[{i}]": p
            for model, own in predictions.items()
            for i, p in enumerate(own)
        }
        check_same_rows(runs)
        first, *_ = every = [*runs.values()]
        if metrics is None:
            is_log = first.kind == "records"
            metrics = [x for x in _DEFAULT if not (is_log and x in _LOSSES)]
        named = _named(metrics)
        functions = [f(p) for f, _ in named.values() for p in every]
        found = np.array([[f(first.sample_weight) for f in functions]])
        drawn = replicates(functions, every, num_draws, seed)
        sizes = np.array([*map(len, predictions.values())])
        ran = np.arange(sizes.max()) < sizes[:, None]
        # Of the data, and of the replicates.
        both = np.full((1 + num_draws, len(named), *ran.shape), np.nan)
        shape = -1, len(named), len(every)
        both[:, :, ran] = np.concatenate([found, drawn]).reshape(shape)
        known = {k: mode for k, (_, mode) in named.items()}
        units = [len({*p.units}) for p in every if p.units is not None]
        told = [*predictions], ran, (len(first), *units[:1])
        vars(self).update(_compared(known, both, *told, given))
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
        **options: Unpack[RunsOptions],
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
            **options: As of `Runs`.

        Raises:
            ValueError: If a column is missing, a value is no number, or a
                model has two rows of a seed.
        """
        columns, where = _columns_of(table), dict(where or {})
        models = [model] if isinstance(model, str) else [*model]
        if metrics is None:
            metrics = [x for x in _DEFAULT if x in columns] or _DEFAULT
        if missing := {*models, seed, *metrics, *where} - {*columns}:
            rule = "`table` must have the columns of models, seeds and metrics"
            told = {"missing": sorted(missing), "columns": [*columns]}
            raise value_error(rule, **told)
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
        seeds = dict.fromkeys(x for own in found.values() for x in own)
        nothing = [math.nan] * len(metrics)
        values = [[x.get(k, nothing) for k in seeds] for x in found.values()]
        ran = np.array([[k in x for k in seeds] for x in found.values()])
        made, known = cls.__new__(cls), {k: mode_of(k) for k in metrics}
        both = np.moveaxis(np.array(values), -1, 0)[None]
        given = filled("Runs", options, RunsOptions)
        vars(made).update(_compared(known, both, [*found], ran, (), given))
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
    mask = 1.0 if read.mask is None else read.mask

    def flat(weight: Any) -> np.ndarray:
        weight = np.ones(len(p)) if weight is None else np.asarray(weight)
        if weight.ndim > len(lead):
            weight = weight.reshape(lead)
        weight = weight.reshape(weight.shape + (1,) * (len(lead) - weight.ndim))
        return mask * np.broadcast_to(weight, lead).reshape(-1)

    if key in _LOSSES:
        losses = np.where(mask, _LOSSES[key](read, "float64"), 0.0)
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
    return {k: [x[i] for x in rows if x] for i, k in enumerate(head)}


def _number(cell: Any, name: str, row: int) -> float:
    try:
        return math.nan if cell in ("", None) else float(cell)
    except (TypeError, ValueError):
        raise value_error(
            "`metrics` must be columns of numbers", **{name: cell}, row=row
        ) from None


def _compared(
    known: dict[str, str | None],
    values: np.ndarray,
    models: list[str],
    ran: np.ndarray,
    counts: tuple[int, ...],
    given: SimpleNamespace,
) -> dict[str, Any]:
    """The fields of `Runs`, of the `known` modes of metrics by name.

    `values` are of the data and then of replicates, if there are some,
    `(1 + draws, metrics, models, seeds)`. `ran` says which runs there are, and
    `counts` are numbers of rows and of units.
    """
    alpha, baseline = 2.0 * tail_of(given.level), given.baseline
    check_flag("paired", given.paired)
    check_in("baseline", baseline, [*models, None])
    modes = known | {**(given.modes or {})}
    check_keys("modes", modes, [*known])
    for mode in modes.values():
        check_in("modes", mode, [*_ARROWS])
    rows: list[dict[str, Any]] = []
    for i, (metric, mode) in enumerate(modes.items()):
        own = values[:, i]
        kept = [x[~np.isnan(x)] for x in own[0]]
        mean = [float(np.mean(x)) if len(x) else math.nan for x in kept]
        sd = [math.nan] * len(models)
        for k, x in enumerate(kept):
            if len(x) > 1 and np.isfinite(x).all():
                sd[k] = float(np.std(x, ddof=1))
        known, best = [x for x in mean if not math.isnan(x)], math.nan
        if mode and len(known) > 1:
            best = min(known) if mode == "min" else max(known)
        is_best = [math.isclose(x, best, rel_tol=1e-12) for x in mean]
        first = models.index(baseline) if baseline else None
        if baseline is None and True in is_best:
            first = is_best.index(True)
        found: dict[tuple, tuple[float, float]] = {}
        for a, b in itertools.combinations(range(len(models)), 2):
            if first is not None and (not baseline or first in (a, b)):
                found[a, b] = _test(own[:, a], own[:, b], counts, given.paired)
        p = dict(zip(found, holm([x for _, x in found.values()]), strict=True))
        digits = _digits(sd)
        for k, model in enumerate(models):
            pair = (k, first) if (k, first) in p else (first, k)
            difference, p_value = found.get(pair, (math.nan, math.nan))
            difference = difference if pair[0] == k else 0.0 - difference
            p_holm = p.get(pair, math.nan)
            text = "-" if math.isnan(mean[k]) else f"{mean[k]:.{digits}f}"
            text += "" if math.isnan(sd[k]) else f" ± {sd[k]:.{digits}f}"
            if len(kept[k]) < ran[k].sum():
                text += f" ({len(kept[k])} of {ran[k].sum()})"
            rows.append(
                {
                    "metric": metric,
                    "model": model,
                    "seeds": len(kept[k]),
                    "mean": mean[k],
                    "sd": sd[k],
                    "best": is_best[k],
                    "difference": difference,
                    "p_value": p_value,
                    "p_holm": p_holm,
                    "text": text,
                    "marked": p_holm <= alpha if baseline else p_holm > alpha,
                }
            )
    return {
        "table": {k: np.array([x[k] for x in rows]) for k in rows[0]},
        "values": {
            metric: {k: x[y] for k, x, y in zip(models, own, ran, strict=True)}
            for metric, own in zip(modes, values[0], strict=True)
        },
        "modes": modes,
        "legend": _legend(ran.sum(axis=1), counts, given, alpha),
    }


def _test(
    a: np.ndarray, b: np.ndarray, counts: tuple[int, ...], paired: bool
) -> tuple[float, float]:
    """Difference and p-value of two models `(1 + draws, seeds)`."""
    kept = [~np.isnan(x[0]) for x in (a, b)]
    if paired:
        kept = [kept[0] & kept[1]] * 2
    a, b = (x[:, some] for x, some in zip((a, b), kept, strict=True))
    if not a.size or not b.size:
        return math.nan, math.nan
    difference, covariance = float(a[0].mean()) - float(b[0].mean()), None
    if counts:
        drawn = np.concatenate([a, b], axis=1)[1:]
        covariance = np.cov(drawn[np.isfinite(drawn).all(axis=1)].T)
    units = counts[-1] if counts else 2
    p = p_over_seeds(a[0], b[0], covariance, units, paired=paired)
    return difference, p


def _digits(deviations: list[float]) -> int:
    """Decimals that show two digits of the median deviation, or four."""
    found = [x for x in deviations if x > 0.0]
    if not found:
        return 4
    return min(max(1 - math.floor(math.log10(np.median(found))), 0), 8)


def _legend(
    seeds: np.ndarray,
    counts: tuple[int, ...],
    given: SimpleNamespace,
    alpha: float,
) -> str:
    """What the cells and marks mean, and which test they are of."""
    number = " to ".join(f"{x}" for x in sorted({seeds.min(), seeds.max()}))
    told = f"Mean ± standard deviation over {number} seeds"
    test = "a t-test of pairs" if given.paired else "Welch's t-test"
    test += f" over seeds{' and rows' if counts else ', on these rows'}"
    if number == "1":
        told = "One seed each"
        test = "a bootstrap of rows, without the differences of seeds"
    told += f", {counts[0]:,} test rows" if counts else ""
    told += f" of {counts[1]:,} units" if counts[1:] else ""
    pairs = len(seeds) - 1
    pairs = pairs if given.baseline else pairs * len(seeds) // 2
    if not pairs or (number == "1" and not counts):
        return f"{told}. Bold: best."
    mark = "not shown to be worse (p >"
    mark = f"differs from {given.baseline} (p <=" if given.baseline else mark
    return (
        f"{told}. Bold: best. †: {mark} {alpha:g}) by {test}; Holm's "
        f"correction for {pairs} pairs of a metric."
    )


def _latex(text: str) -> str:
    return "".join(_LATEX.get(x, x) for x in text)
