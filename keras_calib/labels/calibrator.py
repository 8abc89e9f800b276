"""Calibration of several labels at once, each a problem of two classes."""

import warnings
from collections.abc import Iterable, Sequence
from typing import Any, Unpack

import keras
import numpy as np
from keras import ops

from keras_calib.backend.errors import invalid, type_error, value_error, warn
from keras_calib.backend.locks import unbroken
from keras_calib.backend.traced import note_graph
from keras_calib.calibrators.base import Calibrator
from keras_calib.calibrators.choosing import CalibratorChoice
from keras_calib.calibrators.columns import OneVsRest, fit_columns, tables
from keras_calib.calibrators.fitted_layer import (
    CalibratesPredictions,
    CalibratorOptions,
)
from keras_calib.calibrators.fitting_data import (
    FittingData,
    one_thread_of_blas,
    read_samples,
)
from keras_calib.calibrators.folds import unfitted_copy, warn_if_harmful
from keras_calib.calibrators.temperature import TemperatureScaling
from keras_calib.calibrators.venn_abers import VennAbers
from keras_calib.inputs.checks import check_flag
from keras_calib.inputs.groups import read_groups
from keras_calib.inputs.rows import check_no_probabilities
from keras_calib.labels.columns import (
    LabelColumns,
    check_class_names,
    columns_of,
    label_logits,
    names_of,
    place_of_label,
)
from keras_calib.numerics.arrays import shape_of, to_numpy
from keras_calib.numerics.softmax import is_ruled_out
from keras_calib.predictions.predictions import Predictions

# Most labels that a message names.
_SHOWN = 10


