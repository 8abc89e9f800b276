"""The network of local temperature scaling, and its training.

A tree of convolutions gives each pixel a temperature. Its leaves are filters
of the logits; gates, which are filters too, mix them level by level.
"""

import math
from typing import Any, NamedTuple

import keras
import numpy as np
from keras import ops
from scipy.stats import t

from keras_calib.backend.products import exact_products
from keras_calib.numerics.arrays import to_numpy

__all__ = [
    "DenseData",
    "Training",
    "TreeShape",
    "TreeWeights",
    "start_weights",
    "train_tree",
    "tree_temperature",
]

# softplus(_ONE) = 1, so that a tree of zeros leaves the temperature as it is.
_ONE = math.log(math.e - 1.0)
# Least share of the global temperature: no pixel is divided by 0.
_FLOOR = 1e-3
# Confidence, one-sided, that a tree is better than the global temperature.
_SURE = 0.95
# Spread of the filters of gates at the start, of standardised logits.
_GATES = 1.0


class TreeShape(NamedTuple):
    """Shape of the tree: levels, size and dilation of its filters."""

    depth: int
    kernel_size: int
    dilation_rate: int

    @property
    def leaves(self) -> int:
        """Number of filters of the logits whose values are mixed."""
        return 2**self.depth

    def channels(self, use_image: bool) -> int:
        """Filters of the logits: leaves, gates, and a gate of the image."""
        return 2 * self.leaves - 1 + int(use_image)


class TreeWeights(NamedTuple):
    """Filters `(size, size, inputs, outputs)`; those of images if used."""

    kernel: Any
    bias: Any
    image_kernel: Any = None
    image_bias: Any = None


class DenseData(NamedTuple):
    """Held-out images: ids or soft labels, logits, weights of pixels."""

    labels: np.ndarray
    logits: np.ndarray
    weight: np.ndarray  # 0 where a pixel does not count
    image: np.ndarray | None = None

    @property
    def inputs(self) -> list[np.ndarray]:
        """What the network takes: logits, and images if used."""
        return [x for x in (self.logits, self.image) if x is not None]

    def rows(self, part: np.ndarray) -> "DenseData":
        """Some of the images."""
        return DenseData._make(x if x is None else x[part] for x in self)


def tree_temperature(
    logits: Any, image: Any, weights: TreeWeights, shape: TreeShape
) -> Any:
    """Temperature of each pixel `(batch, height, width, 1)`, of mean 1."""
    maps = _filtered(logits, weights.kernel, shape) + weights.bias
    values, gates = maps[..., : shape.leaves], maps[..., shape.leaves :]
    gates, used = ops.sigmoid(gates), 0
    for level in reversed(range(shape.depth)):
        count = 2**level
        gate = gates[..., used : used + count]
        values = gate * values[..., :count] + (1.0 - gate) * values[..., count:]
        used += count
    if image is not None:
        of_image = _filtered(image, weights.image_kernel, shape)
        gate = gates[..., used:]
        values = gate * values + (1.0 - gate) * (of_image + weights.image_bias)
    return ops.maximum(ops.softplus(values + _ONE), _FLOOR)


