"""Local temperature scaling.

A tree of convolutions gives each pixel a temperature. Its leaves are filters
of the logits; gates, which are filters too, mix them level by level.
"""

import math
from typing import Annotated, Any, NamedTuple, Unpack

import keras
import numpy as np
from keras import ops
from scipy.stats import t

from keras_calib.backend.compiled import exact_products
from keras_calib.backend.errors import value_error
from keras_calib.backend.progress import tick
from keras_calib.calibrators.base import POSITIVE, Calibrator, FittedValue
from keras_calib.calibrators.fitted_layer import LayerOptions
from keras_calib.calibrators.fitting_data import FittingData, read_predictions
from keras_calib.calibrators.separation import supported_samples
from keras_calib.calibrators.temperature import optimal_temperature
from keras_calib.formulas.intervals import check_inside
from keras_calib.formulas.proper import log_losses
from keras_calib.inputs.checks import (
    check_above,
    check_at_least,
    check_flag,
    check_integer,
)
from keras_calib.inputs.options import taken
from keras_calib.numerics.arrays import as_numbers, fits, shape_of, to_numpy
from keras_calib.numerics.softmax import filled, is_ruled_out
from keras_calib.predictions.predictions import Predictions

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


class _TreeWeights(NamedTuple):
    """Filters `(size, size, inputs, outputs)`; those of images if used."""

    kernel: Any
    bias: Any
    image_kernel: Any = None
    image_bias: Any = None


class _DenseData(NamedTuple):
    """Held-out images: ids or soft labels, logits, weights of pixels."""

    labels: np.ndarray
    logits: np.ndarray
    weight: np.ndarray  # 0 where a pixel does not count
    image: np.ndarray | None = None

    @property
    def inputs(self) -> list[np.ndarray]:
        """What the network takes: logits, and images if used."""
        return [x for x in (self.logits, self.image) if x is not None]

    def rows(self, part: np.ndarray) -> "_DenseData":
        return _DenseData._make(x if x is None else x[part] for x in self)


class TrainingOptions(LayerOptions, total=False):
    """How filters are trained."""

    validation_fraction: Annotated[float, 0.2]
    learning_rate: Annotated[float, 0.003]
    batch_size: Annotated[int, 4]
    epochs: Annotated[int, 100]
    patience: Annotated[int, 10]


class TreeOptions(TrainingOptions, total=False):
    """How filters are trained, or their values if you know them."""

    kernel: Any
    bias: Any
    image_kernel: Any
    image_bias: Any


