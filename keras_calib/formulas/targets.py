"""Soft targets, which a loss fits in place of hard labels."""

import numbers
from typing import Any

import numpy as np
from keras import ops

from keras_calib.backend.errors import value_error
from keras_calib.inputs.batch import standardize_arrays
from keras_calib.inputs.checks import (
    check_above,
    check_at_most,
    check_in,
    check_integer,
    check_rank,
    check_share,
)
from keras_calib.inputs.labels import (
    check_ids,
    check_objectness,
    check_soft_labels,
)
from keras_calib.inputs.values import is_integer
from keras_calib.numerics.arrays import (
    array_namespace,
    as_array,
    as_numbers,
    at_least,
    at_least_float32,
    fits,
    shape_of,
    to_numpy,
)
from keras_calib.numerics.softmax import sigmoid, top1


def smooth_labels(labels: Any, *, alpha: Any, spread: str = "all") -> Any:
    """Smooth labels: spread the share `alpha` of each over the classes.

    Use it to make smoothed targets in a data pipeline or a loss of your own.

    (1 - alpha) labels + alpha / K

    With `spread="all"` the true class keeps 1 - alpha + alpha / K. With
    `spread="others"` it keeps 1 - alpha, and each other class gets
    alpha / (K - 1).

    Args:
        labels: One-hot or soft labels `(..., K)`, rows sum to 1.
        alpha: Share to spread, at most 1. Negative values sharpen the label.
            A number, or one per label `(..., 1)`.
        spread: `"all"` spreads it over all classes, `"others"` over all but
            the true one.

    Returns:
        Soft labels `(..., K)`, rows sum to 1.

    Raises:
        ValueError: If `spread` is unknown, a number `alpha` is above 1, or
            there are fewer than two classes.

    Reference:
        Szegedy et al., Rethinking the Inception Architecture for Computer
        Vision, CVPR 2016, section 7, https://arxiv.org/abs/1512.00567
    """
    labels = as_numbers(labels, "labels")
    check_rank("labels", labels, 1, "(..., num_classes)")
    num_classes = labels.shape[-1]
    alpha = even_share(alpha, num_classes, spread)
    if is_integer(labels) and array_namespace(labels) is ops:
        labels = ops.cast(labels, "float32")
    return (1.0 - alpha) * labels + alpha / num_classes


def even_share(alpha: Any, num_classes: Any, spread: str) -> Any:
    """`alpha` of `smooth_labels`, checked, as a share spread over all.

    The number of classes may be a float tensor `(..., 1)`, of each row.
    """
    check_in("spread", spread, ("all", "others"))
    if isinstance(alpha, numbers.Real):
        check_at_most("alpha", alpha, 1.0)
    others = num_classes - 1
    if hasattr(num_classes, "shape"):
        others = at_least(others, 1.0)
    else:
        check_integer("labels.shape[-1]", num_classes, 2)
    return alpha * num_classes / others if spread == "others" else alpha


