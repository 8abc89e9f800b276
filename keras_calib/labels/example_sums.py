"""Sums of labels by group of examples, for intervals of means over labels.

Labels of one example depend on each other, examples do not. So the spread of
means over labels is that between groups of examples.

Derivation: docs/derivations.md, 'Intervals and guarantees'.
"""

from typing import Any

import numpy as np
from scipy.special import expit

from keras_calib.formulas.binned_intervals import error_interval
from keras_calib.formulas.bins import BinSums, bin_index
from keras_calib.formulas.intervals import Moments, mean_interval
from keras_calib.numerics.arrays import safe_divide
from keras_calib.numerics.hashing import mixed

# Groups of few labels; of many there are fewer, at least the second number, as
# each has its own sums: those of 1,000 labels take 43 MB.
_GROUPS, _LEAST_GROUPS, _GROUPS_TIMES_LABELS = 256, 64, 2**15
_SUMS = ("nll", "brier_score", "accuracy", "yes", "right_yes")
# Bins of the log-odds, 1/2 wide: enough for the spread of an AUROC.
_RANKS = 32
_UNKNOWN = float("nan"), float("nan")


class ExampleSums:
    """Sums of each label in random groups of examples.

    The first examples have a group each. The others go to one by a hash of
    their number, so that the order of the data does not matter.

    Args:
        num_bins: Number of bins of the calibration error.
    """

    def __init__(self, num_bins: int):
        self._num_bins = num_bins
        self._sums: Any = None

    def add(
        self,
        labels: np.ndarray,
        weight: np.ndarray,
        logits: np.ndarray,
        yes: np.ndarray,
        example: np.ndarray,
    ) -> None:
        """Adds labels, weights, logits and whether the answer is yes.

        All are `(n, labels)`, but for the numbers of the examples `(n,)`.
        """
        size, head = labels.shape[-1], len(_SUMS) + self._num_bins
        if self._sums is None:
            groups = max(_GROUPS_TIMES_LABELS // size, _LEAST_GROUPS)
            groups = min(_GROUPS, 2 ** int(np.log2(groups)))
            self._sums = np.zeros((groups, size, head + 2 * _RANKS))
        groups, _, width = self._sums.shape
        group = mixed(example.astype("int32")) & (groups - 1)
        group = np.where(example < groups, example, group)
        first = width * (size * group[:, None] + np.arange(size))
        z = np.nan_to_num(logits.astype("float64"))
        p, has = expit(z), labels > 0.5
        rank = np.clip(np.floor(2.0 * z) + _RANKS // 2, 0, _RANKS - 1)
        losses = np.logaddexp(0.0, z) - labels * z, 2.0 * (p - labels) ** 2
        terms = [*enumerate((*losses, (z > 0.0) == has, yes, yes & has))]
        terms += [(len(_SUMS) + bin_index(p, self._num_bins), p - has)]
        terms += [(head + 2 * rank.astype("int64") + has, 1.0)]
        sums = self._sums.reshape(-1)
        for place, value in terms:
            np.add.at(sums, (first + place).ravel(), (weight * value).ravel())

    def means(self, bins: list[BinSums]) -> dict[str, dict[str, float]]:
        """Means over labels (macro) and answers (micro), with 95 % intervals.

        The influence of a group of examples on a mean is its derivative by the
        weight of the group (infinitesimal jackknife). Pseudo-values of the
        groups are independent, and have Student's interval, corrected for
        skewness. Noise biases the ECE, so that a bootstrap misses calibrated
        models. Its interval inverts the tests of `error_interval` over the
        `bins` of all labels, with as much more variance as there is between
        groups than for independent labels.

        Reference:
            Efron, The Jackknife, the Bootstrap and Other Resampling Plans,
            1982, https://doi.org/10.1137/1.9781611970319 (chapter 6)
        """
        sums = self._sums[self._sums.any(axis=(1, 2))]
        parts = np.stack([x.parts() for x in bins], axis=1)
        mass = parts[0].sum(axis=-1, keepdims=True)
        scale = safe_divide(1.0, np.stack([mass] * 4 + [mass**2]))
        found: dict[str, dict[str, float]] = {}
        dependence = 1.0
        for mean, own, binned in (
            ("macro", sums, parts * scale),
            ("micro", sums.sum(axis=1, keepdims=True), parts.sum(axis=1)),
        ):
            influences = self.influences(own)
            for name in ("ece", "confidence_gap"):
                x = influences[name][-1]
                ratio = np.sum(x.sum(axis=1) ** 2) / max(np.sum(x**2), 1e-300)
                dependence = max(dependence, float(ratio))
            found[mean] = {}
            for name, x in influences.items():
                found[mean] |= _mean(name, *x)
            binned = BinSums(*binned.reshape(5, -1))
            ends = error_interval(binned, dependence=dependence)
            found[mean] |= zip(ends_of("ece"), ends, strict=True)
        return found

    def influences(self, sums: Any = None) -> dict[str, tuple]:
        """Values and weights `(labels,)`, and influences `(groups, labels)`.

        Precision is the share of right answers among those with yes, and
        recall the share of examples with the label that are answered with yes.
        They are by label, or by what `sums` are of.
        """
        sums = self._sums if sums is None else sums
        head, found = len(_SUMS) + self._num_bins, {}
        named = dict(zip(_SUMS, np.moveaxis(sums, -1, 0), strict=False))
        gaps, ranks = sums[..., len(_SUMS) : head], sums[..., head:]
        ranks = ranks.reshape(*sums.shape[:-1], _RANKS, 2)
        count = ranks.sum(axis=-2)
        mass, has = count.sum(axis=-1), count[..., 1]
        yes, right = named.pop("yes"), named.pop("right_yes")
        gap, side = gaps.sum(axis=-1), np.sign(gaps.sum(axis=0))
        ratios = {name: (total, mass) for name, total in named.items()} | {
            "probability": (gap + has, mass),
            "prevalence": (has, mass),
            "confidence_gap": (gap, mass),
            "ece": ((side * gaps).sum(axis=-1), mass),
            "precision": (right, yes),
            "recall": (right, has),
        }
        for name, (total, weight) in ratios.items():
            size = weight.sum(axis=0)
            value = safe_divide(total.sum(axis=0), size)
            found[name] = value, size, safe_divide(total - value * weight, size)
        # Shares of the examples without and with the label, by rank.
        size = count.sum(axis=0)
        ranks = safe_divide(ranks, size[:, None])
        whole = ranks.sum(axis=0)
        under = whole.cumsum(axis=-2) - 0.5 * whole
        # How often an example with the label has the higher probability.
        wins = ranks[..., 1] * under[..., 0]
        wins += ranks[..., 0] * (1.0 - under[..., 1])
        value = 0.5 * wins.sum(axis=(0, 2))
        influence = wins.sum(axis=-1) - value * ranks.sum(axis=(2, 3))
        return found | {"auroc": (value, size.min(axis=-1), influence)}


def ends_of(name: str) -> tuple[str, str]:
    """The names of the ends of an interval."""
    return f"{name}_low", f"{name}_high"


def _mean(
    name: str,
    value: np.ndarray,
    size: np.ndarray,
    influence: np.ndarray,
) -> dict[str, float]:
    """The mean over labels with its interval, NaN if no label has a value."""
    names, (known, groups) = (name, *ends_of(name)), (size > 0, len(influence))
    if not known.any():
        return dict.fromkeys(names, float("nan"))
    mean = value[known].mean()
    x = mean + groups * influence[:, known].mean(axis=1)
    # What one more answer would change that is as wrong as can be.
    step = groups * (1.0 / size[known]).mean() / known.sum()
    low, high = mean_interval(
        Moments.of(x, np.ones(groups)),
        unseen=(mean * (1.0 - step), mean + (1.0 - mean) * step),
    )
    if name not in _SUMS[:2]:
        high = min(high, 1.0)
    return dict(zip(names, map(float, (mean, low, high)), strict=True))
