"""Calibrators: what they make of fixed rows, and the likelihood then."""

import warnings
from collections.abc import Iterator
from typing import Any

import keras
import numpy as np
from keras import ops

from frozen.api import kc
from frozen.data_sets import CLASSES, PIXELS, Classes
from frozen.results import tried
from frozen.stored import Tolerance

# Solvers stop at gradients near 1e-6; answers are float32.
TOLERANCE = Tolerance(relative=2e-5, absolute=5e-5)

# Quantity: the calibrator, and its options.
CALIBRATORS = {
    "temperature": (kc.TemperatureScaling, {}),
    "temperature, squared error": (kc.TemperatureScaling, {"objective": "mse"}),
    "temperature, by bin": (
        kc.TemperatureScaling,
        {"objective": "ece", "grid": (0.5, 0.75, 1.0, 1.5, 2.0, 3.0)},
    ),
    "scale by class": (kc.VectorScaling, {}),
    "scale by class, no penalty": (kc.VectorScaling, {"penalty": None}),
    "matrix": (kc.MatrixScaling, {}),
    "matrix, off the diagonal": (
        kc.MatrixScaling,
        {"off_diagonal_penalty": 0.01, "intercept_penalty": 0.1},
    ),
    "matrix of log-probabilities": (kc.DirichletCalibration, {}),
    "structured scale": (kc.StructuredVectorScaling, {}),
    "structured matrix": (kc.StructuredMatrixScaling, {}),
    "ensemble of temperatures": (kc.EnsembleTemperatureScaling, {}),
    "ensemble of temperatures, squared error": (
        kc.EnsembleTemperatureScaling,
        {"objective": "mse"},
    ),
    "temperature by row": (kc.ParametrizedTemperatureScaling, {}),
    "histogram": (kc.HistogramBinning, {"num_bins": 10}),
    "histogram of equal mass": (
        kc.HistogramBinning,
        {"num_bins": 8, "edges": "mass"},
    ),
    "isotonic": (kc.IsotonicCalibration, {}),
    "beta": (kc.BetaCalibration, {}),
    "log-odds, affine": (kc.AffineScaling, {}),
    "log-odds, quadratic": (kc.QuadraticScaling, {}),
    "log-odds, quadratic and monotone": (
        kc.QuadraticScaling,
        {"penalty": None, "monotone": True},
    ),
    "isotonic, with intervals": (kc.VennAbers, {}),
}
# Of two classes alone.
OF_TWO = {name for name in CALIBRATORS if "log-odds" in name}
# What fits by descent, in tens of traced steps: on one data set each.
SLOW = {"temperature by row"}
DATA = "ten classes", "weights", "ignored class", "soft labels"
BESIDE = np.float32(63 / 64)
OF_TWO_DATA = "two classes", "binary column"


def _fitted(made: Any, data: Classes, **given: Any) -> Any:
    options = {k: v for k, v in data.options.items() if k == "ignore_class"}
    return tried(
        made.fit,
        data.labels,
        data.logits,
        data.weight,
        **options,
        force=True,
        **{"num_folds": 0, **given},
    )


def _answers(made: Any, data: Classes, rows: int = 8) -> Any:
    """Calibrated log-probabilities of some rows, and the likelihood of all."""
    if isinstance(made, dict):
        return made
    # Beside the rows of the fit: at them tables have their steps, where the
    # last digit decides.
    logits = ops.cast(made(data.logits * BESIDE), "float64")
    options = {**data.options, "from_logits": True}
    some = logits[:rows] if logits.shape[-1] < 20 else logits[:2]
    if some.shape[-1] > 1:
        some = ops.log_softmax(some)
    likelihood = tried(
        kc.nll, data.labels, ops.convert_to_numpy(logits), **options
    )
    # Probabilities of 0 have no logarithm that rounding keeps.
    some = np.maximum(ops.convert_to_numpy(some), -60.0)
    return {"rows": some, "likelihood": likelihood}


def _of_classes() -> Iterator[tuple[str, Any]]:
    for quantity, (cls, given) in CALIBRATORS.items():
        names = OF_TWO_DATA if quantity in OF_TWO else DATA + OF_TWO_DATA
        for name in names[:1] if quantity in SLOW else names:
            made = _fitted(cls(**given), CLASSES[name])
            yield f"{quantity}/{name}", _answers(made, CLASSES[name])
    for name in (
        "hundred classes",
        "pixels",
        "tokens",
        "few rows",
        "one class",
    ):
        for quantity in ("temperature", "structured scale", "histogram"):
            cls, given = CALIBRATORS[quantity]
            made = _fitted(cls(**given), CLASSES[name])
            yield f"{quantity}/{name}", _answers(made, CLASSES[name])


def _intervals() -> Iterator[tuple[str, Any]]:
    for name in ("two classes", "weights"):
        data = CLASSES[name]
        made = _fitted(kc.VennAbers(), data)
        low, high = made.interval(data.logits[:8] * BESIDE)
        yield f"isotonic, interval/{name}", {"low": low, "high": high}
    # Fitted on probabilities, and with a prior of its own.
    data = CLASSES["ten classes"]
    made = kc.TemperatureScaling().fit(data.labels, data.logits, num_folds=3)
    found = made(data.probs[:4], from_logits=False)
    yield "temperature of probabilities/ten classes", found
    source = np.full(10, 0.1)
    target = np.arange(1.0, 11.0) / 55.0
    made = kc.PriorCorrection(
        source, target, calibrator=kc.TemperatureScaling()
    )
    made = _fitted(made, data)
    yield "moved to another prior/ten classes", _answers(made, data)
    made = kc.PriorCorrection(source, target)
    yield "another prior alone/ten classes", made(data.logits[:4])
    for name in ("ten classes", "weights", "ignored class"):
        data = CLASSES[name]
        options = {
            k: v
            for k, v in data.options.items()
            if k in ("sample_weight", "ignore_class")
        }
        found = kc.calibrators.refinement_nll(
            data.labels, data.logits, **options
        )
        yield f"likelihood at the best temperature/{name}", found


