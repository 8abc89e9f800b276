"""Class activation maps: the parts of an image that support a class."""

import keras
import numpy as np
from matplotlib.figure import Figure

from keras_calib.backend.late import tensorflow as tf
from keras_calib.plots.display import BLUE, ORANGE, as_picture, show

_TOP = 3


def activation_maps(model, images, *, plus=False):
    """Grad-CAM of the predicted classes, or Grad-CAM++.

    map = relu(sum_k w_k A_k). A_k are the last feature maps that are larger
    than 1 x 1, and g = d z_c / d A is the gradient of the logit of the class:

    - Grad-CAM (Selvaraju et al., 2017, eqs. 1 and 2): w_k = mean_ij g_kij.
    - Grad-CAM++ (Chattopadhay et al., 2018, section 3):
      w_k = sum_ij a_kij relu(g_kij), where
      a_kij = g_kij^2 / (2 g_kij^2 + g_kij^3 sum_ab A_kab), 0 for 0 / 0.

    Args:
        model: A functional model of images to logits, or what prepares images
            and then such a model, as `load_network` gives.
        images: Images as the model takes them, `(n, height, width, channels)`.
        plus: Whether to compute Grad-CAM++.

    Returns:
        Maps `(n, height, width)` with a maximum of 1, or of 0, and the logits.
    """
    prepare, network = _parts(model)
    features = [
        layer.output
        for layer in network.layers
        if len(layer.output.shape) == 4 and min(layer.output.shape[1:3]) > 1
    ]
    if not features:
        raise ValueError("`model` must have feature maps larger than 1 x 1")
    both = keras.Model(network.inputs[0], [features[-1], network.outputs[0]])
    size = images.shape[1:3]
    images = tf.cast(prepare(tf.cast(images, "float32")), "float32")
    with tf.GradientTape() as tape:
        # Else a network without trainable weights would not be recorded.
        tape.watch(images)
        features, logits = both(images, training=False)
        # In inference images do not affect each other, so one sum will do.
        score = tf.reduce_sum(tf.reduce_max(logits, axis=-1))
    gradient = tape.gradient(score, features)
    a, g = (np.asarray(x, "float64") for x in (features, gradient))
    if plus:
        below = 2.0 * g**2 + g**3 * a.sum(axis=(1, 2), keepdims=True)
        alpha = np.divide(g**2, below, np.zeros_like(g), where=below != 0)
        weight = (alpha * np.maximum(g, 0.0)).sum(axis=(1, 2))
    else:
        weight = g.mean(axis=(1, 2))
    maps = np.maximum(np.einsum("nijk,nk->nij", a, weight), 0.0)
    maps = tf.image.resize(maps[..., None], size)[..., 0].numpy()
    highest = maps.max(axis=(1, 2), keepdims=True)
    return maps / np.where(highest > 0, highest, 1.0), np.asarray(logits)


def _parts(model):
    """What prepares images, and the network."""
    *before, network = model.layers
    if not isinstance(network, keras.Model):
        return lambda images: images, model
    return keras.Model(model.inputs[0], before[-1].output), network


def draw_activations(images, maps, labels, logits, names=None):
    """Adaptive Label Smoothing, figures 6 to 8: a column for each image.

    Above the image under its class, below the map and the most probable
    classes. The right class is bold and blue, a wrong prediction orange.

    Args:
        images: Shape `(n, height, width, channels)`.
        maps: Shape `(n, height, width)`.
        labels: Class ids `(n,)`.
        logits: Shape `(n, num_classes)`.
        names: Names of the classes, or None for their ids.
    """
    names = range(logits.shape[-1]) if names is None else names
    probs = keras.ops.convert_to_numpy(keras.ops.softmax(logits))
    figure = Figure(figsize=(1.9 * len(images), 4.6), layout="constrained")
    columns = figure.subplots(2, len(images), squeeze=False).T
    for i, (above, below) in enumerate(columns):
        image = as_picture("images", images[i])
        show(above, image)
        above.set_title(names[labels[i]], fontsize="small")
        # Grey, as colours would mix with those of the map.
        grey = image if image.ndim == 2 else image @ (0.299, 0.587, 0.114)
        show(below, grey)
        show(below, maps[i], "inferno", alpha=0.6)
        lines = np.argsort(-probs[i], kind="stable")[:_TOP]
        for place, k in enumerate(lines):
            right = k == labels[i]
            wrong = ORANGE if place == 0 else "black"
            below.annotate(
                f"{names[k]} {probs[i, k]:.2f}",
                (0.5, 0.0),
                xytext=(0.0, -4.0 - 12.0 * place),
                xycoords="axes fraction",
                textcoords="offset points",
                ha="center",
                va="top",
                fontsize="small",
                color=BLUE if right else wrong,
                weight="bold" if right else "normal",
            )
    return figure
