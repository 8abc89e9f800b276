"""The page: it shows what was gathered in pictures, tables and words."""

import datetime
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import keras
import numpy as np

from keras_calib.backend.errors import value_error
from keras_calib.backend.files import path_of, replacing
from keras_calib.formulas.intervals import clopper_pearson
from keras_calib.formulas.risk_coverage import RiskCoverageCurve
from keras_calib.metrics import CalibrationMetrics
from keras_calib.numerics.arrays import safe_divide
from keras_calib.numerics.softmax import sigmoid
from keras_calib.plots import (
    ConfidenceDisplay,
    ReliabilityDisplay,
    RiskCoverageDisplay,
)
from keras_calib.plots.display import matplotlib_module, printable
from keras_calib.reporting.attributes import worst_first
from keras_calib.reporting.evaluation import ModelEvaluation
from keras_calib.reporting.groups import SURE, GroupRow, StageGroups
from keras_calib.reporting.measures import directions, kinds_told, measures
from keras_calib.reporting.pictures import (
    cumulative_diagram,
    diagram,
    group_picture,
    shown,
)
from keras_calib.version import __version__

__all__ = [
    "Report",
    "check_html",
    "made_now",
    "operating_points",
    "page_of",
    "slider_rows",
    "template",
]

# At most so many classes in the table.
_NUM_CLASSES = 10
# At most so many pairs of classes that sure errors confuse.
_NUM_PAIRS = 6
# Inches of diagrams, about as wide as a phone, where text must be readable.
_TALL, _WIDE, _LOW = (3.5, 4.2), (4.4, 3.4), (3.5, 3.0)


class Report:
    """A page about the confidence of one or several models.

    Made by `report` and `report_of_predictions`. Notebooks show it.

    Args:
        html: The page: one file that needs nothing else.
        results: The numbers of the page, `{model: {...}}`. Each estimate is
            `{"value", "low", "high"}` with its 95 % interval.

            - `verdict`: its `answer`, `advice` and `headline`.
            - `overconfidence`: mean confidence less accuracy.
            - `metrics`: estimates by name. `ecce` has a `p_value` too.
            - `calibrated_verdict`, `calibrated_overconfidence` and
              `calibrated_metrics`, with a calibrator.
            - `selection`: the selector's `threshold`, which is a score, and
              `confidence`, the same cut as a confidence or None for another
              score.
            - `classes` and `sure`: rows of predicted classes and of least
              confidences.

            With several labels at once, `labels` has a row for each, in their
            order. `summary` and `calibrated_summary` have `macro` means over
            labels and `micro` means over all answers. `examples` tells of
            whole examples.

    Example:

    >>> import keras_calib
    >>> page = keras_calib.report_of_predictions(
    ...     [0, 1, 1], [[0.9, 0.1]] * 3, verbose=0)
    >>> round(page.results["model"]["overconfidence"]["value"], 4)
    0.5667

    Reference:
        Guo et al., On Calibration of Modern Neural Networks, ICML 2017,
        https://arxiv.org/abs/1706.04599
    """

    def __init__(self, html: str, results: dict[str, Any]):
        self.html = html
        self.results = results

    def save(self, path: Any) -> Path:
        """Writes the page, whole or not at all.

        Args:
            path: File that ends in `.html`; its folder is made.

        Returns:
            The path.

        Raises:
            ValueError: If the path has another ending, or is a folder.
        """
        path = check_html(path)
        with replacing(path, text=True) as file:
            file.write(self.html)
        return path

    def _repr_html_(self) -> str:
        uri = self.html.replace("&", "&amp;").replace('"', "&quot;")
        # Sandboxed, so that the page cannot reach the notebook.
        return (
            f'<iframe srcdoc="{uri}" sandbox="allow-scripts" '
            'style="width:100%;height:800px;border:0"></iframe>'
        )


def check_html(path: Any) -> Path:
    """The path of a page to write; ValueError if it can be none."""
    path = path_of(path)
    if path.suffix.lower() not in (".html", ".htm") or path.is_dir():
        raise value_error(
            "`path` must be a file that ends in .html", path=str(path)
        )
    return path


