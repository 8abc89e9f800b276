"""What a threshold accepts at which risk: the slider and its table."""

from typing import Any

import numpy as np

from keras_calib.formulas.intervals import clopper_pearson
from keras_calib.metrics import CalibrationMetrics
from keras_calib.numerics.arrays import safe_divide
from keras_calib.numerics.softmax import sigmoid
from keras_calib.reporting.evaluation import ClassEvaluation

# The slider has about so many positions, evenly spread over the coverage.
_NUM_STEPS = 200
_RISKS = (0.2, 0.1, 0.05, 0.02, 0.01, 0.005, 0.002, 0.001)
# The page shows so many of them, the first below the risk of accepting all.
_NUM_RISKS = 4
_RULE = "Risk of at most {:g} %"


def selected_row(
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