@keras.saving.register_keras_serializable(package="keras_calib")
class MultiLabelCalibrator(CalibratesPredictions):
    """Calibrates several labels at once, each by a fit of its own, or by one.

    Use it for a model whose outputs `(batch, labels)` are sigmoids or their
    logits, where an example may have several labels or none. Each label is
    the second of two classes for `calibrator`, as an output `(batch, 1)` is:

    q_k = calibrator_k(z_k)

    Fit it after training, on held-out data. Labels of `ignore_class`, such as
    -1, or of weight 0 are missing. What fits of single labels warn of comes
    once, with the labels. Tables have a row for each label, so the size of the
    graph does not depend on the number of labels.

    Args:
        calibrator: `TemperatureScaling`, `AffineScaling` (Platt scaling),
            `BetaCalibration`, `QuadraticScaling`, `IsotonicCalibration`,
            `HistogramBinning` or `VennAbers`, whose options every fit has. Its
            own fit is not used.
        shared: Whether one fit to all labels together serves every label.
        class_names: Names of the labels, for messages; None takes those of
            the `Predictions` of the fit, or numbers.
        values: Fitted values by name, which `get_config` stores; None waits
            for `fit`.
        applies: Whether each label is calibrated `(labels,)`; goes with
            `values`.
        name: Name of the layer.
        **kwargs: `trainable` of `keras.layers.Layer`.

    Raises:
        TypeError: If `calibrator` is of another kind: the others weigh classes
            against each other.
        RuntimeError: If it is called before `fit`.

    Example:

    >>> labels = [[1, 0], [0, 0], [1, 1], [0, 1], [1, 0], [0, 1]]
    >>> logits = [[2.0, 1], [-3, -1], [1, 2], [2, 2], [-1, -2], [-2, -1]]
    >>> calibrator = MultiLabelCalibrator(TemperatureScaling())
    >>> calibrator = calibrator.fit(labels, logits, num_folds=0)
    >>> [round(calibrator.of_label(k).temperature, 3) for k in range(2)]
    [2.083, 1.293]

    Reference:
        Zadrozny and Elkan, Transforming Classifier Scores into Accurate
        Multiclass Probability Estimates, KDD 2002,
        https://doi.org/10.1145/775047.775151 (a calibrator for each binary
        problem)
    """

    reads_labels = True

    def __init__(
        self,
        calibrator: Calibrator | CalibratorChoice,
        *,
        shared: bool = False,
        class_names: Sequence[str] | None = None,
        values: dict[str, Any] | None = None,
        applies: Sequence[bool] | None = None,
        **kwargs: Unpack[CalibratorOptions],
    ):
        super().__init__(**kwargs)
        self.supports_masking = True
        if isinstance(calibrator, CalibratorChoice):
            calibrator = calibrator.calibrator
        if not isinstance(calibrator, TemperatureScaling | OneVsRest):
            raise type_error(
                "`calibrator` must be one of a single output: "
                "`TemperatureScaling`, `AffineScaling` (Platt scaling), "
                "`QuadraticScaling`, `BetaCalibration`, "
                "`IsotonicCalibration`, `HistogramBinning` or `VennAbers`",
                calibrator=calibrator,
            )
        check_flag("shared", shared)
        self.shared = bool(shared)
        self._named = self.class_names = check_class_names(class_names, None)
        self.calibrator = unfitted_copy(calibrator)
        self._applies: Any = None
        if (values is None) != (applies is None):
            raise value_error(
                "`values` and `applies` must be given together",
                values=values is not None,
                applies=applies is not None,
            )
        if values is not None and applies is not None:
            arrays = self.calibrator.given_arrays(values, by_label=True)
            self._set(arrays, np.asarray(applies, bool))

    def fit_given(
        self, given: Predictions, num_folds: int, force: bool
    ) -> None:
        """Fits each label; warnings of several fits come once, with labels."""
        names = names_of(given, self._named)
        columns = columns_of(given, names)
        shown: Sequence[Any] = ["all labels"]
        if not self.shared:
            shown = names or range(columns.num_labels)
        parts = _parts_of(columns, self.shared, given.units)
        usable = _usable_labels(self.calibrator, parts, shown, force)
        self._set(self._fit_each(parts, shown, usable, num_folds), usable)
        self.class_names = names
        sizes = [x.sizes() for x in parts if x is not None]
        self.num_samples, self.num_units = max(sizes, key=lambda x: x[0])

    def _fit_each(
        self,
        parts: Sequence[FittingData | None],
        names: Sequence,
        usable: np.ndarray,
        num_folds: int,
    ) -> dict[str, np.ndarray]:
        """The fitted values, with a row for each label.

        A label that is not usable gets a row of another, which nobody reads. A
        warning of several fits comes once, with the names of their labels.
        """
        told: list[tuple[Any, Any]] = []

        def fit(name: Any, part: FittingData) -> tuple:
            one = unfitted_copy(self.calibrator)
            with warnings.catch_warnings(record=True) as heard:
                warnings.simplefilter("always")
                one.fit_samples(part)
                warn_if_harmful(one, part, num_folds)
                row = tuple(one.fitted_value(k) for k in one.fitted_values)
            told.extend((name, warning) for warning in heard)
            return row

        labels = zip(names, parts, usable, strict=True)
        columns = ((name, part) if use else None for name, part, use in labels)
        with one_thread_of_blas():
            rows = fit_columns(fit, columns)
        _tell(told, len(parts))
        found = tables(rows, self.calibrator.fitted_values)
        if len(parts) > 1:
            return found
        # A number for all labels has no axis of labels.
        return {k: v[0] if v.ndim == 1 else v for k, v in found.items()}

    @property
    def num_labels(self) -> int | None:
        """Number of labels of the fit; None if it fits any."""
        self.check_fitted()
        return None if self.shared else int(self._applies.shape[0])

    def of_label(self, label: int | str) -> Calibrator:
        """The fitted calibrator of one label, by number or name, as a copy.

        Raises:
            ValueError: If there is no such label, or it is not calibrated.
        """
        self.check_fitted()
        applied, index = self._applied(), 0
        if not self.shared:
            names = self.class_names or [*map(str, range(len(applied)))]
            index = place_of_label(label, names)
        if not applied[index]:
            raise value_error(
                "`label` must be one that is calibrated: its fit lacked "
                "examples of both outcomes",
                label=label,
            )
        values = {}
        for name in self.calibrator.fitted_values:
            table = self.calibrator.fitted_value(name)
            row = table[index : index + 1] if table.ndim else table
            values[name] = row[0] if table.ndim == 1 else row
        found = unfitted_copy(self.calibrator)
        found._from_logits = self._from_logits
        found.num_samples, found.num_units = self.num_samples, self.num_units
        found.set_fitted(None if table.ndim < 2 else 2, **values)
        return found

    def call(self, logits, *, from_logits=None):
        """Calibrates logits of labels, or the log-odds of probabilities.

        Args:
            logits: The model's outputs `(..., labels)`.
            from_logits: Whether they are logits. If False they are
                probabilities, of which it takes the log-odds. None takes them
                as those of the fit.

        Returns:
            Calibrated logits of each label, of that shape, float32.
        """
        logits = self._read(logits, from_logits)
        if isinstance(self.calibrator, TemperatureScaling):
            found = self.calibrator.map_logits(logits)
        else:
            yes, no = self.calibrator.both_log_probs(self._features(logits))
            found = ops.where(is_ruled_out(logits), logits, yes - no)
        if self.shared:
            return found
        return ops.where(self._applies > 0.5, found, logits)

    def interval(
        self, logits: Any, *, from_logits: bool | None = None
    ) -> tuple:
        """The lower and upper probability of each label, by `VennAbers`.

        Args:
            logits: The model's outputs `(..., labels)`.
            from_logits: Whether they are logits, not probabilities; None
                takes them as those of the fit.

        Returns:
            Two tensors of the shape of the logits, float32, in [0, 1]. For a
            label that is not calibrated both are its probability.
        """
        if not isinstance(self.calibrator, VennAbers):
            raise type_error(
                "`calibrator` must be `VennAbers` for intervals",
                calibrator=type(self.calibrator).__name__,
            )
        logits = self._read(ops.convert_to_tensor(logits), from_logits)
        low, high = self.calibrator.ends(self._features(logits))
        given, applies = ops.sigmoid(logits), self.shared or self._applies > 0.5
        applies = ops.logical_and(applies, ~is_ruled_out(logits))
        return ops.where(applies, low, given), ops.where(applies, high, given)

    def get_config(self):
        bare = unfitted_copy(self.calibrator)
        names = self.class_names
        config = {
            **super().get_config(),
            "calibrator": keras.saving.serialize_keras_object(bare),
            "shared": self.shared,
            "class_names": None if names is None else list(names),
            "values": None,
            "applies": None,
        }
        if self._fitted:
            config["values"] = {
                name: self.calibrator.fitted_value(name).tolist()
                for name in self.calibrator.fitted_values
            }
            config["applies"] = self._applied().tolist()
        return config

    @classmethod
    def from_config(cls, config):
        part = keras.saving.deserialize_keras_object(config["calibrator"])
        return cls(**{**config, "calibrator": part})

    def fitted_summary(self) -> dict[str, Any]:
        """Kind of calibrator, and of how many labels."""
        return {
            "calibrator": type(self.calibrator).__name__,
            "labels": self.num_labels or "any",
        }

    @unbroken()
    def _set(self, values: dict[str, Any], applies: np.ndarray) -> None:
        self.calibrator.set_fitted(None, **values)
        if not self.shared:
            self.set_arrays(applies=applies)
        self.mark_fitted()

    def _applied(self) -> np.ndarray:
        if self.shared:
            return np.ones(1, bool)
        return to_numpy(self._applies) > 0.5

    def _read(self, logits: Any, from_logits: bool | None) -> Any:
        """Logits of as many labels as fitted, float32."""
        self.check_fitted()
        note_graph(self.calibrator)
        shape, count = shape_of(logits), self.num_labels
        if count is not None and shape[-1] not in (None, count):
            raise value_error(
                f"`logits` must have {count} labels, as when fitted",
                **{"logits.shape": shape},
            )
        return label_logits(logits, self.takes_logits(from_logits))

    def _features(self, logits: Any) -> Any:
        """What the calibrator of one output reads, for each label."""
        pairs = ops.stack([ops.zeros_like(logits), logits], axis=-1)
        return self.calibrator.features(pairs)[..., 1]