def page_of(
    evaluations: list[ModelEvaluation],
    results: dict[str, dict],
    *,
    title: str,
    class_names: Sequence[str] | None,
    num_bins: int,
    notes: dict[str, str],
) -> str:
    """The HTML page of some models and their results."""
    overview = None
    if len(evaluations) > 1:
        display = RiskCoverageDisplay.from_metric(
            {x.name: x.final for x in evaluations}
        )
        text = "Risk against coverage of all models."
        overview = diagram(display, text, _WIDE)
    return template().render(
        title=title,
        models=[_model(x, results[x.name], class_names) for x in evaluations],
        overview=overview,
        evaluations=evaluations,
        num_bins=num_bins,
        notes=notes,
        **made_now(),
    )


def made_now() -> dict[str, str]:
    """When a page is made, and with what."""
    return {
        "made": datetime.datetime.now().isoformat(" ", "minutes"),
        "versions": f"keras_calib {__version__}, Keras {keras.__version__} on "
        f"{keras.backend.backend()}",
    }


def template(name: str = "page.html.jinja") -> Any:
    """A template of a page; ImportError if a package is missing."""
    try:
        import jinja2
    except ImportError as error:
        raise ImportError(
            "Reports need Jinja2 and matplotlib: "
            "pip install 'keras-calib[report]'"
        ) from error
    matplotlib_module("figure")
    environment = jinja2.Environment(
        loader=jinja2.PackageLoader("keras_calib", "reporting"),
        autoescape=True,
        finalize=_printed,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    return environment.get_template(name)


def _printed(value: Any) -> Any:
    """A text without the characters that a page must not hold."""
    # The type tells what is escaped already and must not be escaped again.
    return type(value)(printable(value)) if isinstance(value, str) else value


def _model(
    evaluation: ModelEvaluation,
    results: dict,
    class_names: Sequence[str] | None,
) -> dict[str, Any]:
    """What the template shows of a model."""

    def name_of(k: int) -> str:
        return f"class {k}" if class_names is None else class_names[k]

    verdicts = {"": results["verdict"]}
    metrics = {"": evaluation.before}
    if evaluation.after is not None:
        metrics = {
            "before calibration": evaluation.before,
            "after calibration": evaluation.after,
        }
        both = results["verdict"], results["calibrated_verdict"]
        verdicts = dict(zip(metrics, both, strict=True))
    # With its space: it stands before a full stop.
    final = f" {list(metrics)[-1]}".rstrip()
    chosen, on_slider = _chosen(evaluation, results["selection"])
    steps, start = slider_rows(evaluation.final, chosen if on_slider else None)
    rows = evaluation.groups[-1].classes()
    first = {x.group: x for x in evaluation.groups[0].classes()}
    return {
        "name": evaluation.name,
        "results": results,
        "stages": list(metrics),
        "verdicts": verdicts,
        "measures": measures(results),
        "directions": directions(results),
        "reliability": [
            diagram(
                ReliabilityDisplay.from_metric(
                    x, name=when.capitalize() or None
                ),
                f"Accuracy against confidence {when}".rstrip()
                + ", with exact 95 % "
                "intervals; below, the number of predictions in each bin.",
                _TALL,
            )
            for when, x in metrics.items()
        ],
        "cumulative": [
            cumulative_diagram(x.differences(), when, _LOW)
            for when, x in metrics.items()
        ],
        "sure": {
            when: _sure(groups)
            for when, groups in zip(metrics, evaluation.groups, strict=True)
        },
        "histogram": diagram(
            ConfidenceDisplay.from_metric(evaluation.final),
            f"Confidence of correct and wrong predictions{final}; counts on "
            "a logarithmic scale.",
            _WIDE,
        ),
        "confused": [
            (name_of(label), name_of(predicted), count)
            for (label, predicted), count in evaluation.confused.most_common(
                _NUM_PAIRS
            )
        ],
        "mistakes": [
            {
                **x._asdict(),
                **shown(x.sample),
                "label": name_of(x.label),
                "predicted": name_of(x.predicted),
            }
            for x in evaluation.mistakes
        ],
        "points": operating_points(evaluation.final, chosen),
        # By columns, whose names take less room than those of each row.
        "steps": {name: [row[name] for row in steps] for name in steps[0]},
        "start": start,
        "on_slider": on_slider,
        "total": float(evaluation.final.bins().weight.sum()),
        "risk": _risk_picture(evaluation, results["selection"], final),
        "classes": [
            (name_of(x.group), x, first.get(x.group))
            for x in rows[:_NUM_CLASSES]
        ],
        "about_classes": _about_classes(
            rows, evaluation.groups[-1].totals(), name_of
        ),
        "num_predicted": len(rows),
        "group_rows": worst_first(results.get("groups", {}).get("rows", [])),
        "groups_picture": group_picture(results.get("groups")),
    }


def _chosen(
    evaluation: ModelEvaluation, found: dict | None
) -> tuple[dict[str, Any] | None, bool]:
    """The selector as a row of the slider, and whether that can show it.

    It can if the score is the confidence after the same calibration.
    """
    if found is None or found["threshold"] is None:
        return None, False
    row = {
        "threshold": found["confidence"],
        "score": found["threshold"],
        "coverage": found["coverage"],
        "accepted": found["coverage"] * found["total"],
        "risk": found["risk"]["value"],
        "low": found["risk"]["low"],
        "high": found["risk"]["high"],
    }
    if not found["coverage"]:
        row["risk"] = None
    own = getattr(evaluation.selector, "calibrator", None)
    on_slider = found["confidence"] is not None and own is evaluation.calibrator
    return row, on_slider


def _sure(
    groups: StageGroups,
) -> list[tuple[float, GroupRow | None]]:
    """Levels of confidence, the highest first, with their predictions."""
    found = {x.group: x for x in groups.sure()}
    return [(SURE[i], found.get(i)) for i in reversed(range(len(SURE)))]


def _risk_picture(
    evaluation: ModelEvaluation, found: dict | None, when: str
) -> dict[str, str]:
    sums, points = evaluation.final.bins(), {}
    chosen = getattr(evaluation.selector, "chosen", None)
    if chosen is not None and found is not None:
        here = replace(
            chosen, coverage=found["coverage"], risk=found["risk"]["value"]
        )
        if evaluation.options.votes:
            # The certified risk is of one class for each sample.
            here = replace(here, limit=None)
        points = {
            "selector on its own data": replace(chosen, limit=None),
            "selector on these data": here,
        }
    display = RiskCoverageDisplay.from_metric(
        {evaluation.name: evaluation.final},
        # The band is that of a binomial, which needs equal weights.
        band=bool(sums.weight.sum() == sums.squared_weight.sum()),
        points=points,
    )
    # The histogram has more cells than a picture could show.
    display.curves = {k: _thinned(x) for k, x in display.curves.items()}
    text = (
        f"Error rate of the accepted{when} as more predictions are "
        "accepted, the surest first"
    )
    text += ", and the selector." if points else "."
    return diagram(display, text, _WIDE)


def _thinned(curve: RiskCoverageCurve) -> RiskCoverageCurve:
    """A curve at coverages that lie about 1 / 400 apart, and both ends."""
    steps = np.linspace(0.0, 1.0, 401) - 1e-12
    places = np.unique(np.searchsorted(curve.coverage, steps))
    return RiskCoverageCurve(*(x[places] for x in curve))


def _about_classes(
    rows: list[GroupRow], total: GroupRow, name_of: Callable[[int], str]
) -> list[str]:
    """Sentences on the classes that differ beyond their intervals."""
    kinds = {
        "More errors than the average": [
            x for x in rows if x.low > total.error
        ],
        "Overconfident": [x for x in rows if x.side == "over"],
        "Underconfident": [x for x in rows if x.side == "under"],
    }
    texts = kinds_told(kinds, lambda x: name_of(x.group))
    if not texts:
        return [
            "These data show no class with more errors than the average, or "
            "with a confidence that differs from its accuracy."
        ]
    if all(x.side == "even" for x in rows):
        texts.append(
            "These data show no class whose confidence differs from its "
            "accuracy."
        )
    return texts


# The slider has about so many positions, evenly spread over the coverage.
_NUM_STEPS = 200
_RISKS = (0.2, 0.1, 0.05, 0.02, 0.01, 0.005, 0.002, 0.001)
# The page shows so many of them, the first below the risk of accepting all.
_NUM_RISKS = 4
_RULE = "Risk of at most {:g} %"


def slider_rows(
    metrics: CalibrationMetrics, chosen: dict[str, Any] | None
) -> tuple[list[dict[str, Any]], int]:
    """Rows by ascending threshold, and which of them the slider starts at.

    A row has the least `threshold` to accept as a confidence, and the same as
    a `score` in log-odds. It has the `coverage`, the weight `accepted`, and the
    `risk` on these data with its exact 95 % interval from `low` to `high`.

    `chosen` is the row of the selector, if its threshold is one of this
    confidence, and the slider starts there. Else it starts at the largest
    round risk that is at most half of that of accepting everything.
    """
    curve, round_risks = metrics.curve(), _round_risks(metrics)
    steps = np.linspace(0.0, 1.0, _NUM_STEPS + 1)[1:] - 1e-12
    places = np.searchsorted(curve.coverage, steps)
    points = [place for _, place in round_risks if place is not None]
    places = np.union1d(np.minimum(places, len(curve.coverage) - 1), points)
    # The curve ascends by coverage, the slider by threshold.
    places = places.astype(int)[::-1]
    rows = _rows_at(metrics, places)
    if chosen is not None:
        position = int(np.sum(curve.threshold[places] < chosen["score"]))
        return [*rows[:position], chosen, *rows[position:]], position
    limit = 0.5 * curve.risk[-1]
    for risk, place in round_risks:
        if risk <= limit and place is not None:
            return rows, places.tolist().index(place)
    return rows, 0


def operating_points(
    metrics: CalibrationMetrics, chosen: dict[str, Any] | None
) -> list[dict[str, Any]]:
    """Rows with a `rule`: the selector, round risks, accepting everything.

    A risk that no threshold has is a row of the rule alone.
    """
    found = [] if chosen is None else [{"rule": "The selector", **chosen}]
    (everything,) = _rows_at(metrics, np.array([-1]))
    found.append({"rule": "Accept everything", **everything})
    for risk, place in _round_risks(metrics):
        row = {"rule": _RULE.format(100.0 * risk)}
        if place is not None:
            row |= _rows_at(metrics, np.array([place]))[0]
        found.append(row)
    return found


def _round_risks(
    metrics: CalibrationMetrics,
) -> list[tuple[float, int | None]]:
    """Round risks, and where on the curve each has the largest coverage."""
    curve, found = metrics.curve(), []
    for risk in [x for x in _RISKS if x < curve.risk[-1]][:_NUM_RISKS]:
        met = np.flatnonzero(curve.risk <= risk + 1e-12)
        found.append((risk, int(met[-1]) if len(met) else None))
    return found


def _rows_at(
    metrics: CalibrationMetrics, places: np.ndarray
) -> list[dict[str, Any]]:
    """Rows of places on the curve."""
    curve, sums = metrics.curve(), metrics.bins()
    weight, squares = sums.weight.sum(), sums.squared_weight.sum()
    coverage, risk = curve.coverage[places], curve.risk[places]
    count = coverage * safe_divide(weight**2, squares)
    low, high = clopper_pearson(np.minimum(risk * count, count), count)
    score = curve.threshold[places].astype("float64")
    columns = {
        "threshold": sigmoid(score),
        "score": score,
        "coverage": coverage,
        "accepted": coverage * weight,
        "risk": risk,
        "low": low,
        "high": high,
    }
    rows: list[dict[str, Any]] = [
        dict(zip(columns, map(float, values), strict=True))
        for values in zip(*columns.values(), strict=True)
    ]
    for row in rows:
        # JSON has no infinity, which is the threshold that accepts all.
        row["score"] = row["score"] if np.isfinite(row["score"]) else None
    return rows
