"""The verdict of a report: can the confidence be trusted, and what to do."""

from operator import itemgetter
from typing import Any

from keras_calib.metrics.gap_estimates import GapEstimate
from keras_calib.reporting.measures import names_of
from keras_calib.selection import Choice

# A distance of confidence and accuracy up to this is called small.
_SMALL = 0.02
_FIT = (
    "Fit a calibrator on held-out data that trained nothing, and give it to "
    "the report: choose_calibrator finds one that suits these data."
)
_BEND = (
    "Fit a calibrator that can bend on held-out data that trained nothing: "
    "choose_calibrator compares several."
)
_AGAIN = (
    "Check that the calibrator was fitted on data like these, which trained "
    "nothing. If they were, fit it on more data, or one with more parameters."
)
_NOT_AGAINST = "These data do not contradict it."


def direction(gap: GapEstimate) -> tuple[str, str]:
    """`"over"`, `"under"`, `"few"` or `"even"`, and a headline."""
    if gap.low > 0.0:
        return "over", "Overconfident"
    if gap.high < 0.0:
        return "under", "Underconfident"
    if gap.too_few is not None:
        return "few", f"Too few {gap.too_few} to say"
    return "even", "Neither over- nor underconfident on average"


def judged(gap: GapEstimate, ece: dict[str, float]) -> dict[str, Any]:
    """What a mean gap and an ECE say: a kind, a headline and sentences.

    The kind is that of `direction`, and chooses the colour.
    """
    kind, headline = direction(gap)
    spread = (
        "Among predictions of equal confidence, confidence and accuracy are "
        f"on average {_points(ece['value'])} points apart (ECE "
        f"{ece['value']:.4f}, {ece['low']:.4f} to {ece['high']:.4f})."
    )
    if kind == "even" and ece["low"] > 0.01:
        spread += " Gaps of both signs cancel in the mean."
    return {
        "kind": kind,
        "headline": headline,
        "sentences": [_by_how_much(kind, gap), spread],
    }


def verdict(
    before: tuple[GapEstimate, dict], after: tuple[GapEstimate, dict] | None
) -> dict[str, Any]:
    """The verdict on the model, with an `answer` and an `advice`.

    `before` and `after` calibration are a mean gap and an ECE; the answer is
    of what users get: after calibration, if there is one.
    """
    gap, ece = before if after is None else after
    kind, _ = direction(gap)
    worst = max(abs(gap.low), abs(gap.high))
    repaired = after is not None
    when = ", after calibration" if repaired else ""
    side = "sure" if kind == "over" else "unsure"
    if kind == "few":
        answer = f"These data cannot say: they hold too few {gap.too_few}."
        advice = "Measure on more data before you rely on the confidence."
    elif kind == "even" and ece["value"] <= _SMALL:
        answer = f"Yes{when}: confidence and accuracy agree on these data."
        advice = (
            "Use the confidence as a probability on data like these, and "
            "measure again when the data change."
        )
    elif kind == "even" and ece["low"] > 0.0:
        answer = f"Only on average{when}: gaps of both signs cancel."
        advice = _AGAIN if repaired else _BEND
    elif kind == "even":
        answer = (
            f"Yes{when}, as far as these data show: they cannot tell the "
            "confidence from a calibrated one."
        )
        advice = (
            f"An ECE of up to {ece['high']:.4f} cannot be ruled out. Measure "
            "on more data before you rely on less."
        )
    # Certainly there, and certainly too small to matter to most.
    elif worst <= _SMALL and ece["value"] <= _SMALL:
        answer = (
            f"Nearly{when}: it is too {side} by "
            f"{_points(abs(gap.value))} percentage points."
        )
        advice = (
            "Use the confidence where 2 percentage points do not matter. "
            + (_AGAIN if repaired else _FIT)
        )
    else:
        no = "No, not even after calibration" if repaired else "No"
        answer = (
            f"{no}: it is too {side} by {_points(abs(gap.value))} percentage "
            "points on average."
        )
        advice = _AGAIN if repaired else _FIT
    return {**judged(*before), "answer": answer, "advice": advice}


