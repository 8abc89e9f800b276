"""The sections of a page: questions, and what their tables and pictures show.

`SECTIONS` says which sections a kind has. The templates of the kinds have a
macro for each.
"""

from collections.abc import Callable
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np

from keras_calib.formulas.risk_coverage import RiskCoveragePoints
from keras_calib.plots import (
    ConfidenceDisplay,
    ReliabilityDisplay,
    RiskCoverageDisplay,
)
from keras_calib.reporting.evaluation import ClassEvaluation, Evaluation
from keras_calib.reporting.groups import (
    SURE,
    GroupRow,
    StageGroups,
    worst_first,
)
from keras_calib.reporting.labels import LabelEvaluation
from keras_calib.reporting.measures import directions, kinds_told, measures
from keras_calib.reporting.pictures import (
    WIDE,
    cumulative_diagram,
    diagram,
    group_picture,
    label_diagram,
    shown,
)
from keras_calib.reporting.slider import (
    operating_points,
    selected_row,
    slider_rows,
)

# At most so many classes in the table.
_NUM_CLASSES = 10
# At most so many pairs of classes that sure errors confuse.
_NUM_PAIRS = 6
# Inches of diagrams, about as wide as a phone, where text must be readable.
_TALL, _LOW = (3.5, 4.2), (3.5, 3.0)
# Labels in pictures, and in tables before the others are folded away.
_NUM_PICTURES, _NUM_ROWS = 6, 25


class Section(NamedTuple):
    """A question that a page answers of each model.

    Attributes:
        block: Macro of the template.
        title: The question.
        rows: What the macro shows of an evaluation and its results, beside
            these; None for no more.
        repaired: The question if there is a calibrator, None for the same.
        of_final: Whether it is of what users get, not of both stages.
        needs: Key of the results without which there is no such section, and
            with which it has no number.
    """

    block: str
    title: str
    rows: Callable[[Any, dict[str, Any]], dict[str, Any]] | None = None
    repaired: str | None = None
    of_final: bool = False
    needs: str | None = None


def sections_of(
    evaluation: Evaluation, results: dict[str, Any], both: str, final: str
) -> list[dict[str, Any]]:
    """What the page shows of a model, section by section.

    `both` and `final` name the stages that a section is of.
    """
    found, number = [], 0
    for section in SECTIONS[evaluation.kind]:
        title, rows = section.title, section.rows
        if evaluation.calibrator is not None:
            title = section.repaired or title
        if section.needs is None:
            number += 1
            title = f"{number}. {title}"
        elif section.needs not in results:
            continue
        found.append(
            {
                "block": section.block,
                "title": title,
                "when": final if section.of_final else both,
                "rows": {} if rows is None else rows(evaluation, results),
            }
        )
    return found


def stages_of(evaluation: Evaluation) -> list[str]:
    """Names of the stages, of which one alone has none."""
    if evaluation.calibrator is None:
        return [""]
    return ["before calibration", "after calibration"]


def _change(evaluation: ClassEvaluation, results: dict) -> dict[str, Any]:
    stages = stages_of(evaluation)
    metrics = dict(zip(stages, evaluation.stages, strict=True))
    return {
        "measures": measures(results),
        "directions": directions(results),
        "reliability": [
            diagram(
                ReliabilityDisplay(x, name=when.capitalize() or None),
                f"Accuracy against confidence {when}".rstrip()
                + ", with exact 95 % "
                "intervals; below, the number of predictions in each bin.",
                _TALL,
            )
            for when, x in metrics.items()
        ],
        "cumulative": [
            cumulative_diagram(x.differences(), when, _LOW)
            for when, x in metrics.items()
        ],
    }


def _errors(evaluation: ClassEvaluation, results: dict) -> dict[str, Any]:
    final = stages_of(evaluation)[-1]
    return {
        "sure": {
            when: _sure(groups)
            for when, groups in zip(
                stages_of(evaluation), evaluation.groups, strict=True
            )
        },
        "histogram": diagram(
            ConfidenceDisplay(evaluation.final),
            f"Confidence of correct and wrong predictions {final}".rstrip()
            + "; counts on a logarithmic scale.",
            WIDE,
        ),
        "confused": evaluation.confused.most_common(_NUM_PAIRS),
        "mistakes": _mistakes(evaluation),
    }


def _automation(evaluation: ClassEvaluation, results: dict) -> dict[str, Any]:
    chosen, on_slider = selected_row(evaluation, results["selection"])
    steps, start = slider_rows(evaluation.final, chosen if on_slider else None)
    return {
        "points": operating_points(evaluation.final, chosen),
        # By columns, whose names take less room than those of each row.
        "steps": {name: [row[name] for row in steps] for name in steps[0]},
        "start": start,
        "on_slider": on_slider,
        "total": float(evaluation.final.bins().weight.sum()),
        "risk": _risk_picture(evaluation, results["selection"]),
    }


def _classes(evaluation: ClassEvaluation, results: dict) -> dict[str, Any]:
    groups, name_of = evaluation.groups[-1], evaluation.name_of
    rows = groups.classes()
    first = {x.group: x for x in evaluation.groups[0].classes()}
    return {
        "rows": [
            (name_of(x.group), x, first.get(x.group))
            for x in rows[:_NUM_CLASSES]
        ],
        "sentences": _about_classes(rows, groups.totals(), name_of),
        "num_predicted": len(rows),
    }


