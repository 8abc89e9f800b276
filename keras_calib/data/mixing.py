"""Images of a batch mixed with their targets, or changed in colour."""

from typing import Any

from keras_calib.backend.late import tensorflow as tf
from keras_calib.data.crops import check_seed, random_bits
from keras_calib.data.examples import require
from keras_calib.inputs.checks import check_above, check_at_least, check_share

# Luma of red, green and blue, ITU-R BT.601.
_LUMA = (0.299, 0.587, 0.114)


def color_jitter(
    images: Any,
    seed: Any,
    *,
    brightness: float = 0.4,
    contrast: float = 0.4,
    saturation: float = 0.4,
) -> Any:
    """Changes brightness, contrast and saturation of each image at random.

    Use it as colour augmentation; `training_pipeline(jitter=...)` calls it.
    Each change, in this order, is a blend f x + (1 - f) y, clipped to
    [0, 255], with f drawn from [max(0, 1 - s), 1 + s]. The other image y is
    black, the mean grey of the image, or the grey of the pixel.

    Args:
        images: One image `(height, width, 3)` or a batch of them, in
            [0, 255].
        seed: Two integers, or an integer tensor `(2,)`.
        brightness, contrast, saturation: Strengths s of the changes, >= 0.

    Returns:
        Images of the same shape, float32, in [0, 255].

    Raises:
        ValueError: If a strength is negative.

    Reference:
        Krothapalli and Abbott, 2020, https://arxiv.org/abs/2009.06432,
        section A.3; strengths of Yun et al., CutMix, ICCV 2019,
        https://arxiv.org/abs/1905.04899
    """
    check_at_least("brightness", brightness, 0.0)
    check_at_least("contrast", contrast, 0.0)
    check_at_least("saturation", saturation, 0.0)
    images = tf.cast(images, "float32")
    batch = tf.shape(images)[:-3]
    draws = tf.random.stateless_uniform(
        tf.concat([[3], batch, [1, 1, 1]], axis=0), check_seed(seed)
    )

    def blend(images: Any, other: Any, strength: float, draw: Any) -> Any:
        low, high = max(0.0, 1.0 - strength), 1.0 + strength
        factor = low + (high - low) * draw
        images = factor * images + (1.0 - factor) * other
        return tf.clip_by_value(images, 0.0, 255.0)

    def grey(images: Any) -> Any:
        return tf.reduce_sum(images * _LUMA, axis=-1, keepdims=True)

    images = blend(images, 0.0, brightness, draws[0])
    mean = tf.reduce_mean(grey(images), axis=(-3, -2), keepdims=True)
    images = blend(images, mean, contrast, draws[1])
    return blend(images, grey(images), saturation, draws[2])


def mixup(
    images: Any, labels: Any, seed: Any, *, alpha: float = 0.2
) -> tuple[Any, Any]:
    """Blends each image with another: lam x_a + (1 - lam) x_b.

    Use it as augmentation, as `mix` of `training_pipeline` or in `augment` of
    `array_pipeline`. lam is drawn from Beta(alpha, alpha) once per batch.

    Args:
        images: Shape `(batch, height, width, channels)`.
        labels: Soft or one-hot labels `(batch, num_classes)`.
        seed: Two integers, or an integer tensor `(2,)`.
        alpha: Both parameters of the Beta distribution, > 0.

    Returns:
        `(images, targets)`: images float32, targets lam t_a + (1 - lam) t_b.

    Raises:
        ValueError: If `alpha` is not above 0, or targets are class ids.

    Example:

    >>> import numpy as np
    >>> images = np.zeros((2, 4, 4, 3), "float32")
    >>> mixed, targets = mixup(images, np.eye(2, dtype="float32"), (0, 1))
    >>> print(targets.numpy().sum(-1))
    [1. 1.]

    Reference:
        Zhang et al., mixup: Beyond Empirical Risk Minimization, ICLR 2018,
        https://arxiv.org/abs/1710.09412
    """
    check_above("alpha", alpha, 0.0)
    images, labels, seeds = _read(images, labels, seed, 2)
    lam = _beta(alpha, seeds[0])
    order = _permutation(images, seeds[1])
    return (
        _blend(images, tf.gather(images, order), lam),
        _blend(labels, tf.gather(labels, order), lam),
    )


