"""What `keras-calib report` prints of its numbers, and when they fail a build.

Conditions are read without NumPy, and checked without Keras.
"""

import math
import operator
import re
from collections.abc import Sequence
from typing import Any

from keras_calib.backend.errors import value_error
from keras_calib.reporting.commands.arguments import refused

# Exit code of a report of which a condition holds.
FAILED = 4
_SIGNS = {
    ">=": operator.ge,
    "<=": operator.le,
    ">": operator.gt,
    "<": operator.lt,
}
_NUMBER = r"[-+]?(?:\d+\.?\d*|\.\d+)(?:[eE][-+]?\d+)?"
_FORM = re.compile(rf"\s*((\w+)\s*({'|'.join(_SIGNS)})\s*({_NUMBER}))\s*")
# Its text, its metric, its sign and its bound.
Condition = tuple[str, ...]
# Metrics that the terminal shows.
_KEY_NUMBERS = (
    *("accuracy", "confidence_gap", "ece", "nll", "aurc"),
    *("macro_ece", "macro_nll", "micro_ece", "micro_nll"),
    "example_accuracy",
)


def conditions(text: str) -> list[Condition]:
    """Conditions with commas between them, as they follow the flag."""
    found = [_FORM.fullmatch(part) for part in text.split(",")]
    if None in found:
        raise refused(
            "must be a metric, one of > >= < <= and a number, such as "
            "'ece > 0.02', with commas between several",
            text,
        )
    return [words.groups() for words in found if words]


def check_metrics(asked: Sequence[Condition], kind: str | None = None) -> None:
    """Raises ValueError for a metric that no report, or none of a kind, has."""
    from keras_calib.reporting.measures import METRICS_BY_KIND

    kinds = [kind] if kind else METRICS_BY_KIND
    names = [*dict.fromkeys(x for own in kinds for x in METRICS_BY_KIND[own])]
    for _, metric, *_ in asked:
        if metric not in names:
            raise value_error(
                "--fail-if must name a metric that the report has",
                metric=metric,
                known=names,
            )


def failures(results: dict[str, Any], asked: Sequence[Condition]) -> list[str]:
    """Conditions that hold, or whose metric is unknown, of any model."""
    from keras_calib.reporting.measures import cell, estimates_by_stage

    found = []
    for model, own in results.items():
        final = estimates_by_stage(own)[-1]
        for text, metric, sign, bound in asked:
            x = final.get(metric)
            if x is None or math.isnan(x["value"]):
                found.append(f"{metric} of {model} is unknown, for {text}")
            elif _SIGNS[sign](x["value"], float(bound)):
                value, ends, _ = cell(metric, x)
                value += f" ({ends})" if ends else ""
                found.append(f"{metric} of {model} is {value}, for {text}")
    return found


def told(results: dict[str, Any]) -> str:
    """Verdict and key numbers of each model, before and after calibration."""
    from keras_calib.reporting.measures import estimates_by_stage
    from keras_calib.reporting.metric_table import MetricTable

    lines, rows = [], {}
    for model, own in results.items():
        verdict = own["verdict"]
        start = f"{model}: " * (len(results) > 1)
        lines.append(f"{start}{verdict['answer']} {verdict['advice']}")
        stages = estimates_by_stage(own)
        for name, stage in zip(("", ", calibrated"), stages, strict=False):
            known = {k: stage[k] for k in _KEY_NUMBERS if k in stage}
            rows[f"{model}{name}"] = known
    return "\n".join([*lines, "", str(MetricTable(rows))])
