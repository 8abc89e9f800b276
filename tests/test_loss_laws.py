"""Laws that every loss obeys, on random batches.

Each law is compiled once for each loss and then tried on many batches of one
shape, so that dozens of examples of each take a fraction of a second.
"""

import functools

import numpy as np
import pytest
from cases import BACKEND
from cases import HAS_FLOAT64
from cases import LOSSES
from cases import array
from cases import one_hot
from cases import softmax
from hypothesis import assume
from hypothesis import given
from hypothesis import settings
from hypothesis import strategies as st
from keras import ops

import keras_calib as kc
from keras_calib.backend.gradients import value_and_grad

pytestmark = pytest.mark.portable
# Where all six logits tie, probabilities are 1/6: no threshold of FLSD, where
# the last digit decides, and not the accuracy of a batch, where the root of
# MMCE would be that of rounding.
N, K = 8, 6
DROPPED = 3
# Of eight rows each. Fewer on the other backends, which run the same formulas,
# and JAX compiles each law of each loss for half a second.
EXAMPLES = 60 if BACKEND == "tensorflow" else 40
law = settings(max_examples=EXAMPLES, deadline=None)
SEEDS = st.integers(0, 2**32 - 1)
SCALES = st.sampled_from((0.1, 3.0, 30.0))
CASES = {case.name: case for case in LOSSES}


def over(condition=lambda case: True):
    names = [name for name, case in CASES.items() if condition(case)]
    return pytest.mark.parametrize("name", names)


every_loss = over()
invariant = over(lambda case: case.shift_invariant)


def compiled(function):
    if BACKEND == "tensorflow":
        import tensorflow as tf

        return tf.function(function, autograph=False)
    if BACKEND == "jax":
        import jax

        return jax.jit(function)
    return function


def batch(seed, scale, *, tied=False, n=N, k=K):
    """Class ids `(n,)` and logits `(n, k)`, in steps of 1/64 or of 1."""
    rng = np.random.default_rng(seed)
    step = 1.0 if tied else 1 / 64
    logits = np.round(rng.normal(size=(n, k)) * scale / step) * step
    if not tied:
        # Steps of 1/64 can tie: move each class by less than a step.
        logits += np.arange(k) / 1024
    logits += 0.0  # No -0.0, which argmax of TensorFlow puts below 0.0.
    return rng.integers(k, size=n), logits.astype("float32")


def call(function, *arguments):
    """Arrays from arrays, at the precision that they have."""
    values = function(*(ops.convert_to_tensor(x) for x in arguments))
    return [array(x) for x in values]


def close(actual, expected, relative=1e-5, absolute=1e-6):
    """Equal but for float32 rounding, relative to the largest entry."""
    largest = np.abs(expected).max(initial=0.0)
    tolerance = relative * largest + absolute
    np.testing.assert_allclose(actual, expected, rtol=0, atol=tolerance)


def smooth(name, tied):
    """Whether the gradient is sure to be that of one side.

    Tied logits make differences of means exactly 0 but for rounding, where
    |x| has its kink.
    """
    return not (tied and CASES[name].batch_coupled)


@functools.cache
def sum_and_gradient(name, **options):
    """(labels, logits, weight) to the weighted sum and its gradient."""
    loss = CASES[name].make(reduction="sum", **options)

    def function(labels, logits, weight):
        return value_and_grad(lambda z: loss(labels, z, weight), logits)

    return compiled(function)


def evaluate(name, labels, logits, weight=None, **options):
    if weight is None:
        weight = np.ones(len(logits), "float32")
    labels = CASES[name].labels(labels)
    return call(sum_and_gradient(name, **options), labels, logits, weight)


# Finite everywhere.


@functools.cache
def in_every_precision(name):
    """Sum and gradient in float32, and from logits in half precision."""
    loss = CASES[name].make(reduction="sum")
    dtypes = ["float32", "bfloat16", "float16"]
    # Compiling takes long on JAX; test_losses.py tries each there.
    dtypes = dtypes[:1] if BACKEND == "jax" else dtypes

    def function(labels, logits):
        found = []
        for dtype in dtypes:
            value, gradient = value_and_grad(
                lambda z: loss(labels, z), ops.cast(logits, dtype)
            )
            found += [value, ops.cast(gradient, "float32")]
        return found

    return compiled(function)


