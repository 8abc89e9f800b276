"""Class activation maps: the parts of an image that support a class."""

from typing import Any, NamedTuple

import keras
import numpy as np
from keras import ops

from keras_calib.analysis.feature_maps import FeatureMaps
from keras_calib.backend.errors import type_error, value_error
from keras_calib.backend.gradients import value_and_grad
from keras_calib.inputs.checks import check_in, check_integer, check_not_empty
from keras_calib.inputs.values import check_ids, is_integer
from keras_calib.numerics.arrays import safe_divide, to_numpy
from keras_calib.predictions.outputs import to_model_logits

__all__ = ["ClassActivations", "class_activation_maps", "class_activations"]


class ClassActivations(NamedTuple):
    """Maps with their classes, logits and images, NumPy.

    Images have their channels last `(n, height, width, channels)`.
    """

    maps: np.ndarray
    classes: np.ndarray
    logits: np.ndarray
    images: np.ndarray


def class_activation_maps(
    model: keras.Model,
    images: Any,
    *,
    classes: Any = None,
    layer: str | keras.layers.Layer | None = None,
    method: str = "grad_cam",
    from_logits: bool | None = None,
    batch_size: int = 32,
) -> np.ndarray:
    """Grad-CAM or Grad-CAM++: the parts of images that support a class.

    Use it to see whether a classifier looks at the object or at its context;
    `ClassActivationDisplay` draws the maps.

    map = relu(sum_k w_k A_k), with the feature maps A_k that `layer` returns
    and g = d z_c / d A, the gradient of the logit of the class:

    - `"grad_cam"`: w_k = mean_ij g_kij.
    - `"grad_cam++"`: w_k = sum_ij a_kij relu(g_kij), where
      a_kij = g_kij^2 / (2 g_kij^2 + g_kij^3 sum_ab A_kab), 0 for 0 / 0. It is
      meant for A >= 0, as after a ReLU.

    Maps are resized to the images and divided by their maximum; a map of
    zeros stays zero. A softmax at the end of the model, or a sigmoid of one
    output, is skipped, as the gradient of probabilities vanishes where the
    model is sure. Do not use the model in another thread meanwhile.

    Args:
        model: A Keras classifier of images with one output
            `(batch, num_classes)`, or `(batch, 1)` for the second of two
            classes, whose scores are then -z and z.
        images: Images as the model takes them, `(n, height, width, channels)`,
            or `(n, channels, height, width)` if its layers have
            `data_format="channels_first"`.
        classes: Class id, or ids `(n,)`; None for the predicted classes.
        layer: A layer or its name, also inside a nested model, with the
            channels where the images have them. If it is called several
            times, the last call is used. None takes the last layer that
            returns maps larger than 1 x 1.
        method: `"grad_cam"` or `"grad_cam++"`.
        from_logits: Whether the model returns logits. None takes it from the
            activation of its last layer, or else from `model.returns_logits`
            or the compiled loss.
        batch_size: Number of images that the model takes at once.

    Returns:
        Maps `(n, height, width)`, float32, in [0, 1].

    Raises:
        ValueError: If shapes do not fit, the model lacks the class or layer,
            or its logits cannot be read.
        TypeError: If `classes` are no integers or `layer` is no layer.

    Reference:
        Selvaraju et al., Grad-CAM, ICCV 2017, eqs. 1 and 2,
        https://arxiv.org/abs/1610.02391; Chattopadhay et al., Grad-CAM++,
        WACV 2018, section 3, https://arxiv.org/abs/1710.11063

    Differs:
        The released code of Grad-CAM++ divides a_kij by sum_ij a_kij; the
        paper does not. It divides by the maximum before it resizes.
    """
    found = class_activations(
        model, images, classes, layer, method, from_logits, batch_size
    )
    return found.maps


