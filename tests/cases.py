"""Every loss, metric and calibrator, with what its laws need to know.

`test_repository.py` fails if an exported class has no case here.
"""

import functools
import inspect
from collections.abc import Callable
from dataclasses import dataclass
from dataclasses import field
from typing import Any

import keras
import numpy as np
from keras import ops

import keras_calib as kc


@dataclass(frozen=True)
class LossCase:
    """A loss with hyperparameters that make every part of it active."""

    name: str
    cls: type
    fn: Callable
    hyperparameters: dict = field(default_factory=dict)
    # Hyperparameters under which it is cross entropy.
    limit: dict | None = None
    shift_invariant: bool = True
    soft_labels: bool = True
    # Linear in the label, as cross entropy plus a term without labels.
    linear: bool = True
    # The value of a sample depends on the others.
    batch_coupled: bool = False
    # Labels are pairs of class id and objectness.
    objectness: bool = False
    # Golden name -> golden hyperparameter id -> hyperparameters.
    goldens: dict = field(default_factory=dict)

    def __str__(self):
        return self.name

    def make(self, **kwargs):
        options = {"from_logits": True, **self.hyperparameters, **kwargs}
        fidelity = options.get("fidelity")
        if isinstance(fidelity, functools.partial):
            shared = ("from_logits", "axis", "ignore_class", "reduction")
            shared = {k: options[k] for k in shared if k in options}
            options["fidelity"] = fidelity(**shared)
        return self.cls(**options)

    def labels(self, ids):
        """Class ids in the form that the loss takes."""
        if not self.objectness:
            return ids
        rng = np.random.default_rng(7)
        share = rng.uniform(size=np.shape(ids))
        return np.stack([ids, share], axis=-1).astype("float64")

    def values(self, labels, logits):
        """Values per sample of the function, from soft labels."""
        if self.batch_coupled:
            return self.make(reduction="none").call(labels, logits)
        options = dict(self.hyperparameters)
        if self.objectness:
            rng = np.random.default_rng(7)
            options["objectness"] = rng.uniform(size=np.shape(labels)[:-1])
        return self.fn(labels, logits, **options)


def _released(gamma):
    """Rows of the released code of FLSD."""
    return [[0.2, 5.0], [0.5, 3.0], [1.0, float(gamma)]]


def _fidelity(cls, **kwargs):
    return functools.partial(cls, from_logits=True, **kwargs)


_NONDEFAULT = {"margin": 3.0, "lambda1": 0.6, "lambda2": 0.15}

