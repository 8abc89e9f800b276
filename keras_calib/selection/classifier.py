"""A classifier that may abstain."""

import math
from collections.abc import Callable, Sequence
from typing import Any, Self, cast

import keras
from keras import ops

from keras_calib.backend.errors import invalid, type_error, value_error
from keras_calib.calibrators import Calibrator, CalibratorChoice
from keras_calib.formulas import scores
from keras_calib.inputs.checks import class_axis
from keras_calib.inputs.readers import is_ignored
from keras_calib.inputs.rows import usable_outputs
from keras_calib.inputs.weights import masked_weight, read_masked
from keras_calib.numerics.arrays import as_array, at_least_float32
from keras_calib.predictions.collect import FitsOnModel
from keras_calib.predictions.outputs import to_model_logits
from keras_calib.selection.answers import has_confidence, interval_of_label
from keras_calib.selection.candidates import check_units
from keras_calib.selection.cost_targets import CostTarget, read_target
from keras_calib.selection.costs import CostLayer, CostRule, rule_of
from keras_calib.selection.group_names import read_groups
from keras_calib.selection.group_thresholds import GroupThresholds
from keras_calib.selection.prior_targets import PriorTarget
from keras_calib.selection.shift import read_classes
from keras_calib.selection.shifted_fits import labels_of, shifted_target
from keras_calib.selection.thresholds import ChosenThreshold, Target
from keras_calib.selection.tuning import (
    HeldOut,
    apply_score,
    check_nothing_to_tune,
    tuned,
)

__all__ = ["SelectiveClassifier"]