def cutmix(
    images: Any,
    labels: Any,
    seed: Any,
    *,
    alpha: float = 1.0,
    probability: float = 1.0,
) -> tuple[Any, Any]:
    """Replaces a rectangle of each image by that of another image.

    Use it as `mixup`. The rectangle has the share 1 - lam of the area, with
    lam from Beta(alpha, alpha), and is clipped at the border. Place and size
    are drawn once per batch. Targets are mixed by the replaced area.

    Args:
        images, labels, seed: As for `mixup`.
        alpha: Both parameters of the Beta distribution, > 0.
        probability: Probability of mixing a batch at all, in [0, 1].

    Returns:
        `(images, targets)`, as `mixup` returns them.

    Raises:
        ValueError: If a number is out of range, or targets are class ids.

    Reference:
        Yun et al., CutMix, ICCV 2019, section 3.2,
        https://arxiv.org/abs/1905.04899
    """
    check_above("alpha", alpha, 0.0)
    check_share("probability", probability)
    images, labels, seeds = _read(images, labels, seed, 4)
    size = tf.shape(images)[1:3]
    share = tf.sqrt(1.0 - _beta(alpha, seeds[0]))
    extent = tf.cast(tf.cast(size, "float32") * share, "int32")
    draws = tf.random.stateless_uniform([3], seeds[1])
    center = tf.cast(draws[:2] * tf.cast(size, "float32"), "int32")
    center = tf.minimum(center, size - 1)
    low = tf.clip_by_value(center - extent // 2, 0, size)
    high = tf.clip_by_value(center + extent // 2, 0, size)
    high = tf.where(draws[2] < probability, high, low)
    rows, columns = tf.range(size[0]), tf.range(size[1])
    rows = (low[0] <= rows) & (rows < high[0])
    columns = (low[1] <= columns) & (columns < high[1])
    inside = (rows[:, None] & columns)[..., None]
    order = _permutation(images, seeds[2])
    mixed = tf.where(inside, tf.gather(images, order), images)
    replaced = tf.reduce_prod(high - low) / tf.reduce_prod(size)
    lam = 1.0 - tf.cast(replaced, labels.dtype)
    return mixed, _blend(labels, tf.gather(labels, order), lam)


def ricap(
    images: Any, labels: Any, seed: Any, *, beta: float = 0.3
) -> tuple[Any, Any]:
    """Patches crops of four images together into one.

    Use it as `mixup`. The point where the crops meet is drawn from Beta(beta,
    beta) for height and width, once per batch.

    Args:
        images, labels, seed: As for `mixup`.
        beta: Both parameters of the Beta distribution, > 0.

    Returns:
        `(images, targets)`: images float32, targets weighted by the areas of
        the four parts.

    Raises:
        ValueError: If `beta` is not above 0, or targets are class ids.

    Reference:
        Takahashi et al., RICAP: Random Image Cropping and Patching Data
        Augmentation for Deep CNNs, ACML 2018, algorithm 1,
        https://arxiv.org/abs/1811.09030
    """
    check_above("beta", beta, 0.0)
    images, labels, seeds = _read(images, labels, seed, 7)
    size = tf.shape(images)[1:3]
    point = tf.stack([_beta(beta, seeds[0]), _beta(beta, seeds[1])])
    point = tf.cast(tf.round(point * tf.cast(size, "float32")), "int32")
    draws = tf.random.stateless_uniform([4, 2], seeds[2])
    parts, mixed_targets = [], 0.0
    for k in range(4):
        # Top left, top right, bottom left, bottom right.
        extent = tf.where([k < 2, k % 2 == 0], point, size - point)
        room = tf.cast(size - extent + 1, "float32")
        corner = tf.minimum(tf.cast(draws[k] * room, "int32"), size - extent)
        order = _permutation(images, seeds[3 + k])
        part = tf.gather(images, order)
        end = corner + extent
        parts.append(part[:, corner[0] : end[0], corner[1] : end[1]])
        weight = tf.reduce_prod(extent) / tf.reduce_prod(size)
        weight = tf.cast(weight, labels.dtype)
        mixed_targets += weight * tf.gather(labels, order)
    rows = [tf.concat(parts[k : k + 2], axis=2) for k in (0, 2)]
    mixed = tf.ensure_shape(tf.concat(rows, axis=1), images.shape)
    return mixed, mixed_targets


def _read(
    images: Any, labels: Any, seed: Any, num_seeds: int
) -> tuple[Any, Any, Any]:
    """Floats, and independent seeds `(num_seeds, 2)`."""
    images, labels = map(tf.convert_to_tensor, (images, labels))
    require(
        images.shape.rank == 4,
        "`images` must have shape (batch, height, width, channels)",
        **{"images.shape": images.shape},
    )
    require(
        labels.shape.rank == 2 and labels.dtype.is_floating,
        "`labels` must be soft or one-hot labels (batch, num_classes) of "
        "floats, which can be mixed",
        **{"labels.shape": labels.shape, "dtype": labels.dtype.name},
    )
    seeds = random_bits([num_seeds, 2], check_seed(seed))
    return tf.cast(images, "float32"), labels, seeds


def _beta(parameter: float, seed: Any) -> Any:
    """A draw from Beta(parameter, parameter)."""
    draws = tf.random.stateless_gamma([2], seed, alpha=parameter)
    # Both gammas can round to 0 for parameters near 0, where lam is 0 or 1.
    total = tf.reduce_sum(draws)
    return tf.where(
        total > 0, draws[0] / total, tf.cast(seed[0] < 0, "float32")
    )


def _permutation(images: Any, seed: Any) -> Any:
    places = tf.range(tf.shape(images)[0])
    return tf.random.experimental.stateless_shuffle(places, seed)


def _blend(first: Any, second: Any, lam: Any) -> Any:
    lam = tf.cast(lam, first.dtype)
    return lam * first + (1 - lam) * second
