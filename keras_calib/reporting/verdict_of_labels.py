"""The verdict on several labels: which are off, how far, and what to do."""

from dataclasses import replace
from operator import itemgetter
from typing import Any

import numpy as np

from keras_calib.formulas.binned_intervals import error_interval
from keras_calib.formulas.bins import BinSums
from keras_calib.metrics.gap_estimates import GapEstimate
from keras_calib.reporting.measures import kinds_told, names_of
from keras_calib.reporting.verdict import direction

# Probability to call the mean of any label off if all are calibrated. With
# their bins it is below 5 %.
MISTAKE = 0.04
# A distance of a label is called small up to this, and this share of how often
# it occurs.
_SMALL, _SHARE = 0.02, 0.2
# Least lower end of the ECE of a label that is off though right on average.
_BENT = 0.01
_SIDES = {"over": "too high", "under": "too low"}
_USE = (
    "Use them as probabilities on data like these, and measure again when the "
    "data change."
)
_FIT = (
    "Fit a MultiLabelCalibrator on held-out data that trained nothing, and "
    "give it to the report."
)
_AGAIN = (
    "Try AffineScaling or BetaCalibration in the MultiLabelCalibrator. If "
    "neither helps, it was fitted on other data than these, or on data that "
    "trained the model."
)


def side_of(
    gap: GapEstimate, bins: BinSums, level: float, fitted: int | None = None
) -> str:
    """How the probabilities of a label are off, if data show it at a level.

    `"over"`: they are too high on average; `"under"`: too low; `"bent"`: both
    in part; `"few"`: too few data to say; `"even"`: they agree. A fit of a
    calibrator on `fitted` examples leaves gaps by chance. Their variance is at
    most that of these data times the ratio of the two sizes. So the intervals
    are those of the difference of two samples.
    """
    count = bins.weight.sum() ** 2 / bins.squared_weight.sum()
    more = 1.0 + (count / fitted if fitted else 0.0)
    low, high = (
        float(gap.value + np.sqrt(more) * (end - gap.value))
        for end in (gap.low, gap.high)
    )
    side, _ = direction(replace(gap, low=low, high=high))
    if side in _SIDES:
        return side
    bins = replace(bins, squared_weight=more * bins.squared_weight)
    return "bent" if error_interval(bins, level=level)[0] > _BENT else side


def label_verdict(
    rows: list[dict[str, Any]], repaired: bool, fitted: int | None = None
) -> dict[str, Any]:
    """The verdict on the labels: kind, answer, advice and sentences.

    `fitted` is the number of examples that the calibrator was fitted on, if
    it is known.
    """
    known = [x for x in rows if x["count"]]
    off = [x for x in known if x["side"] in (*_SIDES, "bent")]
    off.sort(key=lambda x: -abs(x["confidence_gap"]))
    good = sum(x["side"] == "even" for x in known)
    when = ", after calibration" if repaired else ""
    kind, advice = "even", _USE
    if off:
        kind = off[0]["side"].replace("bent", "over")
        advice = _AGAIN if repaired else _FIT
        no = "No, not even after calibration" if repaired else "No"
        are = "is" if len(off) == 1 else "are"
        small = all(
            x["ece"] <= _SMALL
            and abs(x["confidence_gap"]) <= _SHARE * x["prevalence"]
            for x in off
        )
        if small:
            no, are = f"Nearly{when}", f"{are} a little"
            advice = (
                "Use them where 2 percentage points, and a fifth of how often "
                f"a label occurs, do not matter. {advice}"
            )
        labels = f"of {len(known):,} labels" if known[1:] else "label"
        answer = f"{no}: {len(off):,} {labels} {are}"
        if len(off) < good:
            when += "," if repaired else ""
            answer = f"Yes{when} for {good:,} {labels}; {len(off):,} {are}"
            advice = f"Use the probabilities of the others. {advice}"
        answer += f" off: {names_of(off, _how_far)}."
    elif good:
        answer = (
            f"Yes{when}, as far as these data show: no label has "
            "probabilities that differ from how often it is right."
        )
    else:
        kind, advice = "few", "Measure on more data before you rely on them."
        answer = (
            "These data cannot say: no label has enough examples with it and "
            "without it."
        )
    sentences = _in_words(rows)
    if fitted is not None:
        sentences.append(
            f"The calibrator was fitted on {fitted:,} examples. A label is off "
            "where chance in these and in the data here does not explain it."
        )
    return {
        "kind": kind,
        "answer": answer,
        "advice": advice,
        "sentences": sentences,
    }


def _how_far(row: dict[str, Any]) -> str:
    """The name of a label that is off, and by how much."""
    if row["side"] == "bent":
        return f"{row['label']} (right on average, ECE {row['ece']:.3f})"
    points = 100.0 * abs(row["confidence_gap"])
    points = f"{points:.1f}" if points >= 0.1 else f"{points:.1g}"
    return f"{row['label']} ({points} points {_SIDES[row['side']]})"


def _in_words(rows: list[dict[str, Any]]) -> list[str]:
    """Sentences that name other labels to look at."""
    known = [x for x in rows if x["count"]]
    mixed = [x for x in known if 0 < x["prevalence"] < 1]
    kinds = {
        "No better than always stating the share of examples with the label, "
        "by NLL": [x for x in mixed if x["nll"] >= x["base_nll"]],
        "In no example": [x for x in known if not x["positives"]],
        "In every example": [x for x in known if x["positives"] == x["count"]],
        "Too few examples to say": [x for x in mixed if x["side"] == "few"],
        "Missing in all examples": [x for x in rows if not x["count"]],
    }
    return kinds_told(kinds, itemgetter("label"))
