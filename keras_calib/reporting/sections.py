"""The sections of a page: what their tables and pictures show.

The templates of the kinds have their questions, and a macro for each.
"""

from collections.abc import Callable
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import numpy as np

from keras_calib.formulas.intervals import clopper_pearson
from keras_calib.formulas.risk_coverage import RiskCoveragePoints
from keras_calib.metrics import CalibrationMetrics
from keras_calib.numerics.arrays import safe_divide
from keras_calib.numerics.softmax import sigmoid
from keras_calib.plots import (
    ConfidenceDisplay,
    ReliabilityDisplay,
    RiskCoverageDisplay,
)
from keras_calib.reporting.evaluation import ClassEvaluation, Evaluation
from keras_calib.reporting.groups import (
    SURE,
    GroupRow,
    StageGroups,
    worst_first,
)
from keras_calib.reporting.labels import LabelEvaluation
from keras_calib.reporting.measures import kinds_told, measures
from keras_calib.reporting.pictures import (
    WIDE,
    cumulative_diagram,
    diagram,
    group_picture,
    label_diagram,
    region_picture,
    shown,
)

# At most so many classes in the table.
_NUM_CLASSES = 10
# At most so many pairs of classes that sure errors confuse.
_NUM_PAIRS = 6
# Inches of diagrams, about as wide as a phone, where text must be readable.
_TALL, _LOW = (3.5, 4.8), (3.5, 3.2)
# The slider has about so many positions, evenly spread over the coverage.
_NUM_STEPS = 200
_RISKS = (0.2, 0.1, 0.05, 0.02, 0.01, 0.005, 0.002, 0.001)
# The page shows so many of them, the first below the risk of accepting all.
_NUM_RISKS = 4
_RULE = "Risk of at most {:g} %"
# Labels in pictures, and in tables before the others are folded away.
_NUM_PICTURES, _NUM_ROWS = 6, 25


def model_of(
    evaluation: Evaluation, results: dict[str, Any], number: int
) -> dict[str, Any]:
    """What the template shows of a model, with rows for each of its blocks."""
    stages = stages_of(evaluation)
    repaired = len(stages) > 1
    it = "them" if evaluation.kind == "labels" else "it"
    both = f"as the model gives {it}: no calibrator"
    if repaired:
        both = "before and after calibration"
    return {
        "name": evaluation.name,
        "number": number,
        "results": results,
        "stages": stages,
        "repaired": repaired,
        "both": both,
        "final": stages[-1] or both,
        "evaluation": evaluation,
        "rows": {
            block: rows(evaluation, results) if rows else {}
            for block, rows in _ROWS[evaluation.kind].items()
            if block not in ("groups", "segments") or block in results
        },
    }


def stages_of(evaluation: Evaluation) -> list[str]:
    """Names of the stages, of which one alone has none."""
    if evaluation.calibrator is None:
        return [""]
    return ["before calibration", "after calibration"]


def _change(evaluation: ClassEvaluation, results: dict) -> dict[str, Any]:
    stages = stages_of(evaluation)
    metrics = dict(zip(stages, evaluation.stages, strict=True))
    what = "exact 95 % intervals"
    if results["num_units"] is not None:
        what = f"95 % intervals over {evaluation.unit_name}"
    return {
        "measures": measures(results),
        "reliability": [
            diagram(
                ReliabilityDisplay(x, name=when.capitalize() or None),
                f"Accuracy against confidence {when}".rstrip()
                + f", with {what}; below, how many samples each bin has.",
                _TALL,
            )
            for when, x in metrics.items()
        ],
        "cumulative": [
            cumulative_diagram(x.differences(), when, _LOW)
            for when, x in metrics.items()
        ],
    }


def _errors(evaluation: ClassEvaluation, results: dict) -> dict[str, Any]:
    final = stages_of(evaluation)[-1]
    return {
        "sure": {
            when: _sure(groups)
            for when, groups in zip(
                stages_of(evaluation), evaluation.groups, strict=True
            )
        },
        "histogram": diagram(
            ConfidenceDisplay(evaluation.final),
            f"Confidence of correct and wrong predictions {final}".rstrip()
            + "; counts on a logarithmic scale.",
            WIDE,
        ),
        "confused": evaluation.confused.most_common(_NUM_PAIRS),
        "mistakes": _mistakes(evaluation),
    }


def _automation(evaluation: ClassEvaluation, results: dict) -> dict[str, Any]:
    chosen, on_slider = _selected_row(evaluation, results["selection"])
    steps, start = _slider_rows(evaluation.final, chosen if on_slider else None)
    return {
        "points": operating_points(evaluation.final, chosen),
        # By columns, whose names take less room than those of each row.
        "steps": {name: [row[name] for row in steps] for name in steps[0]},
        "start": start,
        "on_slider": on_slider,
        "total": float(evaluation.final.bins().weight.sum()),
        "risk": _risk_picture(evaluation, results["selection"]),
    }


