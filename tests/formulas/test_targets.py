"""Soft targets: the stored ones, closed forms, and plain double loops."""

import numpy as np
import pytest
from cases import array, one_hot, softmax
from keras import ops

import keras_calib as kc

CAPE = {
    "bin10": {},
    "bin7": {"num_bins": 7},
    "kde_s0.1_w500": {"method": "kernel"},
    "kde_s0.05_w6": {"method": "kernel", "sigma": 0.05, "window": 6},
}


def close(got, expected, tolerance=1e-12):
    np.testing.assert_allclose(array(got), expected, rtol=0, atol=tolerance)


# Label smoothing.


def test_smoothing_moves_a_share_of_each_label():
    for alpha in (0.0, 0.1, 1.0, -0.4):
        got = kc.losses.smooth_labels(np.eye(4), alpha=alpha)
        expected = np.full((4, 4), alpha / 4)
        np.fill_diagonal(expected, 1 - alpha + alpha / 4)
        close(got, expected)
        assert got.dtype == "float64"
        got = kc.losses.smooth_labels(np.eye(4), alpha=alpha, spread="others")
        expected = np.full((4, 4), alpha / 3)
        np.fill_diagonal(expected, 1 - alpha)
        close(got, expected)


def test_soft_labels_are_smoothed_class_by_class():
    soft = np.array([[0.5, 0.3, 0.2, 0.0]])
    got = kc.losses.smooth_labels(soft, alpha=0.4)
    close(got, [[0.4, 0.28, 0.22, 0.1]])
    # Each class keeps 0.7 of what it has and gives 0.1 to each other.
    got = kc.losses.smooth_labels(soft, alpha=0.3, spread="others")
    close(got, 0.7 * soft + 0.1 * (1 - soft))


def test_each_label_can_have_an_alpha_of_its_own():
    labels, alpha = one_hot([2, 0, 1], 3), np.array([[0.0], [0.3], [0.6]])
    for spread in ("all", "others"):
        rows = [
            kc.losses.smooth_labels(row, alpha=float(a), spread=spread)
            for row, (a,) in zip(labels, alpha, strict=True)
        ]
        close(kc.losses.smooth_labels(labels, alpha=alpha, spread=spread), rows)


def test_one_class_is_not_smoothed():
    with pytest.raises(ValueError, match="shape"):
        kc.losses.smooth_labels(np.ones((3, 1)), alpha=0.1)


@pytest.mark.portable
def test_smoothing_takes_lists_integers_and_tensors():
    expected = [[0.9, 0.05, 0.05]]
    for labels in ([[1, 0, 0]], np.array([[1, 0, 0]])):
        got = kc.losses.smooth_labels(labels, alpha=0.1, spread="others")
        close(got, expected)
        labels = ops.convert_to_tensor(labels)
        got = kc.losses.smooth_labels(labels, alpha=0.1, spread="others")
        assert not isinstance(got, np.ndarray)
        close(got, expected, 1e-7)


# Adaptive label smoothing.


@pytest.mark.portable
def test_objectness_targets_are_the_stored_ones(goldens):
    for data in ("A", "T"):
        labels = goldens[f"in/{data}/labels"]
        objectness = 1 - goldens[f"in/als/{data}/alpha"]
        for beta in ("1", "0.75", "0"):
            expected = goldens[f"state/als/beta{beta}/{data}/targets"]
            k = expected.shape[1]
            for form in (labels, one_hot(labels, k)):
                got = kc.losses.objectness_targets(
                    form, objectness, k, float(beta)
                )
                assert got.dtype == "float64"
                close(got, expected)


def test_the_true_class_gets_from_1_less_beta_to_1():
    objectness = np.linspace(0, 1, 11)
    for beta in (0.0, 0.4, 1.0):
        got = kc.losses.objectness_targets(np.full(11, 2), objectness, 4, beta)
        true = 1 - beta + beta * objectness
        expected = np.stack([(1 - true) / 3] * 4, axis=-1)
        expected[:, 2] = true
        close(got, expected)


