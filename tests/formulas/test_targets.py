"""Soft targets: the stored ones, closed forms, and plain double loops."""

import numpy as np
import pytest
from cases import array
from cases import one_hot
from cases import softmax
from keras import ops

import keras_calib as kc

pytestmark = pytest.mark.portable

CAPE = {
    "bin10": {},
    "bin7": {"num_bins": 7},
    "kde_s0.1_w500": {"method": "kernel"},
    "kde_s0.05_w6": {"method": "kernel", "sigma": 0.05, "window": 6},
}
each_cape = pytest.mark.parametrize("name", CAPE)
BY_NEIGHBOURS = {"method": "kernel", "window": 50}


def close(got, expected, tolerance=1e-12):
    np.testing.assert_allclose(array(got), expected, rtol=0, atol=tolerance)


# Label smoothing.


@pytest.mark.parametrize("alpha", [0.0, 0.1, 1.0, -0.4])
def test_smoothing_over_all_classes_keeps_1_less_alpha_and_a_share(alpha):
    got = kc.smooth_labels(np.eye(4), alpha=alpha)
    expected = np.full((4, 4), alpha / 4)
    np.fill_diagonal(expected, 1 - alpha + alpha / 4)
    close(got, expected)
    assert got.dtype == "float64"


@pytest.mark.parametrize("alpha", [0.0, 0.1, 1.0, -0.4])
def test_smoothing_over_the_others_keeps_1_less_alpha(alpha):
    got = kc.smooth_labels(np.eye(4), alpha=alpha, spread="others")
    expected = np.full((4, 4), alpha / 3)
    np.fill_diagonal(expected, 1 - alpha)
    close(got, expected)


def test_soft_labels_are_smoothed_class_by_class():
    soft = np.array([[0.5, 0.3, 0.2, 0.0]])
    got = kc.smooth_labels(soft, alpha=0.4)
    close(got, [[0.4, 0.28, 0.22, 0.1]])
    # Each class keeps 0.7 of what it has and gives 0.1 to each other.
    got = kc.smooth_labels(soft, alpha=0.3, spread="others")
    close(got, 0.7 * soft + 0.1 * (1 - soft))


def test_each_label_can_have_an_alpha_of_its_own():
    labels, alpha = one_hot([2, 0, 1], 3), np.array([[0.0], [0.3], [0.6]])
    for spread in ("all", "others"):
        rows = [
            kc.smooth_labels(row, alpha=float(a), spread=spread)
            for row, (a,) in zip(labels, alpha, strict=True)
        ]
        close(kc.smooth_labels(labels, alpha=alpha, spread=spread), rows)


@pytest.mark.parametrize(
    ("options", "rule"),
    [
        ({"alpha": 0.1, "spread": "x"}, "`spread`"),
        ({"alpha": 1.1}, "`alpha`"),
        ({"alpha": 0.1, "labels": np.ones((3, 1))}, "shape"),
    ],
)
def test_bad_options_of_label_smoothing_are_refused(options, rule):
    with pytest.raises(ValueError, match=rule):
        kc.smooth_labels(**{"labels": np.eye(3), **options})


def test_smoothing_takes_lists_and_integers():
    expected = [[0.9, 0.05, 0.05]]
    for labels in ([[1, 0, 0]], np.array([[1, 0, 0]])):
        got = kc.smooth_labels(labels, alpha=0.1, spread="others")
        close(got, expected)
        labels = ops.convert_to_tensor(labels)
        got = kc.smooth_labels(labels, alpha=0.1, spread="others")
        close(got, expected, 1e-7)


@pytest.mark.parametrize("spread", ["all", "others"])
def test_smoothing_of_tensors_is_that_of_arrays(spread):
    labels = one_hot([[2, 0], [1, 1]], 3).astype("float32")
    got = kc.smooth_labels(
        ops.convert_to_tensor(labels), alpha=0.3, spread=spread
    )
    assert not isinstance(got, np.ndarray)
    expected = kc.smooth_labels(labels, alpha=0.3, spread=spread)
    close(got, expected, 1e-7)


# Adaptive label smoothing.


@pytest.mark.parametrize("data", ["A", "T"])
@pytest.mark.parametrize("beta", ["1", "0.75", "0"])
def test_objectness_targets_are_the_stored_ones(goldens, data, beta):
    expected = goldens[f"state/als/beta{beta}/{data}/targets"]
    labels, k = goldens[f"in/{data}/labels"], expected.shape[1]
    objectness = 1 - goldens[f"in/als/{data}/alpha"]
    for form in (labels, one_hot(labels, k)):
        got = kc.objectness_targets(form, objectness, k, float(beta))
        assert got.dtype == "float64"
        close(got, expected)


@pytest.mark.parametrize("beta", [0.0, 0.3, 1.0])
def test_whole_object_gives_the_label_and_no_object_the_least_target(beta):
    got = kc.objectness_targets([2, 2], [1.0, 0.0], 4, beta)
    close(got[0], [0.0, 0.0, 1.0, 0.0])
    close(got[1], [beta / 3, beta / 3, 1 - beta, beta / 3])


