"""The verdict on several labels: which are off, how far, and what to do."""

from operator import itemgetter
from typing import Any

from keras_calib.metrics.gap_estimates import GapEstimate
from keras_calib.reporting.measures import kinds_told, listed
from keras_calib.reporting.verdict import direction

# A distance of a label up to this is called small.
_SMALL = 0.02
_AGAIN = (
    "Check that the calibrator was fitted on data like these, which trained "
    "nothing. If they were, fit it on more data, or one with more parameters."
)
# A distance of a label that is called small, by how often it occurs.
_SHARE = 0.2
# Least lower end of the ECE of a label that is off though right on average.
_BENT = 0.01
_SIDES = {
    "over": "predicted too often",
    "under": "predicted too rarely",
    "bent": "right on average only",
}
_FIT_LABELS = (
    "Fit a MultiLabelCalibrator on held-out data that trained nothing, and "
    "give it to the report."
)


def side_of(gap: GapEstimate, ece_low: float) -> str:
    """How the probabilities of a label are off, if data show it.

    `"over"`: they are too high on average; `"under"`: too low; `"bent"`: both
    in part; `"few"`: too few data to say; `"even"`: they agree.
    """
    side, _ = direction(gap)
    if side not in ("over", "under") and ece_low > _BENT:
        return "bent"
    return side


def label_verdict(rows: list[dict[str, Any]], repaired: bool) -> dict[str, Any]:
    """The verdict on the labels: kind, answer, advice and sentences."""
    counted = sum(x["count"] > 0 for x in rows)
    when = ", after calibration" if repaired else ""
    by_side = {
        side: [x for x in rows if x["side"] == side]
        for side in ("over", "under", "bent", "few", "even")
    }
    off = [x for side in _SIDES for x in by_side[side]]
    small = all(
        x["ece"] <= _SMALL
        and abs(x["confidence_gap"]) <= _SHARE * x["prevalence"]
        for x in off
    )
    if not (off or by_side["even"]):
        kind, advice = "few", "Measure on more data before you rely on them."
        answer = (
            "These data cannot say: no label has enough examples with it and "
            "without it."
        )
    elif not off:
        kind = "even"
        answer = (
            f"Yes{when}, as far as these data show: no label has "
            "probabilities that differ from how often it is right."
        )
        advice = (
            "Use them as probabilities on data like these, and measure again "
            "when the data change."
        )
    else:
        size = {side: len(found) for side, found in by_side.items()}
        kind = "over" if size["over"] >= size["under"] else "under"
        no = "No, not even after calibration" if repaired else "No"
        no = f"Nearly{when}" if small else no
        sides = [x for x in _SIDES if by_side[x]]
        how = [f"{size[x]:,} {_SIDES[x]}" for x in sides]
        if len(sides) == 1:
            how = [_SIDES[sides[0]]]
        are = "is" if len(off) == 1 else "are"
        answer = (
            f"{no}: {len(off):,} of {counted:,} labels {are} off, "
            f"{listed(how)}."
        )
        if counted == 1:
            answer = f"{no}: the label is {listed(how)}."
        advice = _AGAIN if repaired else _FIT_LABELS
        if small:
            advice = (
                "Use them where 2 percentage points, and a fifth of how often "
                f"a label occurs, do not matter. {advice}"
            )
    return {
        "kind": kind,
        "answer": answer,
        "advice": advice,
        "sentences": _in_words(rows),
    }


def _in_words(rows: list[dict[str, Any]]) -> list[str]:
    """Sentences that name the labels to look at."""
    known = [x for x in rows if x["count"]]
    kinds = {
        "Predicted too often": [x for x in known if x["side"] == "over"],
        "Predicted too rarely": [x for x in known if x["side"] == "under"],
        "Right on average, but off at some probabilities": [
            x for x in known if x["side"] == "bent"
        ],
        "No better than always stating the share of examples with the label, "
        "by NLL": [
            x
            for x in known
            if x["nll"] >= x["base_nll"] and 0 < x["prevalence"] < 1
        ],
        "In no example": [x for x in known if not x["positives"]],
        "In every example": [x for x in known if x["positives"] == x["count"]],
        "Too few examples to say": [
            x for x in known if x["side"] == "few" and 0 < x["prevalence"] < 1
        ],
        "Missing in all examples": [x for x in rows if not x["count"]],
    }
    return kinds_told(kinds, itemgetter("label"))