LOSSES = [
    LossCase(
        "LabelSmoothing",
        kc.LabelSmoothing,
        kc.label_smoothing,
        {"alpha": 0.1},
        limit={"alpha": 0.0},
        goldens={
            "ls_k": {
                "alpha0.1": {"alpha": 0.1},
                "alpha0.05": {"alpha": 0.05},
            },
            "ls_negative": {"alpha-0.4": {"alpha": -0.4}},
        },
    ),
    LossCase(
        "LabelSmoothing-others",
        kc.LabelSmoothing,
        kc.label_smoothing,
        {"alpha": 0.1, "spread": "others"},
        limit={"alpha": 0.0, "spread": "others"},
        goldens={
            "ls_km1": {
                "alpha0.1": {"alpha": 0.1, "spread": "others"},
                "alpha0.05": {"alpha": 0.05, "spread": "others"},
            },
        },
    ),
    LossCase(
        "MbLS",
        kc.MbLS,
        kc.mbls,
        {"margin": 2.0, "strength": 0.3},
        limit={"strength": 0.0},
        goldens={
            "mbls": {
                "m10_a0.1": {},
                "m6_a0.1": {"margin": 6.0},
                "m3_a1": {"margin": 3.0, "strength": 1.0},
            },
        },
    ),
    LossCase(
        "MbLS-sum",
        kc.MbLS,
        kc.mbls,
        {"margin": 2.0, "class_reduction": "sum"},
        limit={"strength": 0.0, "class_reduction": "sum"},
        goldens={"mbls_sum": {"m10_a0.1": {"class_reduction": "sum"}}},
    ),
    LossCase(
        "ACLS",
        kc.ACLS,
        kc.acls,
        {"margin": 2.0},
        limit={"lambda1": 0.0, "lambda2": 0.0},
        goldens={
            "acls_eq13": {
                "default": {},
                "m6": {"margin": 6.0},
                "nondef": _NONDEFAULT,
            },
        },
    ),
    LossCase(
        "ACLS-zero",
        kc.ACLS,
        kc.acls,
        {"margin": 2.0, "reference": "zero"},
        limit={"lambda1": 0.0, "lambda2": 0.0, "reference": "zero"},
        shift_invariant=False,
        goldens={
            "acls_code": {
                "default": {"reference": "zero"},
                "m6": {"margin": 6.0, "reference": "zero"},
                "nondef": {**_NONDEFAULT, "reference": "zero"},
            },
        },
    ),
    *(
        LossCase(
            f"ACLS-{name}-{reference}",
            kc.ACLS,
            kc.acls,
            {"margin": 2.0, "reference": reference, **ablation},
            shift_invariant=reference == "min",
            goldens={
                f"acls_{name}_{reference}": {
                    "default": {"reference": reference, **ablation},
                    "m6": {"margin": 6.0, "reference": reference, **ablation},
                    "nondef": {
                        **_NONDEFAULT,
                        "reference": reference,
                        **ablation,
                    },
                }
            },
        )
        for name, ablation in (
            ("ar", {"condition": "none"}),
            ("cr", {"smoothing": "constant"}),
        )
        for reference in ("min", "zero")
    ),
    LossCase(
        "FocalLoss",
        kc.FocalLoss,
        kc.focal_loss,
        {"gamma": 3.0},
        limit={"gamma": 0.0},
        goldens={
            "focal_mean": {f"g{g}": {"gamma": float(g)} for g in range(4)},
            "focal_sum": {
                f"g{g}": {"gamma": float(g), "reduction": "sum"}
                for g in range(4)
            },
        },
    ),
    LossCase("FocalLoss-half", kc.FocalLoss, kc.focal_loss, {"gamma": 0.5}),
    LossCase(
        "InverseFocalLoss",
        kc.InverseFocalLoss,
        kc.inverse_focal_loss,
        {"gamma": 1.5},
        limit={"gamma": 0.0},
        soft_labels=False,
        goldens={
            "inverse_focal_mean": {
                f"g{g}": {"gamma": float(g)} for g in (1, 2, 3)
            },
            "inverse_focal_sum": {
                f"g{g}": {"gamma": float(g), "reduction": "sum"}
                for g in (1, 2, 3)
            },
        },
    ),
    LossCase(
        "FLSD",
        kc.FLSD,
        kc.flsd,
        limit={"gammas": [[1.0, 0.0]]},
        soft_labels=False,
        goldens={
            "flsd_mean": {
                **{f"g{g}": {"gammas": _released(g)} for g in (0, 2)},
                "g3": {},
            },
            "flsd_sum": {
                f"g{g}": {"gammas": _released(g), "reduction": "sum"}
                for g in (0, 2, 3)
            },
        },
    ),
    LossCase(
        "LabelRelaxation",
        kc.LabelRelaxation,
        kc.label_relaxation,
        {"alpha": 0.1},
        limit={"alpha": 0.0},
        soft_labels=False,
        goldens={
            "label_relaxation": {
                "alpha0.1": {},
                "alpha0.25": {"alpha": 0.25},
            },
        },
    ),
    LossCase(
        "ConfidencePenalty",
        kc.ConfidencePenalty,
        kc.confidence_penalty,
        {"beta": 0.3},
        limit={"beta": 0.0},
        goldens={"ecp_pereyra": {"b0.1": {}, "b1": {"beta": 1.0}}},
    ),
    LossCase(
        "ConfidencePenalty-mean",
        kc.ConfidencePenalty,
        kc.confidence_penalty,
        {"beta": 0.3, "class_reduction": "mean"},
        goldens={
            "ecp_mbls": {
                "a0.1": {"class_reduction": "mean"},
                "a1": {"beta": 1.0, "class_reduction": "mean"},
            },
        },
    ),
    LossCase(
        "ConfidencePenalty-threshold",
        kc.ConfidencePenalty,
        kc.confidence_penalty,
        {"beta": 0.3, "threshold": 1.0},
        goldens={"ecp_threshold": {"b0.1_t1.0": {"threshold": 1.0}}},
    ),
    LossCase(
        "UniformityPenalty",
        kc.UniformityPenalty,
        kc.uniformity_penalty,
        {"strength": 0.3},
        limit={"strength": 0.0},
        goldens={"penalty_l1": {"a1": {}}},
    ),
    LossCase(
        "BrierLoss",
        kc.BrierLoss,
        kc.brier_loss,
        linear=False,
        goldens={"brier": {"default": {}}},
    ),
    LossCase(
        "CPC",
        kc.CPC,
        kc.cpc,
        {"lambda1": 0.3, "lambda2": 0.5},
        limit={"lambda1": 0.0, "lambda2": 0.0},
        soft_labels=False,
        goldens={
            "cpc_nodiag": {
                "cals_cfg": {},
                "ctor": {"lambda1": 1.0, "lambda2": 1.0},
                "nondef": {"lambda1": 0.3, "lambda2": 0.05},
            },
        },
    ),
    LossCase(
        "AdaptiveLabelSmoothing",
        kc.AdaptiveLabelSmoothing,
        kc.adaptive_label_smoothing,
        limit={"beta": 0.0},
        objectness=True,
    ),
    LossCase(
        "AdaptiveLabelSmoothing-floor",
        kc.AdaptiveLabelSmoothing,
        kc.adaptive_label_smoothing,
        {"beta": 0.75, "floor": "uniform"},
        limit={"beta": 0.0, "floor": "uniform"},
        objectness=True,
    ),
    *(
        LossCase(
            f"MMCE-{variant}",
            kc.MMCE,
            kc.mmce,
            {"variant": variant, "strength": 2.0},
            limit={"variant": variant, "strength": 0.0},
            soft_labels=False,
            batch_coupled=True,
            goldens={
                method: {
                    f"l{strength}": {
                        "variant": variant,
                        "strength": float(strength),
                    }
                    for strength in (1, 2, 4)
                }
            },
        )
        for variant, method in (
            ("unweighted", "mmce"),
            ("unweighted_sqrt", "mmce_m_sqrt"),
            ("weighted", "mmce_w_paper"),
            ("weighted_released", "mmce_w_code"),
        )
    ),
    LossCase(
        "MDCA",
        kc.MDCA,
        kc.mdca,
        {"strength": 3.0},
        limit={"strength": 0.0},
        linear=False,
        batch_coupled=True,
        goldens={"mdca_nll": {"b1": {}, "b10": {"strength": 10.0}}},
    ),
    LossCase(
        "MDCA-focal",
        kc.MDCA,
        kc.mdca,
        {"strength": 3.0, "fidelity": _fidelity(kc.FocalLoss, gamma=1.0)},
        linear=False,
        batch_coupled=True,
        goldens={
            "mdca_fl": {
                f"g1_b{b}": {
                    "strength": float(b),
                    "fidelity": _fidelity(kc.FocalLoss, gamma=1.0),
                }
                for b in (1, 10)
            },
            "mdca_ls": {
                f"a0.1_b{b}": {
                    "strength": float(b),
                    "fidelity": _fidelity(
                        kc.LabelSmoothing, alpha=0.1, spread="others"
                    ),
                }
                for b in (1, 10)
            },
        },
    ),
    LossCase(
        "DCA",
        kc.DCA,
        kc.dca,
        {"strength": 3.0},
        limit={"strength": 0.0},
        linear=False,
        batch_coupled=True,
        goldens={"dca_nll": {"b1": {}, "b10": {"strength": 10.0}}},
    ),
    LossCase(
        "DCA-huber",
        kc.DCA,
        kc.dca,
        {"strength": 3.0, "huber_delta": 0.05},
        linear=False,
        batch_coupled=True,
        goldens={
            "patra_huber_ce": {"l1_d0.005": {"huber_delta": 0.005}},
            "patra_huber_focal": {
                "g1_l1_d0.005": {
                    "huber_delta": 0.005,
                    "fidelity": _fidelity(kc.FocalLoss, gamma=1.0),
                },
                "g3_l10_d0.1": {
                    "strength": 10.0,
                    "huber_delta": 0.1,
                    "fidelity": _fidelity(kc.FocalLoss, gamma=3.0),
                },
            },
        },
    ),
]


