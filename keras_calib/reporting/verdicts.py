"""What numbers say, in words."""

from typing import Any

from keras_calib.metrics.mean_gap import MeanGap
from keras_calib.selection import ChosenThreshold

__all__ = ["direction", "percent", "verdict"]


def verdict(
    results: dict[str, Any],
    repaired: MeanGap | None,
    chosen: ChosenThreshold | None,
) -> dict[str, Any]:
    """A headline for the results of a model, a word for its colour, sentences.

    Takes the gap after calibration and what the selector chose, if any.
    """
    gap, ece = MeanGap(**results["overconfidence"]), results["metrics"]["ece"]
    kind, headline = direction(gap)
    spread = (
        "Among predictions of equal confidence the two are on average "
        f"{_points(ece['value'])} points apart (ECE {ece['value']:.4f}, "
        f"{ece['low']:.4f} to {ece['high']:.4f})."
    )
    if kind == "even" and ece["low"] > 0.01:
        spread += " Gaps of both signs cancel in the mean."
    sentences = [_by_how_much(kind, gap), spread]
    if repaired is not None:
        after = results["calibrated_metrics"]["ece"]
        change = "falls" if after["value"] < ece["value"] else "does not fall"
        sentences.append(
            f"With the calibrator the ECE {change}, from {ece['value']:.4f} to "
            f"{after['value']:.4f} ({after['low']:.4f} to "
            f"{after['high']:.4f}), and the mean difference goes from "
            f"{_points(gap.value)} to {_points(repaired.value)} points."
        )
    if results["selection"] is not None:
        sentences += _selection(results["selection"], chosen)
    return {"kind": kind, "headline": headline, "sentences": sentences}


def percent(share: float, digits: int = 1) -> str:
    """A share as text."""
    return f"{100.0 * share:.{digits}f} %"


def direction(gap: MeanGap) -> tuple[str, str]:
    """`"over"`, `"under"`, `"few"` or `"even"`, and a headline."""
    if gap.low > 0.0:
        return "over", "Overconfident"
    if gap.high < 0.0:
        return "under", "Underconfident"
    if gap.too_few is not None:
        return "few", f"Too few {gap.too_few} to say"
    return "even", "Neither over- nor underconfident on average"


def _points(share: float) -> str:
    return f"{100.0 * share:.1f}"


def _by_how_much(kind: str, gap: MeanGap) -> str:
    between = (
        f"difference is {_points(gap.value)} percentage points, with 95 % "
        f"certainty between {_points(gap.low)} and {_points(gap.high)}."
    )
    if kind == "few":
        return (
            f"A calibrated model, too, would make so few {gap.too_few} on "
            "this many predictions that over- or underconfidence does not "
            f"show. The measured {between} Use more data."
        )
    if kind == "even":
        return (
            "Mean confidence and accuracy cannot be told apart: their "
            f"{between}"
        )
    low, high = sorted((abs(gap.low), abs(gap.high)))
    side = "above" if kind == "over" else "below"
    return (
        f"Its confidence is on average {_points(abs(gap.value))} percentage "
        f"points {side} its accuracy (with 95 % certainty {_points(low)} to "
        f"{_points(high)})."
    )


def _selection(found: dict, chosen: ChosenThreshold | None) -> list[str]:
    if found["coverage"] == 0.0:
        return ["The selector accepts none of these predictions."]
    risk = found["risk"]
    value, low, high = (percent(x, 2) for x in risk.values())
    texts = [
        f"The selector accepts {percent(found['coverage'])} of these "
        f"predictions; {value} of those are wrong (with 95 % certainty {low} "
        f"to {high})."
    ]
    if chosen is None or chosen.certified_risk is None:
        return texts
    limit = percent(chosen.certified_risk, 2)
    texts.append(
        f"It was certified for a risk of at most {limit}, with probability "
        f"{percent(1.0 - chosen.delta)}."
    )
    if risk["low"] > chosen.certified_risk:
        texts.append(
            f"These data speak against it: the risk on them is above {limit}. "
            "They differ from the data that the threshold was chosen on, or "
            "those had a part in training."
        )
    return texts