def _classes(evaluation: ClassEvaluation, results: dict) -> dict[str, Any]:
    groups, name_of = evaluation.groups[-1], evaluation.name_of
    rows: list[Any] = groups.classes()
    most = _NUM_CLASSES
    if evaluation.segments is not None:
        rows = [SimpleNamespace(**x) for x in results["classes"]]
        most = len(rows)
    predicted = [x for x in rows if x.weight]
    first = {x.group: x for x in evaluation.groups[0].classes()}
    return {
        "rows": [
            (name_of(x.group), x, first.get(x.group)) for x in rows[:most]
        ],
        "sentences": _about_classes(predicted, groups.totals(), name_of),
        "num_predicted": len(predicted),
    }


def _groups(evaluation: ClassEvaluation, results: dict) -> dict[str, Any]:
    rows = worst_first(results["groups"]["rows"])
    return {"rows": rows, "picture": group_picture(rows)}


def _labels(evaluation: LabelEvaluation, results: dict) -> dict[str, Any]:
    rows = sorted(results["labels"], key=_place)
    pictures = []
    for row in rows[:_NUM_PICTURES]:
        if row["count"]:
            bins = [x.bins(row["number"]) for x in evaluation.stages]
            pictures.append(label_diagram(row["label"], bins))
    return {
        "rows": [{"before_ece": None, "before_nll": None, **x} for x in rows],
        "pictures": pictures,
        "most": _NUM_ROWS,
    }


def _label_automation(
    evaluation: LabelEvaluation, results: dict
) -> dict[str, Any]:
    selected = (results["selection"] or {}).get("labels", ())
    rows = sorted(selected, key=lambda x: x["coverage"])
    return {"rows": rows, "most": _NUM_ROWS}


_Rows = Callable[[Any, dict], dict[str, Any]] | None
_OF_LOGS: dict[str, _Rows] = {
    "trust": None,
    "change": _change,
    "errors": _errors,
    "automation": _automation,
    "groups": _groups,
}
# What the blocks of a page show beside the results, by the kind, or None.
_ROWS: dict[str, dict[str, _Rows]] = {
    "classes": {
        **_OF_LOGS,
        "classes": _classes,
        "segments": lambda x, _: {
            "regions": [region_picture(y["crop"]) for y in x.segments.regions]
        },
    },
    "scores": _OF_LOGS,
    "labels": {
        "trust": None,
        "change": None,
        "labels": _labels,
        "errors": lambda evaluation, _: {"mistakes": _mistakes(evaluation)},
        "automation": _label_automation,
    },
}


def _mistakes(evaluation: Evaluation) -> list[dict[str, Any]]:
    """The surest mistakes, with what can be shown of samples."""
    return [
        {**x._asdict(), "where": evaluation.where(x), **shown(x.sample)}
        for x in evaluation.mistakes
    ]


def _sure(groups: StageGroups) -> list[tuple[float, GroupRow | None]]:
    """Levels of confidence, the highest first, with their predictions."""
    found = {x.group: x for x in groups.sure()}
    return [(SURE[i], found.get(i)) for i in reversed(range(len(SURE)))]


def _risk_picture(
    evaluation: ClassEvaluation, found: dict | None
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
    display = RiskCoverageDisplay(
        {evaluation.name: evaluation.final},
        # The band is that of a binomial, which needs equal weights.
        band=bool(sums.weight.sum() == sums.squared_weight.sum()),
        points=points,
    )
    # The histogram has more cells than a picture could show.
    display.curves = {k: _thinned(x) for k, x in display.curves.items()}
    text = (
        f"Error rate of the accepted {stages_of(evaluation)[-1]}".rstrip()
        + " as more predictions are accepted, the surest first"
    )
    text += ", and the selector." if points else "."
    return diagram(display, text, WIDE)


def _thinned(curve: RiskCoveragePoints) -> RiskCoveragePoints:
    """A curve at coverages that lie about 1 / 400 apart, and both ends."""
    steps = np.linspace(0.0, 1.0, 401) - 1e-12
    places = np.unique(np.searchsorted(curve.coverage, steps))
    return RiskCoveragePoints(*(x[places] for x in vars(curve).values()))


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


def _place(row: dict[str, Any]) -> tuple:
    """Where a label stands: those that are surely off come first."""
    return (
        not row["count"],
        row["side"] == "few",
        -row["ece_low"],
        -row["ece"],
        row["number"],
    )


def _selected_row(
    evaluation: ClassEvaluation, found: dict | None
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


def _slider_rows(
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


def _round_risks(metrics: CalibrationMetrics) -> list[tuple[float, int | None]]:
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