@dataclass(frozen=True)
class MetricCase:
    """A streaming metric and the exact function that it must follow."""

    name: str
    cls: type
    exact: Callable
    kwargs: dict = field(default_factory=dict)
    # The streamed value equals the exact one up to this: a number, or an
    # array where there are several values. Relative, but for values < 0.1.
    tolerance: Any = 1e-6
    # Or `bounds()` contain the exact one.
    has_bounds: bool = False
    # The exact function takes `ties="order"`.
    has_ties: bool = False
    # Its values before any sample.
    empty: Any = 0.0
    # The state holds the weight of all predictions, right or wrong.
    holds_all: bool = True
    # The same predictions give the same integers, however they are split: no
    # logarithm is taken, and no loss is rounded to the scale of its batch.
    has_exact_sums: bool = False
    needs_num_classes: bool = False

    def __str__(self):
        return self.name

    def make(self, num_classes=4, **kwargs):
        if self.needs_num_classes:
            kwargs["num_classes"] = num_classes
        return self.cls(**{**self.kwargs, **kwargs})

    def is_close(self, value, exact):
        return abs(value - exact) <= self.tolerance * np.maximum(exact, 0.1)

    def value(self, metric):
        """The result as float64 `(number of values,)`."""
        return _flat_values(metric.result())

    def values(self, metric):
        """That, and the same as compiled code computes it, in float32."""
        return self.value(metric), _flat_values(metric._from_tensors())

    def bounds(self, metric):
        """Lower and upper bounds of them, infinite where there are none."""
        bounds = metric.bounds() if self.has_bounds else {}
        if not isinstance(bounds, dict):
            return np.transpose([bounds])
        names = metric.include if self.cls is kc.CalibrationMetrics else [""]
        none = (-np.inf, np.inf)
        return np.transpose([bounds.get(name, none) for name in names])