def _compact() -> Iterator[tuple[str, Any]]:
    data = CLASSES["hundred classes"]
    for name, weight in {
        "hundred classes": np.ones(200),
        "hundred classes, weights": np.arange(200) % 5 / 4,
    }.items():
        rows = kc.calibrators.CompactLogits()
        for part in (slice(70), slice(70, None)):
            rows.update(data.labels[part], data.logits[part], weight[part])
        for temperature in (1.0, 1.7):
            found = {"likelihood": rows.nll(temperature)}
            found["by bin"] = rows.ece(temperature)
            yield f"compact rows at {temperature}/{name}", found
        best = rows.optimal_temperature()
        yield f"best temperature of compact rows/{name}", best
        made = kc.TemperatureScaling().fit(rows)
        yield f"temperature of compact rows/{name}", made(data.logits[:2])


def _of_images() -> Iterator[tuple[str, Any]]:
    """Known filters, and filters that a short training of Keras finds."""
    rng = np.random.default_rng(96)
    made = kc.LocalTemperatureScaling(
        depth=1,
        kernel_size=3,
        dilation_rate=1,
        temperature=1.5,
        kernel=rng.integers(-16, 17, (3, 3, 3, 3)) / 64,
        bias=rng.integers(-16, 17, 3) / 64,
    )
    yield "temperature by place/pixels", _answers(made, PIXELS, 1)
    found = made.temperature_map(PIXELS.logits[:1])
    yield "temperature by place, map/pixels", found
    labels, logits = _sure_on_the_left()
    made = kc.LocalTemperatureScaling(
        depth=1,
        kernel_size=3,
        dilation_rate=1,
        learning_rate=0.05,
        batch_size=4,
        epochs=6,
    ).fit(labels, logits)
    yield (
        "temperature by place, fitted/images",
        made.temperature_map(logits[:1]),
    )


def _sure_on_the_left() -> tuple[Any, Any]:
    """Images whose left half is far too sure, and leans to one class."""
    rng = np.random.default_rng(3)
    left = (np.arange(10) < 5)[:, None]
    logits = rng.integers(-64, 65, (12, 10, 10, 3)) / 16
    noise = rng.gumbel(size=logits.shape)
    labels = np.argmax(logits / np.where(left, 6.0, 0.7) + noise, axis=-1)
    return labels, (logits + left * [0.0, 0.0, 4.0]).astype("float32")


def _chosen() -> Iterator[tuple[str, Any]]:
    for name, candidates in {
        "ten classes": [kc.TemperatureScaling(), kc.VectorScaling()],
        "two classes": [kc.TemperatureScaling(), kc.AffineScaling()],
        "tokens": [kc.TemperatureScaling(), kc.HistogramBinning()],
    }.items():
        data = CLASSES[name]
        found = tried(
            kc.choose_calibrator,
            data.labels,
            data.logits,
            data.weight,
            candidates=candidates,
            num_folds=3,
            seed=2,
        )
        yield f"choice of a calibrator/{name}", _told_of_choice(found)


def _told_of_choice(found: Any) -> Any:
    """What a choice tells, by place in the list of candidates."""
    if isinstance(found, dict):
        return found
    names = [one.name for one in found.candidates]
    return {
        "place": names.index(found.name),
        "candidates": [
            {
                "likelihood": one.nll,
                "difference": one.difference,
                "interval": (one.low, one.high),
                "behind": one.behind,
                "error": one.error,
                "by bin": one.ece,
            }
            for one in found.candidates
        ],
    }


def _posteriors() -> Iterator[tuple[str, Any]]:
    """Of a known table, and of fits."""
    rng = np.random.default_rng(95)
    # The frozen values are of the numbers that follow these.
    rng.integers(-8, 9, (2, 20, 10))
    known = kc.GaussianProcessCalibration(
        temperature=1.25,
        uniform_share=0.02,
        bounds=[-6.0, 0.0],
        offsets=rng.integers(-16, 17, 7) / 64,
        deviations=rng.integers(-16, 17, (4, 7)) / 64,
    )
    rows = CLASSES["ten classes"].logits[:6]
    yield from _of_draws("gaussian process", "ten classes", known, rows)
    for name in ("ten classes", "two classes"):
        made = kc.GaussianProcessCalibration(num_inducing_points=6)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", RuntimeWarning)
            fitted = _fitted(made, CLASSES[name])
        rows = CLASSES[name].logits[:6]
        yield from _of_draws("gaussian process, fitted", name, fitted, rows)


def _of_draws(
    quantity: str, name: str, made: Any, logits: Any
) -> Iterator[tuple[str, Any]]:
    """The mean of a posterior for some rows, and its intervals."""
    yield f"{quantity}/{name}", made(logits)
    low, high = made.credible_interval(logits, 0.9)
    yield f"{quantity}, interval/{name}", {"low": low, "high": high}


def quantities() -> Iterator[tuple[str, Any]]:
    """All of them."""
    keras.utils.set_random_seed(0)
    yield from _of_classes()
    yield from _intervals()
    yield from _compact()
    yield from _of_images()
    yield from _chosen()
    yield from _posteriors()
