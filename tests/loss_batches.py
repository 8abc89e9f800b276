"""The batches on which losses are compared, and one graph for each loss."""

import functools

import numpy as np
from cases import BACKEND, LOSSES, array
from keras import ops

from keras_calib.backend.gradients import value_and_grad

# Where all six logits tie, probabilities are 1/6: no threshold of FLSD, where
# the last digit decides, and not the accuracy of a batch, where the root of
# MMCE would be that of rounding.
K = 6
CASES = {case.name: case for case in LOSSES}
# The first case of each class.
FIRST = list({case.cls: case for case in reversed(LOSSES)}.values())
# JAX compiles each loss for a second, and runs the same formulas.
ALL = FIRST if BACKEND == "jax" else LOSSES
PER_SAMPLE = [case for case in ALL if not case.batch_coupled]
COUPLED = [case for case in ALL if case.batch_coupled]
INVARIANT = [case for case in ALL if case.shift_invariant]
# One of soft labels, of the batch, of pairs; of hard labels, with a fidelity.
REPRESENTATIVES = [
    CASES[name]
    for name in (
        "MbLS",
        "MMCE-weighted",
        "AdaptiveLabelSmoothing",
        *(() if BACKEND == "jax" else ("FLSD", "MDCA-focal")),
    )
]
# Eager code of JAX compiles each operation for each shape.
HERE = REPRESENTATIVES if BACKEND == "jax" else LOSSES


def draws(case, scales=(0.1, 3.0, 30.0), ties=(False, True)):
    """Yields `(ids, logits, tied)`; float32 logits that rounding keeps.

    A loss that looks at single samples gets one batch of 480 rows, of each
    scale as many, half of them tied; one of the batch gets batches of 8.
    """
    size = 8 if case.batch_coupled else 480 // (len(scales) * len(ties))
    parts = []
    for seed in range(2 if case.batch_coupled else 1):
        rng = np.random.default_rng(seed)
        for scale in scales:
            for tied in ties:
                # Steps of 1/64 can tie: move each class by less.
                step, apart = (1.0, 0.0) if tied else (1 / 64, 1 / 1024)
                logits = rng.normal(size=(size, K)) * scale / step
                logits = np.round(logits) * step + apart * np.arange(K)
                # No -0.0, which argmax of TensorFlow puts below 0.0.
                logits = (logits + 0.0).astype("float32")
                ids, tied_rows = rng.integers(K, size=size), np.full(size, tied)
                parts.append((ids, logits, tied_rows))
    if case.batch_coupled:
        return parts
    return [tuple(np.concatenate(x) for x in zip(*parts, strict=True))]


def compiled(function, **options):
    """As its backend compiles it; torch runs eagerly."""
    if BACKEND == "tensorflow":
        import tensorflow as tf

        return tf.function(function, autograph=False, **options)
    if BACKEND == "jax":
        import jax

        return jax.jit(function)
    return function


def losses_and_gradient(loss):
    """A function of labels, logits and weights to both."""

    def run(labels, logits, weight):
        losses = []

        def total(z):
            losses.append(loss(labels, z, weight))
            return ops.sum(losses[-1])

        if BACKEND == "jax":
            import jax

            run = jax.value_and_grad(lambda z: (total(z), losses[-1]), 0, True)
            (_, values), gradient = run(logits)
            return values, gradient
        _, gradient = value_and_grad(total, logits)
        return ops.stop_gradient(losses[-1]), gradient

    return run


def _arrays(function, case, ids, logits, weight):
    labels = case.labels(ids) if np.ndim(ids) == 1 else ids
    weight = np.ones(len(logits)) if weight is None else weight
    weight = np.asarray(weight, "float32")
    found = function(*map(ops.convert_to_tensor, (labels, logits, weight)))
    return [array(ops.cast(x, "float32")) for x in found]


@functools.cache
def _graph(name):
    loss = CASES[name].make(reduction="none", ignore_class=255)
    return compiled(losses_and_gradient(loss))


def in_a_graph(case, ids, logits, weight=None):
    """Weighted losses and the gradient of their sum; 255 is ignored.

    Each loss is traced once for each shape.
    """
    return _arrays(_graph(case.name), case, ids, logits, weight)


def run_once(function):
    """Runs eagerly; but JAX would then compile each operation."""
    return compiled(function) if BACKEND == "jax" else function


def eager(case, ids, logits, weight=None, **options):
    """The same, eagerly if not on JAX; `ids` may be labels in any form."""
    loss = case.make(reduction="none", **options)
    function = run_once(losses_and_gradient(loss))
    return _arrays(function, case, ids, logits, weight)


def agree(case, actual, expected, relative=1e-5, absolute=1e-6):
    """Equal but for float32 rounding, relative to each row's largest."""
    expected = np.asarray(expected)
    largest = np.abs(expected)
    if largest.ndim > 1:
        largest = largest.max(axis=-1, keepdims=True)
    if case.batch_coupled:
        largest = largest.max(initial=0.0)
    error = np.abs(actual - expected) - relative * largest
    assert error.max(initial=0.0) <= absolute, f"{case}: {error.max()}"


def smooth(case, tied):
    """Where the gradient is sure to be that of one side.

    Tied logits make differences of means exactly 0 but for rounding, where
    |x| has its kink.
    """
    return ~(tied & case.batch_coupled)
