"""Calibrators of the confidence of answers, from right and wrong ones."""

from typing import Any

import numpy as np
from keras import ops

from keras_calib.backend.errors import value_error
from keras_calib.calibrators import (
    AffineScaling,
    BetaCalibration,
    TemperatureScaling,
)
from keras_calib.exporting.answer_threshold import (
    bounded_log_odds,
    calibrated_confidence,
)
from keras_calib.numerics.arrays import to_numpy

__all__ = ["ConfidenceMap", "calibrator_facts", "told_calibrator"]


def calibrator_facts(
    confidence: np.ndarray, correct: np.ndarray, name: str
) -> dict[str, Any]:
    """What is told of a calibrator that is fitted to labelled answers.

    A temperature is told as the affine map with its slope.
    """
    log_odds = bounded_log_odds(confidence)[:, None].astype("float32")
    labels = correct.astype(int)
    if name == "temperature":
        layer = TemperatureScaling().fit(labels, log_odds)
        facts = {"name": "affine", "slope": 1.0 / layer.temperature}
        facts["intercept"] = 0.0
        return {**facts, "num_samples": len(labels)}
    beta = name == "beta"
    layer = BetaCalibration() if beta else AffineScaling()
    layer.fit(labels, log_odds)
    (fitted,) = to_numpy(layer.coefficients).astype("float64").tolist()
    if max(fitted[:-1]) <= 0.0:
        raise value_error(
            "the confidence must rise with the share of right answers, for a "
            "calibrator to keep its order: take another confidence",
            coefficients=fitted,
        )
    names = ("a", "b", "c0") if beta else ("slope", "intercept")
    return {
        "name": "beta" if beta else "affine",
        **dict(zip(names, fitted, strict=True)),
        "num_samples": len(labels),
    }


def told_calibrator(facts: dict[str, Any]) -> str:
    """A sentence with the formula of a calibrator."""
    count = facts["num_samples"]
    if facts["name"] == "affine":
        formula = (
            f"{facts['slope']:.6g} * log(c / (1 - c)) {facts['intercept']:+.6g}"
        )
    else:
        formula = (
            f"{facts['a']:.6g} * log(c) - {facts['b']:.6g} * log(1 - c) "
            f"{facts['c0']:+.6g}"
        )
    return (
        f"Calibrated on {count:,} answers: log(q / (1 - q)) = {formula}, of "
        "the confidence c."
    )


class ConfidenceMap:
    """A calibrator of the confidence, for logits of all classes.

    The predicted class gets the calibrated confidence, and the others share
    the rest equally.
    """

    def __init__(self, facts: dict[str, Any]):
        self.facts = facts

    def __call__(self, logits: Any) -> Any:
        logits = to_numpy(logits, "float64")
        top = logits.argmax(-1)[..., None]
        largest = np.take_along_axis(logits, top, -1)
        powers = np.exp(logits - largest)
        np.put_along_axis(powers, top, 0.0, -1)
        rest = powers.sum(-1, keepdims=True)
        # p / (1 - p) of the top class is 1 / rest.
        confidence = 1.0 / (1.0 + rest)
        found = bounded_log_odds(calibrated_confidence(self.facts, confidence))
        mapped = np.zeros_like(logits)
        others = np.log(logits.shape[-1] - 1)
        np.put_along_axis(mapped, top, found + others, -1)
        return ops.convert_to_tensor(mapped.astype("float32"))
