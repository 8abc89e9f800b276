"""Local temperature scaling: a tree of convolutions over the logits."""

import math
from collections.abc import Callable
from functools import partial
from typing import Annotated, Any, NamedTuple, Unpack

import keras
import numpy as np
from keras import ops
from scipy.stats import t

from keras_calib.backend.compiled import exact_products
from keras_calib.backend.errors import value_error
from keras_calib.backend.progress import tick
from keras_calib.calibrators.base import Calibrator, FittedValue
from keras_calib.calibrators.fitted_layer import CalibratorOptions
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


class TreeOptions(CalibratorOptions, total=False):
    """How filters are trained, or their values if you know them."""

    validation_fraction: Annotated[float, 0.2]
    learning_rate: Annotated[float, 0.003]
    batch_size: Annotated[int, 4]
    epochs: Annotated[int, 100]
    patience: Annotated[int, 10]
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
    temperature = FittedValue(rule="> 0 and finite")
    kernel = FittedValue("size", "size", "num_classes", "filters")
    bias = FittedValue("filters")
    image_kernel = FittedValue("size", "size", "channels", 1)
    image_bias = FittedValue(1)

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
        **kwargs: Unpack[TreeOptions],
    ):
        training, rest = taken(kwargs, TreeOptions, CalibratorOptions)
        _, *others = self.fitted_values
        given = {k: vars(training).pop(k) for k in others}
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
        super().__init__(**rest)
        self._keep(
            use_image=use_image,
            depth=depth,
            kernel_size=kernel_size,
            dilation_rate=dilation_rate,
            penalty=penalty,
            seed=seed,
            **vars(training),
        )
        if not use_image:
            names = ("temperature", "kernel", "bias")
            self.fitted_values = {k: self.fitted_values[k] for k in names}
        self.set_known(
            {"size": kernel_size, "filters": self.num_filters},
            temperature=temperature,
            **given,
        )

    @property
    def num_filters(self) -> int:
        """Filters of the logits: leaves, gates, and a gate of the image."""
        return 2 ** (self.depth + 1) - 1 + int(self.use_image)

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
        if self.use_image:
            # The first pass over a model's batches has their inputs.
            image = np.concatenate([_image_of(part) for part in given])
            logits, image = self._maps([given.logits, image])
        else:
            logits, image = self._maps(given.logits)
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
        self.num_samples, self.num_units = samples.sizes()

    def call(self, inputs, *, from_logits=None):
        """Calibrates outputs of images, or with `use_image` `(outputs, image)`.

        Otherwise as `Calibrator.call`.
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
        those of a call.
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
        return 1 + self.num_filters * (area * num_classes + 1)

    def _temperatures(self, logits: Any, image: Any) -> Any:
        found = [getattr(self, "_" + name) for name in self.fitted_values]
        if image is not None:
            image = ops.cast(image, "float32")
        weights = _TreeWeights(*found[1:])
        share = tree_temperature(filled(logits), image, weights, self)
        return found[0] * share

    def read_inputs(self, inputs: Any) -> Any:
        if not self.use_image or isinstance(inputs, Predictions):
            return super().read_inputs(inputs)
        if not (isinstance(inputs, list | tuple) and len(inputs) == 2):
            raise value_error(
                "`logits` must be the pair (logits, image), as `use_image` is "
                "True; to export it, export "
                "`keras.Model(x, calibrator([network(x), x]))` with "
                "`from_logits=True`",
                logits=type(inputs).__name__,
            )
        return [as_numbers(inputs[0], "logits"), as_numbers(inputs[1], "image")]

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
    logits: Any, image: Any, weights: _TreeWeights, how: LocalTemperatureScaling
) -> Any:
    """Temperature of each pixel `(batch, height, width, 1)`, of mean 1."""
    maps = _filtered(logits, weights.kernel, how.dilation_rate) + weights.bias
    leaves = 2**how.depth
    values, gates, used = maps[..., :leaves], ops.sigmoid(maps[..., leaves:]), 0
    for level in reversed(range(how.depth)):
        count = 2**level
        gate = gates[..., used : used + count]
        values = gate * values[..., :count] + (1.0 - gate) * values[..., count:]
        used += count
    if image is not None:
        of_image = _filtered(image, weights.image_kernel, how.dilation_rate)
        gate = gates[..., used:]
        values = gate * values + (1.0 - gate) * (of_image + weights.image_bias)
    return ops.maximum(ops.softplus(values + _ONE), _FLOOR)


@exact_products
def _filtered(x: Any, kernel: Any, dilation_rate: int) -> Any:
    """Filters over pixels; beyond the edge the outermost ones go on."""
    reach = dilation_rate * (kernel.shape[0] // 2)
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
        dilation_rate=dilation_rate,
    )


def start_weights(
    how: LocalTemperatureScaling, num_classes: int, num_channels: int = 0
) -> _TreeWeights:
    """Leaves of zero, which give 1 everywhere, and random gates.

    With equal gates all leaves would stay equal.
    """
    rng = np.random.default_rng(how.seed)
    size = (how.kernel_size, how.kernel_size)
    kernel = rng.normal(size=(*size, num_classes, how.num_filters))
    kernel /= math.sqrt(kernel[..., 0].size)
    kernel[..., : 2**how.depth] = 0.0
    weights = _TreeWeights(kernel, np.zeros(how.num_filters))
    if not how.use_image:
        return weights
    image_kernel = np.zeros((*size, num_channels, 1))
    return weights._replace(image_kernel=image_kernel, image_bias=np.zeros(1))


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
    start = start_weights(how, *(x.shape[-1] for x in data.inputs))
    pixels = max(int(np.count_nonzero(data.weight[order[held:]])), 1)
    ridge = keras.regularizers.L2(0.5 * how.penalty / pixels)
    share = partial(tree_temperature, how=how)
    tree = _Tree(start, share, temperature, data, ridge)
    soft = "" if data.labels.ndim == 4 else "Sparse"
    name, options = f"{soft}CategoricalCrossentropy", {"from_logits": True}
    # The loss of an epoch has the ridge, the metric has not.
    nll = getattr(keras.metrics, name)(name="nll", **options)
    loss = getattr(keras.losses, name)(**options)
    adam = keras.optimizers.Adam(how.learning_rate)
    tree.compile(adam, loss, weighted_metrics=[nll])
    before = everything.losses(tree)
    stop = keras.callbacks.EarlyStopping(
        "val_nll", mode="min", patience=how.patience, restore_best_weights=True
    )
    seen = keras.callbacks.LambdaCallback(
        on_batch_end=lambda batch, logs=None: tick()
    )
    tree.fit(
        training,
        epochs=how.epochs,
        validation_data=held_out,
        shuffle=False,
        callbacks=[stop, seen],
        verbose=0,
    )
    gains = before - everything.losses(tree)
    left_out = gains[order[:held]]
    error = left_out.std(ddof=1) / np.sqrt(held)
    clear = left_out.mean() > t.ppf(_SURE, held - 1) * error
    if clear and gains.sum() > 0.0:
        return tree.weights_of_logits()
    return start


class _Tree(keras.Model):
    """Logits by the temperatures of a tree, of standardised inputs."""

    def __init__(
        self,
        start: _TreeWeights,
        share: Callable,
        temperature: float,
        data: _DenseData,
        ridge: keras.regularizers.Regularizer,
    ):
        super().__init__(dtype="float32", name="tree")
        self.share, self.temperature = share, temperature
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
        share = self.share(standard[0], image, _TreeWeights(*self.filters))
        return inputs[0] / (self.temperature * share)

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
    else:
        labels = np.where(weight > 0, samples.labels, 0).astype("int32")
    if image is not None:
        image = to_numpy(image, "float32")
        if not np.isfinite(image).all():
            raise value_error(
                "`image` must be finite",
                not_finite=int(np.sum(~np.isfinite(image))),
            )
    return _DenseData(
        labels.reshape(*lead, *labels.shape[1:]),
        logits.reshape(*lead, -1),
        weight.astype("float32").reshape(lead),
        image,
    )
