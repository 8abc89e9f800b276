"""Losses that read the labels of neighbouring pixels (SVLS, NACL).

Derivation: docs/derivations.md, 'Labels around a pixel'.
"""

from typing import Annotated, Any, TypedDict, Unpack

import keras
import numpy as np
from keras import ops

from keras_calib.backend.errors import value_error
from keras_calib.inputs.checks import (
    check_above,
    check_at_least,
    check_in,
    check_integer,
    check_rows,
)
from keras_calib.inputs.options import filled
from keras_calib.inputs.values import read_mask
from keras_calib.losses.base import LossOptions, PerSampleLoss
from keras_calib.losses.closed_forms import (
    Targets,
    cross_entropy,
    mask_of,
    of_softmax,
    reads_ids,
    shown,
)
from keras_calib.numerics.arrays import at_least_float32, safe_divide, shape_of
from keras_calib.numerics.softmax import allowed


class _SpatialLoss(PerSampleLoss):
    """Abstract base of losses that read the labels around each pixel.

    `fn` takes the keyword argument `mask`: bool `(batch, ..., )`, False for
    pixels without a label, or None.
    """

    def beside_of(self, batch):
        return {"mask": batch.counted}


def _check_kernel(kernel_size: int) -> None:
    """Raise unless the size is odd and at least 3."""
    check_integer("kernel_size", kernel_size, 3)
    if kernel_size % 2 == 0:
        raise value_error(
            "`kernel_size` must be odd, so that each pixel has a centre",
            kernel_size=kernel_size,
        )