@keras.saving.register_keras_serializable(package="keras_calib")
class SelectiveClassifier(CostLayer, FitsOnModel):
    """A classifier that abstains when its score is below a threshold.

    Use it to let a model answer only when it is sure enough. It calibrates
    logits, scores them and accepts every score of at least the threshold.
    `fit` chooses the threshold on held-out data for a target risk or coverage;
    with `delta` it guarantees the risk. Copies of a fitted layer are fitted.

    Args:
        calibrator: A calibrator, the result of `choose_calibrator`, or None
            to take the logits as they are.
        score: Name of a score, such as `"msp"`, or a function or layer from
            logits `(..., num_classes)` to scores `(...)`, higher = surer. From
            a sequence of these `fit` takes the one with the least AURC.
            `"msp"` ranks by log-odds, which do not saturate. Register your own
            functions with `keras.saving.register_keras_serializable` to save
            them.
        costs: Cost of each answer `(num_classes, num_classes)`, >= 0, with a
            row for each true class; or None. With costs the layer answers the
            class of the least expected cost, and minus that cost is the score.
        threshold: The threshold, if you know it; None waits for `fit`. With
            costs it is minus the price of a rejection.
        chosen: Facts about the threshold, which `fit` sets.
        name: Name of the layer.
        **kwargs: `trainable` of `keras.layers.Layer`.

    Raises:
        RuntimeError: If it is called before `fit`, or if its calibrator or
            score was fitted again later. Functions that were compiled before
            then accept nothing.

    Example:

    >>> logits = [[4.0, 0.0], [0.0, 3.0], [2.0, 0.0], [0.0, 1.0]]
    >>> selector = SelectiveClassifier(score="logit_margin")
    >>> selector = selector.fit([0, 1, 1, 1], logits, risk=0.0)
    >>> selector.threshold, selector.chosen.coverage
    (2.5, 0.5)

    Reference:
        Geifman and El-Yaniv, Selective Classification for Deep Neural
        Networks, NeurIPS 2017, https://arxiv.org/abs/1705.08500
    """

    fits_batches = False

    def __init__(
        self,
        *,
        calibrator: Calibrator | CalibratorChoice | None = None,
        score: str | Callable[[Any], Any] | Sequence = "msp",
        costs: Any = None,
        threshold: Any = None,
        chosen: ChosenThreshold | GroupThresholds | None = None,
        name: str = "selective_classifier",
        **kwargs: Any,
    ):
        super().__init__(name=name, **kwargs)
        if isinstance(calibrator, CalibratorChoice):
            calibrator = calibrator.calibrator
        known = calibrator is None or callable(calibrator)
        if isinstance(calibrator, type) or not known:
            raise type_error(
                "`calibrator` must be a layer, such as `TemperatureScaling()`",
                calibrator=calibrator,
            )
        self.calibrator = calibrator
        several = isinstance(score, list | tuple)
        self._scores = tuple(cast(Sequence, score)) if several else (score,)
        self._functions = tuple(
            s if s == "msp" else scores.get(s) for s in self._scores
        )
        if not self._scores or (several and threshold is not None):
            raise value_error(
                "`score` must be one score if `threshold` is given, "
                "otherwise one or several",
                score=score,
                threshold=threshold,
            )
        # The place of the score in use; None until `fit` has chosen.
        self._place: Any = None if several else 0
        if costs is not None:
            self.use_rule(rule_of(costs, score))
        self.set_threshold(threshold, chosen)

    def fitted_summary(self) -> dict[str, Any]:
        """Score, threshold and calibrator by name."""
        return {
            "score": self.score,
            "threshold": self._threshold,
            "calibrator": self.calibrator,
        }

    def fit(
        self,
        labels: Any,
        logits: Any,
        *,
        risk: float | None = None,
        coverage: float | None = None,
        delta: float | None = None,
        method: str | None = None,
        costs: Any = None,
        reject_cost: float | None = None,
        mean_cost: float | None = None,
        tune_fraction: float | None = None,
        seed: int = 0,
        sample_weight: Any = None,
        ignore_class: int | None = None,
        groups: Any = None,
        one_threshold: bool = False,
        target_prior: Any = None,
    ) -> Self:
        """Chooses the threshold on held-out data and returns self.

        With `delta`, P(a threshold is returned and its true risk exceeds
        `risk`) <= `delta`, over draws of independent, equally weighted
        samples. They must not have chosen network, calibrator or score: use
        new data, or set `tune_fraction`.

        `method="ltt"`, Learn then Test, tests thresholds from strict to
        lenient by exact binomial p-values. `method="sgr"` searches over
        coverage in ceil(log2 n) steps that share `delta`, and mostly accepts
        less.

        With `costs` give `reject_cost`: the layer accepts answers of at most
        this expected cost (Chow's rule), which is best if the probabilities
        are calibrated. Or give a limit `mean_cost` for what the accepted
        answers cost on average, which `delta` guarantees.

        Args:
            labels: Class ids `(n, ...)` or one-hot or soft labels
                `(n, ..., num_classes)`.
            logits: Logits before calibration `(n, ..., num_classes)`, or
                `(n, ..., 1)` for the second of two classes.
            risk: Largest allowed share of errors among the accepted; `fit`
                maximises the coverage.
            coverage: Least share to accept, instead of `risk`; `fit` takes the
                strictest such threshold.
            delta: Probability that the guarantee may fail, in (0, 1). None
                bounds the risk on these samples only.
            method: With `risk` and `delta`, `"ltt"` or `"sgr"`. With
                `mean_cost` and `delta`, the test of Learn then Test:
                `"betting"` or `"hoeffding_bentkus"`, or `"binomial"`, which is
                exact, if all errors cost the same. With `reject_cost` alone,
                `"chow"`, or `"empirical"` for the threshold of the least mean
                cost on these samples. None takes the exact or the first one.
            costs: Costs to use from now on, as for the constructor.
            reject_cost: Cost of asking a human, >= 0. With `mean_cost` no
                answer of a higher expected cost is accepted either.
            mean_cost: Largest allowed mean cost of the accepted; `fit`
                maximises the coverage.
            tune_fraction: Share of the rows, drawn at random, that fits an
                unfitted calibrator or score and chooses among several scores.
                The rest chooses the threshold.
            seed: Seed of this split, and of the rows that fix or test
                thresholds for shifted data.
            sample_weight: Weights `(n, ...)` or `(n,)`; with `delta` 1, or 0
                for samples to leave out.
            ignore_class: Class id to leave out.
            groups: Group of each sample, integers or strings `(n,)`: one
                threshold for each, as `choose_group_thresholds` says.
            one_threshold: With `groups`, `risk` and `delta`: one threshold
                for all, as `choose_threshold_for_mixtures` says.
            target_prior: Share of each class in use `(num_classes,)`, for a
                `risk` and `delta` there, as `choose_threshold_for_prior` says;
                `method` is one of that.

        Raises:
            ValueError: If the target is out of reach. The error names a risk
                within reach, and the layer keeps its previous fit.
            RuntimeError: If calibrator or score is not fitted and
                `tune_fraction` is None.
        """
        self.check_labels(labels)
        rule = self._rule if costs is None else rule_of(costs, self.score)
        prices = mean_cost, reject_cost
        labels = as_array(labels, "labels")
        logits, sample_weight = read_masked(logits, "logits", sample_weight)
        class_axis(logits, -1, "logits")
        names = places = None
        if groups is not None:
            shape, weight = logits.shape[:-1], sample_weight
            if ignore_class is not None and labels.size == math.prod(shape):
                shown = ~is_ignored(labels.reshape(shape), ignore_class)
                weight = masked_weight(weight, shown, shape)
            names, places = read_groups(groups, shape, weight, rule)
        asked = risk, coverage, delta, method
        target = shifted_target(
            names, one_threshold, target_prior, asked, seed, rule
        ) or read_target(rule, *asked, prices)
        check_units(delta, logits.shape[:-1])
        functions = self._functions if rule is None else (rule,)
        if tune_fraction is None:
            check_nothing_to_tune([self.calibrator, *functions], delta)
        if sample_weight is not None:
            sample_weight = as_array(sample_weight, "sample_weight")
        held_out = HeldOut(labels, logits, sample_weight, ignore_class, places)
        with tuned(
            held_out, self.calibrator, functions, tune_fraction, seed
        ) as (top, place):
            records = top.score, top.correct, top.weight
            if isinstance(target, CostTarget):
                self.take_costs(cast(CostRule, rule), target, top)
            else:
                if isinstance(target, PriorTarget):
                    places = labels_of(top, target, self.calibrator)
                elif places is not None:
                    places = held_out.scored_places(tune_fraction, seed)
                log_odds = self._scores[place] == "msp"
                self.take_records(target, records, names, places, log_odds)
                self._place = place
        return self

    def fit_scores(
        self,
        scores: Any,
        correct: Any,
        *,
        risk: float | None = None,
        coverage: float | None = None,
        delta: float | None = None,
        method: str | None = None,
        sample_weight: Any = None,
        groups: Any = None,
        one_threshold: bool = False,
        target_prior: Any = None,
        labels: Any = None,
        seed: int = 0,
    ) -> Self:
        """Chooses the threshold for scores that you computed batch by batch.

        Use it when the logits of all samples do not fit in memory.

        Args:
            scores: Scores `(...)`, by `score_of` from calibrated logits;
                `(n,)` with `delta`.
            correct: 1 for right and 0 for wrong predictions, shape `(...)`.
            risk: Largest allowed share of errors among the accepted.
            coverage: Least share to accept, instead of `risk`.
            delta: Probability that the guarantee may fail, in (0, 1). None
                bounds the risk on these samples only.
            method: `"ltt"`, which None takes, or `"sgr"`, with `delta`.
            sample_weight: Weights of the shape of the scores, or `(n,)`.
            groups: Group of each sample, as for `fit`.
            one_threshold, target_prior, seed: As for `fit`.
            labels: True classes `(n,)`, for `target_prior` alone.

        Raises:
            ValueError: If the target is out of reach, as in `fit`.
            RuntimeError: If there are several scores to choose from.
        """
        self.check_scores_alone()
        # Served scores are float32.
        scores = as_array(scores, "scores", "float32")
        names = places = None
        if groups is not None:
            names, places = read_groups(groups, scores.shape, sample_weight)
        asked = risk, coverage, delta, method
        target = (
            shifted_target(names, one_threshold, target_prior, asked, seed)
            or Target(risk, coverage, delta, method or "ltt").check()
        )
        if self._place is None:
            raise RuntimeError(
                invalid(
                    "`score` must be one score: call `fit`, which chooses "
                    "among several",
                    score=self._scores,
                )
            )
        if isinstance(target, PriorTarget):
            places = read_classes(labels, scores.shape, len(target.prior))
        records = scores, correct, sample_weight
        log_odds = self.score == "msp"
        self.take_records(target, records, names, places, log_odds)
        return self

    def score_of(self, logits: Any) -> Any:
        """Scores `(...)` of calibrated logits `(..., num_classes)`.

        `"msp"` gives log-odds of the confidence, which do not saturate.
        """
        if self._place is None:
            self.check_fitted()
        logits = at_least_float32(logits)
        return apply_score(self._functions[self._place], logits)

    def call(self, logits, *, groups=None, from_logits=True):
        """Answers as the served model does.

        Args:
            logits: The model's outputs `(..., num_classes)`, or `(..., 1)`
                for the second of two classes.
            groups: After a fit with `groups`, the group of each row `(batch,)`
                or each score `(...)`. Integers are those of the fit; strings
                are given by their place in `chosen.group`, eagerly also by
                name. A group that the fit did not have is rejected.
            from_logits: Whether they are logits, not probabilities.

        Returns:
            A dict: `logits` (calibrated) and `probabilities`
            `(..., num_classes)`, `confidence` and `score` `(...)`, float32;
            `accept`, bool, and `label`, int32, `(...)`. If the calibrator has
            intervals, also `probability_low` and `probability_high` of the
            predicted class `(...)`, float32. With costs `label` is the
            cheapest answer, `confidence` its probability, and
            `expected_cost` what it costs on average `(...)`, float32.
        """
        self.check_fitted()
        # One output becomes two classes before calibration, as when served.
        given = to_model_logits(logits, from_logits)
        sound = has_confidence(given)
        if not from_logits:
            # Compiled code cannot refuse rows that are no distribution.
            sound = ops.logical_and(sound, usable_outputs(logits, from_logits))
        logits = given
        if self.calibrator is not None:
            logits = at_least_float32(self.calibrator(given))
        threshold = self.threshold_for(groups, tuple(logits.shape)[:-1])
        answers = self.answers(logits, threshold)
        if self.calibrator is not None or not from_logits:
            # A calibrator may turn what is no logit into one.
            answers["accept"] = ops.logical_and(answers["accept"], sound)
        interval = getattr(self.calibrator, "interval", None)
        if interval is not None:
            answers |= interval_of_label(answers["label"], interval(given))
        return answers
