"""Where a classifier looks: the parts of an image that a score comes from."""

from typing import Any
from typing import NamedTuple

import keras
import numpy as np
from keras import ops

from keras_calib.analysis.feature_maps import FeatureMaps
from keras_calib.backend.errors import type_error
from keras_calib.backend.errors import value_error
from keras_calib.backend.gradients import value_and_grad
from keras_calib.inputs.checks import check_in
from keras_calib.inputs.checks import check_integer
from keras_calib.inputs.checks import check_not_empty
from keras_calib.inputs.values import check_ids
from keras_calib.inputs.values import is_integer
from keras_calib.numerics.arrays import safe_divide
from keras_calib.numerics.arrays import to_numpy
from keras_calib.predictions.outputs import to_model_logits

__all__ = ["ClassActivations", "class_activation_maps", "class_activations"]


class ClassActivations(NamedTuple):
    """Maps, the classes that they are of, logits, and images, NumPy.

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
    """Grad-CAM or Grad-CAM++: the parts of images that speak for a class.

    map = relu(sum_k w_k A_k), with the feature maps A_k that `layer` returns
    and g = d z_c / d A, the gradient of the logit of the class:

    - `"grad_cam"`: w_k = mean_ij g_kij.
    - `"grad_cam++"`: w_k = sum_ij a_kij relu(g_kij), where
      a_kij = g_kij^2 / (2 g_kij^2 + g_kij^3 sum_ab A_kab), 0 for 0 / 0. It is
      meant for A >= 0, as after a ReLU.

    Maps are resized to the images and divided by their maximum; a map of
    zeros stays so. A softmax or, of one output, sigmoid at the end of the
    model is left out: the gradient of probabilities vanishes where the model
    is sure. No other thread may use the model meanwhile.

    Args:
        model: A Keras classifier of images with one output
            `(batch, num_classes)`, or `(batch, 1)` for the second of two
            classes: then the scores of the two are -z and z.
        images: As the model takes them, `(n, height, width, channels)`, or
            `(n, channels, height, width)` where its layers have
            `data_format="channels_first"`.
        classes: Class id, or ids `(n,)`; None for the predicted classes.
        layer: A layer, or the name of one, also inside a nested model, with
            the channels where the images have them. The last of several
            calls counts. None for the last layer that returns maps of more
            than one place.
        method: `"grad_cam"` or `"grad_cam++"`.
        from_logits: Whether the model returns logits. None for what the
            activation of its last layer says, else `model.returns_logits`
            or the compiled loss.
        batch_size: How many images go through the model at once.

    Returns:
        Maps `(n, height, width)`, float32, in [0, 1].

    Raises:
        ValueError: If shapes do not fit, a class or layer is not one of the
            model, or the model has no logits to read.
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
    """The maps with the classes, logits and images that they belong to."""
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
    """Of the score of a class of each image, by its feature maps."""
    chosen = ops.one_hot(ids, reader.num_classes, dtype="float32")

    def score(x):
        # One sum for all: in inference no image looks at another.
        given = ops.cast(x, features.dtype)
        outputs = ops.cast(reader.outputs(images, given), "float32")
        if outputs.shape[-1] == 1:
            outputs = ops.concatenate([-outputs, outputs], axis=-1)
        # A path to `x` for backends that want one, though of gradient 0.
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
    """Maps of that size with a maximum of 1, or 0 where they are 0."""
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
