"""What a report says of several labels in words: which are off, what to do."""

from operator import itemgetter
from typing import Any

from keras_calib.metrics.mean_gap import MeanGap
from keras_calib.reporting.measures import kinds_told, listed, names_of
from keras_calib.reporting.verdict import AGAIN, percent

__all__ = ["about_label_selection", "label_verdict", "side_of"]

# A distance of probability and frequency up to this is called small.
_SMALL = 0.02
# The same of a label, by how often it occurs.
_SHARE = 0.2
# Least lower end of the ECE of a label that is off though right on average.
_BENT = 0.01
_SIDES = {
    "over": "predicted too often",
    "under": "predicted too rarely",
    "bent": "right on average only",
}
_FIT = (
    "Fit a MultiLabelCalibrator on held-out data that trained nothing, and "
    "give it to the report."
)


def side_of(gap: MeanGap, ece_low: float) -> str:
    """How the probabilities of a label are off, if data show it.

    `"over"`: they are too high on average; `"under"`: too low; `"bent"`: both
    in part; `"few"`: too few data to say; `"even"`: they agree.
    """
    if gap.low > 0.0:
        return "over"
    if gap.high < 0.0:
        return "under"
    if ece_low > _BENT:
        return "bent"
    return "few" if gap.too_few is not None else "even"


def label_verdict(
    rows: list[dict[str, Any]], summaries: list[dict], counted: int
) -> dict[str, Any]:
    """The verdict on the labels: kind, answer, advice and sentences."""
    repaired = len(summaries) > 1
    when = ", after calibration" if repaired else ""
    by_side = {
        side: [x for x in rows if x["side"] == side]
        for side in ("over", "under", "bent", "few", "even")
    }
    off = [x for side in _SIDES for x in by_side[side]]
    judged = any(by_side[x] for x in (*_SIDES, "even"))
    small = all(
        x["ece"] <= _SMALL and abs(x["gap"]) <= _SHARE * x["prevalence"]
        for x in off
    )
    if not judged:
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
        advice = AGAIN if repaired else _FIT
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


def about_label_selection(found: dict[str, Any]) -> list[str]:
    """Sentences on the selector of labels or of examples."""
    by_label = found["by"] == "label"
    what = "answers to labels" if by_label else "examples"
    if not found["coverage"]:
        return [f"The selector accepts none of these {what}."]
    wrong = "wrong" if by_label else "wrong in a label"
    if not by_label and found["example"] == "mean":
        text = (
            f"The selector accepts {percent(found['coverage'])} of these "
            f"examples. Of their answers {percent(found['risk'], 2)} are "
            "wrong."
        )
    else:
        text = (
            f"The selector accepts {percent(found['coverage'])} of these "
            f"{what}, of which {percent(found['risk'], 2)} are {wrong}."
        )
    texts = [text]
    limit, delta = found["certified_risk"], found["delta"]
    if limit is None or delta is None:
        return [*texts, "It has no guarantee: it was fitted without `delta`."]
    whose = "The risk of accepted examples is"
    if by_label:
        whose = "The risk of every label at once is"
        if not found["at_once"]:
            whose = "The risk of each label alone is"
    texts.append(
        f"{whose} certified to be at most {percent(limit, 2)}, with "
        f"probability {percent(1.0 - delta)}."
    )
    if found["contradicted"]:
        named = ""
        if by_label:
            rows = [x for x in found["labels"] if x["contradicted"]]
            named = f" for {names_of(rows, itemgetter('label'))}"
        texts.append(
            f"These data speak against it{named}: the risk on them is above "
            f"{percent(limit, 2)}. They differ from the data that the "
            "threshold was chosen on, or those had a part in training. Choose "
            "it again on data like these."
        )
    else:
        texts.append("These data do not contradict it.")
    return texts