def change_of(
    before: tuple[GapEstimate, dict], after: tuple[GapEstimate, dict]
) -> str:
    """What calibration changed, in one sentence."""
    (gap, ece), (new_gap, new_ece) = before, after
    change = "falls" if new_ece["value"] < ece["value"] else "does not fall"
    return (
        f"With the calibrator the ECE {change}, from {ece['value']:.4f} to "
        f"{new_ece['value']:.4f}, and the mean difference of confidence and "
        f"accuracy goes from {_points(gap.value)} to "
        f"{_points(new_gap.value)} percentage points."
    )


def about_selection(
    found: dict, chosen: Choice | None, *, votes: bool = False
) -> tuple[list[str], bool]:
    """Sentences on the selector, and whether data contradict its guarantee.

    Votes cannot contradict it, because it is of one class for each sample.
    """
    if found["coverage"] == 0.0:
        return ["The selector accepts none of these predictions."], False
    risk = found["risk"]
    value, low, high = (_percent(x, 2) for x in risk.values())
    wrong = "of their votes are for others" if votes else "of them are wrong"
    texts = [
        f"The selector accepts {_percent(found['coverage'])} of these "
        f"predictions, those above its threshold; {value} {wrong} (with 95 % "
        f"certainty {low} to {high})."
    ]
    if chosen is None or chosen.risk_limit is None or chosen.delta is None:
        return texts, False
    limit = _percent(chosen.risk_limit, 2)
    texts.append(
        f"It was certified for a risk of at most {limit}, with probability "
        f"{_percent(1.0 - chosen.delta)}."
    )
    if votes:
        texts.append(
            "That is a guarantee for one class of each sample: votes neither "
            "confirm nor contradict it."
        )
        return texts, False
    broken = risk["low"] > chosen.risk_limit
    texts.append(_against(limit) if broken else _NOT_AGAINST)
    return texts, broken


def about_label_selection(found: dict[str, Any]) -> list[str]:
    """Sentences on the selector of labels or of examples."""
    by_label = found["by"] == "label"
    what = "answers to labels" if by_label else "examples"
    if not found["coverage"]:
        return [f"The selector accepts none of these {what}."]
    wrong = "wrong" if by_label else "wrong in a label"
    if not by_label and found["example"] == "mean":
        text = (
            f"The selector accepts {_percent(found['coverage'])} of these "
            f"examples. Of their answers {_percent(found['risk'], 2)} are "
            "wrong."
        )
    else:
        text = (
            f"The selector accepts {_percent(found['coverage'])} of these "
            f"{what}, of which {_percent(found['risk'], 2)} are {wrong}."
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
        f"{whose} certified to be at most {_percent(limit, 2)}, with "
        f"probability {_percent(1.0 - delta)}."
    )
    if found["contradicted"]:
        named = ""
        if by_label:
            rows = [x for x in found["labels"] if x["contradicted"]]
            named = f" for {names_of(rows, itemgetter('label'))}"
        texts.append(_against(_percent(limit, 2), named))
    else:
        texts.append(_NOT_AGAINST)
    return texts


def _against(limit: str, named: str = "") -> str:
    return (
        f"These data speak against it{named}: the risk on them is above "
        f"{limit}. They differ from the data that the threshold was chosen on, "
        "or those had a part in training. Choose the threshold again on data "
        "like these."
    )


def _by_how_much(kind: str, gap: GapEstimate) -> str:
    between = (
        f"difference is {_points(gap.value)} percentage points, with 95 % "
        f"certainty between {_points(gap.low)} and {_points(gap.high)}."
    )
    if kind == "few":
        return (
            f"Even a calibrated model would make too few {gap.too_few} on "
            "this many predictions to show over- or underconfidence. The "
            f"measured {between} Use more data."
        )
    if kind == "even":
        return (
            "Mean confidence and accuracy agree as far as these data show: "
            f"their {between}"
        )
    low, high = sorted((abs(gap.low), abs(gap.high)))
    side = "above" if kind == "over" else "below"
    return (
        f"Its confidence is on average {_points(abs(gap.value))} percentage "
        f"points {side} its accuracy (with 95 % certainty {_points(low)} to "
        f"{_points(high)})."
    )


def _points(share: float) -> str:
    # Adding 0 turns -0.0 into 0.0.
    return f"{round(100.0 * share, 1) + 0.0:.1f}"


def _percent(share: float, digits: int = 1) -> str:
    return f"{100.0 * share:.{digits}f} %"
