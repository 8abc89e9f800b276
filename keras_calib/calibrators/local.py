"""Local temperature scaling."""

from typing import Any, Self

import keras
import numpy as np
from keras import ops

from keras_calib.backend.errors import value_error
from keras_calib.calibrators.base import Calibrator, check_shapes, fitted_array
from keras_calib.calibrators.fitting_data import (
    FittingData,
    checked_batches,
    read_samples,
)
from keras_calib.calibrators.local_data import (
    check_maps,
    filter_shapes,
    image_of,
    images_of,
    joined_batches,
)
from keras_calib.calibrators.local_network import (
    Training,
    TreeShape,
    TreeWeights,
    train_tree,
    tree_temperature,
)
from keras_calib.calibrators.separation import supported_samples
from keras_calib.calibrators.temperature import optimal_temperature
from keras_calib.inputs.checks import (
    check_above,
    check_at_least,
    check_flag,
    check_integer,
)
from keras_calib.inputs.options import ReadOptions
from keras_calib.numerics.arrays import as_numbers, shape_of, to_numpy
from keras_calib.numerics.softmax import filled, is_ruled_out
from keras_calib.predictions.batches import Examples
from keras_calib.predictions.collect import labels_of, logits_of

__all__ = ["LocalTemperatureScaling"]

_FILTERS = ("kernel", "bias")
_IMAGE_FILTERS = ("image_kernel", "image_bias")