def blurred_labels(rows: Any, mask: Any, sigma: float, kernel_size: int) -> Any:
    """Half the label, half a Gaussian mean of the labels around it.

    Rows and result have the shape `(batch, ..., num_classes)`. Pixels beyond
    the edge repeat the last one; those outside of `mask` have no part.
    """
    offsets = np.arange(kernel_size) - kernel_size // 2
    weights = np.exp(-0.5 * np.square(offsets / sigma))
    weights = weights / weights.sum()
    axes = _axes_of_space(rows)
    centre = float(weights[kernel_size // 2]) ** len(axes)
    if centre == 1.0:
        # A kernel so narrow that its neighbours have rounded to 0.
        raise value_error(
            "`sigma` must be large enough to reach the next pixel", sigma=sigma
        )

    def neighbors(x):
        whole = _convolved(x, axes, weights, _repeated)
        return (whole - centre * x) / (1.0 - centre)

    if mask is None:
        return 0.5 * (rows + neighbors(rows))
    shown = _shown(mask, rows)
    rows = rows * shown
    total = ops.where(shown > 0, 1.0 + neighbors(shown), ops.ones_like(shown))
    return (rows + neighbors(rows)) / total


def box_shares(rows: Any, mask: Any, kernel_size: int, padding: str) -> Any:
    """Share of each class in the box around each pixel, rows as above.

    With `padding="background"` pixels beyond the edge are of class 0, else they
    repeat the last one.
    """
    axes = _axes_of_space(rows)
    weights = np.full(kernel_size, 1.0 / kernel_size)

    def beyond(x, axis, width):
        if padding == "replicate":
            return _repeated(x, axis, width)
        classes = ops.arange(x.shape[-1], dtype="int32")
        background = ops.cast(ops.equal(classes, 0), x.dtype)
        end = ops.zeros_like(_cut(x, axis, 0, 1)) + background
        return [end] * width, [end] * width

    if mask is None:
        return _convolved(rows, axes, weights, beyond)
    shown = _shown(mask, rows)
    shares = _convolved(rows * shown, axes, weights, beyond)
    total = _convolved(shown, axes, weights, beyond)
    return shares / ops.where(shown > 0, total, ops.ones_like(total))


def _shown(mask: Any, rows: Any) -> Any:
    """A mask as 1 and 0 `(batch, ..., 1)`."""
    mask = read_mask(mask)
    check_rows("mask", mask, rows)
    return ops.cast(ops.expand_dims(mask, -1), rows.dtype)


def _axes_of_space(rows: Any) -> range:
    if len(rows.shape) < 3:
        raise value_error(
            "`logits` must have axes of space, (batch, ..., num_classes), "
            "such as height and width; reshape rows of pixels to images",
            **{"logits.shape": shape_of(rows)},
        )
    return range(1, len(rows.shape) - 1)


def _convolved(x: Any, axes: range, weights: np.ndarray, beyond: Any) -> Any:
    """The mean by a separable kernel, one axis after another."""
    width = len(weights) // 2
    for axis in axes:
        before, after = beyond(x, axis, width)
        padded = ops.concatenate([*before, x, *after], axis=axis)
        parts = (
            float(weight) * _cut(padded, axis, i, i - 2 * width)
            for i, weight in enumerate(weights)
        )
        x = next(parts)
        for part in parts:
            x = x + part
    return x


def _repeated(x: Any, axis: int, width: int) -> tuple[list, list]:
    """What lies before and after x along an axis: its ends."""
    first, last = _cut(x, axis, 0, 1), _cut(x, axis, -1, 0)
    return [first] * width, [last] * width


def _cut(x: Any, axis: int, start: int, stop: int) -> Any:
    """A slice along an axis; a `stop` of 0 is the end."""
    places = [slice(None)] * axis
    return x[(*places, slice(start, stop or None))]


@reads_ids
def svls(
    labels: Any,
    logits: Any,
    *,
    sigma: float = 1.0,
    kernel_size: int = 3,
    mask: Any = None,
) -> Any:
    """Spatially varying label smoothing (SVLS), one value per pixel.

    Use it inside a loss of your own; `SVLS` is the class to compile with, and
    gives the weights w_i of the neighbours i.

    -sum_k t_k log p_k, t = label / 2 + sum_i w_i label_i / 2

    Args:
        labels: One-hot or soft labels `(batch, ..., num_classes)`.
        logits: Logits `(batch, ..., num_classes)`, with one or more axes of
            space.
        sigma, kernel_size: As in `SVLS`.
        mask: Bool `(batch, ...)`, False for pixels without a label, which
            have no part in the targets of others, or None.

    Returns:
        Losses `(batch, ...)`, in nats.

    Raises:
        ValueError: If there is no axis of space.

    Reference:
        That of `SVLS`.
    """
    logits = at_least_float32(logits)
    own = Targets(labels, logits)
    logits = shown(logits, mask_of(labels))
    targets = blurred_labels(own.rows(), mask, sigma, kernel_size)
    # Neighbours give nothing to classes that are ruled out.
    targets = targets * allowed(logits)
    targets = safe_divide(targets, ops.sum(targets, axis=-1, keepdims=True))
    return cross_entropy(targets, logits) + own.fault()


class Neighbours(TypedDict, total=False):
    """The neighbours of a pixel, as `NACL` explains them."""

    kernel: Annotated[str, "mean"]
    kernel_size: Annotated[int, 3]
    sigma: Annotated[float, 1.0]
    padding: Annotated[str, "replicate"]


@reads_ids
def nacl(
    labels: Any,
    logits: Any,
    *,
    strength: float = 0.1,
    distance: str = "l1",
    mask: Any = None,
    **options: Unpack[Neighbours],
) -> Any:
    """Neighbour-aware calibration loss (NACL), one value per pixel.

    Use it inside a loss of your own; compile with `NACL`.

    CE + strength mean_k |z_k - t_k|, t_k the share of class k around the pixel

    Args:
        labels: One-hot or soft labels `(batch, ..., num_classes)`.
        logits: Logits z `(batch, ..., num_classes)`, with one or more axes of
            space.
        strength, kernel, distance, kernel_size, sigma, padding: As in `NACL`.
        mask: Bool `(batch, ...)`, False for pixels without a label, which
            have no part in the shares of others, or None.

    Returns:
        Losses `(batch, ...)`, in nats.

    Raises:
        ValueError: If there is no axis of space.

    Reference:
        That of `NACL`.
    """
    given = filled("nacl", options, Neighbours)
    logits = at_least_float32(logits)
    rows = Targets(labels, logits).rows()
    if given.kernel == "mean":
        shares = box_shares(rows, mask, given.kernel_size, given.padding)
    else:
        shares = blurred_labels(rows, mask, given.sigma, given.kernel_size)
    shares = ops.stop_gradient(shares)

    def closed_form(targets, parts, shares):
        gap = ops.where(parts.allowed > 0.0, parts.logits - shares, 0.0)
        rate = strength / parts.num_allowed
        cost = ops.abs(gap) if distance == "l1" else ops.square(gap)
        value = targets.cross_entropy(parts) + ops.sum(rate * cost, axis=-1)

        def gradient():
            pull = ops.sign(gap) if distance == "l1" else 2.0 * gap
            return targets.subtract_from(parts.probs) + rate * pull

        return value, gradient

    return of_softmax(labels, logits, closed_form, None, shares)


@keras.saving.register_keras_serializable(package="keras_calib")
class SVLS(_SpatialLoss):
    """Spatially varying label smoothing: labels blurred at their borders.

    Use it for segmentation when annotators disagree about the borders of
    objects. Inside of an object labels stay hard.

    -sum_k t_k log p_k, t = label / 2 + sum_i w_i label_i / 2

    The sum is over the neighbours i in a box around the pixel. Their weights
    w_i are proportional to exp(-distance^2 / (2 sigma^2)) and sum to 1. Pixels
    beyond the edge repeat the last one. Pixels of `ignore_class` and masked
    ones have no part in the targets of others. Predictions have one axis of
    space or more: signals, images, volumes.

    Args:
        sigma: Standard deviation of the weights in pixels, > 0.
        kernel_size: Width of the box in pixels, odd, at least 3.
        **kwargs: `name` and arguments of `PerSampleLoss`.

    Raises:
        ValueError: On call, if predictions are rows `(batch, num_classes)`.

    Example:

    >>> loss = SVLS(from_logits=True)
    >>> logits = [[[[4.0, 0.0], [0.0, 4.0]]]]  # one image, 1 x 2 pixels
    >>> round(float(loss([[[0, 1]]], logits)), 4)
    0.7069

    Reference:
        Islam and Glocker, Spatially Varying Label Smoothing: Capturing
        Uncertainty from Expert Annotations, IPMI 2021,
        https://arxiv.org/abs/2104.05788

    Differs:
        With a box of more than 3 pixels, the released 2D code takes a
        neighbour's weight for that of the centre. This loss takes the
        centre's. Pixels without a label are this library's extension.
    """

    def __init__(
        self,
        sigma: float = 1.0,
        *,
        kernel_size: int = 3,
        **kwargs: Unpack[LossOptions],
    ):
        check_above("sigma", sigma, 0.0)
        _check_kernel(kernel_size)
        super().__init__(svls, sigma=sigma, kernel_size=kernel_size, **kwargs)


@keras.saving.register_keras_serializable(package="keras_calib")
class NACL(_SpatialLoss):
    """Neighbour-aware calibration loss: logits near the labels around.

    Use it for segmentation when logits should be bounded, and less sure where
    the labels around a pixel differ. It needs `from_logits=True`.

    CE + strength mean_k |z_k - t_k|

    Here t_k is the share of class k among the pixels of a box around the
    pixel. Pixels of `ignore_class` and masked ones have no part in the shares
    of others. Predictions have one axis of space or more: signals, images,
    volumes.

    Args:
        strength: Coefficient of the penalty, >= 0.
        kernel: `"mean"` for equal weights of all pixels in the box,
            `"gaussian"` for the targets of `SVLS`.
        distance: `"l1"`, or `"l2"` for the square of the difference.
        kernel_size: Width of the box in pixels, odd, at least 3.
        sigma: Standard deviation of `kernel="gaussian"` in pixels, > 0.
        padding: What lies beyond the edge of an image for `kernel="mean"`:
            `"replicate"` repeats the last pixel, `"background"` is class 0,
            as in the released code.
        **kwargs: `name` and arguments of `PerSampleLoss`, `from_logits` too.

    Raises:
        ValueError: If `from_logits` is not True: the penalty is on logits.
            On call, if predictions are rows `(batch, num_classes)`.

    Example:

    >>> loss = NACL(strength=0.5, from_logits=True)
    >>> logits = [[[[4.0, 0.0], [0.0, 4.0]]]]  # one image, 1 x 2 pixels
    >>> round(float(loss([[[0, 1]]], logits)), 4)
    0.9348

    Reference:
        Murugesan et al., Trust your neighbours: Penalty-based constraints for
        model calibration, MICCAI 2023, https://arxiv.org/abs/2303.06268;
        with more kernels: Neighbor-Aware Calibration of Segmentation Networks
        with Penalty-Based Constraints, 2024,
        https://arxiv.org/abs/2401.14487

    Differs:
        The paper writes a sum over the classes. The released code takes the
        mean, and its strength of 0.1 belongs to the mean. It fills the edge
        with class 0, which `padding="background"` repeats. Its kernels that
        read the image are left out.
    """

    def __init__(
        self,
        strength: float = 0.1,
        *,
        kernel: str = "mean",
        distance: str = "l1",
        kernel_size: int = 3,
        sigma: float = 1.0,
        padding: str = "replicate",
        **kwargs: Unpack[LossOptions],
    ):
        check_at_least("strength", strength, 0.0)
        check_in("kernel", kernel, ("mean", "gaussian"))
        check_in("distance", distance, ("l1", "l2"))
        _check_kernel(kernel_size)
        check_above("sigma", sigma, 0.0)
        check_in("padding", padding, ("replicate", "background"))
        from_logits = kwargs.get("from_logits", False)
        if not from_logits:
            raise value_error(
                "`NACL` compares logits with labels and needs "
                "`from_logits=True`",
                from_logits=from_logits,
            )
        super().__init__(
            nacl,
            strength=strength,
            kernel=kernel,
            distance=distance,
            kernel_size=kernel_size,
            sigma=sigma,
            padding=padding,
            **kwargs,
        )
