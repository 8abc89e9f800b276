"""What a fit takes: `Predictions`, arrays in their place, a model and data."""

import inspect
from typing import Annotated, Any, Self, TypedDict, Unpack

import keras

from keras_calib.backend.errors import type_error, value_error
from keras_calib.inputs.checks import check_flag
from keras_calib.inputs.options import explaining, filled
from keras_calib.inputs.weights import read_masked
from keras_calib.numerics.arrays import as_array
from keras_calib.predictions.options import ModelOptions, facts_of
from keras_calib.predictions.outputs import from_logits_of
from keras_calib.predictions.predictions import Predictions


class KindOptions(TypedDict, total=False):
    """How labels and logits in arrays are read, which `Predictions` know.

    Attributes:
        from_logits: Whether the `logits` are logits. False takes them as
            probabilities, of which it takes the log. Defaults to True.
        ignore_class: Class id to leave out, such as 255, or None.
    """

    from_logits: Annotated[bool, True]
    ignore_class: int | None


class RowOptions(KindOptions, total=False):
    """The same, with weights.

    Attributes:
        sample_weight: Weights of the shape of the class ids, or `(n,)`.
    """

    sample_weight: Any


def given_rows(
    labels: Any,
    logits: Any = None,
    *,
    by_label: bool = False,
    **options: Unpack[RowOptions],
) -> Predictions:
    """`Predictions` as they are, or arrays as such, which the fit checks.

    Raises:
        TypeError: If labels are a model, or there are no logits, or an option
            is unknown, or told beside `Predictions`, which know it.
        ValueError: If `Predictions` are of another kind.
    """
    told = filled("fit", options, RowOptions)
    check_flag("from_logits", told.from_logits)
    if isinstance(labels, Predictions):
        given = {"logits": logits, **vars(told)}
        twice = [k for k, x in given.items() if not (x is None or x is True)]
        if twice:
            raise type_error(
                f"`{twice[0]}` must not be given beside `Predictions`, which "
                "tell it",
                arguments=twice,
            )
        return check_kind(labels, by_label)
    if isinstance(labels, keras.Model):
        raise type_error(
            "`labels` must be class ids or one-hot or soft labels; for a "
            "model and a data set use `fit_on(model, data)`",
            labels=type(labels).__name__,
        )
    if logits is None:
        raise type_error(
            "`logits` must be given beside labels. Batches of (labels, "
            "logits) become `Predictions.of_batches(batches, "
            "from_logits=True)`, which `fit` takes",
            labels=type(labels).__name__,
            logits=None,
        )
    array, weight = read_masked(
        logits, "logits", told.sample_weight, by_label=by_label
    )
    columns = {"labels": as_array(labels, "labels"), "outputs": array}
    if weight is not None:
        columns["sample_weight"] = as_array(weight, "sample_weight")
    given = {"ignore_class": told.ignore_class, "multi_label": by_label}
    facts = facts_of(told.from_logits, given)
    return Predictions.of_columns({**facts, "called": "logits"}, columns)


def check_kind(predictions: Predictions, by_label: bool) -> Predictions:
    """Predictions of several labels, or not; a log as those of an event."""
    if not isinstance(predictions, Predictions):
        raise type_error(
            "`predictions` must be `Predictions`",
            predictions=type(predictions).__name__,
        )
    if by_label != predictions.multi_label:
        advice = (
            "several labels at once, `multi_label=True`; for classes leave "
            "`MultiLabel` out"
            if by_label
            else "classes that exclude each other; for several labels at once "
            "take `MultiLabel(TemperatureScaling())`, or "
            "`MultiLabel(SelectiveClassifier())`"
        )
        raise value_error(
            f"`Predictions` must be of {advice}", kind=predictions.kind
        )
    is_log = predictions.kind == "records"
    return predictions.as_event() if is_log else predictions


class FitsOnModel:
    """Abstract: whatever has `fit(predictions)`."""

    # Whether each output is a label of its own.
    reads_labels: bool

    @explaining(ModelOptions)
    def fit_on(
        self, model: keras.Model, data: Any, *others: Any, **options: Any
    ) -> Self:
        """Runs a model over held-out data, fits on its outputs, returns self.

        It is short for `fit(Predictions.of_model(model, data))`. Samples count
        as they do in `model.evaluate`: those of weight 0, those of the
        ignored class and those that layers mask are left out.

        If the model returns probabilities, it takes their logs; a single
        output becomes log-odds. The layer remembers it: call it with what the
        model returns.

        Args:
            model: A Keras model that returns `(batch, ..., num_classes)`, or
                `(batch, ..., 1)` for the second of two classes, on one device
                or under a strategy. With several labels `(batch, ...,
                labels)`.
            data: Arrays or lists as a tuple `(x, y)` or
                `(x, y, sample_weight)`, or batches of such tuples: a
                `tf.data.Dataset`, a `PyDataset`, a generator, a torch loader
                or a list.
            *others: Nothing; `x, y` are refused with a hint.
            **options: Arguments of `fit`; `groups` and `units`, as in
                `Predictions.of_model`; and how the model is run:

        Raises:
            TypeError: If the model has several outputs and `output` is None,
                or `data` is no data set.
            ValueError: If `fit` rejects the data, if the data set does not end
                and `steps` is None, or if it is unknown whether the model
                returns logits.
        """
        if others:
            raise type_error(
                "`data` must hold inputs and labels together: pass the tuple "
                "`(x, y)`",
                arguments=[type(x).__name__ for x in (model, data, *others)],
            )
        fit: Any = self.fit  # type: ignore[attr-defined]  # of the subclass
        known = {*ModelOptions.__annotations__, "units"}
        asked: Any = {k: options.pop(k) for k in known & options.keys()}
        if "seed" in inspect.signature(fit).parameters:
            options["seed"] = asked.get("seed", 0)
        groups = options.pop("groups", None)
        if groups is not None:
            options["groups"] = "group"
        p = self.predictions_of(model, data, groups=groups, **asked)
        return fit(p, **options)

    def predictions_of(
        self,
        model: keras.Model,
        data: Any,
        *,
        groups: Any = None,
        units: Any = None,
        **options: Unpack[ModelOptions],
    ) -> Predictions:
        """What `fit_on` fits on; a fitted part knows what is not told."""
        options["from_logits"] = from_logits_of(
            model,
            options.get("from_logits"),
            options.get("output"),
            getattr(self, "calibrator", None),
        )
        return Predictions.of_model(
            model,
            data,
            groups=groups,
            units=units,
            multi_label=self.reads_labels,
            **options,
        )