@pytest.mark.parametrize("beta", [0.0, 0.4, 0.75, 1.0])
def test_the_true_class_never_gets_less_than_1_less_beta(beta):
    objectness = np.linspace(0, 1, 11)
    got = kc.objectness_targets(np.zeros(11, int), objectness, 3, beta)
    close(got[:, 0], 1 - beta + beta * objectness)
    assert got[0, 0] == got[:, 0].min() == 1 - beta


def test_a_floor_stops_at_the_uniform_target():
    labels, objectness = [1] * 5, [0.0, 0.1, 0.25, 0.3, 1.0]
    free = kc.objectness_targets(labels, objectness, 4)
    close(free[:, 1], objectness)
    floored = kc.objectness_targets(labels, objectness, 4, floor="uniform")
    close(floored[:3], np.full((3, 4), 0.25))
    close(floored[3:], free[3:])
    # Half the smoothing: half way from the label to uniform.
    halved = kc.objectness_targets(labels, objectness, 4, 0.5, "uniform")
    close(halved[0], [0.125, 0.625, 0.125, 0.125])


@pytest.mark.parametrize("wrap", [np.asarray, ops.convert_to_tensor])
def test_context_has_exactly_the_uniform_target(wrap):
    labels, objectness = wrap([0, 1, 2, 2]), [0.0, 0.5, 1.0, 0.3]
    context = [True, False, True, False]
    for beta, floor in (
        (1.0, None),
        (0.25, None),
        (0.6, "uniform"),
        (0.0, None),
    ):
        options = {"beta": beta, "floor": floor}
        plain = array(kc.objectness_targets(labels, objectness, 3, **options))
        got = array(
            kc.objectness_targets(
                labels, objectness, 3, context=wrap(context), **options
            )
        )
        np.testing.assert_array_equal(got[[1, 3]], plain[[1, 3]])
        np.testing.assert_array_equal(got[[0, 2]], got.dtype.type(1 / 3))


def test_context_of_another_shape_is_refused():
    with pytest.raises(ValueError, match="`context` must have the shape"):
        kc.objectness_targets([0, 1], [0.5, 0.5], 3, context=[True])


@pytest.mark.parametrize("beta", [1.0, 0.4])
def test_pairs_flag_context_by_an_objectness_of_minus_1(beta):
    rng = np.random.default_rng(0)
    labels, objectness = rng.integers(4, size=8), rng.uniform(size=8)
    context = rng.integers(2, size=8)
    assert 0 < context.sum() < 8
    logits = rng.normal(size=(8, 4)).astype("float32")
    pairs = np.stack([labels, objectness], axis=-1).astype("float32")
    loss = kc.AdaptiveLabelSmoothing(beta, from_logits=True, reduction="none")
    plain = array(loss(pairs, logits))
    pairs[context == 1, 1] = -1
    got = array(loss(pairs, logits))
    probs = softmax(logits)
    uniform = -np.mean(np.log(probs), axis=-1)
    close(got, np.where(context == 1, uniform, plain), 1e-5)
    # To a metric nothing is to be seen.
    metric = kc.ObjectnessDeviation()
    metric.update_state(pairs, probs)
    shares = np.maximum(pairs[:, 1], 0)
    expected = kc.objectness_deviation(labels, probs, shares)
    assert float(metric.result()) == pytest.approx(expected, abs=1e-6)


@pytest.mark.parametrize("floor", [None, "uniform"])
def test_objectness_targets_of_tensors_are_those_of_arrays(floor):
    rng = np.random.default_rng(0)
    labels = rng.integers(5, size=(3, 4))
    objectness = rng.uniform(size=(3, 4)).astype("float32")
    expected = kc.objectness_targets(labels, objectness, 5, 0.9, floor)
    assert isinstance(expected, np.ndarray)
    assert expected.shape == (3, 4, 5)
    close(expected.sum(axis=-1), 1.0)
    for form in (labels, labels.astype("float32"), one_hot(labels, 5)):
        got = kc.objectness_targets(
            ops.convert_to_tensor(form), objectness, 5, 0.9, floor
        )
        assert not isinstance(got, np.ndarray)
        close(got, expected, 1e-6)


@pytest.mark.parametrize(
    ("arguments", "name"),
    [
        ((1,), "num_classes"),
        ((2.5,), "num_classes"),
        ((3, -0.1), "beta"),
        ((3, 1.1), "beta"),
        ((3, 1.0, "mean"), "floor"),
    ],
)
def test_bad_options_of_objectness_targets_are_refused(arguments, name):
    with pytest.raises((TypeError, ValueError), match=f"`{name}`"):
        kc.objectness_targets([0], [0.5], *arguments)


# CaPE.