@every_loss
@law
@given(seed=SEEDS)
def test_huge_logits_give_finite_values_and_gradients(name, seed):
    rng = np.random.default_rng(seed)
    logits = rng.choice([-1e4, -90.0, 0.0, 20.0, 1e4], size=(N, K))
    labels = CASES[name].labels(rng.integers(K, size=N))
    found = call(in_every_precision(name), labels, logits.astype("float32"))
    assert all(np.isfinite(x).all() for x in found)


@every_loss
@pytest.mark.parametrize("k", [2, 3])
@pytest.mark.parametrize("truth", ["right", "wrong", "tied"])
@pytest.mark.parametrize("n", [1, 7])
def test_small_batches_and_few_classes_are_finite(name, k, truth, n):
    _, logits = batch(n, 3.0, n=n, k=k)
    labels = logits.argmax(axis=-1)
    if truth == "wrong":
        labels = logits.argmin(axis=-1)
    elif truth == "tied":
        logits = np.zeros_like(logits)
    loss = CASES[name].make()
    labels = CASES[name].labels(labels)
    value, gradient = value_and_grad(
        lambda z: loss(labels, z), ops.convert_to_tensor(logits)
    )
    assert np.isfinite(float(value))
    assert np.isfinite(array(gradient)).all()


# What must change nothing.


@invariant
@law
@given(seed=SEEDS, scale=SCALES, tied=st.booleans(), shift=st.integers(-60, 60))
def test_adding_a_constant_to_the_logits_changes_nothing(
    name, seed, scale, tied, shift
):
    labels, logits = batch(seed, scale, tied=tied)
    value, gradient = evaluate(name, labels, logits)
    # The sum is exact in float32: logits are multiples of 1/1024.
    moved, same = evaluate(name, labels, logits + np.float32(shift))
    close(moved, value)
    close(same, gradient)


@invariant
@law
@given(seed=SEEDS, scale=SCALES, tied=st.booleans())
def test_gradient_sums_to_zero_over_the_classes(name, seed, scale, tied):
    labels, logits = batch(seed, scale, tied=tied)
    _, gradient = evaluate(name, labels, logits)
    rest = np.abs(gradient.sum(axis=-1, dtype="float64"))
    assert rest.max() <= 1e-6 * (1 + np.abs(gradient).max())


@every_loss
@law
@given(seed=SEEDS, scale=SCALES, tied=st.booleans())
def test_renaming_the_classes_changes_nothing(name, seed, scale, tied):
    labels, logits = batch(seed, scale, tied=tied)
    order = np.random.default_rng(seed).permutation(K)
    value, gradient = evaluate(name, labels, logits)
    renamed, moved = evaluate(name, np.argsort(order)[labels], logits[:, order])
    # Of tied classes another may come first: the gradient goes there, and
    # that prediction may be right where the other was wrong.
    if not (tied and CASES[name].batch_coupled):
        close(renamed, value)
    if not tied:
        close(moved, gradient[:, order])


@over(lambda case: not case.objectness)
@law
@given(seed=SEEDS, scale=SCALES, tied=st.booleans())
def test_ids_and_one_hot_labels_agree(name, seed, scale, tied):
    labels, logits = batch(seed, scale, tied=tied)
    value, gradient = evaluate(name, labels, logits)
    rows = one_hot(labels, K).astype("float32")
    other, same = evaluate(name, rows, logits)
    close(other, value, 1e-6)
    close(same, gradient, 1e-6)
    column, same = evaluate(name, labels[:, None], logits)
    close(column, value, 1e-6)
    close(same, gradient, 1e-6)


@invariant
@law
@given(seed=SEEDS, scale=st.sampled_from((0.1, 1.0, 3.0)))
def test_probabilities_and_logits_agree(name, seed, scale):
    labels, logits = batch(seed, scale)
    probs = softmax(logits.astype("float64")).astype("float32")
    value, _ = evaluate(name, labels, logits)
    other, _ = evaluate(name, labels, probs, from_logits=False)
    close(other, value, 1e-5)


@functools.cache
def limit(name):
    case = CASES[name]
    loss = case.cls(from_logits=True, reduction="sum", **case.limit)
    return compiled(
        lambda labels, logits: value_and_grad(lambda z: loss(labels, z), logits)
    )