@keras.saving.register_keras_serializable(package="keras_calib")
class LocalTemperatureScaling(Calibrator):
    """Local temperature scaling (LTS): a temperature for each pixel.

    Use it for a segmenter that is overconfident in some regions only, such as
    at edges of objects. The predicted class never changes.

    T(x) = T_0 softplus(tree(x) + log(e - 1)), and the logits of pixel x become
    z(x) / T(x). T_0 is the optimum of `TemperatureScaling`. The tree mixes
    2^depth filters of the logits by gates: a gate is the sigmoid of a filter.
    With `use_image` a last gate mixes in a filter of the image.

    The filters minimise the mean NLL of the pixels plus strength / (2 n)
    sum w^2 by Adam, w their weights for standardised inputs and n the number
    of pixels. They begin where T(x) = T_0, and the epoch of the least NLL on
    images that are left out wins. T_0 stays unless a t-test over these images
    finds a gain, at the level of 5 %.

    Args:
        use_image: Whether T depends on the image too. `fit` and calls then
            take `(logits, image)`.
        depth: Levels of the tree, >= 0.
        kernel_size: Height and width of each filter, odd.
        dilation_rate: Distance of the pixels that a filter reads.
        validation_fraction: Share of the images that choose the epoch, in
            (0, 1); two images or more.
        strength: Strength of the ridge, >= 0.
        learning_rate: Learning rate of Adam, > 0, for standardised inputs.
        batch_size: Images in a batch.
        epochs: Most epochs.
        patience: Epochs without an improvement after which training ends.
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
    kernel = fitted_array("kernel", "Filters of the logits.")
    bias = fitted_array("bias", "Biases of these filters.")
    image_kernel = fitted_array("image_kernel", "Filter of the image.")
    image_bias = fitted_array("image_bias", "Bias of that filter.")

    def __init__(
        self,
        *,
        use_image: bool = False,
        depth: int = 2,
        kernel_size: int = 5,
        dilation_rate: int = 2,
        validation_fraction: float = 0.2,
        strength: float = 20.0,
        learning_rate: float = 0.003,
        batch_size: int = 4,
        epochs: int = 100,
        patience: int = 10,
        seed: int = 0,
        temperature: float | None = None,
        kernel: Any = None,
        bias: Any = None,
        image_kernel: Any = None,
        image_bias: Any = None,
        name: str = "local_temperature_scaling",
        **kwargs: Any,
    ):
        check_flag("use_image", use_image)
        check_integer("depth", depth, 0)
        for argument, number in (
            ("kernel_size", kernel_size),
            ("dilation_rate", dilation_rate),
            ("batch_size", batch_size),
            ("epochs", epochs),
            ("patience", patience),
        ):
            check_integer(argument, number, 1)
        if kernel_size % 2 == 0:
            raise value_error(
                "`kernel_size` must be odd", kernel_size=kernel_size
            )
        check_above("validation_fraction", validation_fraction, 0.0)
        if validation_fraction >= 1.0:
            raise value_error(
                "`validation_fraction` must be below 1",
                validation_fraction=validation_fraction,
            )
        check_at_least("strength", strength, 0.0)
        check_above("learning_rate", learning_rate, 0.0)
        check_integer("seed", seed, 0)
        super().__init__(name=name, **kwargs)
        self._keep(
            use_image=use_image,
            depth=depth,
            kernel_size=kernel_size,
            dilation_rate=dilation_rate,
            validation_fraction=validation_fraction,
            strength=strength,
            learning_rate=learning_rate,
            batch_size=batch_size,
            epochs=epochs,
            patience=patience,
            seed=seed,
        )
        self.tree = TreeShape(depth, kernel_size, dilation_rate)
        self.fitted_values = ("temperature", *_FILTERS)
        if use_image:
            self.fitted_values += _IMAGE_FILTERS
        values = {
            "temperature": temperature,
            "kernel": kernel,
            "bias": bias,
            "image_kernel": image_kernel,
            "image_bias": image_bias,
        }
        if arrays := self.given_arrays(values):
            check_shapes(arrays, filter_shapes(self.tree, use_image))
            self.set_fitted(arrays["kernel"].shape[2], **arrays)

    @property
    def temperature(self) -> float:
        """The fitted T_0."""
        return float(self.fitted_value("temperature"))

    def fit(
        self,
        labels: Any,
        logits: Any = None,
        sample_weight: Any = None,
        *,
        ignore_class: int | None = None,
        num_folds: int = 0,
        force: bool = False,
    ) -> Self:
        """Fits on the logits of held-out images and returns self.

        Args:
            labels: Class ids `(n, height, width)`, or one-hot or soft labels
                `(n, height, width, num_classes)`. Without `logits`: batches
                of (labels, logits) or (labels, logits, sample_weight) of
                images of one size.
            logits: Logits `(n, height, width, num_classes)`, or `(n, height,
                width, 1)` for the second of two classes. With `use_image`:
                `(logits, image)`, image `(n, height, width, channels)`.
            sample_weight: Weights of pixels `(n, height, width)`, or of
                images `(n,)`.
            ignore_class: Class id of the pixels to leave out, such as 255.
            num_folds: Not used: images that are left out replace folds.
            force: Fit even with fewer pixels than parameters.

        Raises:
            ValueError: If shapes do not fit, a logit is not finite, or there
                are fewer than three images or two classes. The layer then keeps
                its previous fit.
        """
        self.check_labels(labels)
        if logits is None:
            batches = checked_batches(labels, sample_weight)
            labels, logits, sample_weight = joined_batches(batches, self._parts)
        logits, image = self._parts(logits)
        logits = to_numpy(logits)
        check_maps(logits, image, self._channels())
        if len(logits) < 3:
            raise value_error(
                "`logits` must be those of three images or more, of which two "
                "or more are left out to choose the epoch",
                images=len(logits),
            )
        samples = read_samples(labels, logits, sample_weight, ignore_class)
        low = np.flatnonzero(is_ruled_out(samples.logits.min(axis=0)))
        if len(low):
            raise value_error(
                "`logits` must not rule out a class by -inf; "
                "`TemperatureScaling` can be fitted to such logits",
                classes=low[:10].tolist(),
            )
        self.check_enough(samples, force)
        samples = supported_samples(samples)
        data = images_of(samples, logits.shape[:3], image)
        temperature = optimal_temperature(samples)
        how = Training(*(getattr(self, k) for k in Training._fields))
        weights = train_tree(data, temperature, self.tree, how)
        found = {k: v for k, v in weights._asdict().items() if v is not None}
        self.set_fitted(samples.num_classes, temperature=temperature, **found)
        return self

    def fit_samples(self, samples: FittingData) -> None:
        raise value_error(
            "`LocalTemperatureScaling` is fitted on images, by `fit` or "
            "`fit_on`; compare it with others on images of their own",
            samples=len(samples.logits),
        )

    def read_predicted(self, batch: Examples, reading: ReadOptions) -> tuple:
        """Labels, whole maps of logits or also images, and weights."""
        if reading.pixels_per_image is not None:
            raise value_error(
                "`pixels_per_image` must be None, as filters need whole "
                "images; `steps` limits the number of batches",
                pixels_per_image=reading.pixels_per_image,
            )
        logits: Any = logits_of(batch, reading)
        if self.use_image:
            logits = logits, image_of(batch.inputs)
        return labels_of(batch), logits, batch.sample_weight

    def call(self, inputs, *, from_logits=True):
        """Calibrates logits, or the logits of probabilities.

        Args:
            inputs: The model's outputs `(batch, height, width, num_classes)`,
                or `(batch, height, width, 1)` for the second of two classes.
                With `use_image`: `(outputs, image)`.
            from_logits: Whether the outputs are logits, not probabilities.

        Returns:
            Calibrated logits of the shape of the outputs, float32.
        """
        self.check_fitted()
        logits, image = self._parts(inputs)
        check_maps(logits, image, self._channels())
        return self.mapped(
            lambda z: z / self._temperatures(z, image), logits, from_logits
        )

    def temperature_map(self, inputs: Any, *, from_logits: bool = True) -> Any:
        """Temperature of each pixel `(batch, height, width)`.

        Use it to see where the segmenter was overconfident. The arguments are
        those of a call: `inputs` are the outputs of all classes or of one
        channel, with `use_image` `(outputs, image)`.
        """
        self.check_fitted()
        outputs, image = self._parts(inputs)
        check_maps(outputs, image, self._channels())
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
        weights = TreeWeights(*found[1:])
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

    def _parts(self, inputs: Any) -> tuple[Any, Any]:
        """Logits, and the image if it is used."""
        inputs = self.read_inputs(inputs)
        return tuple(inputs) if self.use_image else (inputs, None)

    def _channels(self) -> int | None:
        """Channels of the image, known once fitted."""
        known = self.use_image and self.fitted
        return shape_of(self._image_kernel)[2] if known else None
