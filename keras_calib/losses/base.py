"""Base classes of losses: of each sample, and with a term over the batch."""

import inspect
from collections.abc import Callable
from typing import Any, TypedDict, Unpack

import keras
from keras import ops

from keras_calib.backend.compiled import compiled_by_xla, without_autograph
from keras_calib.backend.errors import type_error, value_error
from keras_calib.backend.replicas import (
    all_rows,
    num_replicas,
    sum_over_replicas,
)
from keras_calib.inputs import config
from keras_calib.inputs.batch import standardize
from keras_calib.inputs.checks import check_at_least, check_flag
from keras_calib.inputs.options import ReadOptions, check_reading
from keras_calib.inputs.rows import (
    check_logits,
    check_row_sums,
    warn_by_operation,
)
from keras_calib.inputs.values import Rules, enforce, has_values
from keras_calib.losses.closed_forms import cross_entropy, read_as
from keras_calib.numerics.arrays import as_numbers, safe_divide
from keras_calib.numerics.results import config_text

# What loss and fidelity must agree on: the labels are read once for both.
_SHARED = ("from_logits", "axis", "ignore_class", "reduction", "dtype")


class LossOptions(TypedDict, total=False):
    """Options of every loss, as `PerSampleLoss` explains them."""

    from_logits: bool
    axis: int
    ignore_class: int | None
    reduction: str | None
    name: str | None
    dtype: Any
    jit_compile: bool


def _name_of(fn: Callable) -> str | None:
    """That of a function; None if it is none of TensorFlow's scopes."""
    name = getattr(fn, "__name__", "")
    return name if name.isidentifier() and name[0] != "_" else None