@over(lambda case: case.limit is not None)
@law
@given(seed=SEEDS, scale=SCALES, tied=st.booleans())
def test_without_its_regulariser_a_loss_is_cross_entropy(
    name, seed, scale, tied
):
    labels, logits = batch(seed, scale, tied=tied)
    value, gradient = call(limit(name), CASES[name].labels(labels), logits)
    probs = softmax(logits.astype("float64"))
    rows = one_hot(labels, K)
    shifted = logits - logits.max(axis=-1, keepdims=True).astype("float64")
    log_total = np.log(np.exp(shifted).sum(axis=-1))
    close(value, np.sum(log_total - (rows * shifted).sum(axis=-1)))
    close(gradient, probs - rows)


# Weights and ignored labels.


@functools.cache
def reductions(name):
    """Sum, mean and single values by weight; the sum's gradient."""
    case = CASES[name]
    kinds = ("mean_with_sample_weight", "none")
    total = case.make(reduction="sum")
    losses = [case.make(reduction=kind) for kind in kinds]

    def function(labels, logits, weight):
        pair = value_and_grad(lambda z: total(labels, z, weight), logits)
        return *pair, *(loss(labels, logits, weight) for loss in losses)

    return compiled(function)


@every_loss
@law
@given(seed=SEEDS, scale=SCALES, tied=st.booleans())
def test_weight_zero_equals_a_dropped_row(name, seed, scale, tied):
    labels, logits = batch(seed, scale, tied=tied)
    rng = np.random.default_rng(seed)
    labels = CASES[name].labels(labels)
    weight = rng.uniform(0.5, 2.0, size=N).astype("float32")
    weight[rng.permutation(N)[:DROPPED]] = 0.0
    kept = weight > 0
    value, gradient, mean, each = call(reductions(name), labels, logits, weight)
    expected = call(reductions(name), labels[kept], logits[kept], weight[kept])
    close(value, expected[0])
    if smooth(name, tied):
        close(gradient[kept], expected[1])
    assert (gradient[~kept] == 0).all()
    close(mean, expected[2])
    close(each[kept], expected[3])
    assert (each[~kept] == 0).all()


@every_loss
@law
@given(seed=SEEDS, scale=SCALES, tied=st.booleans())
def test_weight_two_equals_the_row_twice(name, seed, scale, tied):
    labels, logits = batch(seed, scale, tied=tied)
    labels = CASES[name].labels(labels)
    weight = np.ones(N, "float32")
    weight[:2] = 2.0
    twice = np.concatenate([np.arange(N), [0, 1]])
    function = sum_and_gradient(name)
    value, gradient = call(function, labels, logits, weight)
    expected, slopes = call(
        function, labels[twice], logits[twice], np.ones(N + 2, "float32")
    )
    close(value, expected)
    slopes[:2] += slopes[N:]
    if smooth(name, tied):
        close(gradient, slopes[:N])


@functools.cache
def ignoring(name):
    """Means and gradients with 255 and with -100 for an ignored label."""
    case = CASES[name]
    losses = [case.make(ignore_class=i) for i in (255, -100)]

    def function(labels, logits):
        both = (labels, ops.where(ops.equal(labels, 255), -100, labels))
        found = []
        for y, loss in zip(both, losses, strict=True):
            found += value_and_grad(lambda z, y=y, f=loss: f(y, z), logits)
        return found

    return compiled(function)


@functools.cache
def mean_and_gradient(name):
    loss = CASES[name].make()
    return compiled(
        lambda labels, logits: value_and_grad(lambda z: loss(labels, z), logits)
    )


@every_loss
@law
@given(seed=SEEDS, scale=SCALES, tied=st.booleans())
def test_an_ignored_label_equals_a_deleted_one(name, seed, scale, tied):
    labels, logits = batch(seed, scale, tied=tied)
    lost = np.random.default_rng(seed).permutation(N)[:DROPPED]
    kept = np.setdiff1d(np.arange(N), lost)
    labels[lost] = 255
    logits[lost] = np.nan
    labels = CASES[name].labels(labels)
    expected, slopes = call(mean_and_gradient(name), labels[kept], logits[kept])
    # As floats, which hold 255 and -100 too.
    found = call(ignoring(name), labels.astype("float32"), logits)
    for value, gradient in (found[:2], found[2:]):
        close(value, expected)
        assert (gradient[lost] == 0).all()
        if smooth(name, tied):
            close(gradient[kept], slopes)


@every_loss
def test_all_labels_ignored_gives_zero(name):
    labels, logits = batch(0, 3.0)
    labels = CASES[name].labels(np.full_like(labels, 255))
    for value in call(ignoring(name), labels.astype("float32"), logits):
        assert (value == 0).all()


