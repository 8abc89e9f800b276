"""A classifier that may abstain."""

import math
from collections.abc import Callable, Sequence
from typing import Any, Self, TypedDict, Unpack, cast

import keras
import numpy as np
from keras import ops

from keras_calib.backend.errors import invalid, type_error, value_error, warn
from keras_calib.backend.locks import unbroken
from keras_calib.calibrators import (
    Calibrator,
    CalibratorChoice,
    PriorCorrection,
)
from keras_calib.calibrators.fitted_layer import LayerOptions, of_logits
from keras_calib.inputs.checks import check_flag, check_independent, class_axis
from keras_calib.inputs.labels import is_ignored
from keras_calib.inputs.options import is_log, taken
from keras_calib.inputs.outcomes import Outcomes
from keras_calib.inputs.rows import usable_outputs
from keras_calib.inputs.weights import masked_weight
from keras_calib.numerics.arrays import as_array, at_least_float32
from keras_calib.predictions.fitting import FitsOnModel, RowOptions, given_rows
from keras_calib.predictions.options import check_uncalibrated
from keras_calib.predictions.outputs import to_model_logits
from keras_calib.selection.choice import Choice
from keras_calib.selection.costs import CostTarget
from keras_calib.selection.data_hash import largest_cost, with_hashes
from keras_calib.selection.ladder import counted, named_group, read_outcomes
from keras_calib.selection.rules import (
    CostRule,
    ScoreRule,
    has_confidence,
    of_label,
)
from keras_calib.selection.selector import Selector
from keras_calib.selection.served_groups import read_groups
from keras_calib.selection.shift import MixtureTarget, PriorTarget, read_classes
from keras_calib.selection.thresholds import ErrorTarget
from keras_calib.selection.tuning import tuned, undone_by_errors

# Largest difference of two priors that are one.
_SAME = 1e-3


class Target(TypedDict, total=False):
    """What the thresholds of a selector are to keep.

    With `delta`, P(a threshold is returned and its true risk exceeds `risk`) <=
    `delta`, over draws of independent, equally weighted samples. They must not
    have chosen network, calibrator or score: use new data, or set
    `tune_fraction`.

    Attributes:
        risk: Largest allowed share of errors among the accepted; `fit`
            maximises the coverage.
        coverage: Least share to accept, instead of `risk`; `fit` takes the
            strictest such threshold.
        delta: Probability that the guarantee may fail, in (0, 1). None bounds
            the risk on these samples only.
        method: With `max_cost` and `delta`, the test of Learn then Test:
            `"betting"` or `"hoeffding_bentkus"`, or `"binomial"`, which is
            exact, if all errors cost the same. With `reject_cost` alone,
            `"chow"`, or `"empirical"` for the threshold of the least mean cost
            on these samples. With `target_prior`, one of
            `choose_threshold_for_prior`. None takes the exact or the first
            one.
        reject_cost: With costs, the cost of asking a human, >= 0. Answers of
            at most this expected cost are accepted (Chow's rule), which is
            best if the probabilities are calibrated; with `max_cost` too.
        max_cost: With costs, the largest allowed mean cost of the accepted;
            `fit` maximises the coverage.
        one_threshold: With `groups`, `risk` and `delta`: one threshold for
            all, as `choose_threshold_for_mixtures` says.
        target_prior: Share of each class in use `(num_classes,)`, for a `risk`
            and `delta` there, as `choose_threshold_for_prior` says.
    """

    risk: float | None
    coverage: float | None
    delta: float | None
    method: str | None
    reject_cost: float | None
    max_cost: float | None
    one_threshold: bool
    target_prior: Any


class FitOptions(Target, RowOptions, total=False):
    """Options of a fit: the target, and how arrays are read."""