@keras.saving.register_keras_serializable(package="keras_calib")
class LocalTemperatureScaling(Calibrator):
    """Local temperature scaling (LTS): a temperature for each pixel.

    Use it for a segmenter that is overconfident in some regions only, such as
    at edges of objects. The predicted class never changes.

    T(x) = T_0 softplus(tree(x) + log(e - 1)), and the logits of pixel x become
    z(x) / T(x). T_0 is the optimum of `TemperatureScaling`. The tree mixes
    2^depth filters of the logits by gates: a gate is the sigmoid of a filter.
    With `use_image` a last gate mixes in a filter of the image.

    The filters minimise the mean NLL of the pixels plus penalty / (2 n)
    sum w^2 by Adam, w their weights for standardised inputs and n the number
    of pixels. They begin where T(x) = T_0, and the epoch of the least NLL on
    images that are left out wins. T_0 stays unless a t-test over these images
    finds a gain, at the level of 5 %.

    `fit` takes three images or more of one size: class ids `(n, height, width)`
    and logits `(n, height, width, num_classes)`. Images that are left out
    replace its folds, so `num_folds` is not used.

    Args:
        use_image: Whether T depends on the image too. `fit` and calls then
            take `(logits, image)`.
        depth: Levels of the tree, >= 0.
        kernel_size: Height and width of each filter, odd.
        dilation_rate: Distance of the pixels that a filter reads.
        validation_fraction: Share of the images that choose the epoch, in (0,
            1); two images or more. Defaults to `0.2`.
        penalty: Strength of the ridge, >= 0.
        learning_rate: Learning rate of Adam, > 0, for standardised inputs.
            Defaults to `0.003`.
        batch_size: Images in a batch. Defaults to `4`.
        epochs: Most epochs. Defaults to `100`.
        patience: Epochs without an improvement after which training ends.
            Defaults to `10`.
        seed: Seed of the gates, of the images left out and of their order.
        temperature: T_0, > 0, if you know the fit; None waits for `fit`.
        kernel: Filters of the logits `(size, size, num_classes, filters)`;
            they go with `temperature`, as do the others.
        bias: Their biases `(filters,)`.
        image_kernel: Filter of the image `(size, size, channels, 1)`.
        image_bias: Its bias `(1,)`.
        **kwargs: `name` and `trainable` of `keras.layers.Layer`.

    Example:

    >>> import numpy as np
    >>> rng = np.random.default_rng(0)
    >>> logits = rng.normal(size=(8, 12, 12, 3)).astype("float32")
    >>> labels = np.argmax(logits + rng.gumbel(size=logits.shape), axis=-1)
    >>> scaling = LocalTemperatureScaling(epochs=2)
    >>> scaling.fit(labels, 4.0 * logits)(logits).shape == logits.shape
    True

    Reference:
        Ding et al., Local Temperature Scaling for Probability Calibration,
        ICCV 2021, https://arxiv.org/abs/2008.05105

    Differs:
        The released code sets T(x) = max(tree(x) + 1, 0) + 1e-8 and begins
        with filters of 0, so that all leaves stay equal. Here gates begin at
        random, T is smooth and begins at T_0. Beyond the edge the outermost
        pixels go on, instead of a reflection, so that images of any size are
        taken. The paper chooses the epoch on images of its own.
    """

    needs_every_class = False
    temperature = FittedValue("The fitted T_0.", within=POSITIVE)
    kernel = FittedValue(
        "Filters of the logits.", "size", "size", "num_classes", "filters"
    )
    bias = FittedValue("Biases of these filters.", "filters")
    image_kernel = FittedValue(
        "Filter of the image.", "size", "size", "channels", 1
    )
    image_bias = FittedValue("Bias of that filter.", 1)

    def __init__(
        self,
        *,
        use_image: bool = False,
        depth: int = 2,
        kernel_size: int = 5,
        dilation_rate: int = 2,
        penalty: float = 20.0,
        seed: int = 0,
        temperature: float | None = None,
        name: str = "local_temperature_scaling",
        **kwargs: Unpack[TreeOptions],
    ):
        given, rest = taken(kwargs, TreeOptions, TrainingOptions)
        training, rest = taken(rest, TrainingOptions, LayerOptions)
        check_flag("use_image", use_image)
        check_integer("depth", depth, 0)
        check_integer("kernel_size", kernel_size, 1)
        check_integer("dilation_rate", dilation_rate, 1)
        for argument in ("batch_size", "epochs", "patience"):
            check_integer(argument, getattr(training, argument), 1)
        if kernel_size % 2 == 0:
            raise value_error(
                "`kernel_size` must be odd", kernel_size=kernel_size
            )
        check_inside("validation_fraction", training.validation_fraction)
        check_at_least("penalty", penalty, 0.0)
        check_above("learning_rate", training.learning_rate, 0.0)
        check_integer("seed", seed, 0)
        super().__init__(name=name, **rest)
        self._keep(
            use_image=use_image,
            depth=depth,
            kernel_size=kernel_size,
            dilation_rate=dilation_rate,
            penalty=penalty,
            seed=seed,
            **vars(training),
        )
        self.tree = TreeShape(depth, kernel_size, dilation_rate)
        if not use_image:
            names = ("temperature", "kernel", "bias")
            self.fitted_values = {k: self.fitted_values[k] for k in names}
        filters = self.tree.channels(use_image)
        self.set_known(
            {"size": kernel_size, "filters": filters},
            temperature=temperature,
            **vars(given),
        )

    def given(
        self, labels: Any, logits: Any = None, **options: Any
    ) -> Predictions:
        if not self.use_image or isinstance(labels, Predictions):
            return super().given(labels, logits, **options)
        logits, image = self.read_inputs(logits)
        given = super().given(labels, logits, **options)
        return given.with_columns({"inputs": to_numpy(image)})

    def fit_given(
        self, given: Predictions, num_folds: int, force: bool
    ) -> None:
        """Reads images and fits; those left out replace folds."""
        inputs: Any = given.logits
        if self.use_image:
            # The first pass over a model's batches has their inputs.
            image = np.concatenate([_image_of(part) for part in given])
            inputs = [inputs, image]
        logits, image = self._maps(inputs)
        logits = to_numpy(logits)
        if len(logits) < 3:
            raise value_error(
                "`logits` must be those of three images or more, of which two "
                "or more are left out to choose the epoch",
                images=len(logits),
            )
        samples = read_predictions(given)
        low = np.flatnonzero(is_ruled_out(samples.logits.min(axis=0)))
        if len(low):
            raise value_error(
                "`logits` must not rule out a class by -inf; "
                "`TemperatureScaling` can be fitted to such logits",
                classes=low[:10].tolist(),
            )
        self.check_enough(samples, force)
        samples = supported_samples(samples)
        data = _images_of(samples, logits.shape[:3], image)
        temperature = optimal_temperature(samples)
        weights = _train_tree(data, temperature, self)
        found = {k: v for k, v in weights._asdict().items() if v is not None}
        self.set_fitted(samples.num_classes, temperature=temperature, **found)

    def fit_samples(self, samples: FittingData) -> None:
        raise value_error(
            "`LocalTemperatureScaling` is fitted on images, by `fit` or "
            "`fit_on`; compare it with others on images of their own",
            samples=len(samples.logits),
        )

    def call(self, inputs, *, from_logits=None):
        """Calibrates logits, or the logits of probabilities.

        Args:
            inputs: The model's outputs `(batch, height, width, num_classes)`,
                or `(batch, height, width, 1)` for the second of two classes.
                With `use_image`: `(outputs, image)`.
            from_logits: Whether the outputs are logits, not probabilities;
                None takes them as those of the fit.

        Returns:
            Calibrated logits of the shape of the outputs, float32.
        """
        self.check_fitted()
        logits, image = self._maps(inputs)
        return self.mapped(
            lambda z: z / self._temperatures(z, image), logits, from_logits
        )

    def temperature_map(
        self, inputs: Any, *, from_logits: bool | None = None
    ) -> Any:
        """Temperature of each pixel `(batch, height, width)`.

        Use it to see where the segmenter was overconfident. The arguments are
        those of a call: `inputs` are the outputs of all classes or of one
        channel, with `use_image` `(outputs, image)`.
        """
        self.check_fitted()
        outputs, image = self._maps(inputs)
        logits, _ = self.model_logits(outputs, from_logits)
        return self._temperatures(ops.cast(logits, "float32"), image)[..., 0]

    def compute_output_shape(self, input_shape):
        return input_shape[0] if self.use_image else input_shape

    def num_parameters(self, num_classes: int) -> int:
        """Number of parameters, without the filter of the image."""
        area = self.kernel_size**2
        filters = self.tree.channels(self.use_image)
        return 1 + filters * (area * num_classes + 1)

    def _temperatures(self, logits: Any, image: Any) -> Any:
        found = [getattr(self, "_" + name) for name in self.fitted_values]
        if image is not None:
            image = ops.cast(image, "float32")
        weights = _TreeWeights(*found[1:])
        share = tree_temperature(filled(logits), image, weights, self.tree)
        return found[0] * share

    def read_inputs(self, inputs: Any) -> Any:
        is_pair = isinstance(inputs, list | tuple) and len(inputs) == 2
        if not self.use_image:
            return super().read_inputs(inputs)
        if not is_pair:
            raise value_error(
                "`logits` must be the pair (logits, image), as `use_image` is "
                "True; to export it, export "
                "`keras.Model(x, calibrator([network(x), x]))` with "
                "`from_logits=True`",
                logits=type(inputs).__name__,
            )
        names = ("logits", "image")
        return [as_numbers(x, k) for x, k in zip(inputs, names, strict=True)]

    def inputs_of(self, part: Predictions, outputs: Any) -> Any:
        return [outputs, _image_of(part)] if self.use_image else outputs

    def _maps(self, inputs: Any) -> tuple[Any, Any]:
        """Logits, and the image if it is used, checked as maps of one size."""
        inputs = self.read_inputs(inputs)
        logits, image = inputs if self.use_image else (inputs, None)
        shape = shape_of(logits)
        if len(shape) != 4:
            raise value_error(
                "`logits` must be those of images, (batch, height, width, "
                "num_classes), without `pixels_per_image`",
                **{"logits.shape": shape},
            )
        if image is not None:
            # The channels are known once fitted.
            channels = shape_of(self._image_kernel)[2] if self.fitted else None
            found, wanted = shape_of(image), (*shape[:3], channels)
            if len(found) != 4 or not fits(found, wanted):
                raise value_error(
                    "`image` must be (batch, height, width, channels), with a "
                    "pixel for each pixel of the logits and the channels of "
                    "`fit`",
                    **{"image.shape": found, "logits.shape": shape},
                )
        return logits, image