# Derivatives.


@functools.cache
def total_of_values(name):
    """(one-hot labels, logits) to the sum and its gradient, in float64."""
    case = CASES[name]
    return compiled(
        lambda labels, logits: value_and_grad(
            lambda z: ops.sum(case.values(labels, z)), logits
        )
    )


@pytest.mark.skipif(not HAS_FLOAT64, reason="JAX computes in 32 bits")
@invariant  # The released ACLS stops a gradient on purpose.
@law
@given(seed=SEEDS, scale=st.sampled_from((0.1, 3.0, 10.0)))
def test_gradient_is_the_finite_difference(name, seed, scale):
    rng = np.random.default_rng(seed)
    labels = one_hot(rng.integers(K, size=N), K)
    logits = rng.normal(size=(N, K)) * scale
    direction = rng.normal(size=(N, K))
    step = 1e-5
    function = total_of_values(name)
    value, gradient = call(function, labels, logits)
    up, _ = call(function, labels, logits + step * direction)
    down, _ = call(function, labels, logits - step * direction)
    # A kink or a jump within the step has no derivative.
    assume(abs(up - 2 * value + down) < 1e-7 * (1 + abs(value)))
    slope = (up - down) / (2 * step)
    expected = np.sum(gradient * direction)
    assert abs(slope - expected) <= 1e-6 * (1 + np.abs(gradient).max())


# Single losses.


@law
@given(seed=SEEDS, scale=SCALES)
def test_mbls_lies_between_the_bounds_of_its_proposition_1(seed, scale):
    rng = np.random.default_rng(seed)
    logits = rng.normal(size=(N, K)) * scale
    labels = one_hot(rng.integers(K, size=N), K)
    plain = array(kc.label_smoothing(labels, logits, alpha=0.0))
    distance = array(kc.mbls(labels, logits, margin=0.0, strength=1.0)) - plain
    # Divergence of uniform from the prediction, up to the constant log K.
    divergence = -np.log(softmax(logits)).mean(axis=-1)
    slack = 1e-4 * (1 + divergence)
    assert (distance <= divergence + slack).all()
    assert (distance >= divergence - np.log(K) - slack).all()


@law
@given(seed=SEEDS, alpha=st.floats(0.01, 0.5), share=st.floats(0, 1))
def test_label_relaxation_is_convex_in_the_prediction(seed, alpha, share):
    rng = np.random.default_rng(seed)
    one, other = rng.dirichlet(np.full(K, 0.3), size=(2, N)) + 1e-6
    labels = one_hot(rng.integers(K, size=N), K)

    def loss(probs):
        return array(
            kc.label_relaxation(labels, np.log(probs), alpha=alpha)
        ).astype("float64")

    between = loss(share * one + (1 - share) * other)
    chord = share * loss(one) + (1 - share) * loss(other)
    assert (between <= chord + 1e-5 * (1 + chord)).all()


@law
@given(seed=SEEDS, alpha=st.floats(0.01, 0.5))
def test_label_relaxation_sees_only_the_true_probability(seed, alpha):
    rng = np.random.default_rng(seed)
    labels = one_hot(np.zeros(N, int), K)
    true = rng.uniform(0.01, 0.99, size=(N, 1))
    losses = []
    for _ in range(2):
        wrong = rng.dirichlet(np.ones(K - 1), size=N) * (1 - true)
        probs = np.concatenate([true, wrong], axis=-1)
        logits = np.log(np.maximum(probs, 1e-12))
        losses.append(array(kc.label_relaxation(labels, logits, alpha=alpha)))
    close(losses[0], losses[1], 1e-5)


@law
@given(
    seed=SEEDS,
    beta=st.floats(0, 1),
    floor=st.sampled_from((None, "uniform")),
    k=st.integers(2, 12),
)
def test_the_adaptive_target_keeps_its_floor(seed, beta, floor, k):
    rng = np.random.default_rng(seed)
    labels = rng.integers(k, size=N)
    objectness = rng.choice([0.0, 1e-3, rng.uniform(), 1.0], size=N)
    targets = kc.objectness_targets(labels, objectness, k, beta, floor)
    np.testing.assert_allclose(targets.sum(axis=-1), 1.0, atol=1e-12)
    assert (targets >= 0).all()
    true = targets[np.arange(N), labels]
    assert (true >= 1 - beta - 1e-12).all()
    if floor == "uniform":
        assert (true >= targets.max(axis=-1) - 1e-12).all()