def class_activations(
    model: keras.Model,
    images: Any,
    classes: Any = None,
    layer: str | keras.layers.Layer | None = None,
    method: str = "grad_cam",
    from_logits: bool | None = None,
    batch_size: int = 32,
) -> ClassActivations:
    """The maps with their classes, logits and images."""
    check_in("method", method, ("grad_cam", "grad_cam++"))
    check_integer("batch_size", batch_size, 1)
    images = to_numpy(images)
    if images.ndim != 4:
        raise value_error(
            "`images` must have shape (n, height, width, channels) or "
            "(n, channels, height, width)",
            **{"images.shape": images.shape},
        )
    check_not_empty("images", images)
    reader = FeatureMaps(model, images[:1], layer, from_logits)
    ids = _class_ids(classes, len(images), reader.num_classes)
    maps, chosen, logits = [], [], []
    for start in range(0, len(images), batch_size):
        part = slice(start, start + batch_size)
        features, outputs = reader.read(images[part])
        logits.append(to_numpy(to_model_logits(outputs, from_logits=True)))
        predicted = logits[-1].argmax(axis=-1)
        chosen.append(predicted if ids is None else ids[part])
        gradient = _gradient(reader, images[part], features, chosen[-1])
        features = to_numpy(ops.cast(features, "float32"))
        if reader.channels_first:
            features = np.moveaxis(features, 1, -1)
            gradient = np.moveaxis(gradient, 1, -1)
        maps.append(_weighted(features, gradient, method))
    if reader.channels_first:
        images = np.moveaxis(images, 1, -1)
    maps = _resized(np.concatenate(maps), images.shape[1:3])
    return ClassActivations(
        maps, np.concatenate(chosen), np.concatenate(logits), images
    )


def _gradient(
    reader: FeatureMaps, images: np.ndarray, features: Any, ids: np.ndarray
) -> np.ndarray:
    """Gradient of a class score of each image by its feature maps."""
    chosen = ops.one_hot(ids, reader.num_classes, dtype="float32")

    def score(x):
        # In inference images do not affect each other, so one sum will do.
        given = ops.cast(x, features.dtype)
        outputs = ops.cast(reader.outputs(images, given), "float32")
        if outputs.shape[-1] == 1:
            outputs = ops.concatenate([-outputs, outputs], axis=-1)
        # Some backends need a path to `x`, even with gradient 0.
        return ops.sum(chosen * outputs) + 0.0 * ops.sum(x)

    return to_numpy(value_and_grad(score, ops.cast(features, "float32"))[1])


def _weighted(
    features: np.ndarray, gradient: np.ndarray, method: str
) -> np.ndarray:
    """Maps `(n, rows, columns)` in float64, >= 0."""
    a, g = features.astype("float64"), gradient.astype("float64")
    if method == "grad_cam":
        weight = g.mean(axis=(1, 2))
    else:
        total = a.sum(axis=(1, 2), keepdims=True)
        alpha = safe_divide(g**2, 2.0 * g**2 + g**3 * total)
        weight = (alpha * np.maximum(g, 0.0)).sum(axis=(1, 2))
    return np.maximum(np.einsum("nijk,nk->nij", a, weight), 0.0)


def _resized(maps: np.ndarray, size: tuple) -> np.ndarray:
    """Maps of that size with a maximum of 1, or of 0 for maps of zeros."""
    maps = safe_divide(maps, maps.max(axis=(1, 2), keepdims=True))
    maps = ops.image.resize(
        ops.convert_to_tensor(maps[..., None], dtype="float32"),
        size,
        interpolation="bilinear",
        data_format="channels_last",
    )
    maps = to_numpy(maps)[..., 0]
    return safe_divide(maps, maps.max(axis=(1, 2), keepdims=True))


def _class_ids(classes: Any, count: int, num_classes: int) -> np.ndarray | None:
    if classes is None:
        return None
    ids = to_numpy(classes)
    if not is_integer(ids) or ids.dtype == bool:
        raise type_error("`classes` must be integers", dtype=str(ids.dtype))
    if ids.shape not in ((), (count,)):
        raise value_error(
            "`classes` must be one class id or one per image",
            **{"classes.shape": ids.shape, "images": count},
        )
    check_ids(ids, num_classes, "classes")
    return np.broadcast_to(ids, (count,))
