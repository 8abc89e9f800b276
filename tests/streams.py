"""Predictions that stream into metrics, in each way of a backend."""

import numpy as np
from cases import BACKEND, METRICS, array, softmax
from keras import ops

from keras_calib.metrics.states.composite import CompositeSummary
from keras_calib.metrics.states.histogram import HistogramSummary
from keras_calib.metrics.states.sums import BinSummary, MomentSummary
from keras_calib.numerics import exact_sums

# One of each kind of state; the table has those of 25 metrics in it, and
# computes all their values at once.
STATES = [
    case
    for case in METRICS
    if case.name in ("CalibrationMetrics", "ClasswiseECE")
    or BACKEND == "tensorflow"
    and case.name in ("ECE-left", "ClasswiseECE-mass", "AURC-max_logit")
]


# Those that read all classes, and the predicted one.
ALL_CLASSES = [
    case
    for case in METRICS
    if case.name in ("CalibrationMetrics", "ClasswiseECE")
]


def case_of(name):
    return next(case for case in METRICS if case.name == name)


def stream(metric, labels, outputs, weight=None, batch=100):
    """Updates by batches; few sizes are few programs for JAX to compile."""
    for start in range(0, len(labels), batch):
        part = slice(start, start + batch)
        metric.update_state(
            labels[part],
            outputs[part],
            None if weight is None else weight[part],
        )
    return metric


def state(metric):
    return array(metric.sums.value)


def holds(case, metric, weight):
    """Whether the state holds exactly this weight in all."""
    if not case.holds_all:
        return weight_of(metric.summary, state(metric)) <= weight
    return weight_of(metric.summary, state(metric)) == weight


def weight_of(summary, limbs):
    if isinstance(summary, CompositeSummary):
        parts = summary.split(limbs)
        weights = {weight_of(summary.parts[k], v) for k, v in parts.items()}
        assert len(weights) == 1
        return weights.pop()
    if isinstance(summary, MomentSummary):
        return summary.moments(limbs).weight
    if isinstance(summary, HistogramSummary):
        return summary.cells(limbs).mass.sum()
    if isinstance(summary, BinSummary):
        return summary.bins(limbs).weight.sum()
    return exact_sums.to_float(limbs[:, -1])


def same_state(metric, other):
    """Equal sums, but for the rounding of a logarithm of few predictions.

    Vector code rounds the end of an array in another way than its inside.
    """
    a, b = state(metric), state(other)
    differs = (a != b).any(axis=0)
    assert differs.sum() <= 2
    np.testing.assert_allclose(
        exact_sums.to_float(a), exact_sums.to_float(b), atol=1e-4
    )


def predictions(seed=0, n=1000, num_classes=4):
    """Labels and float32 probabilities of an overconfident classifier."""
    rng = np.random.default_rng(seed)
    logits = rng.normal(size=(n, num_classes)) * 3
    labels = np.array(
        [rng.choice(num_classes, p=p) for p in softmax(logits / 2)]
    )
    return labels, softmax(logits).astype("float32")


def compiled_update(metric):
    """Updates compiled where the backend compiles, as `fit` does."""
    if BACKEND == "tensorflow":
        import tensorflow as tf

        return tf.function(
            metric.update_state, autograph=False, reduce_retracing=True
        )
    return metric.update_state


def updated_compiled(metric, *batch, jit=(False, True)):
    """Updates a metric in compiled code, in each way of the backend."""
    if BACKEND == "tensorflow":
        import tensorflow as tf

        for jit_compile in jit:
            metric.reset_state()
            update = tf.function(
                metric.update_state, jit_compile=jit_compile, autograph=False
            )
            update(*map(tf.constant, batch))
            yield
    else:
        import jax

        variables = jax.jit(metric.stateless_update_state)(
            metric.stateless_reset_state(), *batch
        )
        for own, value in zip(metric.variables, variables, strict=True):
            own.assign(value)
        yield


def compiled(function, by_xla=True):
    """The function under the compiler of the backend, or in a graph."""
    if BACKEND == "tensorflow":
        import tensorflow as tf

        return tf.function(function, jit_compile=by_xla, autograph=False)
    if BACKEND == "jax":
        import jax

        return jax.jit(function)
    return function


def program_of(metric, by_xla=True):
    """Updates of a metric from nothing, in one compiled program."""
    if BACKEND != "jax":
        update = compiled(metric.update_state, by_xla)

        def run(*batch):
            metric.reset_state()
            update(*batch)

        return run
    update = compiled(metric.stateless_update_state)

    def run(*batch):
        found = update(metric.stateless_reset_state(), *batch)
        for own, value in zip(metric.variables, found, strict=True):
            own.assign(value)

    return run


def result_compiled(metric, by_xla=True):
    variables = [ops.convert_to_tensor(x) for x in metric.variables]
    if BACKEND == "jax":
        return compiled(metric.stateless_result)(variables)
    return compiled(metric.result, by_xla)()