def test_a_floor_stops_at_the_uniform_target():
    labels, objectness = [1] * 5, [0.0, 0.1, 0.25, 0.3, 1.0]
    free = kc.losses.objectness_targets(labels, objectness, 4)
    close(free[:, 1], objectness)
    floored = kc.losses.objectness_targets(
        labels, objectness, 4, floor="uniform"
    )
    close(floored[:3], np.full((3, 4), 0.25))
    close(floored[3:], free[3:])
    # Half the smoothing: half way from the label to uniform.
    halved = kc.losses.objectness_targets(labels, objectness, 4, 0.5, "uniform")
    close(halved[0], [0.125, 0.625, 0.125, 0.125])


def test_a_floored_target_keeps_the_true_class_likeliest():
    rng = np.random.default_rng(0)
    for k, beta in ((2, 1.0), (5, 0.7), (12, 0.2)):
        labels, objectness = rng.integers(k, size=200), rng.uniform(size=200)
        objectness[:20] = 0.0
        got = kc.losses.objectness_targets(
            labels, objectness, k, beta, "uniform"
        )
        close(got.sum(axis=-1), 1.0)
        assert (got >= 0).all()
        true = got[np.arange(200), labels]
        assert (true >= got.max(axis=-1) - 1e-12).all()


@pytest.mark.portable
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
        plain = array(
            kc.losses.objectness_targets(labels, objectness, 3, **options)
        )
        got = array(
            kc.losses.objectness_targets(
                labels, objectness, 3, context=wrap(context), **options
            )
        )
        np.testing.assert_array_equal(got[[1, 3]], plain[[1, 3]])
        np.testing.assert_array_equal(got[[0, 2]], got.dtype.type(1 / 3))


def test_pairs_flag_context_by_an_objectness_of_minus_1():
    rng = np.random.default_rng(0)
    labels, objectness = rng.integers(4, size=8), rng.uniform(size=8)
    context = rng.integers(2, size=8)
    assert 0 < context.sum() < 8
    logits = rng.normal(size=(8, 4)).astype("float32")
    probs = softmax(logits)
    uniform = -np.mean(np.log(probs), axis=-1)
    for beta in (1.0, 0.4):
        pairs = np.stack([labels, objectness], axis=-1).astype("float32")
        loss = kc.AdaptiveLabelSmoothing(
            beta, from_logits=True, reduction="none"
        )
        plain = array(loss(pairs, logits))
        pairs[context == 1, 1] = -1
        got = array(loss(pairs, logits))
        close(got, np.where(context == 1, uniform, plain), 1e-5)
    # To a metric nothing is to be seen.
    metric = kc.ObjectnessDeviation()
    metric.update_state(pairs, probs)
    shares = np.maximum(pairs[:, 1], 0)
    expected = kc.functional.objectness_deviation(
        labels, probs, objectness=shares
    )
    assert float(metric.result()) == pytest.approx(expected, abs=1e-6)


@pytest.mark.portable
def test_objectness_targets_of_tensors_are_those_of_arrays():
    rng = np.random.default_rng(0)
    labels = rng.integers(5, size=(3, 4))
    objectness = rng.uniform(size=(3, 4)).astype("float32")
    for floor in (None, "uniform"):
        expected = kc.losses.objectness_targets(
            labels, objectness, 5, 0.9, floor
        )
        assert isinstance(expected, np.ndarray)
        assert expected.shape == (3, 4, 5)
        for form in (labels, labels.astype("float32"), one_hot(labels, 5)):
            got = kc.losses.objectness_targets(
                ops.convert_to_tensor(form), objectness, 5, 0.9, floor
            )
            assert not isinstance(got, np.ndarray)
            close(got, expected, 1e-6)


def test_labels_that_do_not_fit_the_objectness_are_refused():
    for labels, objectness, rule in (
        (np.zeros((3, 1), int), np.ones(3), "`labels`"),
        (np.eye(4)[:3], np.ones(3), "`labels`"),
        (np.zeros(2, int), np.float64(0.5), "`labels`"),
        (np.array([0, 3, 1]), np.ones(3), "class ids"),
        (np.array([0.0, 0.5]), np.ones(2), "class ids"),
        (np.array([0, 1]), np.array([0.5, 1.5]), "`objectness` must .*1.5"),
    ):
        for wrap in (np.asarray, ops.convert_to_tensor):
            with pytest.raises(ValueError, match=rule):
                kc.losses.objectness_targets(wrap(labels), objectness, 3)
    with pytest.raises(ValueError, match="`context` must have the shape"):
        kc.losses.objectness_targets([0, 1], [0.5, 0.5], 3, context=[True])