@without_autograph
class PerSampleLoss(keras.losses.Loss):
    """Abstract base of losses that are computed sample by sample.

    Subclass it to make a Keras loss of your own: pass a function of labels and
    logits, and its hyperparameters.

    The loss is called with `(y_true, y_pred, sample_weight)` and returns the
    reduced loss. Labels are class ids `(batch, ...)` or `(batch, ..., 1)`, or
    one-hot or soft labels `(batch, ..., num_classes)`. No gradient flows into
    them. Predictions are `(batch, ..., num_classes)`. A single output
    `(batch, ..., 1)` is the second of two classes, read as the logits `[0, z]`.

    Under a distribution strategy, means are over the batch of all replicas.

    A logit of -inf rules a class out, as if it did not exist in that row.
    Samples of weight 0 may hold anything. Distances of logits above 1e18 count
    as 1e18.

    Invalid values raise an error in eager mode. Compiled code cannot raise:
    there the loss is NaN where a label is impossible or ruled out, or where
    probabilities do not sum to 1 within 0.03. Then the model mostly returns
    logits; pass `from_logits=True`. TensorFlow warns once where it can tell.
    Logits of NaN or infinity give NaN, as in Keras' losses.

    Args:
        fn: `fn(labels, logits, **hyperparameters)`, which maps soft labels
            and logits `(..., num_classes)` to losses `(...)`.
        from_logits: Whether predictions are logits. Probabilities p are
            turned into the logits log p.
        axis: Axis of the classes.
        ignore_class: Class id of the labels to leave out, such as 255 in
            segmentation. Means divide by the number of labels that are left.
        reduction: How losses become one number, as in `keras.losses.Loss`.
        name: Name of the loss. Defaults to that of `fn`.
        dtype: `"float64"`, or anything else for float32, because half
            precision would round class ids. Defaults to the `floatx` of Keras.
        jit_compile: Whether TensorFlow compiles the formula by XLA inside a
            step that is not compiled. Use it for dense predictions. It
            compiles once for each shape. Other backends, which compile the
            whole step or nothing, ignore it.
        **hyperparameters: Keyword arguments of `fn`.

    Raises:
        TypeError: If `fn` does not take a hyperparameter. On call, if an
            array is masked, ragged, complex or not numeric.
        ValueError: If a hyperparameter is out of range or shapes do not fit.
            In eager mode also if a label or a probability is invalid.

    Reference:
        Keras' own losses have the same two parts, a function and a class:
        https://keras.io/api/losses/
    """

    # Soft labels are refused by formulas that need one true class.
    needs_hard_labels = False
    # Labels are pairs of class id and objectness.
    takes_objectness = False
    # Labels end in a factor of the penalty, which the training model adds.
    needs_penalty_mask = False
    # Means are over the batch of all replicas.
    spans_replicas = True

    __repr__ = config_text

    def __init__(
        self,
        fn: Callable,
        *,
        from_logits: bool = False,
        axis: int = -1,
        ignore_class: int | None = None,
        reduction: str | None = "sum_over_batch_size",
        name: str | None = None,
        dtype: Any = None,
        jit_compile: bool = False,
        **hyperparameters: Any,
    ):
        try:
            inspect.signature(fn).bind_partial(None, None, **hyperparameters)
        except TypeError as error:
            function = getattr(fn, "__name__", fn)
            raise type_error(
                f"Hyperparameters must be arguments of {function}: {error}",
                hyperparameters=sorted(hyperparameters),
            ) from error
        check_reading(axis, ignore_class, from_logits)
        check_flag("jit_compile", jit_compile)
        dtype = keras.dtype_policies.get(dtype or keras.config.floatx())
        is_double = dtype.compute_dtype == "float64"
        super().__init__(
            name=name or _name_of(fn),
            reduction=reduction,
            dtype="float64" if is_double else "float32",
        )
        self.fn = fn
        self.from_logits = from_logits
        self.axis = axis
        self.ignore_class = ignore_class
        self.jit_compile = jit_compile
        self.hyperparameters = hyperparameters
        # Set once values have shown that predictions are logits.
        self._has_seen_logits = False
        # Set once the operation of a traced graph caused a warning.
        self._has_told = False

    def __call__(self, y_true, y_pred, sample_weight=None):
        with keras.name_scope(self.name):
            batch, beside = self._standardize(
                y_true, y_pred, sample_weight, self.dtype
            )
            return self._reduce(self._per_sample(batch, beside), batch)

    def call(self, y_true, y_pred):
        """Return a loss per sample `(batch, ...)`, 0 for ignored labels."""
        return self._per_sample(*self._standardize(y_true, y_pred))

    def _standardize(self, y_true, y_pred, sample_weight=None, dtype=None):
        """The batch, checked once, and further keyword arguments of `fn`."""
        rules = Rules(config.validates())
        labels, beside = self.split_labels(y_true, rules)
        options = ReadOptions(self.from_logits, self.axis, self.ignore_class)
        batch = standardize(labels, y_pred, sample_weight, options, rules=rules)
        self._check_outputs(batch, y_pred, rules)
        batch = batch.with_logits(
            dtype or batch.outputs.dtype, rules, self.needs_hard_labels
        )
        enforce(rules)
        return batch, beside

    def _per_sample(self, batch, beside):
        """Losses `(batch, ...)`; 0 if not counted, NaN for no such label."""
        if 0 in batch.outputs.shape and num_replicas() == 1:
            # No samples; 0, in which the predictions still take part.
            return ops.sum(batch.outputs, axis=-1)
        counted = batch.counted
        if counted is not None:
            beside = {
                name: ops.where(counted, x, ops.zeros_like(x))
                for name, x in beside.items()
            }
        losses = self._values(batch, counted, beside)
        nan = ops.full_like(losses, float("nan"))
        losses = ops.where(batch.label_mask, losses, nan)
        if counted is None:
            return losses
        return ops.where(counted, losses, ops.zeros_like(losses))

    def _values(self, batch, counted, beside):
        """Losses `(batch, ...)`, also of samples that do not count."""
        beside = {**self.beside_of(batch), **beside}
        options = {**beside, **self.hyperparameters}
        return self._run(self.fn, batch.labels, batch.outputs, counted, options)

    def _run(self, fn, labels, logits, mask, options):
        """`fn` of labels in the form that it takes, compiled if asked for."""
        labels, logits = read_as(fn, labels, logits, mask)
        fn = compiled_by_xla(fn) if self.jit_compile else fn
        return fn(labels, logits, **options)

    def _reduce(self, losses, batch):
        """This replica's share of the reduction over all replicas.

        Keras averages the means of the replicas, which differs if they hold
        unequal numbers of samples.
        """
        losses = ops.cast(losses, self.dtype)
        count = ops.ones_like(losses)
        if batch.mask is not None:
            count = ops.cast(batch.mask, self.dtype)
        if batch.weight is not None:
            weight = count * batch.weight
            losses = losses * weight
            if self.reduction == "mean_with_sample_weight":
                count = weight
        if self.reduction in (None, "none"):
            return losses
        if self.reduction == "sum":
            return ops.sum(losses)
        total, count = sum_over_replicas([ops.sum(losses), ops.sum(count)])
        return safe_divide(total, count) / num_replicas()

    def split_labels(self, y_true, rules=None):
        """Split `y_true` into labels and further keyword arguments of `fn`."""
        return y_true, {}

    def beside_of(self, batch):
        """Further keyword arguments of `fn`, read off the whole batch."""
        return {}

    def get_config(self):
        return {
            **super().get_config(),
            "dtype": self.dtype,
            "from_logits": self.from_logits,
            "axis": self.axis,
            "ignore_class": self.ignore_class,
            "jit_compile": self.jit_compile,
            **self.hyperparameters,
        }

    def _check_outputs(self, batch, y_pred, rules):
        """Check `from_logits` by values, or by the operation before them."""
        if self.from_logits and self._has_seen_logits:
            return
        outputs = batch.outputs
        if not has_values(outputs):
            if not self._has_told:
                given = as_numbers(y_pred, "y_pred")
                given = ops.moveaxis(given, self.axis, -1)
                self._has_told = warn_by_operation(
                    given, "y_pred", self.from_logits
                )
        elif self.from_logits:
            check_logits(outputs, "y_pred", self._see_logits, rules=rules)
        else:
            check_row_sums(outputs, "y_pred", batch.counted, rules=rules)

    def _see_logits(self):
        self._has_seen_logits = True