def objectness_targets(
    labels: Any,
    objectness: Any,
    num_classes: int,
    beta: float = 1.0,
    floor: str | None = None,
    context: Any = None,
) -> Any:
    """Smooth labels by how little of the image the object covers.

    Use it to make the targets of adaptive label smoothing in a data pipeline
    or a loss of your own. `AdaptiveLabelSmoothing` is the Keras loss.

    With alpha = 1 - objectness, the true class gets 1 - beta alpha and each
    other class beta alpha / (K - 1). With beta = 1 and an objectness below
    1 / K, the true class is the least likely. `floor="uniform"` prevents this:
    it caps alpha at (K - 1) / K, the uniform target.

    Args:
        labels: Class ids `(...)`, or one-hot labels `(..., num_classes)`.
        objectness: Share of the image or crop that the object covers,
            `(...)`, in [0, 1]. Compiled code clips it to this range.
        num_classes: Number of classes K, at least 2.
        beta: Factor of the smoothing, in [0, 1]. 0 leaves hard labels.
        floor: None, or `"uniform"` for targets in which no class is likelier
            than the true one.
        context: Bool `(...)`, or None. It marks images with all objects
            painted out, where each class gets 1 / K whatever `beta` and
            `floor`.

    Returns:
        Soft labels `(..., num_classes)`, rows sum to 1. Given NumPy arrays it
        returns a NumPy array.

    Raises:
        ValueError: If a value is out of range or shapes do not fit.

    Reference:
        Krothapalli and Abbott, Adaptive Label Smoothing, 2020, eq. 5,
        https://arxiv.org/abs/2009.06432

    Differs:
        Eq. 6 as printed subtracts the term of the other classes and keeps
        log p_y in it. This function follows eq. 4 and 5, which sum to 1.
    """
    check_integer("num_classes", num_classes, 2)
    check_beta_and_floor(beta, floor)
    labels = as_numbers(labels, "labels")
    xp = array_namespace(labels)
    if xp is np:
        objectness = as_array(objectness, "objectness", "float64")
    else:
        objectness = at_least_float32(objectness, "objectness")
    shape = shape_of(objectness)
    is_hard = len(labels.shape) == len(shape)
    rows = shape if is_hard else (*shape, num_classes)
    given = {"labels": (labels, rows)}
    if context is not None:
        context = as_numbers(context, "context")
        given["context"] = context, shape
    for name, (x, expected) in given.items():
        if not fits(shape_of(x), expected):
            raise value_error(
                f"`{name}` must have the shape of `objectness`; labels may be "
                "one-hot with `num_classes` classes last",
                num_classes=num_classes,
                **{f"{name}.shape": shape_of(x), "objectness.shape": shape},
            )
    check_objectness(objectness, "`objectness` must lie in [0, 1]")
    if is_hard:
        check_ids(labels, num_classes, "labels")
        if xp is np:
            labels = np.equal(labels[..., None], np.arange(num_classes))
        else:
            labels = ops.one_hot(ops.cast(labels, "int32"), num_classes)
    else:
        check_soft_labels(labels, "labels")
    if context is not None and xp is np:
        context = to_numpy(context)
    labels = xp.array(labels, dtype=objectness.dtype)
    alpha = share_to_spread(objectness, num_classes, beta, floor, context)
    return smooth_labels(labels, alpha=alpha)


def share_to_spread(
    objectness: Any,
    num_classes: Any,
    beta: float,
    floor: str | None,
    context: Any,
) -> Any:
    """`alpha` of `smooth_labels`, `(..., 1)`, without checks."""
    xp = array_namespace(objectness)
    # At least the share that the floor asks for, at most all of the image.
    share = at_least(xp.expand_dims(objectness, -1), 0.0)
    if floor == "uniform":
        least = xp.zeros_like(share) + 1.0 / num_classes
        share = xp.where(share < least, least, share)
    moved = beta * at_least(1.0 - share, 0.0)
    moved = even_share(moved, num_classes, "others")
    if context is None:
        return moved
    context = xp.expand_dims(xp.array(context, dtype="bool"), -1)
    moved = xp.where(context, xp.ones_like(moved), moved)
    return moved