def _flat_values(result):
    values = result.values() if isinstance(result, dict) else [result]
    return np.array([float(x) for x in values])


def accuracy(labels, outputs, *, sample_weight=None, from_logits=False):
    """Share of right predictions, in float64."""
    if sample_weight is not None and not np.any(sample_weight):
        raise ValueError("`sample_weight` must not be 0 everywhere")
    if outputs.shape[-1] == 1:
        predicted = outputs[:, 0] > (0.0 if from_logits else 0.5)
    else:
        predicted = outputs.argmax(axis=-1)
    return float(np.average(predicted == labels, weights=sample_weight))


def _rank_case(name, exact, tolerance=1e-3, **kwargs):
    return MetricCase(
        name,
        getattr(kc, name.partition("-")[0]),
        functools.partial(exact, **kwargs),
        kwargs,
        tolerance=tolerance,
        has_bounds=True,
        has_ties="ties" in inspect.signature(exact).parameters,
        empty=0.5 if name == "FailureAUROC" else 0.0,
    )


def _bin_case(name, exact, **kwargs):
    return MetricCase(
        name,
        getattr(kc, name.partition("-")[0]),
        functools.partial(exact, **kwargs),
        kwargs,
        has_exact_sums=True,
    )


def _part_case(name, exact):
    return MetricCase(name, getattr(kc, name), exact, holds_all=False)


_SINGLE = [
    MetricCase("Accuracy", kc.Accuracy, accuracy, has_exact_sums=True),
    MetricCase("MeanConfidence", kc.MeanConfidence, kc.mean_confidence),
    _part_case("Overconfidence", kc.overconfidence),
    _part_case("Underconfidence", kc.underconfidence),
    MetricCase("NLL", kc.NLL, kc.nll),
    MetricCase("BrierScore", kc.BrierScore, kc.brier_score),
    _bin_case("ECE", kc.ece),
    _bin_case("MCE", kc.mce),
    _bin_case("RMSCE", kc.rmsce),
    _bin_case("DebiasedCalibrationError", kc.debiased_calibration_error),
    _bin_case("AverageCalibrationError", kc.average_calibration_error),
    _bin_case("OverconfidenceError", kc.overconfidence_error),
    _rank_case("AECE", kc.adaptive_ece, 1e-5),
    _rank_case("AURC", kc.aurc),
    _rank_case("EAURC", kc.eaurc),
    _rank_case("NormalizedAURC", kc.normalized_aurc),
    _rank_case("AUGRC", kc.augrc),
    _rank_case("FailureAUROC", kc.failure_auroc),
    # Steps of one sample, which an order inside a cell may move.
    _rank_case("FailureFPR95", kc.failure_fpr95, 1e-3),
    _rank_case("CoverageAtRisk", kc.coverage_at_risk, 0.02, risk=0.05),
    _rank_case(
        "CoverageAtAccuracy", kc.coverage_at_accuracy, 0.02, accuracy=0.99
    ),
    _rank_case("RiskAtCoverage", kc.risk_at_coverage, coverage=0.8),
    # Its grid is coarser than what the cells leave undecided.
    MetricCase("SmoothECE", kc.SmoothECE, kc.smooth_ece, tolerance=1e-4),
]
# In the order of the values of `CalibrationMetrics`.
TABLE = {
    inspect.signature(case.cls).parameters["name"].default: case
    for case in _SINGLE
}


def table(labels, outputs, **kwargs):
    """The exact values of all of them."""
    return np.array([case.exact(labels, outputs, **kwargs) for case in _SINGLE])


