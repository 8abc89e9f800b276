"""The verdict of a report: can the confidence be trusted, and what to do."""

from collections.abc import Sequence
from operator import itemgetter
from typing import Any

from keras_calib.metrics.gap_estimates import GapEstimate
from keras_calib.reporting.measures import names_of
from keras_calib.reporting.remainder import Remainder
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
_OTHERS = (
    "Compare other calibrators with choose_calibrator. If none helps, this one "
    "was fitted on other data than these, or on data that trained the model."
)
_BY_CLASS = (
    "There fit StructuredVectorScaling, which has parameters for each class, "
    "or a calibrator for each group."
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


def judged(
    gap: GapEstimate,
    ece: dict[str, float],
    left: Remainder | None = None,
    worse: Sequence[dict[str, Any]] = (),
) -> dict[str, Any]:
    """What a mean gap and an ECE say: a kind, a headline and sentences.

    The kind is that of `direction`, and chooses the colour. What is `left`
    after calibration is no fault if chance explains it.
    """
    kind, headline = direction(gap)
    spread = (
        "Among predictions of equal confidence, confidence and accuracy are "
        f"on average {_points(ece['value'])} points apart (ECE "
        f"{ece['value']:.4f}, {ece['low']:.4f} to {ece['high']:.4f})."
    )
    if kind == "even" and ece["low"] > 0.01:
        spread += " Gaps of both signs cancel in the mean."
    sentences = [_by_how_much(kind, gap), spread]
    if left is not None:
        if kind in ("over", "under") and not left.has_gap:
            kind, headline = "even", "Calibrated, as far as its fit allows"
        sentences.append(
            "It is not known on how many rows the calibrator was fitted; few "
            "leave gaps by chance."
            if left.fitted is None
            else f"The calibrator was fitted on {left.told}, which leave a "
            f"mean difference of up to {_points(left.reach)} points by chance."
        )
    if worse:
        rows = [
            f"{x['name']} from {_points(x['before'])} to {_points(x['value'])}"
            f" points ({_points(x['low'])} to {_points(x['high'])})"
            for x in worse
        ]
        sentences.append(f"Calibration took {names_of(rows, str)}.")
    return {"kind": kind, "headline": headline, "sentences": sentences}


def verdict(
    before: tuple[GapEstimate, dict],
    after: tuple[GapEstimate, dict] | None,
    left: Remainder | None = None,
    worse: Sequence[dict[str, Any]] = (),
) -> dict[str, Any]:
    """The verdict on the model, with an `answer` and an `advice`.

    `before` and `after` calibration are a mean gap and an ECE; the answer is
    of what users get: after calibration, if there is one. What is `left` of
    it by chance is nobody's fault. It names classes that became `worse`.
    """
    gap, ece = before if after is None else after
    kind, _ = direction(gap)
    is_off, is_bent = kind in ("over", "under"), ece["low"] > 0.0
    has_gap = is_off and (left is None or left.has_gap)
    worst = max(abs(gap.low), abs(gap.high))
    repaired, again = after is not None, _AGAIN
    if left is not None and left.fitted is not None:
        again = f"A fit on {left.told} leaves less by chance. {_OTHERS}"
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
    elif not has_gap and (is_bent if left is None else left.is_bent):
        answer = f"Only on average{when}: gaps of both signs cancel."
        advice = again if repaired else _BEND
    elif left is not None and (is_off or is_bent) and not has_gap:
        answer, advice = _mended(before, gap, ece, left)
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
            + (again if repaired else _FIT)
        )
    else:
        no = "No, not even after calibration" if repaired else "No"
        answer = (
            f"{no}: it is too {side} by {_points(abs(gap.value))} percentage "
            "points on average."
        )
        advice = again if repaired else _FIT
    if worse:
        names = names_of(worse, itemgetter("name"))
        was, now = (_points(worse[0][x]) for x in ("before", "value"))
        most = "" if len(worse) == 1 else "at most "
        but = "C" if answer.startswith("No") else "But c"
        answer += (
            f" {but}alibration made it worse for {names}, {most}from {was} to "
            f"{now} points."
        )
        advice = f"Do not rely on it for {names}. {_BY_CLASS} {advice}"
    found = {**judged(*before), "answer": answer, "advice": advice}
    return {**found, "worse_classes": [*worse]} if repaired else found


def _mended(
    before: tuple[GapEstimate, dict],
    gap: GapEstimate,
    ece: dict[str, float],
    left: Remainder,
) -> tuple[str, str]:
    """Answer and advice where chance explains all that is left."""
    off = not gap.low <= 0.0 <= gap.high
    what, was = f"gap {_points(abs(gap.value))} points", abs(before[0].value)
    most = f"{_points(max(abs(gap.low), abs(gap.high)))} points do"
    if not off:
        what, was = f"ECE {ece['value']:.4f}", before[1]["value"]
        most = f"an ECE of {ece['high']:.4f} does"
    use = f"Use the confidence where {most} not matter"
    if was < (abs(gap.value) if off else ece["value"]):
        return (
            f"Calibration did not help: what is left ({what}) is more than "
            f"there was, and a fit on {left.told} can leave that.",
            "Fit it on more data, or use the model without it.",
        )
    if left.few_tested:
        return (
            f"Mended, as far as so few data show: what is left ({what}) can "
            "be chance.",
            f"{use}, or measure on more data.",
        )
    return (
        f"Mended: what is left ({what}) is what {left.told} leave; "
        f"{10 * (left.fitted or 0):,} would leave a third of it.",
        f"{use}. For less, fit the calibrator on more data.",
    )


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