@keras.saving.register_keras_serializable(package="keras_calib")
class SelectiveClassifier(Selector, FitsOnModel):
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

    stored_parts = ("calibrator", "score")

    def __init__(
        self,
        *,
        calibrator: Calibrator | CalibratorChoice | None = None,
        score: str | Callable[[Any], Any] | Sequence = "msp",
        costs: Any = None,
        threshold: Any = None,
        chosen: Choice | None = None,
        **kwargs: Unpack[LayerOptions],
    ):
        super().__init__(**kwargs)
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
        given = tuple(cast(Sequence, score)) if several else (score,)
        if not given or (several and threshold is not None):
            raise value_error(
                "`score` must be one score if `threshold` is given, "
                "otherwise one or several",
                score=score,
                threshold=threshold,
            )
        if costs is not None:
            self._use(_rule_of(costs, score))
        else:
            self._use(*map(ScoreRule, given))
        self.set_threshold(threshold, chosen)

    def _use(self, *rules: ScoreRule | CostRule) -> None:
        """Takes rules; of several, `fit` leaves the best alone."""
        self._rules = rules
        # Layers among them are saved with this one.
        self._scores = tuple(rule.function for rule in rules)

    @property
    def _rule(self) -> ScoreRule | CostRule:
        if len(self._rules) > 1:
            self.check_fitted()
        return self._rules[0]

    @property
    def score(self) -> Any:
        """The score in use; a tuple of candidates until `fit` chooses one.

        With costs it is `"expected_cost"`, which stands for minus that cost.
        """
        names = tuple(rule.name for rule in self._rules)
        return names if len(names) > 1 else names[0]

    @property
    def costs(self) -> Any:
        """The cost matrix in use, float64; None without costs."""
        return self._rules[0].costs

    def parts(self) -> list[Any]:
        """Calibrator and scores."""
        return [self.calibrator, *self._scores]

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
        logits: Any = None,
        *,
        costs: Any = None,
        tune_fraction: float | None = None,
        seed: int = 0,
        groups: Any = None,
        **options: Unpack[FitOptions],
    ) -> Self:
        """Chooses the threshold on held-out data and returns self.

        What it is to keep is named by the arguments of `Target`: most often
        `risk` and `delta`. Thresholds are tested from strict to lenient by
        exact binomial p-values, as Learn then Test does. With `costs` give
        `reject_cost` or `max_cost`.

        Args:
            labels: `Predictions`; or class ids `(n, ...)`, or one-hot or soft
                labels `(n, ..., num_classes)`.
            logits: Logits before calibration `(n, ..., num_classes)`, or
                `(n, ..., 1)` for the second of two classes. None with
                `Predictions`.
            costs: Costs to use from now on, as for the constructor.
            tune_fraction: Share of the rows, drawn at random, that fits an
                unfitted calibrator or score and chooses among several scores.
                The rest chooses the threshold.
            seed: Seed of this split, and of the rows that fix or test
                thresholds for shifted data.
            groups: Group of each sample, integers or strings `(n,)`, or the
                name of a group of the `Predictions`: one threshold for each,
                as `choose_threshold` says.
            **options: `risk`, `coverage`, `delta`, `method`, `reject_cost`,
                `max_cost`, `one_threshold` and `target_prior`, as `Target`
                says. For arrays `from_logits`, `sample_weight`, with `delta`
                1, or 0 for samples to leave out, and `ignore_class`, as
                `Calibrator.fit` says.

        Raises:
            ValueError: If the target is out of reach. The error names a risk
                within reach, and the layer keeps its previous fit.
            RuntimeError: If calibrator or score is not fitted and
                `tune_fraction` is None.
        """
        rules = self._rules
        if costs is not None:
            rules = (_rule_of(costs, self.score),)
        rows, rest = taken(options, RowOptions)
        target: Any = rest
        if is_log(labels):
            raise value_error(
                "`fit` must have outputs of all classes: `choose_threshold("
                "predictions, ...)` chooses for the confidence of a log, also "
                "after `calibrate` of a calibrator",
                kind="records",
            )
        given = given_rows(labels, logits, **vars(rows))
        check_uncalibrated(given, self.calibrator)
        class_axis(given.outputs, -1, "logits")
        shape, ignored = given.outputs.shape[:-1], given.ignore_class
        names = places = None
        if groups is not None:
            weight, ids = given.sample_weight, given.labels
            if ignored is not None and ids.size == math.prod(shape):
                shown = ~is_ignored(ids.reshape(shape), ignored)
                weight = masked_weight(weight, shown, shape)
            groups = named_group(given, groups)
            names, places = read_groups(groups, shape, weight)
        asked = _target_of(target, rules[0], groups, seed, "fit")
        delta = asked.delta
        units, weight = given.units, given.sample_weight
        if units is not None and weight is not None:
            units = units[weight.reshape(len(units), -1).any(axis=-1)]
        if delta is not None:
            check_independent("`delta`", shape, units)
        parts = [self.calibrator, *(rule.function for rule in rules)]
        with self.remembering(given.from_logits), undone_by_errors(self, parts):
            found, place, num_classes = tuned(
                given,
                places,
                self.calibrator,
                rules,
                tune_fraction,
                seed,
                delta,
            )
            if isinstance(asked, PriorTarget):
                _check_prior(asked.prior, num_classes, self.calibrator)
            found = counted(found._replace(names=names or ()), delta)
            self._take(found, rules[place], asked)
        return self

    def _take(self, outcomes: Outcomes, rule: Any, asked: Any) -> None:
        """Takes the best threshold; raises ValueError if none is in reach."""
        chosen = asked.choose(outcomes, rule.name == "msp")
        chosen = with_hashes(chosen, rule.costs)
        with unbroken():
            self._use(rule)
            self.keep(chosen)

    def fit_scores(
        self,
        scores: Any,
        correct: Any,
        *,
        sample_weight: Any = None,
        groups: Any = None,
        labels: Any = None,
        seed: int = 0,
        **target: Unpack[Target],
    ) -> Self:
        """Chooses the threshold for scores that you computed batch by batch.

        Use it when the logits of all samples do not fit in memory.

        Args:
            scores: Scores `(...)`, by `score_of` from calibrated logits;
                `(n,)` with `delta`.
            correct: 1 for right and 0 for wrong predictions, shape `(...)`.
            sample_weight: Weights of the shape of the scores, or `(n,)`.
            groups: Group of each sample, as for `fit`.
            labels: True classes `(n,)`, for `target_prior` alone.
            seed: As for `fit`.
            **target: As for `fit`, without costs.

        Raises:
            ValueError: If the target is out of reach, as in `fit`.
            RuntimeError: If there are several scores to choose from.
        """
        if self.costs is not None:
            raise value_error(
                "`fit_scores` must be called without `costs`: records of "
                "scores and costs go to `choose_threshold(scores, cost=cost, "
                "...)`",
                **{"costs.shape": self.costs.shape},
            )
        # Served scores are float32.
        scores = as_array(scores, "scores", "float32")
        rule, classes = self._rules[0], None
        asked = _target_of(target, rule, groups, seed, "fit_scores")
        if len(self._rules) > 1:
            raise RuntimeError(
                invalid(
                    "`score` must be one score: call `fit`, which chooses "
                    "among several",
                    score=self.score,
                )
            )
        if isinstance(asked, PriorTarget):
            classes = read_classes(labels, scores.shape, len(asked.prior))
        outcomes = read_outcomes(
            scores,
            correct,
            sample_weight,
            asked.delta,
            groups=groups,
            classes=classes,
        )
        self._take(outcomes, rule, asked)
        return self

    def score_of(self, logits: Any) -> Any:
        """Scores `(...)` of calibrated logits `(..., num_classes)`.

        `"msp"` gives log-odds of the confidence, which do not saturate.
        """
        return self._rule.score(at_least_float32(logits))

    def call(self, logits, *, groups=None, from_logits=None):
        """Answers as the served model does.

        Args:
            logits: The model's outputs `(..., num_classes)`, or `(..., 1)`
                for the second of two classes.
            groups: After a fit with `groups`, the group of each row `(batch,)`
                or each score `(...)`. Integers are those of the fit; strings
                are given by their place in `chosen.group`, eagerly also by
                name. A group that the fit did not have is rejected.
            from_logits: Whether they are logits, not probabilities; None
                takes them as those of the fit.

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
        from_logits = self.takes_logits(from_logits)
        # One output becomes two classes before calibration, as when served.
        given = to_model_logits(logits, from_logits)
        sound = has_confidence(given)
        if not from_logits:
            # Compiled code cannot refuse rows that are no distribution.
            sound = ops.logical_and(sound, usable_outputs(logits, from_logits))
        logits = given
        if self.calibrator is not None:
            logits = at_least_float32(of_logits(self.calibrator, given))
        threshold = self.threshold_for(groups, tuple(logits.shape)[:-1])
        answers = self._rule.answers(logits, threshold)
        if self.calibrator is not None or not from_logits:
            # A calibrator may turn what is no logit into one.
            answers["accept"] = ops.logical_and(answers["accept"], sound)
        interval = getattr(self.calibrator, "interval", None)
        if interval is not None:
            low, high = interval(given, from_logits=True)
            label = answers["label"]
            answers["probability_low"] = of_label(low, label)
            answers["probability_high"] = of_label(high, label)
        return answers

    def get_config(self):
        score, costs = self.score, self.costs
        if costs is not None:
            score, costs = "msp", costs.tolist()
        score = [*score] if isinstance(score, tuple) else score
        return {
            **super().get_config(),
            "score": keras.saving.serialize_keras_object(score),
            "costs": costs,
        }


def _rule_of(costs: Any, score: Any) -> CostRule:
    """The rule of a cost matrix; raises ValueError for another score."""
    if score not in ("msp", "expected_cost"):
        raise value_error(
            "`score` must be left out with `costs`: the expected cost ranks "
            "the answers",
            score=score,
        )
    return CostRule(costs)


def _target_of(
    asked: Target, rule: Any, groups: Any, seed: int, caller: str
) -> ErrorTarget | CostTarget | PriorTarget | MixtureTarget:
    """What `caller` was asked for, checked, by the rule of the answers.

    `seed` is that of rows that are drawn.
    """
    for name in asked.keys() - Target.__annotations__:
        raise type_error(
            f"`{name}` must be an argument of `{caller}`",
            arguments=sorted(Target.__annotations__),
        )
    one_threshold = asked.get("one_threshold", False)
    check_flag("one_threshold", one_threshold)
    if one_threshold and groups is None:
        raise value_error(
            "`one_threshold` needs `groups`: it is one threshold that holds "
            "for every mixture of them",
            groups=None,
        )
    if groups is not None and rule.costs is not None:
        raise value_error(
            "`groups` must be left out with `costs`: thresholds by group are "
            "for risk and coverage"
        )
    # Targets check what is missing.
    risk: Any = asked.get("risk")
    delta: Any = asked.get("delta")
    coverage, method = asked.get("coverage"), asked.get("method")
    prior = asked.get("target_prior")
    if prior is not None or one_threshold:
        told = None
        if prior is not None and groups is not None:
            told = "`target_prior` and `groups` exclude each other"
        elif rule.costs is not None:
            told = "`target_prior` must be left out with `costs`"
        elif coverage is not None:
            told = "`coverage` must be None: only a `risk` is guaranteed here"
        if told is not None:
            raise value_error(told, coverage=coverage)
        if prior is not None:
            return PriorTarget(prior, risk, delta, method, seed).check()
        if method is not None:
            raise value_error(
                "`method` must be None with `one_threshold`: the test is "
                "binomial",
                method=method,
            )
        return MixtureTarget(risk, delta, seed).check()
    prices = asked.get("max_cost"), asked.get("reject_cost")
    if rule.costs is not None:
        if risk is not None:
            raise value_error(
                "`risk` must be None with `costs`, as it counts errors: give "
                "`reject_cost`, or a limit `max_cost` for the accepted",
                risk=risk,
            )
        largest, one = largest_cost(rule.costs)
        return CostTarget(
            largest, one, *prices, coverage, delta, method
        ).check()
    if prices != (None, None):
        raise value_error(
            "`costs` must be given with `reject_cost` or `max_cost`: row j "
            "for the true class j, column k for the answer k; "
            "`1 - np.eye(num_classes)` counts errors",
            max_cost=prices[0],
            reject_cost=prices[1],
        )
    if method not in (None, "ltt"):
        raise value_error(
            '`method` must be None or "ltt": risks have exact binomial tests',
            method=method,
        )
    return ErrorTarget(risk, coverage, delta).check()


def _check_prior(prior: Any, num_classes: int, calibrator: Any) -> None:
    """Raises ValueError unless a prior is that of the classes.

    Warns about a calibrator that corrects to another prior.
    """
    if len(prior) != num_classes:
        raise value_error(
            "`target_prior` must have a share for each class",
            shares=len(prior),
            classes=num_classes,
        )
    while calibrator is not None:
        if isinstance(calibrator, PriorCorrection):
            gap = float(np.abs(calibrator.target - prior).max())
            if gap > _SAME:
                warn(
                    "`calibrator` corrects to another prior than "
                    f"`target_prior`: a share differs by {gap:.3g}. The "
                    "guarantee holds, but the probabilities are for the prior "
                    "of the calibrator: give it the same `target`."
                )
        calibrator = getattr(calibrator, "calibrator", None)