METRICS = [
    *_SINGLE,
    _bin_case("ECE-left", kc.ece, norm="l2", closed="left", num_bins=10),
    MetricCase(
        "ClasswiseECE",
        kc.ClasswiseECE,
        kc.classwise_ece,
        has_exact_sums=True,
        needs_num_classes=True,
    ),
    MetricCase(
        "ClasswiseECE-mass",
        kc.ClasswiseECE,
        functools.partial(kc.classwise_ece, edges="mass"),
        {"edges": "mass", "resolution": 2048},
        tolerance=0.03,
        needs_num_classes=True,
    ),
    _rank_case("AURC-gini", kc.aurc, 3e-3, score="gini"),
    # Logarithms of probabilities near 1 are almost tied.
    _rank_case("AURC-max_logit", kc.aurc, 0.1, score="max_logit"),
    MetricCase(
        "CalibrationMetrics",
        kc.CalibrationMetrics,
        table,
        {"include": list(TABLE)},
        tolerance=np.array([case.tolerance for case in _SINGLE]),
        has_bounds=True,
        empty=np.array([case.empty for case in _SINGLE]),
    ),
]
# One of each kind of state: what all read alike is tried on these alone where
# every operation is compiled anew.
KINDS = [
    case
    for case in METRICS
    if case.name in ("ECE", "NLL", "AURC", "ClasswiseECE", "CalibrationMetrics")
]
# What takes no plain predictions, or weights, has tests of its own.
OTHER_METRICS = [kc.ObjectnessDeviation, kc.PerImage]


@dataclass(frozen=True)
class CalibratorCase:
    """A calibrator, and what its laws need to know."""

    cls: type
    hyperparameters: dict = field(default_factory=dict)
    # By construction, the NLL of the data that it was fitted on can not rise.
    never_raises_nll: bool = False
    # The predicted class never changes.
    keeps_argmax: bool = False
    # To what fits of the same data in another form agree.
    tolerance: float = 1e-4

    def __str__(self):
        return "-".join(
            [self.cls.__name__, *map(str, self.hyperparameters.values())]
        )

    def make(self, **kwargs):
        return self.cls(**self.hyperparameters, **kwargs)


CALIBRATORS = [
    CalibratorCase(
        kc.TemperatureScaling, never_raises_nll=True, keeps_argmax=True
    ),
    CalibratorCase(
        kc.TemperatureScaling, {"objective": "mse"}, keeps_argmax=True
    ),
    CalibratorCase(
        kc.TemperatureScaling, {"objective": "ece"}, keeps_argmax=True
    ),
    CalibratorCase(kc.VectorScaling, never_raises_nll=True),
    CalibratorCase(kc.MatrixScaling, never_raises_nll=True),
    CalibratorCase(kc.DirichletCalibration, never_raises_nll=True),
    CalibratorCase(
        kc.DirichletCalibration,
        {"off_diagonal_strength": 0.01, "intercept_strength": 0.1},
        never_raises_nll=True,
    ),
    CalibratorCase(kc.EnsembleTemperatureScaling, keeps_argmax=True),
    CalibratorCase(
        kc.EnsembleTemperatureScaling,
        {"objective": "nll"},
        never_raises_nll=True,
        keeps_argmax=True,
    ),
    CalibratorCase(kc.HistogramBinning, {"num_bins": 10}),
    CalibratorCase(kc.HistogramBinning, {"num_bins": 8, "edges": "mass"}),
    CalibratorCase(kc.IsotonicCalibration),
    CalibratorCase(kc.BetaCalibration),
]

# Exported bases, which have no case of their own.
ABSTRACT = [
    kc.PerSampleLoss,
    kc.BatchCoupledLoss,
    kc.StreamingMetric,
    kc.Calibrator,
]

METRIC_DATA = (
    "over",
    "real",
    "lowacc",
    "under",
    "missing",
    "edges",
    "onehot",
    "allcorrect",
    "allwrong",
    "topwrong",
)

BACKEND = keras.backend.backend()
# JAX computes in 32 bits.
HAS_FLOAT64 = BACKEND != "jax"


def sample(seed=0, n=24, num_classes=5, scale=4.0, dtype="float32"):
    """Class ids `(n,)` and logits `(n, num_classes)`, without ties."""
    rng = np.random.default_rng(seed)
    logits = rng.normal(size=(n, num_classes)) * scale
    return rng.integers(num_classes, size=n), logits.astype(dtype)


def softmax(logits):
    e = np.exp(logits - logits.max(axis=-1, keepdims=True))
    return e / e.sum(axis=-1, keepdims=True)


def one_hot(labels, num_classes):
    return np.eye(num_classes)[labels]


def array(x: Any) -> np.ndarray:
    return np.asarray(ops.convert_to_numpy(x))
