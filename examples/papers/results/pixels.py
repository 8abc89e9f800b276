"""Measures of networks that give each pixel a class."""

import numpy as np

import keras_calib

__all__ = ["PixelMeter"]

_RENAMED = {
    "mean_confidence": "confidence",
    "coverage_at_risk": "coverage_at_1",
}


class PixelMeter:
    """Measures of all labelled pixels of a data set, in one pass.

    Args:
        num_classes: Number of classes.
        void: Class id of pixels that do not count.

    Attributes:
        finite: Whether all logits were; else nothing more is counted.
    """

    def __init__(self, num_classes, void):
        self.finite = True
        self._classes, self._void = num_classes, void
        self._counts = np.zeros((num_classes, num_classes), int)
        names = ["accuracy", "nll", "brier", "ece", "aece", "mce", "aurc"]
        options = {"from_logits": True, "ignore_class": void}
        self._meters = [
            keras_calib.CalibrationMetrics(
                [*names, "mean_confidence", "coverage_at_risk"],
                risk=0.01,
                **options,
            ),
            keras_calib.CoverageAtRisk(0.05, **options),
        ]

    def update(self, labels, logits):
        """Counts one batch: `(batch, height, width)`, and its logits."""
        self.finite = self.finite and bool(np.isfinite(logits).all())
        if not self.finite:
            return
        for meter in self._meters:
            meter.update_state(labels, logits)
        valid = labels != self._void
        pairs = np.argmax(logits, axis=-1)[valid], labels[valid]
        places = np.ravel_multi_index(pairs, self._counts.shape)
        found = np.bincount(places, minlength=self._counts.size)
        self._counts += found.reshape(self._counts.shape)

    def row(self):
        """Measures by name; `miou` is of the classes that occur."""
        table, coverage = (meter.result() for meter in self._meters)
        row = {name: float(value) for name, value in table.items()}
        right = np.diag(self._counts)
        union = self._counts.sum(0) + self._counts.sum(1) - right
        return {
            "miou": float(np.mean(right[union > 0] / union[union > 0])),
            **{k: v for k, v in row.items() if k not in _RENAMED},
            **{new: row[old] for old, new in _RENAMED.items()},
            "coverage_at_5": float(coverage),
        }
