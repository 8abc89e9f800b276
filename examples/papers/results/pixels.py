"""Measures of networks that give each pixel a class."""

import keras
import numpy as np

import keras_calib

_RENAMED = {
    "brier_score": "brier",
    "mean_confidence": "confidence",
    "coverage_at_risk": "coverage_at_1",
}


class PixelMeter:
    """Measures of all labelled pixels of a data set, in one pass.

    Args:
        num_classes: Number of classes.
        void: Class id of pixels that do not count.
        background: Class id whose pixels a second ECE and AECE leave out, or
            None.
        per: What this second pair is a mean over: `"all"`, pixels; `"image"`;
            `"batch"`.
        batch_size: Images of a batch.

    Attributes:
        finite: Whether all logits were; else nothing more is counted.
    """

    def __init__(
        self, num_classes, void, *, background=None, per="all", batch_size=1
    ):
        self.finite = True
        self._classes, self._void = num_classes, void
        self._counts = np.zeros((num_classes, num_classes), int)
        names = ["accuracy", "nll", "brier_score", "ece", "aece", "mce", "aurc"]
        options = {"from_logits": True, "ignore_class": void}
        self._meters = [
            keras_calib.CalibrationMetrics(
                [*names, "mean_confidence", "coverage_at_risk"],
                risk=0.01,
                **options,
            ),
            keras_calib.CoverageAtRisk(0.05, **options),
        ]
        self._suffix = group_suffix(background, per)
        sizes = {"all": None, "image": 1, "batch": batch_size}
        self._groups = GroupMeter(sizes[per], {void, background} - {None})

    def update(self, labels, logits):
        """Counts one batch: `(batch, height, width)`, and its logits."""
        self.finite = self.finite and bool(np.isfinite(logits).all())
        if not self.finite:
            return
        for meter in self._meters:
            meter.update_state(labels, logits)
        if self._suffix:
            self._groups.update(labels, logits)
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
        groups = self._groups.row() if self._suffix else {}
        return {
            "miou": float(np.mean(right[union > 0] / union[union > 0])),
            **{k: v for k, v in row.items() if k not in _RENAMED},
            **{new: row[old] for old, new in _RENAMED.items()},
            "coverage_at_5": float(coverage),
            **{f"{name}{self._suffix}": x for name, x in groups.items()},
        }


class GroupMeter:
    """ECE and AECE of groups of images, averaged by their numbers of pixels.

    Args:
        size: Images of a group, taken as they come; None for one group, whose
            AECE is then within the bounds of the streaming metric.
        left_out: Class ids of pixels that do not count.

    Reference:
        Liu et al., The Devil is in the Margin: Margin-based Label Smoothing
        for Network Calibration, CVPR 2022, https://arxiv.org/abs/2111.15430:
        the released code takes groups of a batch, without void pixels and
        background. The edges of AECE are those of this code too, for groups.
    """

    def __init__(self, size, left_out):
        self._size, self._left_out = size, sorted(left_out)
        self._whole = keras_calib.CalibrationMetrics(
            ["ece", "aece"], from_logits=True
        )
        self._images, self._sums, self._count = [], np.zeros(2), 0

    def update(self, labels, logits):
        """Counts images: `(batch, height, width)`, and their logits."""
        for truth, image in zip(labels, logits, strict=True):
            kept = ~np.isin(truth, self._left_out)
            self._images.append((truth[kept], image[kept]))
            if self._size in (None, len(self._images)):
                self._close()

    def row(self):
        """`ece` and `aece`; not a number without a pixel that counts."""
        if self._images:
            self._close()
        if not self._count:
            values = (np.nan, np.nan)
        elif self._size is None:
            values = self._whole.result().values()
        else:
            values = self._sums / self._count
        return dict(zip(("ece", "aece"), map(float, values), strict=True))

    def _close(self):
        labels, logits = (
            np.concatenate(part) for part in zip(*self._images, strict=True)
        )
        self._images = []
        if not len(labels):
            return
        self._count += len(labels)
        if self._size is None:
            self._whole.update_state(labels, logits)
            return
        self._sums += len(labels) * np.array(
            [
                keras_calib.ece(labels, logits, from_logits=True),
                keras_calib.functional.aece(
                    labels, logits, edges="interp", from_logits=True
                ),
            ]
        )


def enlarged(logits, size):
    """Logits `(batch, height, width, num_classes)`, bilinear, at each pixel."""
    if logits.shape[1:3] == tuple(size):
        return logits
    resized = keras.ops.image.resize(logits, size, data_format="channels_last")
    return keras.ops.convert_to_numpy(resized)


def shrunk(labels, size):
    """Class ids `(height, width)` of the pixels nearest to fewer places."""
    rows, columns = (
        # Places are in the middle of what each stands for.
        ((np.arange(count) + 0.5) * side / count).astype(int)
        for count, side in zip(size, labels.shape, strict=True)
    )
    return labels[rows[:, None], columns]


def group_suffix(background, per):
    """What the columns of the second ECE and AECE end in; "" if none."""
    foreground = "" if background is None else "_foreground"
    return foreground + ("" if per == "all" else f"_per_{per}")
