"""The p-norm score as a layer that finds its p."""

from typing import Any, Self, Unpack

import keras

from keras_calib.backend.locks import unbroken
from keras_calib.calibrators.fitted_layer import FittedLayer, LayerOptions
from keras_calib.formulas.scores import p_norm
from keras_calib.inputs.batch import standardize_logits
from keras_calib.inputs.checks import check_at_least
from keras_calib.inputs.top_label import top_label
from keras_calib.predictions.fitting import KindOptions, given_rows
from keras_calib.predictions.outputs import to_model_logits
from keras_calib.selection.rules import apply_score
from keras_calib.selection.tuning import area

_GRID = tuple(range(10))
# Rounding in sums makes AURCs of the same ranking differ by less.
_SAME = 1e-12


@keras.saving.register_keras_serializable(package="keras_calib")
class LogitNormalization(FittedLayer):
    """Score of predictions: the largest logit over the p-norm of all logits.

    Use it to repair the ranking of a model that was trained with label
    smoothing. It changes only the ranking, not the predicted class.

    score = max_k v_k / ||v||_p, v = z - mean(z)

    `fit` takes the p of 0 to 9 with the least AURC. It takes the softmax
    score, as log-odds, unless a p is strictly better. For two classes the
    centred scores are all equal, so it always takes the softmax score.

    Args:
        p: Order of the norm, >= 0, or `"msp"` for the softmax score; None
            waits for `fit`.
        center: Whether to subtract the mean of the logits first.
        name: Name of the layer.
        **kwargs: `trainable` of `keras.layers.Layer`.

    Returns:
        Called with logits `(..., num_classes)`, the layer returns scores
        `(...)`, float32, higher = surer.

    Raises:
        RuntimeError: If it is called before `fit`.

    Example:

    >>> logits = [[9.0, 7.0, 0.0], [4.0, 1.0, 1.0], [1.5, 0.0, 0.0]]
    >>> score = LogitNormalization().fit([1, 0, 0], logits)
    >>> score.p
    1.0

    Reference:
        Cattelan and Silva, How to Fix a Broken Confidence Estimator, UAI
        2024, https://arxiv.org/abs/2305.15508; Xia et al., Understanding Why
        Label Smoothing Degrades Selective Classification and How to Fix It,
        2024, https://arxiv.org/abs/2403.14715

    Differs:
        AURC is the mean over the orders of tied samples; the released code
        takes them in the order of the data. Xia et al. use `center=False`.
    """

    def __init__(
        self,
        *,
        p: float | str | None = None,
        center: bool = True,
        **kwargs: Unpack[LayerOptions],
    ):
        if p is not None and p != "msp":
            check_at_least("p", p, 0.0)
            p = float(p)
        super().__init__(**kwargs)
        self.center = bool(center)
        self._p: Any = p
        self._fitted = p is not None

    @property
    def p(self) -> float | str:
        """The order of the norm, or `"msp"` for the softmax score."""
        self.check_fitted()
        return self._p

    def fitted_summary(self) -> dict[str, Any]:
        """The order of the norm."""
        return {"p": self._p}

    def fit(
        self,
        labels: Any,
        logits: Any = None,
        sample_weight: Any = None,
        **options: Unpack[KindOptions],
    ) -> Self:
        """Chooses p on held-out data and returns self.

        Args:
            labels: `Predictions`; or class ids `(n, ...)`, or one-hot or soft
                labels `(n, ..., num_classes)`.
            logits: Logits `(n, ..., num_classes)`, or `(n, ..., 1)` for the
                second of two classes. None with `Predictions`.
            sample_weight: Weights of the shape of the class ids, or `(n,)`.
            **options: `from_logits` and `ignore_class`, as in
                `Calibrator.fit`.

        Raises:
            ValueError: If shapes do not fit, there is no sample, a logit is
                NaN or infinite, or `logits` are probabilities.
        """
        given = given_rows(
            labels, logits, sample_weight=sample_weight, **options
        )
        read = standardize_logits(
            given.labels,
            given.logits,
            sample_weight=given.sample_weight,
            ignore_class=given.ignore_class,
            votes=given.votes,
        )
        # Normalised logits tie in float32.
        outputs = read.outputs.astype("float64", copy=False)
        top = top_label(
            read.labels, outputs, from_logits=True, sample_weight=read.weight
        )

        chosen, least = "msp", area(top) - _SAME
        # Two centred logits are always (v, -v), so p would rank by rounding.
        for p in () if self.center and outputs.shape[-1] == 2 else _GRID:
            score = p_norm(outputs, p=p, center=self.center)
            value = area(top._replace(score=score))
            if value < least:
                chosen, least = float(p), value
        with self.remembering(given.from_logits), unbroken():
            self._p = chosen
            self.mark_fitted()
        return self

    def call(self, logits, *, from_logits=None):
        """Scores `(...)` of logits or probabilities `(..., num_classes)`."""
        self.check_fitted()
        logits = to_model_logits(logits, self.takes_logits(from_logits))
        if self._p == "msp":
            return apply_score("msp", logits)
        return p_norm(logits, p=self._p, center=self.center)

    def compute_output_shape(self, input_shape):
        return input_shape[:-1]

    def get_config(self):
        p = self._p if self.fitted else None
        return {**super().get_config(), "p": p, "center": self.center}
