"""Losses that read the labels of neighbouring pixels (SVLS, NACL)."""

from typing import Any

import keras
from keras import ops

from keras_calib.backend.errors import value_error
from keras_calib.inputs.checks import check_above, check_at_least, check_in
from keras_calib.losses.closed_forms import mask_of, of_softmax
from keras_calib.losses.neighbors import (
    SpatialLoss,
    blurred_labels,
    box_shares,
    check_kernel,
)
from keras_calib.losses.smoothing import cross_entropy
from keras_calib.losses.targets import Targets, reads_ids, shown
from keras_calib.numerics.arrays import at_least_float32, safe_divide
from keras_calib.numerics.softmax import allowed

__all__ = ["NACL", "SVLS", "nacl", "svls"]


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

    Use it inside a loss of your own; `SVLS` is the class to compile with.

    -sum_k t_k log p_k, t = label / 2 + sum_i w_i label_i / 2

    The sum is over the neighbours i in a box around the pixel. Their weights
    w_i are proportional to exp(-distance^2 / (2 sigma^2)) and sum to 1.

    Derivation: docs/derivations.md, 'Labels around a pixel'.

    Args:
        labels: One-hot or soft labels `(batch, ..., num_classes)`.
        logits: Logits `(batch, ..., num_classes)`, with one or more axes of
            space.
        sigma: Standard deviation of the weights in pixels, > 0.
        kernel_size: Width of the box in pixels, odd, at least 3.
        mask: Bool `(batch, ...)`, False for pixels without a label, which
            have no part in the targets of others, or None.

    Returns:
        Losses `(batch, ...)`, in nats.

    Raises:
        ValueError: If there is no axis of space.

    Reference:
        Islam and Glocker, Spatially Varying Label Smoothing: Capturing
        Uncertainty from Expert Annotations, IPMI 2021,
        https://arxiv.org/abs/2104.05788
    """
    logits = at_least_float32(logits)
    own = Targets(labels, logits)
    logits = shown(logits, mask_of(labels))
    targets = blurred_labels(own.rows(), mask, sigma, kernel_size)
    # Neighbours give nothing to classes that are ruled out.
    targets = targets * allowed(logits)
    targets = safe_divide(targets, ops.sum(targets, axis=-1, keepdims=True))
    return cross_entropy(targets, logits) + own.fault()


@reads_ids
def nacl(
    labels: Any,
    logits: Any,
    *,
    strength: float = 0.1,
    kernel: str = "mean",
    distance: str = "l1",
    kernel_size: int = 3,
    sigma: float = 1.0,
    edges: str = "replicate",
    mask: Any = None,
) -> Any:
    """Neighbour-aware calibration loss (NACL), one value per pixel.

    Use it inside a loss of your own; `NACL` is the class to compile with.

    CE + strength mean_k |z_k - t_k|

    Here t_k is the share of class k among the pixels of a box around the
    pixel.

    Derivation: docs/derivations.md, 'Labels around a pixel'.

    Args:
        labels: One-hot or soft labels `(batch, ..., num_classes)`.
        logits: Logits z `(batch, ..., num_classes)`, with one or more axes of
            space.
        strength: Coefficient of the penalty, >= 0.
        kernel: `"mean"` for equal weights of all pixels in the box,
            `"gaussian"` for the targets of `svls`.
        distance: `"l1"`, or `"l2"` for the square of the difference.
        kernel_size: Width of the box in pixels, odd, at least 3.
        sigma: Standard deviation of `kernel="gaussian"` in pixels, > 0.
        edges: What lies beyond the edge of an image for `kernel="mean"`:
            `"replicate"` repeats the last pixel, `"background"` is class 0,
            as in the released code.
        mask: Bool `(batch, ...)`, False for pixels without a label, which
            have no part in the shares of others, or None.

    Returns:
        Losses `(batch, ...)`, in nats.

    Raises:
        ValueError: If there is no axis of space.

    Reference:
        Murugesan et al., Trust your neighbours: Penalty-based constraints for
        model calibration, MICCAI 2023, https://arxiv.org/abs/2303.06268
    """
    logits = at_least_float32(logits)
    rows = Targets(labels, logits).rows()
    if kernel == "mean":
        shares = box_shares(rows, mask, kernel_size, edges)
    else:
        shares = blurred_labels(rows, mask, sigma, kernel_size)
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
class SVLS(SpatialLoss):
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
        name: str = "svls",
        **kwargs: Any,
    ):
        check_above("sigma", sigma, 0.0)
        check_kernel(kernel_size)
        super().__init__(
            svls, sigma=sigma, kernel_size=kernel_size, name=name, **kwargs
        )


@keras.saving.register_keras_serializable(package="keras_calib")
class NACL(SpatialLoss):
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
        edges: What lies beyond the edge of an image for `kernel="mean"`:
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
        with class 0, which `edges="background"` repeats. Its kernels that
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
        edges: str = "replicate",
        from_logits: bool = False,
        name: str = "nacl",
        **kwargs: Any,
    ):
        check_at_least("strength", strength, 0.0)
        check_in("kernel", kernel, ("mean", "gaussian"))
        check_in("distance", distance, ("l1", "l2"))
        check_kernel(kernel_size)
        check_above("sigma", sigma, 0.0)
        check_in("edges", edges, ("replicate", "background"))
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
            edges=edges,
            from_logits=from_logits,
            name=name,
            **kwargs,
        )