@each_cape
def test_cape_targets_are_the_stored_ones(goldens, name):
    expected = goldens[f"state/cape/{name}/target_p1"]
    logits, labels = goldens["in/F/logits"], goldens["in/F/labels"]
    probs = softmax(logits)
    difference = logits[:, 1:] - logits[:, :1]
    for truth in (labels, one_hot(labels, 2)):
        close(kc.cape_targets(truth, probs, **CAPE[name]), expected)
    got = kc.cape_targets(labels, probs[:, 1:], **CAPE[name])
    close(got, expected)
    assert got.dtype == "float64"
    for form in (logits, difference):
        got = kc.cape_targets(labels, form, from_logits=True, **CAPE[name])
        close(got, expected)


def plain_kernel_targets(labels, p, sigma, window):
    """The weighted means as they are defined, one pair at a time."""
    order = sorted(range(len(p)), key=lambda i: p[i])
    targets = np.zeros(len(p))
    for place, i in enumerate(order):
        total = weight = 0.0
        for other, j in enumerate(order):
            if place - window <= other < place + window:
                w = np.exp(-((p[j] - p[i]) ** 2) / (2 * sigma**2))
                total += w * labels[j]
                weight += w
        targets[i] = total / weight
    return targets


@pytest.mark.parametrize("window", [1, 2, 7, 36, 37, 100])
@pytest.mark.parametrize("sigma", [0.02, 0.3])
@pytest.mark.parametrize("tied", [False, True])
def test_kernel_targets_equal_the_double_loop(window, sigma, tied):
    rng = np.random.default_rng(window)
    p = rng.uniform(size=37)
    if tied:
        p = np.round(p * 8) / 8
    labels = rng.integers(2, size=37)
    got = kc.cape_targets(
        labels, p[:, None], method="kernel", sigma=sigma, window=window
    )
    close(got, plain_kernel_targets(labels, p, sigma, window))


def test_bins_have_equal_counts_in_the_order_of_the_predictions():
    p = np.array([[0.9], [0.1], [0.5], [0.3], [0.7]])
    labels = [1, 0, 1, 1, 0]
    # Sorted: 0.1 and 0.3, then 0.5, 0.7 and 0.9.
    got = kc.cape_targets(labels, p, num_bins=2)
    close(got, [2 / 3, 1 / 2, 2 / 3, 1 / 2, 2 / 3])
    close(kc.cape_targets(labels, p, num_bins=5), labels)
    close(kc.cape_targets(labels, p, num_bins=1), np.full(5, 0.6))


def test_tied_predictions_keep_their_order():
    p = np.full((8, 1), 0.5)
    labels = [1, 1, 1, 0, 0, 0, 0, 0]
    got = kc.cape_targets(labels, p, num_bins=2)
    close(got, [0.75] * 4 + [0.0] * 4)
    # Neighbours [i - 1, i + 1).
    got = kc.cape_targets(labels, p, method="kernel", window=1)
    close(got, [1, 1, 1, 0.5, 0, 0, 0, 0])


def test_a_wide_kernel_gives_the_base_rate_and_a_narrow_one_the_label():
    rng = np.random.default_rng(0)
    p, labels = rng.permutation(50)[:, None] / 50, rng.integers(2, size=50)
    wide = kc.cape_targets(labels, p, sigma=1e9, **BY_NEIGHBOURS)
    close(wide, np.full(50, labels.mean()))
    narrow = kc.cape_targets(labels, p, sigma=1e-3, **BY_NEIGHBOURS)
    close(narrow, labels)


@pytest.mark.parametrize(
    ("labels", "objectness", "rule"),
    [
        (np.zeros((3, 1), int), np.ones(3), "`labels`"),
        (np.eye(4)[:3], np.ones(3), "`labels`"),
        (np.zeros(2, int), np.float64(0.5), "`labels`"),
        (np.array([0, 3, 1]), np.ones(3), "class ids"),
        (np.array([0.0, 0.5]), np.ones(2), "class ids"),
    ],
)
def test_labels_that_do_not_fit_the_objectness_are_refused(
    labels, objectness, rule
):
    for wrap in (np.asarray, ops.convert_to_tensor):
        with pytest.raises(ValueError, match=rule):
            kc.objectness_targets(wrap(labels), objectness, 3)


@pytest.mark.parametrize(
    ("options", "name"),
    [
        ({"method": "isotonic"}, "method"),
        ({"num_bins": 0}, "num_bins"),
        ({"num_bins": 4}, "num_bins"),
        ({"method": "kernel", "sigma": 0.0}, "sigma"),
        ({"method": "kernel", "window": 0}, "window"),
    ],
)
def test_bad_options_of_cape_targets_are_refused(options, name):
    with pytest.raises(ValueError, match=f"`{name}`"):
        kc.cape_targets([0, 1, 1], np.full((3, 1), 0.5), **options)


def test_cape_targets_of_three_classes_are_refused():
    with pytest.raises(ValueError, match="two classes"):
        kc.cape_targets([0, 1, 2], np.eye(3))