def _image_of(part: Predictions) -> np.ndarray:
    """The images of predictions, the one input of their model."""
    inputs = keras.tree.flatten(part.inputs)
    if len(inputs) != 1 or inputs[0] is None:
        raise value_error(
            "`use_image` needs a model of one input, the image, asked for the "
            "first time or with arrays; for others call "
            "`fit(labels, (logits, image))`",
            inputs=len(inputs),
        )
    return to_numpy(inputs[0])


def tree_temperature(
    logits: Any, image: Any, weights: _TreeWeights, shape: TreeShape
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
) -> _TreeWeights:
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
        return _TreeWeights(kernel, bias)
    return _TreeWeights(
        kernel, bias, np.zeros((*size, num_channels, 1)), np.zeros(1)
    )


def _train_tree(
    data: _DenseData, temperature: float, how: LocalTemperatureScaling
) -> _TreeWeights:
    """Weights of the least NLL on images that are left out of the training.

    They are those of the start unless the gain over the global temperature is
    clear on these images, by a t-test, and above 0 on all.
    """
    count = len(data.logits)
    order = np.random.default_rng(how.seed).permutation(count)
    held = min(max(2, round(how.validation_fraction * count)), count - 1)
    training = _Batches(data, order[held:], how.batch_size, how.seed)
    held_out = _Batches(data, order[:held], how.batch_size)
    everything = _Batches(data, np.arange(count), how.batch_size)
    channels = None if data.image is None else data.image.shape[-1]
    start = start_weights(how.tree, data.logits.shape[-1], channels, how.seed)
    pixels = max(int(np.count_nonzero(data.weight[order[held:]])), 1)
    ridge = keras.regularizers.L2(0.5 * how.penalty / pixels)
    tree = _Tree(start, how.tree, temperature, data, ridge)
    model = _compiled(tree, data, how.learning_rate)
    before = everything.losses(model)
    stop = keras.callbacks.EarlyStopping(
        "val_nll", mode="min", patience=how.patience, restore_best_weights=True
    )
    seen = keras.callbacks.LambdaCallback(
        on_batch_end=lambda batch, logs=None: tick()
    )
    model.fit(
        training,
        epochs=how.epochs,
        validation_data=held_out,
        shuffle=False,
        callbacks=[stop, seen],
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
    tree: keras.layers.Layer, data: _DenseData, learning_rate: float
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
        start: _TreeWeights,
        shape: TreeShape,
        temperature: float,
        data: _DenseData,
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
        weights = _TreeWeights(*self.filters)
        share = tree_temperature(standard[0], image, weights, self.tree_shape)
        return inputs[0] / (self.temperature * share)

    def compute_output_shape(self, input_shape):
        return input_shape[0]

    def weights_of_logits(self) -> _TreeWeights:
        """Filters of inputs as they are, which hold their scales."""
        found = [to_numpy(x).astype("float64") for x in self.filters]
        for i, (mean, scale) in enumerate(self.scales):
            kernel = found[2 * i] / scale[:, None]
            found[2 * i] = kernel
            found[2 * i + 1] -= np.einsum("xyij,i->j", kernel, mean)
        return _TreeWeights(*found)


class _Batches(keras.utils.PyDataset):
    """Batches of some images, with a seed in a new order at each epoch."""

    def __init__(
        self,
        data: _DenseData,
        places: np.ndarray,
        batch_size: int,
        seed: int | None = None,
    ):
        super().__init__()
        self.data, self.batch_size = data, batch_size
        self.places = self.order = places
        self.random = None if seed is None else np.random.default_rng(seed)
        self.on_epoch_end()

    def on_epoch_end(self):
        if self.random is not None:
            self.order = self.random.permutation(self.places)

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
            losses = log_losses(
                labels.reshape(weight.size, *labels.shape[3:]),
                z.reshape(weight.size, -1),
                from_logits=True,
            )
            weighted = weight * losses.reshape(weight.shape)
            found.append(weighted.sum(axis=(1, 2)))
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


def _images_of(samples: FittingData, lead: tuple, image: Any) -> _DenseData:
    """Samples as images again; pixels that do not count weigh 0."""
    logits = samples.logits.astype("float32", copy=False)
    weight = samples.weights()
    if samples.valid is not None:
        weight = np.where(samples.valid, weight, 0.0)
    # The NLL of pixels that count, whatever their number.
    weight = weight / weight.mean()
    if samples.labels.ndim == 2:
        labels = samples.soft_labels().astype("float32")
        labels = labels.reshape(*lead, -1)
    else:
        labels = np.where(weight > 0, samples.labels, 0).astype("int32")
        labels = labels.reshape(lead)
    if image is not None:
        image = to_numpy(image, "float32")
        if not np.isfinite(image).all():
            raise value_error(
                "`image` must be finite",
                not_finite=int(np.sum(~np.isfinite(image))),
            )
    return _DenseData(
        labels,
        logits.reshape(*lead, -1),
        weight.astype("float32").reshape(lead),
        image,
    )
