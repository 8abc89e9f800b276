"""What numbers say, in words."""

from keras_calib.metrics.mean_gap import MeanGap
from keras_calib.reporting.evaluation import Accepted
from keras_calib.reporting.evaluation import Estimate
from keras_calib.reporting.evaluation import ModelEvaluation
from keras_calib.selection import ChosenThreshold

__all__ = ["direction", "percent", "verdict"]


def verdict(evaluation: ModelEvaluation) -> dict[str, object]:
    """A headline for a model, a word for its colour, and sentences."""
    before = evaluation.before.gap()
    kind, headline = direction(before)
    sentences = [_by_how_much(kind, before)]
    ece = evaluation.before.estimates()["ece"]
    sentences.append(_bins(kind, ece))
    if evaluation.after is not None:
        sentences.append(
            _repair(
                before,
                evaluation.after.gap(),
                ece,
                evaluation.after.estimates()["ece"],
            )
        )
    accepted = evaluation.accepted()
    if accepted is not None:
        sentences += _selection(accepted, evaluation.selector.chosen)
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


def _bins(kind: str, ece: Estimate) -> str:
    text = (
        "Among predictions of equal confidence the two are on average "
        f"{_points(ece.value)} points apart (ECE {ece.value:.4f}, "
        f"{ece.low:.4f} to {ece.high:.4f})."
    )
    if kind == "even" and ece.low > 0.01:
        text += " Gaps of both signs cancel in the mean."
    return text


def _repair(
    gap: MeanGap, repaired: MeanGap, before: Estimate, after: Estimate
) -> str:
    change = "falls" if after.value < before.value else "does not fall"
    return (
        f"With the calibrator the ECE {change}, from {before.value:.4f} to "
        f"{after.value:.4f} ({after.low:.4f} to {after.high:.4f}), and the "
        f"mean difference goes from {_points(gap.value)} to "
        f"{_points(repaired.value)} points."
    )


def _selection(accepted: Accepted, chosen: ChosenThreshold | None) -> list[str]:
    if accepted.coverage == 0.0:
        return ["The selector accepts none of these predictions."]
    risk = accepted.risk
    texts = [
        f"The selector accepts {percent(accepted.coverage)} of these "
        f"predictions; {percent(risk.value, 2)} of those are wrong (with "
        f"95 % certainty {percent(risk.low, 2)} to {percent(risk.high, 2)})."
    ]
    if chosen is None or chosen.certified_risk is None:
        return texts
    limit = percent(chosen.certified_risk, 2)
    texts.append(
        f"It was certified for a risk of at most {limit}, with probability "
        f"{percent(1.0 - chosen.delta)}."
    )
    if risk.low > chosen.certified_risk:
        texts.append(
            f"These data speak against it: the risk on them is above {limit}. "
            "They differ from the data that the threshold was chosen on, or "
            "those had a part in training."
        )
    return texts