# CaPE.


def test_cape_targets_are_the_stored_ones(goldens):
    logits, labels = goldens["in/F/logits"], goldens["in/F/labels"]
    probs = softmax(logits)
    for name, options in CAPE.items():
        expected = goldens[f"state/cape/{name}/target_p1"]
        for truth in (labels, one_hot(labels, 2)):
            close(kc.losses.cape_targets(truth, probs, **options), expected)
        got = kc.losses.cape_targets(labels, probs[:, 1:], **options)
        close(got, expected)
        assert got.dtype == "float64"
        for form in (logits, logits[:, 1:] - logits[:, :1]):
            got = kc.losses.cape_targets(
                labels, form, from_logits=True, **options
            )
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


def test_kernel_targets_equal_the_double_loop():
    for window in (1, 2, 7, 36, 37, 100):
        rng = np.random.default_rng(window)
        even, labels = rng.uniform(size=37), rng.integers(2, size=37)
        tied = np.round(even * 8) / 8
        for sigma, p in ((0.02, even), (0.3, even), (0.3, tied)):
            got = kc.losses.cape_targets(
                labels, p[:, None], method="kernel", sigma=sigma, window=window
            )
            close(got, plain_kernel_targets(labels, p, sigma, window))


def test_bins_have_equal_counts_in_the_order_of_predictions():
    p = np.array([[0.9], [0.1], [0.5], [0.3], [0.7]])
    labels = [1, 0, 1, 1, 0]
    # Sorted: 0.1 and 0.3, then 0.5, 0.7 and 0.9.
    got = kc.losses.cape_targets(labels, p, num_bins=2)
    close(got, [2 / 3, 1 / 2, 2 / 3, 1 / 2, 2 / 3])
    close(
        kc.losses.cape_targets(labels, p, num_bins=3), [0.5, 0.0, 1.0, 1.0, 0.5]
    )
    close(kc.losses.cape_targets(labels, p, num_bins=5), labels)
    close(kc.losses.cape_targets(labels, p, num_bins=1), np.full(5, 0.6))


def test_tied_predictions_keep_their_order():
    p = np.full((8, 1), 0.5)
    labels = [1, 1, 1, 0, 0, 0, 0, 0]
    got = kc.losses.cape_targets(labels, p, num_bins=2)
    close(got, [0.75] * 4 + [0.0] * 4)
    # Neighbours [i - 1, i + 1).
    got = kc.losses.cape_targets(labels, p, method="kernel", window=1)
    close(got, [1, 1, 1, 0.5, 0, 0, 0, 0])


def test_targets_of_the_predicted_class_are_those_of_a_binary_forecast():
    """Its event is that the prediction is right, its p the confidence."""
    rng = np.random.default_rng(0)
    for k in (2, 7):
        logits, labels = rng.normal(size=(60, k)), rng.integers(k, size=60)
        probs = softmax(logits)
        top = probs.max(-1, keepdims=True)
        right = (probs.argmax(-1) == labels).astype(int)
        for options in CAPE.values():
            expected = kc.losses.cape_targets(right, top, **options)
            options = {"event": "predicted", **options}
            for truth in (labels, one_hot(labels, k)):
                close(kc.losses.cape_targets(truth, probs, **options), expected)
            got = kc.losses.cape_targets(
                labels, logits, from_logits=True, **options
            )
            close(got, expected)
            if k == 2:
                # All predict the second class: the paper's event.
                second = np.sort(probs)
                got = kc.losses.cape_targets(labels, second, **options)
                del options["event"]
                close(got, kc.losses.cape_targets(labels, second, **options))
    # By hand: confidences 0.9, 0.5, 0.6, 0.8; wrong, right, right, right.
    probs = [[0.9, 0.1, 0], [0.2, 0.5, 0.3], [0, 0.4, 0.6], [0.8, 0.1, 0.1]]
    got = kc.losses.cape_targets(
        [1, 1, 2, 0], probs, event="predicted", num_bins=2
    )
    close(got, [0.5, 1.0, 1.0, 0.5])


def test_cape_targets_of_three_classes_are_refused():
    rule = r"`outputs` must have two classes .*: outputs\.shape=\(3, 3\)"
    with pytest.raises(ValueError, match=rule):
        kc.losses.cape_targets([0, 1, 2], np.eye(3))