@law
@given(seed=SEEDS, k=st.integers(3, 7))
def test_exclusion_of_cpc_is_least_where_wrong_classes_are_equal(seed, k):
    rng = np.random.default_rng(seed)
    labels = one_hot(np.zeros(N, int), k)
    logits = rng.normal(size=(N, k)) * 3
    even = logits.copy()
    even[:, 1:] = logits[:, 1:].mean(axis=-1, keepdims=True)

    def exclusion(z):
        both = kc.cpc(labels, z, lambda1=0.0, lambda2=1.0)
        return array(both) - array(kc.label_smoothing(labels, z, alpha=0.0))

    np.testing.assert_allclose(exclusion(even), np.log(2) / 2, rtol=1e-4)
    assert (exclusion(logits) >= np.log(2) / 2 - 1e-5).all()


def plain_mmce(confidence, right, weight, width, variant):
    """The double sum over pairs, as the formulas say it."""
    kernel = np.exp(-np.abs(confidence[:, None] - confidence) / width)
    wrong = 1 - right
    u, v = weight * right * (1 - confidence), weight * wrong * confidence
    a, b, c = u @ kernel @ u, v @ kernel @ v, u @ kernel @ v
    m, n = (weight * right).sum(), (weight * wrong).sum()
    if variant.startswith("unweighted"):
        square = (a + b - 2 * c) / (m + n) ** 2
        return square if variant == "unweighted" else np.sqrt(square + 1e-10)
    if variant == "weighted":
        square = sum(
            part / count
            for part, count in ((a, m * m), (b, n * n), (-2 * c, m * n))
            if count
        )
        return np.sqrt(square + 1e-10)
    if not m * n:
        return 0.0
    square = sum(
        part / count / (count + 1e-5)
        for part, count in ((a, m * m), (b, n * n), (-2 * c, m * n))
    )
    return np.sqrt(square + 1e-10)


@pytest.mark.parametrize(
    "variant",
    ["unweighted", "unweighted_sqrt", "weighted", "weighted_released"],
)
@law
@given(
    seed=SEEDS,
    width=st.sampled_from((0.02, 0.4, 3.0)),
    kinds=st.integers(1, 24),
)
def test_mmce_equals_the_sum_over_all_pairs(variant, seed, width, kinds):
    rng = np.random.default_rng(seed)
    dtype = "float64" if HAS_FLOAT64 else "float32"
    rows = rng.normal(size=(kinds, K)) * 3
    logits = rows[rng.integers(kinds, size=24)].astype(dtype)
    labels = np.where(
        rng.integers(2, size=24), logits.argmax(axis=-1), rng.integers(K)
    )
    weight = rng.integers(0, 3, size=24) * rng.uniform(0.5, 2.0)
    assume(weight.sum() > 0)
    value = kc.mmce(
        one_hot(labels, K).astype(dtype),
        logits,
        kernel_width=width,
        variant=variant,
        sample_weight=weight.astype(dtype),
    )
    right = (logits.argmax(axis=-1) == labels).astype("float64")
    confidence = softmax(logits.astype("float64")).max(axis=-1)
    expected = plain_mmce(confidence, right, weight, width, variant)
    close(float(value), expected, 1e-9 if HAS_FLOAT64 else 1e-4)


def test_a_wrong_class_may_be_ruled_out_by_a_logit_of_minus_infinity():
    ids, logits = batch(3, 3.0)
    places = np.arange(N), (ids + 1) % K
    infinite, low = logits.copy(), logits.copy()
    infinite[places], low[places] = -np.inf, -80.0
    for name, case in CASES.items():
        weight = np.ones(N, "float32")
        run = sum_and_gradient(name)
        labels = case.labels(ids)
        value, gradient = call(run, labels, infinite, weight)
        assert np.isfinite(value), name
        assert np.isfinite(gradient).all(), name
        if value < 1e14:
            near, near_gradient = call(run, labels, low, weight)
            close(value, near)
            close(gradient, near_gradient)
    # Those that pull on every class have no limit; all others have one.
    nowhere = np.full_like(logits, -np.inf)
    for cls in (kc.FocalLoss, kc.MbLS, kc.MMCE):
        assert np.isnan(float(cls(from_logits=True)(ids, nowhere)))