def _parts_of(
    columns: LabelColumns, shared: bool, units: Any
) -> list[FittingData | None]:
    """The samples of each label, None if it has none; with `shared` all.

    Those of a unit are alike, if `units` are given.
    """
    # All entries are judged at once, as losses and metrics do.
    check_no_probabilities(columns.pooled()[1], "logits")

    def split(table: LabelColumns) -> Iterable[tuple]:
        every = range(columns.num_labels)
        return [table.pooled()] if shared else map(table.column, every)

    # Labels of an example, and of the places of an image, are alike.
    places = int(np.prod(columns.lead[1:]))
    example = (np.arange(len(columns.labels)) // places).astype("int32")
    alone = places * (columns.num_labels if shared else 1) == 1
    if units is not None:
        codes = read_groups(units, (len(units),), "units")[1].astype("int32")
        example, alone = codes[example], False
    example = np.broadcast_to(example[:, None], columns.labels.shape)
    parts: list[FittingData | None] = []
    groups = split(columns._replace(labels=example))
    for (own, outputs, weight), (group, *_) in zip(
        split(columns), groups, strict=True
    ):
        part = None
        if len(own):
            part = read_samples(own, outputs, weight, refuse_probabilities=None)
            part = part._replace(group=None if alone else group)
        parts.append(part)
    return parts


def _usable_labels(
    calibrator: Calibrator,
    parts: Sequence[FittingData | None],
    names: Sequence,
    force: bool,
) -> np.ndarray:
    """Labels that can be fitted; raises for the others without `force`."""
    both = np.array([x is not None and x.has_class().all() for x in parts])
    lacking = [x for x, fits in zip(names, both, strict=True) if not fits]
    if lacking and not (force and both.any()):
        raise value_error(
            "`labels` must hold both outcomes of every label; `force=True` "
            "keeps the logits of a label that lacks one as they are",
            labels=_few(lacking),
        )
    needed = calibrator.num_parameters(2)
    few = [
        name
        for name, part in zip(names, parts, strict=True)
        if part is not None and part.counts().sum() < needed
    ]
    if few and not force:
        raise value_error(
            "`labels` must hold as many samples of each label as its "
            "calibrator has parameters; `force=True` fits all the same",
            labels=_few(few),
            parameters=needed,
        )
    if lacking:
        warn(
            invalid(
                "Labels without both outcomes are not calibrated: their "
                "logits stay as they are",
                labels=_few(lacking),
            )
        )
    return both


def _tell(heard: Sequence[tuple[Any, Any]], count: int) -> None:
    """Warns of each rule once, with its labels; with one as its own fit would.

    `heard` has a label and a warning of its fit.
    """
    rules: dict[tuple, tuple[str, list]] = {}
    for name, one in heard:
        text = str(one.message)
        rule = one.category, text.split(" Received: ")[0]
        rules.setdefault(rule, (text, []))[1].append(name)
    for (category, _), (text, labels) in rules.items():
        if count > 1:
            text += f". It holds for the labels {_few(labels)}; the "
            text += "numbers are those of the first"
        if issubclass(category, RuntimeWarning):
            warn(text)
        else:
            warnings.warn(text, category, stacklevel=2)


def _few(labels: Sequence) -> list:
    some = list(labels)
    return some if len(some) <= _SHOWN else [*some[:_SHOWN], "..."]
