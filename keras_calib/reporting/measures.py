"""The measures of a report: what each is, and what calibration changed."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from keras_calib.metrics.registry import mode_of
from keras_calib.numerics.results import with_interval

# So many rows are named in a sentence.
_NUM_NAMES = 6

# The metrics of a report: its title in the table, and a few words on it.
EXPLAINED = {
    "accuracy": ("Accuracy", "share of right answers"),
    "mean_confidence": ("Mean confidence", "of the answers"),
    "ece": ("ECE", "mean gap over equal-width bins"),
    "aece": ("AECE", "mean gap over equal-mass bins"),
    "mce": ("MCE", "gap in the worst bin"),
    "ecce": ("ECCE-R", "gap of the worst range, by its share; p if calibrated"),
    "nll": ("NLL", "log loss of the labels, in nats"),
    "brier_score": ("Brier score", "squared error of probabilities"),
    "aurc": ("AURC", "mean risk over all coverages"),
    "failure_auroc": ("Failure AUROC", "finds errors: 1 all, 0.5 chance"),
    "coverage_at_risk": ("Coverage at 5 % risk", "most that can be accepted"),
}
# Those of the predicted class alone.
TOP1_METRICS = tuple(x for x in EXPLAINED if x not in ("nll", "brier_score"))
# What is another thing if labels are votes.
_OF_VOTES = {
    "accuracy": ("Accuracy", "share of votes for the prediction"),
    "nll": ("NLL", "log loss of the votes, in nats"),
    "brier_score": ("Brier score", "squared error, mean over votes"),
    "failure_auroc": ("Failure AUROC", "ranks dissent last; 0.5 chance"),
    "coverage_at_risk": (
        "Coverage at 5 % risk",
        "most to accept with 5 % of votes against",
    ),
}
_GAP = "confidence_gap"
_BEST = {"min": "lower is better", "max": "higher is better"}
_SIGNED = ("Confidence less accuracy", "above 0 is overconfident")


def measures(results: dict[str, Any]) -> list[dict[str, Any]]:
    """The rows of the table of a model's results.

    A row has a `title`, `words` that explain it, what is `best`, and for each
    stage a cell of
    value, interval and p-value. With calibration there is a `change`: an arrow,
    a word and a kind, which is `"better"`, `"worse"` or `"unclear"`.
    """
    stages = [{_GAP: results[_GAP], **results["metrics"]}]
    if "calibrated_metrics" in results:
        gap = results["calibrated_confidence_gap"]
        stages.append({_GAP: gap, **results["calibrated_metrics"]})
    found = []
    words = EXPLAINED | (_OF_VOTES if "annotators" in results else {})
    for name, (title, told) in {_GAP: _SIGNED, **words}.items():
        if name in stages[0]:
            estimates = [stage[name] for stage in stages]
            best = _BEST.get(str(mode_of(name)), "")
            best = "0 is best" if name == _GAP else best
            row: dict[str, Any] = {"title": title, "words": told, "best": best}
            row["cells"] = [cell(name, x) for x in estimates]
            row["change"] = _change(name, *estimates) if estimates[1:] else None
            found.append(row)
    return found


def listed(titles: list[str]) -> str:
    """Names with commas, and "and" before the last."""
    *first, last = titles
    return f"{', '.join(first)} and {last}" if first else last


def kinds_told(
    kinds: Mapping[str, Sequence], name_of: Callable[[Any], str]
) -> list[str]:
    """A sentence for each kind that has rows: what it is, and their names."""
    return [
        f"{text}: {names_of(found, name_of)}."
        for text, found in kinds.items()
        if found
    ]


def names_of(rows: Sequence, name_of: Callable[[Any], str]) -> str:
    """The names of the first rows, and how many more there are."""
    names = ", ".join(map(name_of, rows[:_NUM_NAMES]))
    more = len(rows) - _NUM_NAMES
    return names + (f" and {more:,} more" if more > 0 else "")


def cell(name: str, x: dict[str, Any]) -> tuple[str, str, str]:
    """Value, interval and p-value of a metric as texts, empty if unknown."""
    value, ends = with_interval(
        *(x[k] for k in ("value", "low", "high")),
        digits=3 if name == "nll" else 4,
        sign="+" if name == _GAP else "",
    )
    p = x.get("p_value")
    if p is None:
        return value, ends, ""
    return value, ends, "p < 0.001" if p < 1e-3 else f"p = {p:.3f}"


def _change(
    name: str, before: dict[str, float], after: dict[str, float]
) -> tuple[str, str, str]:
    """Arrow, word and kind of a change: clear if the intervals lie apart."""
    if abs(after["value"] - before["value"]) < 1e-9:
        return "=", "same", "unclear"
    arrow = "↓" if after["value"] < before["value"] else "↑"
    mode = mode_of(name)
    # A gap is better if it is nearer to 0, whatever its side.
    if name == _GAP:
        before, after, mode = _size(before), _size(after), "min"
    if mode is None:
        return arrow, "", "unclear"
    apart = after["high"] < before["low"] or after["low"] > before["high"]
    if not apart:
        return arrow, "not clear", "unclear"
    falls = after["value"] < before["value"]
    kind = "better" if falls == (mode == "min") else "worse"
    return arrow, kind, kind


def _size(x: dict[str, float]) -> dict[str, float]:
    """The distance from 0, with its interval."""
    value, low, high = x["value"], x["low"], x["high"]
    return {
        "value": abs(value),
        "low": max(0.0, low, -high),
        "high": max(abs(low), abs(high)),
    }