@exact_products
def _filtered(x: Any, kernel: Any, shape: TreeShape) -> Any:
    """Filters over pixels; beyond the edge the outermost ones go on."""
    reach = shape.dilation_rate * (shape.kernel_size // 2)
    if reach:
        first, last = [x[:, :1]] * reach, [x[:, -1:]] * reach
        x = ops.concatenate([*first, x, *last], axis=1)
        first, last = [x[:, :, :1]] * reach, [x[:, :, -1:]] * reach
        x = ops.concatenate([*first, x, *last], axis=2)
    return ops.conv(
        x,
        kernel,
        padding="valid",
        data_format="channels_last",
        dilation_rate=shape.dilation_rate,
    )


def start_weights(
    shape: TreeShape, num_classes: int, num_channels: int | None, seed: int
) -> TreeWeights:
    """Leaves of zero, which give 1 everywhere, and random gates.

    With equal gates all leaves would stay equal.
    """
    rng = np.random.default_rng(seed)
    outputs = shape.channels(num_channels is not None)
    size = (shape.kernel_size, shape.kernel_size)
    kernel = rng.normal(size=(*size, num_classes, outputs))
    kernel *= _GATES / math.sqrt(kernel[..., 0].size)
    kernel[..., : shape.leaves] = 0.0
    bias = np.zeros(outputs)
    if num_channels is None:
        return TreeWeights(kernel, bias)
    return TreeWeights(
        kernel, bias, np.zeros((*size, num_channels, 1)), np.zeros(1)
    )


class Training(NamedTuple):
    """How a tree is trained."""

    validation_fraction: float
    strength: float
    learning_rate: float
    batch_size: int
    epochs: int
    patience: int
    seed: int


def train_tree(
    data: DenseData, temperature: float, shape: TreeShape, how: Training
) -> TreeWeights:
    """Weights of the least NLL on images that are left out of the training.

    They are those of the start unless the gain over the global temperature is
    clear on these images, by a t-test, and above 0 on all.
    """
    count = len(data.logits)
    order = np.random.default_rng(how.seed).permutation(count)
    held = min(max(2, round(how.validation_fraction * count)), count - 1)
    training, held_out, everything = (
        _Batches(images, how.batch_size)
        for images in (data.rows(order[held:]), data.rows(order[:held]), data)
    )
    training.shuffle(how.seed)
    channels = None if data.image is None else data.image.shape[-1]
    start = start_weights(shape, data.logits.shape[-1], channels, how.seed)
    pixels = max(int(np.count_nonzero(training.data.weight)), 1)
    ridge = keras.regularizers.L2(0.5 * how.strength / pixels)
    tree = _Tree(start, shape, temperature, data, ridge)
    model = _compiled(tree, data, how.learning_rate)
    before = everything.losses(model)
    stop = keras.callbacks.EarlyStopping(
        "val_nll", mode="min", patience=how.patience, restore_best_weights=True
    )
    model.fit(
        training,
        epochs=how.epochs,
        validation_data=held_out,
        shuffle=False,
        callbacks=[stop],
        verbose=0,
    )
    gains = before - everything.losses(model)
    left_out = gains[order[:held]]
    error = left_out.std(ddof=1) / np.sqrt(held)
    clear = left_out.mean() > t.ppf(_SURE, held - 1) * error
    if clear and gains.sum() > 0.0:
        return tree.weights_of_logits()
    return start


def _compiled(
    tree: keras.layers.Layer, data: DenseData, learning_rate: float
) -> keras.Model:
    inputs = [
        keras.Input((None, None, x.shape[-1]), name=f"tree_input_{i}")
        for i, x in enumerate(data.inputs)
    ]
    model = keras.Model(inputs, tree(inputs), name="local_temperatures")
    name = "CategoricalCrossentropy"
    name = name if data.labels.ndim == 4 else f"Sparse{name}"
    # The loss of an epoch has the ridge, the metric has not.
    model.compile(
        keras.optimizers.Adam(learning_rate),
        loss=getattr(keras.losses, name)(from_logits=True),
        weighted_metrics=[
            getattr(keras.metrics, name)(from_logits=True, name="nll")
        ],
    )
    return model


class _Tree(keras.layers.Layer):
    """Logits by the temperatures of a tree, of standardised inputs."""

    def __init__(
        self,
        start: TreeWeights,
        shape: TreeShape,
        temperature: float,
        data: DenseData,
        ridge: keras.regularizers.Regularizer,
    ):
        super().__init__(dtype="float32", name="tree")
        self.tree_shape, self.temperature = shape, temperature
        self.scales = [_scale(x, data.weight) for x in data.inputs]
        self.filters = []
        for i, value in enumerate(start):
            if value is not None:
                weight = self.add_weight(
                    shape=value.shape,
                    initializer="zeros",
                    regularizer=ridge if value.ndim > 1 else None,
                    name=f"filter_{i}",
                )
                weight.assign(ops.convert_to_tensor(value, "float32"))
                self.filters.append(weight)

    def call(self, inputs):
        standard = [
            (x - ops.convert_to_tensor(mean)) / ops.convert_to_tensor(scale)
            for x, (mean, scale) in zip(inputs, self.scales, strict=True)
        ]
        image = standard[1] if len(standard) > 1 else None
        weights = TreeWeights(*self.filters)
        share = tree_temperature(standard[0], image, weights, self.tree_shape)
        return inputs[0] / (self.temperature * share)

    def compute_output_shape(self, input_shape):
        return input_shape[0]

    def weights_of_logits(self) -> TreeWeights:
        """Filters of inputs as they are, which hold their scales."""
        found = [to_numpy(x).astype("float64") for x in self.filters]
        for i, (mean, scale) in enumerate(self.scales):
            kernel = found[2 * i] / scale[:, None]
            found[2 * i] = kernel
            found[2 * i + 1] -= np.einsum("xyij,i->j", kernel, mean)
        return TreeWeights(*found)


class _Batches(keras.utils.PyDataset):
    """Batches of images, in a new order at each epoch if told to."""

    def __init__(self, data: DenseData, batch_size: int):
        super().__init__()
        self.data, self.batch_size = data, batch_size
        self.order = np.arange(len(data.logits))
        self.random: np.random.Generator | None = None

    def shuffle(self, seed: int) -> None:
        """From now on each epoch has an order of its own."""
        self.random = np.random.default_rng(seed)
        self.on_epoch_end()

    def on_epoch_end(self):
        if self.random is not None:
            self.order = self.random.permutation(len(self.order))

    def __len__(self):
        return -(-len(self.order) // self.batch_size)

    def __getitem__(self, index):
        start = index * self.batch_size
        batch = self.data.rows(self.order[start : start + self.batch_size])
        # Keras reads a list as one structure, and a tuple as x, y, weight.
        return tuple(batch.inputs), batch.labels, batch.weight

    def losses(self, model: keras.Model) -> np.ndarray:
        """Sum of the NLL over the pixels of each image, in order."""
        found = []
        for inputs, labels, weight in (self[i] for i in range(len(self))):
            z = to_numpy(model.predict_on_batch(list(inputs)), "float64")
            z -= z.max(axis=-1, keepdims=True)
            log_sum = np.log(np.exp(z).sum(axis=-1))
            if labels.ndim == 4:
                target = np.sum(labels * z, axis=-1)
            else:
                target = np.take_along_axis(z, labels[..., None], axis=-1)[
                    ..., 0
                ]
            found.append(np.sum(weight * (log_sum - target), axis=(1, 2)))
        return np.concatenate(found)


def _scale(x: np.ndarray, weight: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Mean and spread of each channel, float32, image by image."""
    sums = np.zeros((2, x.shape[-1]))
    for one, of_pixels in zip(x, weight, strict=True):
        rows = one[of_pixels > 0].astype("float64")
        sums += [rows.sum(axis=0), np.square(rows).sum(axis=0)]
    mean, square = sums / np.count_nonzero(weight)
    spread = np.sqrt(np.maximum(square - mean**2, 0.0))
    # A constant channel tells nothing.
    spread[spread <= 1e-6 * np.sqrt(square)] = 1.0
    return mean.astype("float32"), spread.astype("float32")
