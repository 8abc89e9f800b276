"""The page of a report of several labels, and its pictures."""

from collections.abc import Sequence
from typing import Any

import numpy as np

from keras_calib.formulas.binned_intervals import accuracy_interval
from keras_calib.formulas.bins import BinSums
from keras_calib.plots.display import BLUE, GREY, ORANGE, Display, plain
from keras_calib.reporting.html import made_now, template
from keras_calib.reporting.label_evaluation import LabelEvaluation
from keras_calib.reporting.pictures import diagram, shown

__all__ = ["label_page_of"]

# Labels in pictures, and in tables before the others are folded away.
_NUM_PICTURES, _NUM_ROWS = 6, 25
_SIZE = (2.7, 2.5)
# Longest name above a picture.
_LONGEST = 24
# Measures of the summary: key, title, words.
_MEASURES = (
    ("probability", "Mean probability", "of a label"),
    ("prevalence", "Share with the label", "of the examples"),
    ("ece", "ECE", "mean gap over bins of the probability"),
    ("nll", "NLL", "log loss of yes and no, in nats"),
    ("brier", "Brier score", "squared error, summed over yes and no"),
    ("auroc", "AUROC", "ranks examples with the label first; 0.5 chance"),
)


def label_page_of(
    evaluations: list[LabelEvaluation],
    results: dict[str, dict],
    *,
    title: str,
    num_bins: int,
    notes: dict[str, str],
) -> str:
    """The HTML page of some models of several labels and their results."""
    return template("label_page.html.jinja").render(
        title=title,
        models=[_model(x, results[x.name]) for x in evaluations],
        options=evaluations[0].options,
        num_bins=num_bins,
        most=_NUM_ROWS,
        notes=notes,
        **made_now(),
    )


def _model(evaluation: LabelEvaluation, results: dict) -> dict[str, Any]:
    """What the template shows of a model."""
    stages = [results["summary"]]
    whens = [""]
    if "calibrated_summary" in results:
        stages.append(results["calibrated_summary"])
        whens = ["before calibration", "after calibration"]
    rows = sorted(results["labels"], key=_place)
    # Of one label both means are the same.
    kinds = 1 if results["num_labels"] == 1 else 2
    selected = (results["selection"] or {}).get("labels", ())
    return {
        "name": evaluation.name,
        "results": results,
        "columns": [
            (text, when)
            for text in ("Mean over labels", "Mean over answers")[:kinds]
            for when in (*whens, "base rate")
        ],
        "measures": [
            {
                "title": measure,
                "words": words,
                "numbers": [
                    value
                    for kind in ("macro", "micro")[:kinds]
                    for value in (
                        *(x[kind][key] for x in stages),
                        _base(key, stages[-1][kind]),
                    )
                ],
            }
            for key, measure, words in _MEASURES
        ],
        "rows": [{"before_ece": None, "before_nll": None, **x} for x in rows],
        "pictures": [
            _picture(evaluation, x, whens)
            for x in rows[:_NUM_PICTURES]
            if x["count"]
        ],
        "mistakes": [
            {
                **x._asdict(),
                **shown(x.sample),
                "label": evaluation.label_name(x.label),
            }
            for x in evaluation.mistakes
        ],
        "selected": [
            {
                **x,
                "accepts": x["threshold"] < np.inf,
                "accepts_all": x["threshold"] == -np.inf,
            }
            for x in sorted(selected, key=lambda x: x["coverage"])
        ],
        "calibrator": _about_calibrator(evaluation.calibrator),
        "selector": _about_selector(evaluation.selector),
    }


def _place(row: dict[str, Any]) -> tuple:
    """Where a label stands: those that are surely off come first."""
    return (
        not row["count"],
        row["side"] == "few",
        -row["ece_low"],
        -row["ece"],
        row["number"],
    )


def _base(key: str, values: dict[str, float]) -> float | None:
    """What stating the shares of the labels scores."""
    if key == "probability":
        return values["prevalence"]
    own = {"prevalence": values["prevalence"], "ece": 0.0, "auroc": 0.5}
    return own.get(key, values.get(f"base_{key}"))


def _about_calibrator(part: Any) -> str:
    if part is None:
        return "none"
    how = "one fit shared by all labels" if part.shared else "a fit by label"
    return (
        f"{type(part.calibrator).__name__}, {how}. It was fitted before, on "
        "data that must not be these"
    )


def _about_selector(part: Any) -> str:
    if part is None:
        return "none"
    text = "a threshold by label" if part.by == "label" else "whole examples"
    if part.by == "example":
        text += f", by their {part.example} label"
        if part.example == "mean":
            text = "whole examples, by the mean over their labels"
    chosen = part.chosen
    if chosen is None:
        return text
    size = max(chosen.group_samples, default=chosen.num_samples)
    text += f", chosen on {size:,} examples of its own"
    if chosen.limit is not None:
        text += f", risk {chosen.limit:.4g} with delta {chosen.delta:.4g}"
    return text


def _picture(
    evaluation: LabelEvaluation, row: dict[str, Any], whens: Sequence[str]
) -> dict[str, str]:
    k = row["number"]
    bins = {
        when: sums.facts(k).bins
        for when, sums in zip(whens, evaluation.sums, strict=True)
    }
    text = f"{row['label']}: share of examples with it by its probability"
    return diagram(_LabelDisplay(row["label"], bins), text, _SIZE)


class _LabelDisplay(Display):
    """Shares with a label against its probability, of one or two stages."""

    def __init__(self, name: str, bins: dict[str, BinSums]):
        self.name, self.bins = name, bins

    def _draw(self, ax: Any) -> None:
        top = 0.0
        styles = ((ORANGE, "s"), (BLUE, "o"))[-len(self.bins) :]
        for sums, (color, marker) in zip(
            self.bins.values(), styles, strict=True
        ):
            filled = sums.weight > 0
            x, y = sums.mean_confidence[filled], sums.accuracy[filled]
            low, high = (end[filled] for end in accuracy_interval(sums))
            ax.errorbar(
                x,
                y,
                yerr=np.maximum([y - low, high - y], 0.0),
                fmt=marker,
                markersize=4,
                color=color,
                capsize=2,
                linewidth=1,
            )
            top = max(top, *x, *y)
        # A rare label would lie in a corner.
        top = min(1.0, 1.2 * top + 0.02)
        ax.plot([0, top], [0, top], color=GREY, linestyle="--", linewidth=1)
        ax.set(
            xlim=(-0.02 * top, 1.02 * top),
            ylim=(-0.02 * top, 1.02 * top),
            xlabel="probability of the label",
            ylabel="share with the label",
            title=plain(_short(self.name)),
        )
        ax.locator_params(nbins=4)


def _short(name: str) -> str:
    """A name that fits above a picture."""
    return name if len(name) <= _LONGEST else f"{name[: _LONGEST - 1]}…"