def _groups(evaluation: ClassEvaluation, results: dict) -> dict[str, Any]:
    return {
        "rows": worst_first(results["groups"]["rows"]),
        "picture": group_picture(results["groups"]),
    }


def _labels(evaluation: LabelEvaluation, results: dict) -> dict[str, Any]:
    rows = sorted(results["labels"], key=_place)
    pictures = []
    for row in rows[:_NUM_PICTURES]:
        if row["count"]:
            bins = [x.bins(row["number"]) for x in evaluation.stages]
            pictures.append(label_diagram(row["label"], bins))
    return {
        "rows": [{"before_ece": None, "before_nll": None, **x} for x in rows],
        "pictures": pictures,
        "most": _NUM_ROWS,
    }


def _label_errors(evaluation: LabelEvaluation, results: dict) -> dict[str, Any]:
    return {"mistakes": _mistakes(evaluation)}


def _label_automation(
    evaluation: LabelEvaluation, results: dict
) -> dict[str, Any]:
    selected = (results["selection"] or {}).get("labels", ())
    rows = sorted(selected, key=lambda x: x["coverage"])
    return {"rows": rows, "most": _NUM_ROWS}


_OF_CLASSES = (
    Section("trust", "Can I trust the confidence?"),
    Section(
        "change",
        "How far off is it?",
        _change,
        "What did calibration change?",
    ),
    Section("errors", "Where is it wrong though sure?", _errors),
    Section(
        "automation",
        "How much can I automate at which risk?",
        _automation,
        of_final=True,
    ),
    Section("classes", "Which classes are worse?", _classes, of_final=True),
    Section(
        "groups",
        "Which groups are served worse?",
        _groups,
        of_final=True,
        needs="groups",
    ),
)
# Which sections a kind has, in their order.
SECTIONS: dict[str, tuple[Section, ...]] = {
    "classes": _OF_CLASSES,
    "scores": tuple(x for x in _OF_CLASSES if x.block != "classes"),
    "labels": (
        Section(
            "trust",
            "Can I trust the probabilities?",
            of_final=True,
        ),
        Section(
            "change",
            "How far off are they?",
            repaired="What did calibration change?",
        ),
        Section("labels", "Which labels are off?", _labels),
        Section(
            "errors",
            "Where is it wrong though sure?",
            _label_errors,
            of_final=True,
        ),
        Section(
            "automation",
            "How much can I automate at which risk?",
            _label_automation,
            of_final=True,
        ),
    ),
}


def _mistakes(evaluation: Evaluation) -> list[dict[str, Any]]:
    """The surest mistakes, with what can be shown of samples."""
    return [
        {**x._asdict(), "where": evaluation.where(x), **shown(x.sample)}
        for x in evaluation.mistakes
    ]


def _sure(
    groups: StageGroups,
) -> list[tuple[float, GroupRow | None]]:
    """Levels of confidence, the highest first, with their predictions."""
    found = {x.group: x for x in groups.sure()}
    return [(SURE[i], found.get(i)) for i in reversed(range(len(SURE)))]


def _risk_picture(
    evaluation: ClassEvaluation, found: dict | None
) -> dict[str, str]:
    sums, points = evaluation.final.bins(), {}
    chosen = getattr(evaluation.selector, "chosen", None)
    if chosen is not None and found is not None:
        here = replace(
            chosen, coverage=found["coverage"], risk=found["risk"]["value"]
        )
        if evaluation.options.votes:
            # The certified risk is of one class for each sample.
            here = replace(here, limit=None)
        points = {
            "selector on its own data": replace(chosen, limit=None),
            "selector on these data": here,
        }
    display = RiskCoverageDisplay(
        {evaluation.name: evaluation.final},
        # The band is that of a binomial, which needs equal weights.
        band=bool(sums.weight.sum() == sums.squared_weight.sum()),
        points=points,
    )
    # The histogram has more cells than a picture could show.
    display.curves = {k: _thinned(x) for k, x in display.curves.items()}
    text = (
        f"Error rate of the accepted {stages_of(evaluation)[-1]}".rstrip()
        + " as more predictions are accepted, the surest first"
    )
    text += ", and the selector." if points else "."
    return diagram(display, text, WIDE)


def _thinned(curve: RiskCoveragePoints) -> RiskCoveragePoints:
    """A curve at coverages that lie about 1 / 400 apart, and both ends."""
    steps = np.linspace(0.0, 1.0, 401) - 1e-12
    places = np.unique(np.searchsorted(curve.coverage, steps))
    return RiskCoveragePoints(*(x[places] for x in vars(curve).values()))


def _about_classes(
    rows: list[GroupRow], total: GroupRow, name_of: Callable[[int], str]
) -> list[str]:
    """Sentences on the classes that differ beyond their intervals."""
    kinds = {
        "More errors than the average": [
            x for x in rows if x.low > total.error
        ],
        "Overconfident": [x for x in rows if x.side == "over"],
        "Underconfident": [x for x in rows if x.side == "under"],
    }
    texts = kinds_told(kinds, lambda x: name_of(x.group))
    if not texts:
        return [
            "These data show no class with more errors than the average, or "
            "with a confidence that differs from its accuracy."
        ]
    if all(x.side == "even" for x in rows):
        texts.append(
            "These data show no class whose confidence differs from its "
            "accuracy."
        )
    return texts


def _place(row: dict[str, Any]) -> tuple:
    """Where a label stands: those that are surely off come first."""
    return (
        not row["count"],
        row["side"] == "few",
        -row["ece_low"],
        -row["ece"],
        row["number"],
    )
