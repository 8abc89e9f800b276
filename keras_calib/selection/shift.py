"""Thresholds that keep their guarantee where the data shift."""

from typing import Any

import numpy as np

from keras_calib.backend.errors import type_error, value_error
from keras_calib.numerics.arrays import as_array
from keras_calib.selection.candidates import read_records
from keras_calib.selection.group_names import read_groups
from keras_calib.selection.mixture_targets import MixtureTarget
from keras_calib.selection.prior_targets import PriorTarget
from keras_calib.selection.shifted_facts import MixtureThreshold, PriorThreshold

__all__ = [
    "choose_threshold_for_mixtures",
    "choose_threshold_for_prior",
    "read_classes",
]


def choose_threshold_for_prior(
    scores: Any,
    correct: Any,
    labels: Any,
    *,
    target_prior: Any,
    risk: float,
    delta: float,
    method: str | None = None,
    seed: int = 0,
) -> PriorThreshold:
    """The threshold with the largest coverage, guaranteed at another prior.

    Use it when classes are more or less frequent in use than in the data, and
    you know how frequent they are there (label shift). If p(x | class) is the
    same in both,

    P(a threshold is returned and its true risk at the prior exceeds `risk`)
    <= `delta`,  with risk = sum_y q_y P(wrong, accept | y) / sum_y q_y
    P(accept | y)

    in finite samples, whatever the prior of the data. The rarest class
    relative to the prior limits what can be certified.

    Args:
        scores: Scores `(n,)`, higher = surer.
        correct: 1 for right and 0 for wrong predictions `(n,)`.
        labels: True classes `(n,)`, integers in [0, num_classes). They must be
            known apart from the predictions.
        target_prior: Share of each class in use `(num_classes,)`, >= 0, with
            sum 1. Samples of a class with share 0 do not count.
        risk: Largest allowed share of errors among the accepted, in (0, 1).
        delta: Probability that the guarantee may fail, in (0, 1). It needs
            samples that are independent within each class and chose nothing
            else.
        method: `"subsampling"` tests exactly on rows drawn at random so that
            their classes follow the prior. `"betting"` tests on all rows but a
            tenth, which fixes the thresholds. None takes the stronger one,
            which labels and prior alone decide.
        seed: Seed of the random rows, >= 0.

    Returns:
        PriorThreshold.

    Raises:
        ValueError: If no threshold can be certified, a class of the prior has
            too few samples, or values are out of range.
        TypeError: If labels are no integers.

    Example:

    >>> n = np.arange(2000)
    >>> chosen = choose_threshold_for_prior(
    ...     -n, n < 1800, n % 2, target_prior=[0.8, 0.2], risk=0.05, delta=0.1)
    >>> chosen.method, chosen.num_tested, round(chosen.largest_weight, 2)
    ('subsampling', 1222, 1.6)

    Reference:
        Si et al., PAC Prediction Sets Under Label Shift, ICLR 2024,
        https://arxiv.org/abs/2310.12964, for rejection sampling; bets:
        Waudby-Smith and Ramdas, Estimating Means of Bounded Random Variables
        by Betting, 2024, https://arxiv.org/abs/2010.09686
    """
    target = PriorTarget.of(target_prior, risk, delta, method, seed)
    scores, correct, _ = read_records(scores, correct, None, delta)
    labels = read_classes(labels, scores.shape, len(target.prior))
    return target.choose(scores, correct, labels)[1]


def choose_threshold_for_mixtures(
    scores: Any,
    correct: Any,
    groups: Any,
    *,
    risk: float,
    delta: float,
    seed: int = 0,
) -> MixtureThreshold:
    """One threshold for all groups, guaranteed for every mixture of them.

    Use it when the shares of the groups in use are unknown or change: regions,
    devices, customers. With it,

    P(any mixture of the groups has a true risk above `risk`) <= `delta`

    The risk of a mixture is a weighted mean of the groups' risks, so this is a
    guarantee for the worst group. The threshold is the same for all, and needs
    no group when served.

    Args:
        scores: Scores `(n,)`, higher = surer.
        correct: 1 for right and 0 for wrong predictions `(n,)`.
        groups: Group of each sample `(n,)`, integers or strings.
        risk: Largest allowed share of errors among the accepted, in (0, 1).
        delta: Probability that the guarantee may fail, in (0, 1). It needs
            samples that are independent within each group and chose nothing
            else. Groups do not share it.
        seed: Seed of the random tenth that fixes the thresholds, >= 0.

    Returns:
        MixtureThreshold.

    Raises:
        ValueError: If no threshold can be certified, a group has too few
            samples, or values are out of range.
        TypeError: If groups are neither integers nor strings.

    Example:

    >>> n = np.arange(400)
    >>> groups = np.where(n % 2, "north", "south")
    >>> chosen = choose_threshold_for_mixtures(
    ...     -n, n < 390, groups, risk=0.1, delta=0.05)
    >>> chosen.coverage, chosen.worst_group
    (1.0, 'north')

    Reference:
        Berger, Multiparameter Hypothesis Testing and Acceptance Sampling,
        Technometrics 24, 1982,
        https://doi.org/10.1080/00401706.1982.10487790
    """
    scores, correct, _ = read_records(scores, correct, None, delta)
    names, places = read_groups(groups, scores.shape)
    target = MixtureTarget.of(names, risk, delta, seed)
    return target.choose(scores, correct, places)[1]


def read_classes(labels: Any, shape: tuple, num_classes: int) -> np.ndarray:
    """True classes of the samples, checked."""
    found = as_array(labels, "labels")
    if found.dtype.kind not in "iu":
        raise type_error("`labels` must be integers", dtype=found.dtype.name)
    if found.shape != shape:
        raise value_error(
            "`labels` must have the shape of `scores`",
            labels=found.shape,
            scores=shape,
        )
    if found.min() < 0 or found.max() >= num_classes:
        raise value_error(
            "`labels` must be classes of `target_prior`, in [0, num_classes)",
            minimum=int(found.min()),
            maximum=int(found.max()),
            num_classes=num_classes,
        )
    return found.astype("int64")