def cape_targets(
    labels: Any,
    outputs: Any,
    *,
    event: str = "second",
    method: str = "bins",
    num_bins: int = 10,
    sigma: float = 0.1,
    window: int = 500,
    from_logits: bool = False,
) -> np.ndarray:
    """Calibrated targets (CaPE): how often similar predictions came true.

    Use it in a training loop of your own, with `cape_loss`. `CaPEModel` does
    both.

    Predictions are sorted by p, the probability of an event; ties keep their
    order. With `method="bins"` they fall into `num_bins` bins of equal count,
    and the target is how often the event came true in the bin. With
    `method="kernel"` it is a mean of the 2 `window` neighbouring outcomes, its
    own included, with Gaussian weights exp(-(p_j - p_i)^2 / (2 sigma^2)).

    Args:
        labels: Class ids `(n,)`, or one-hot or soft labels `(n, num_classes)`,
            of all training samples.
        outputs: Probabilities `(n, num_classes)`, or of the second of two
            classes `(n, 1)`, predicted in inference mode.
        event: With `"second"`, as in the paper, the event is that the label
            is the second of two classes. With `"predicted"` it is that the
            label is the predicted class, of any number of classes.
        method: `"bins"` or `"kernel"`.
        num_bins: Number of bins, at most n. Defaults to `10`.
        sigma: Standard deviation of the kernel in units of probability, > 0.
        window: Neighbours on either side, >= 1. Defaults to `500`.
        from_logits: Whether `outputs` are logits. Defaults to `False`.

    Returns:
        Targets `(n,)` in [0, 1], in the order of the samples, float64. Pass
        them to `cape_loss`.

    Raises:
        ValueError: If `event` is `"second"` and there are not two classes, or
            if there are fewer predictions than bins.

    Reference:
        Liu et al., Deep Probability Estimation, ICML 2022,
        https://arxiv.org/abs/2111.10734

    Differs:
        The paper has two classes; `event="predicted"` is this library's
        extension. Both are the same for two classes if every prediction is
        the second class.
    """
    check_in("event", event, ("second", "predicted"))
    check_in("method", method, ("bins", "kernel"))
    check_integer("num_bins", num_bins, 1)
    check_above("sigma", sigma, 0.0)
    check_integer("window", window, 1)
    batch = standardize_arrays(labels, outputs, from_logits=from_logits)
    outputs = batch.outputs.astype("float64")
    if event == "predicted":
        p = top1(outputs, from_logits=from_logits)[0]
        predicted = outputs.argmax(axis=-1)
    elif outputs.shape[-1] == 2:
        first, second = outputs.T
        p = sigmoid(second - first) if from_logits else second
        predicted = np.ones(len(p), int)
    else:
        raise value_error(
            '`outputs` must have two classes for `event="second"`; for more, '
            'pass `event="predicted"`',
            **{"outputs.shape": tuple(to_numpy(outputs).shape)},
        )
    truth = batch.labels
    if truth.ndim == 2:
        truth = np.take_along_axis(truth, predicted[:, None], axis=1)[:, 0]
    else:
        truth = truth == predicted
    truth = truth.astype("float64")
    order = np.argsort(p, kind="stable")
    targets = np.empty_like(p)
    if method == "kernel":
        targets[order] = _kernel_means(truth[order], p[order], sigma, window)
        return targets
    n = len(p)
    if n < num_bins:
        raise value_error(
            "`num_bins` must be at most the number of predictions",
            num_bins=num_bins,
            predictions=n,
        )
    edges = np.arange(num_bins + 1) * n // num_bins
    means = np.add.reduceat(truth[order], edges[:-1]) / np.diff(edges)
    targets[order] = np.repeat(means, np.diff(edges))
    return targets


def _kernel_means(
    truth: np.ndarray, p: np.ndarray, sigma: float, window: int
) -> np.ndarray:
    """Gaussian means over the neighbours `[i - window, i + window)`."""
    total, weight = truth.copy(), np.ones_like(p)
    for offset in range(1, min(window, len(p) - 1) + 1):
        w = np.exp(-0.5 * np.square((p[offset:] - p[:-offset]) / sigma))
        total[offset:] += w * truth[:-offset]
        weight[offset:] += w
        if offset < window:
            total[:-offset] += w * truth[offset:]
            weight[:-offset] += w
    return total / weight


def check_beta_and_floor(beta: Any, floor: Any) -> None:
    """Raise unless both are valid arguments of `objectness_targets`."""
    check_share("beta", beta)
    check_in("floor", floor, (None, "uniform"))
