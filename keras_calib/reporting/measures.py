"""The measures of a report: what each is, and what calibration changed."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from keras_calib.backend.late import keras_module
from keras_calib.numerics.results import with_interval

# The names of a report's metrics are known without Keras.
_registry = keras_module("keras_calib.metrics.registry")
# Changes are clear if none of them is so by chance in 95 % of reports.
_LEVEL = 0.05
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
# Of several labels at once, over labels and over all entries.
_OF_LABELS = "ece", "nll", "brier_score", "auroc"
_OF_LABELS += "accuracy", "precision", "recall"
# The metrics of a report, by the kind of predictions.
METRICS_BY_KIND = {
    "classes": (_GAP, *EXPLAINED),
    "votes": (_GAP, *EXPLAINED),
    "records": (_GAP, *TOP1_METRICS),
    "labels": (
        *(f"{mean}_{x}" for mean in ("macro", "micro") for x in _OF_LABELS),
        *(f"example_{x}" for x in ("accuracy", "mean_confidence", "ece")),
    ),
}


def estimates_by_stage(results: dict[str, Any]) -> list[dict[str, Any]]:
    """Estimates by name, of each stage: before and after calibration, if any.

    With several labels, means over labels have names such as `macro_ece`. Those
    of whole examples, `example_ece`, are of the last stage.
    """
    stages: list[dict[str, Any]] = []
    for start in ("", "calibrated_"):
        if f"{start}metrics" in results:
            gap = {_GAP: results[f"{start}{_GAP}"]}
            stages.append(gap | results[f"{start}metrics"])
        elif f"{start}summary" in results:
            ends = {"value": "", "low": "_low", "high": "_high"}
            stages.append(
                {
                    f"{mean}_{x}": {k: own[f"{x}{y}"] for k, y in ends.items()}
                    for mean, own in results[f"{start}summary"].items()
                    for x in _OF_LABELS
                }
            )
    examples = {
        f"example_{k}": x for k, x in results.get("examples", {}).items()
    }
    stages[-1] |= {k: x for k, x in examples.items() if isinstance(x, dict)}
    return stages


def measures(results: dict[str, Any]) -> list[dict[str, Any]]:
    """The rows of the table of a model's results.

    A row has a `title`, `words` that explain it, what is `best`, and for each
    stage a cell of
    value, interval and p-value. With calibration there is a `change`: an arrow,
    a word and a kind, which is `"better"`, `"worse"` or `"unclear"`.
    """
    stages, found = estimates_by_stage(results), []
    words = EXPLAINED | (_OF_VOTES if "annotators" in results else {})
    for name, (title, told) in {_GAP: _SIGNED, **words}.items():
        if name in stages[0]:
            estimates = [stage[name] for stage in stages]
            best = _BEST.get(str(_registry.mode_of(name)), "")
            best = "0 is best" if name == _GAP else best
            row: dict[str, Any] = {"title": title, "words": told, "best": best}
            row["cells"] = [cell(name, x) for x in estimates]
            row["change"] = None
            if estimates[1:]:
                test = results["changes"].get(name)
                row["change"] = _change(name, estimates[0], estimates[1], test)
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
    name: str,
    before: dict[str, float],
    after: dict[str, float],
    test: dict[str, float] | None,
) -> tuple[str, str, str]:
    """Arrow, word and kind of a change: clear if a paired test is."""
    if abs(after["value"] - before["value"]) < 1e-9:
        return "=", "same", "unclear"
    arrow = "↓" if after["value"] < before["value"] else "↑"
    mode = "min" if name == _GAP else _registry.mode_of(name)
    if mode is None or test is None:
        return arrow, "", "unclear"
    if test["p_holm"] > _LEVEL:
        return arrow, "not clear", "unclear"
    # A gap is better if it is nearer to 0, whatever its side.
    old, new = (abs(x["value"]) for x in (before, after))
    kind = "better" if (new < old) == (mode == "min") else "worse"
    return arrow, f"clearly {kind}", kind