class CoupledOptions(LossOptions, total=False):
    """Options of losses with a term, as `BatchCoupledLoss` explains them."""

    fidelity: PerSampleLoss | None


class BatchCoupledLoss(PerSampleLoss):
    """Abstract base of losses that add a statistic of the whole batch.

    Subclass it to add a calibration error of the batch to a per-sample loss.

    fidelity + strength statistic

    Sample weights, ignored labels and masks enter the statistic too: a sample
    of weight 2 counts as two samples. Under a distribution strategy the
    statistic is that of the batch of all replicas.

    Args:
        statistic: Function of soft labels and logits `(..., num_classes)`
            that returns a scalar. It takes the keyword argument
            `sample_weight`, weights `(...)` or None, and `hyperparameters`.
        strength: Coefficient of the statistic, >= 0.
        fidelity: The `PerSampleLoss` that the statistic is added to. It needs
            the same `from_logits`, `axis`, `ignore_class`, `reduction` and
            `dtype`. None for cross entropy.
        hyperparameters: Keyword arguments of `statistic`.
        **kwargs: Arguments of `PerSampleLoss`.

    Raises:
        TypeError: If `fidelity` is not a `PerSampleLoss` for plain labels.
        ValueError: If `fidelity` differs in one of the shared arguments.

    Reference:
        Kumar et al., Trainable Calibration Measures for Neural Networks from
        Kernel Mean Embeddings, ICML 2018,
        https://proceedings.mlr.press/v80/kumar18a.html
    """

    def __init__(
        self,
        statistic: Callable,
        *,
        strength: float = 1.0,
        fidelity: PerSampleLoss | None = None,
        hyperparameters: dict | None = None,
        **kwargs: Unpack[LossOptions],
    ):
        check_at_least("strength", strength, 0.0)
        given: Any = {**(hyperparameters or {}), **kwargs}
        super().__init__(statistic, **given)
        if fidelity is not None:
            self._check_fidelity(fidelity)
        self.strength = strength
        self.fidelity = fidelity
        if fidelity is not None and fidelity.needs_hard_labels:
            self.needs_hard_labels = True

    def _values(self, batch, mask, beside):
        labels, logits, weight = batch.labels, batch.outputs, batch.weight
        fidelity, options = cross_entropy, {}
        if self.fidelity is not None:
            fidelity = self.fidelity.fn
            options = self.fidelity.beside_of(batch)
            options = {**options, **self.fidelity.hyperparameters}
        losses = self._run(fidelity, labels, logits, mask, options)
        if mask is not None:
            shares = ops.cast(mask, logits.dtype)
            weight = shares if weight is None else shares * weight
        statistic = self._statistic(labels, logits, mask, weight)
        return losses + self.strength * statistic

    def _statistic(self, labels, logits, mask, weight):
        """The statistic of the batch of all replicas."""
        if mask is not None:
            mask = ops.cast(all_rows(ops.cast(mask, logits.dtype)), "bool")
        if weight is not None:
            weight = all_rows(weight)
        labels, logits = all_rows(labels), all_rows(logits)
        options = {"sample_weight": weight, **self.hyperparameters}
        return self._run(self.fn, labels, logits, mask, options)

    def get_config(self):
        fidelity = self.fidelity
        if fidelity is not None:
            fidelity = keras.saving.serialize_keras_object(fidelity)
        return {
            **super().get_config(),
            "strength": self.strength,
            "fidelity": fidelity,
        }

    @classmethod
    def from_config(cls, config):
        fidelity = config.get("fidelity")
        if isinstance(fidelity, dict):
            fidelity = keras.saving.deserialize_keras_object(fidelity)
        return cls(**{**config, "fidelity": fidelity})

    def _check_fidelity(self, fidelity):
        if (
            not isinstance(fidelity, PerSampleLoss)
            or isinstance(fidelity, BatchCoupledLoss)
            or fidelity.takes_objectness
            or fidelity.needs_penalty_mask
        ):
            raise type_error(
                "`fidelity` must be a per-sample loss of keras_calib for "
                "plain labels, or None for cross entropy",
                fidelity=fidelity,
            )
        for name in _SHARED:
            own, other = getattr(self, name), getattr(fidelity, name)
            if own != other:
                raise value_error(
                    f"`fidelity` must have the `{name}` of the loss around it",
                    **{name: own, f"fidelity.{name}": other},
                )
