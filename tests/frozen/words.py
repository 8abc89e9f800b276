"""Neutral words for the names of metrics and columns in results."""

from collections.abc import Mapping
from typing import Any

# Today's names in tables and reports, and what they stand for.
WORDS = {
    # Metrics.
    "accuracy": "accuracy",
    "mean_confidence": "mean confidence",
    "confidence_gap": "confidence less accuracy",
    "overconfidence": "confidence of the wrong",
    "ece": "by bin",
    "mce": "largest of a bin",
    "rmsce": "root mean square of bins",
    "aece": "bins of equal mass",
    "ecce": "range of cumulative differences",
    "nll": "negative log-likelihood",
    "brier_score": "squared error",
    "aurc": "area under risk and coverage",
    "augrc": "area of the generalised risk",
    "failure_auroc": "ranking of errors",
    "auroc": "ranking of the positives",
    "coverage_at_risk": "coverage at a risk",
    "coverage": "coverage",
    "risk": "risk",
    "base_nll": "negative log-likelihood of the prevalence",
    "base_brier_score": "squared error of the prevalence",
    # Parts of a value.
    "value": "value",
    "low": "low",
    "high": "high",
    "too_few": "too few",
    "p_value": "p value",
    "p_holm": "p value, holm",
    "p_bh": "p value, benjamini and hochberg",
    "risk_p_value": "risk, p value",
    "risk_p_holm": "risk, p value, holm",
    # Groups.
    "attribute": "attribute",
    "group": "group",
    "size": "size",
    "rows": "rows",
    "overall": "overall",
    "largest": "largest difference",
    "metric": "metric",
    "highest": "highest",
    "lowest": "lowest",
    "metrics": "metrics",
    "level": "level",
    "min_count": "least size",
    "groups": "groups",
    # Reports.
    "model": "model",
    "verdict": "verdict",
    "kind": "kind",
    "headline": "headline",
    "sentences": "sentences",
    "answer": "answer",
    "advice": "advice",
    "change": "change",
    "side": "side",
    "num_samples": "number of samples",
    "num_counted": "number that counts",
    "num_units": "number of units",
    "precision": "precision",
    "score": "score",
    # Images.
    "segments": "images",
    "iou": "intersection over union",
    "mean_iou": "mean intersection over union",
    "boundary_share": "share at boundaries",
    "boundary_error": "error at boundaries",
    "boundary_confidence": "confidence at boundaries",
    "boundary_confidence_gap": "gap at boundaries",
    "inside_error": "error inside",
    "inside_confidence": "confidence inside",
    "inside_confidence_gap": "gap inside",
    "difference_of_gap": "difference of gaps",
    "quantiles": "quantiles",
    "worst": "worst images",
    "regions": "worst regions",
    "place": "place",
    "id": "id",
    "start": "start",
    "stop": "stop",
    "pixels": "pixels",
    "predicted": "predicted",
    "recall": "recall",
    "worse_classes": "classes made worse",
    "changes": "changes",
    "before": "before",
    "num_examples": "number of examples",
    "num_labels": "number of labels",
    "num_missing": "number missing",
    "num_partly_missing": "number partly missing",
    "missing": "missing",
    "selection": "selection",
    "threshold": "threshold",
    "confidence": "confidence",
    "total": "total",
    "contradicted": "contradicted",
    "sure": "of high confidence",
    "classes": "classes",
    "weight": "weight",
    "wrong": "wrong",
    "error": "error",
    "labels_per_example": "labels of an example",
    "prevalence": "prevalence",
    "probability": "probability",
    "summary": "summary",
    "macro": "mean of labels",
    "micro": "all entries",
    "labels": "labels",
    "label": "label",
    "number": "number",
    "count": "count",
    "positives": "positives",
    "examples": "examples",
    "annotators": "annotators",
    "num_votes": "number of votes",
    "agreement": "agreement",
    "by": "by",
    "example": "example",
    "certified_risk": "limit of the risk",
    "delta": "delta",
    "at_once": "at once",
    "yes": "share of yes",
    "risk_of_yes": "risk of yes",
}


def neutral(results: Any) -> Any:
    """The same results under neutral keys; an unknown key is an error."""
    if isinstance(results, Mapping):
        return {
            _word(k) + _tested(k, x): neutral(x) for k, x in results.items()
        }
    if isinstance(results, list | tuple) and not isinstance(results, str):
        return [neutral(x) for x in results]
    return results


def _tested(key: str, value: Any) -> str:
    """That of a report has an interval, the column of a table is a number."""
    is_gap = key.endswith("confidence_gap") and isinstance(value, Mapping)
    return ", tested" if is_gap else ""


def _word(key: str) -> str:
    if key in WORDS:
        return WORDS[key]
    first, _, rest = key.partition("_")
    if first in ("before", "after", "calibrated"):
        return f"{first}, {_word(rest)}"
    base, _, end = key.rpartition("_")
    if end in ("low", "high"):
        return f"{_word(base)}, {end}"
    raise KeyError(f"{key}: give it a neutral word in tests/frozen/words.py")
