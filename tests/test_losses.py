"""Losses: the authors' values and gradients, and laws that all obey."""

from pathlib import Path

import keras
import numpy as np
import pytest
from cases import BACKEND
from cases import HAS_FLOAT64
from cases import LOSSES
from cases import array
from cases import one_hot
from cases import sample
from cases import softmax
from golden_losses import FLOAT32_ONLY
from golden_losses import FLOAT64_ONLY
from golden_losses import LEFT_OUT
from golden_losses import NOT_EXPRESSED
from golden_losses import VALUE_ONLY
from golden_losses import all_goldens
from keras import ops

import keras_calib as kc
from keras_calib.backend.gradients import value_and_grad

pytestmark = pytest.mark.portable
STORED = np.load(Path(__file__).parent / "data" / "goldens.npz")
GOLDENS = all_goldens(STORED)
# Relative and absolute error of the value, error of the gradient against
# its largest entry.
TOLERANCES = {"float64": (1e-9, 0.0, 1e-9), "float32": (1e-6, 1e-7, 1e-5)}
each_golden = pytest.mark.parametrize("golden", GOLDENS, ids=str)
# JAX computes in 32 bits.
each_precision = pytest.mark.parametrize(
    "precision", ["float32", "float64"] if HAS_FLOAT64 else ["float32"]
)
every_loss = pytest.mark.parametrize("case", LOSSES, ids=str)
plain_labels = pytest.mark.parametrize(
    "case", [case for case in LOSSES if not case.objectness], ids=str
)
invariant = pytest.mark.parametrize(
    "case", [case for case in LOSSES if case.shift_invariant], ids=str
)
limited = pytest.mark.parametrize(
    "case", [case for case in LOSSES if case.limit is not None], ids=str
)


def evaluate(case, labels, logits, **kwargs):
    """Value and gradient of the class, as NumPy."""
    loss = case.make(**kwargs)
    labels = case.labels(labels)
    value, gradient = value_and_grad(lambda z: loss(labels, z), logits)
    return float(value), array(gradient)


@each_golden
@each_precision
def test_value_and_gradient_are_the_authors(goldens, golden, precision):
    """Tolerances: 1e-9 in float64; in float32 1e-6, gradients 1e-5."""
    method = golden.key.split("/")[1]
    if precision == "float32" and golden.key in FLOAT64_ONLY:
        pytest.skip("closer to a jump than float32 can tell")
    if precision == "float64" and method in FLOAT32_ONLY:
        pytest.skip("a constant is stored with seven digits")
    logits = goldens[f"in/{golden.data}/logits"].astype(precision)
    labels = goldens[f"in/{golden.data}/labels"]
    value, gradient = value_and_grad(
        lambda z: golden.total(labels, z), ops.convert_to_tensor(logits)
    )
    relative, absolute, steepness = TOLERANCES[precision]
    expected = goldens[f"{golden.key}/value"]
    error = abs(float(value) - expected)
    assert error <= relative * abs(expected) + absolute
    if golden.key not in VALUE_ONLY:
        expected = goldens[f"{golden.key}/grad"]
        error = np.abs(array(gradient) - expected).max()
        assert error <= steepness * np.abs(expected).max()


def test_every_stored_value_is_expressed_or_said_not_to_be():
    keys = {k.removesuffix("/value") for k in STORED.files if "/value" in k}
    keys = {k for k in keys if k.startswith("loss/")}
    covered = {golden.key for golden in GOLDENS} | LEFT_OUT
    missing = {
        k for k in keys - covered if k.split("/")[1] not in NOT_EXPRESSED
    }
    assert not missing
    assert len(GOLDENS) > 330


@every_loss
@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float16"])
def test_extreme_logits_give_finite_values_and_gradients(case, dtype):
    rng = np.random.default_rng(0)
    logits = rng.choice([-1e4, 0.0, 1e4], size=(32, 4)).astype("float32")
    labels = ops.convert_to_tensor(
        one_hot(rng.integers(4, size=32), 4).astype("float32")
    )

    def total(z):
        losses = case.values(labels, z)
        assert keras.backend.standardize_dtype(losses.dtype) == "float32"
        return ops.mean(losses)

    value, gradient = value_and_grad(total, ops.cast(logits, dtype))
    assert np.isfinite(float(value))
    assert np.isfinite(array(ops.cast(gradient, "float32"))).all()


@invariant
def test_gradient_sums_to_zero_over_the_classes(case):
    labels, logits = sample()
    _, gradient = evaluate(case, labels, logits)
    assert np.abs(gradient).max() > 1e-3
    np.testing.assert_allclose(gradient.sum(-1), 0.0, atol=1e-6)


@plain_labels
def test_ids_column_and_one_hot_labels_agree(case):
    labels, logits = sample()
    value, gradient = evaluate(case, labels, logits)
    for form in (
        labels[:, None],
        labels.astype("float32"),
        labels.astype("uint8"),
        one_hot(labels, 5).astype("float32"),
    ):
        other, same = evaluate(case, form, logits)
        assert other == value
        np.testing.assert_array_equal(same, gradient)


@invariant
def test_probabilities_and_logits_agree(case):
    labels, logits = sample(scale=2.0)
    labels = case.labels(labels)
    from_logits = float(case.make()(labels, logits))
    loss = case.make(from_logits=False)
    np.testing.assert_allclose(
        float(loss(labels, softmax(logits))), from_logits, rtol=1e-5
    )


@invariant
def test_a_probability_of_zero_gives_a_finite_loss_and_gradient(case):
    loss = case.make(from_logits=False)
    labels = case.labels(np.array([1, 2]))
    probs = np.array([[1.0, 0.0, 0.0], [0.5, 0.5, 0.0]], "float32")
    value, gradient = value_and_grad(lambda p: loss(labels, p), probs)
    assert np.isfinite(float(value))
    assert np.isfinite(array(gradient)).all()


@every_loss
def test_binary_outputs_are_the_second_of_two_classes(case):
    rng = np.random.default_rng(0)
    z = rng.normal(size=(16, 1)).astype("float32") * 3
    labels = rng.integers(2, size=16)
    two = np.concatenate([np.zeros_like(z), z], axis=-1)
    expected, _ = evaluate(case, labels, two)
    forms = (labels, labels[:, None], labels[:, None].astype("float32"))
    for form in forms[:1] if case.objectness else forms:
        value, _ = evaluate(case, form, z)
        np.testing.assert_allclose(value, expected, rtol=1e-6)


# The released code of ACLS stops a gradient on purpose: not invariant.
@pytest.mark.skipif(not HAS_FLOAT64, reason="JAX computes in 32 bits")
@invariant
def test_gradient_is_the_finite_difference(case):
    ids, logits = sample(n=6, dtype="float64", scale=3.0)
    labels = one_hot(ids, 5)
    weight = ops.convert_to_tensor(np.linspace(0.5, 2.0, 6))

    def total(z):
        return ops.sum(case.values(labels, z) * weight)

    _, gradient = value_and_grad(total, logits)
    step = 1e-6
    for i in range(6):
        for k in range(5):
            up, down = logits.copy(), logits.copy()
            up[i, k] += step
            down[i, k] -= step
            slope = (
                float(total(ops.convert_to_tensor(up)))
                - float(total(ops.convert_to_tensor(down)))
            ) / (2 * step)
            assert abs(float(gradient[i, k]) - slope) < 1e-7


@every_loss
def test_compiled_code_agrees_with_eager_code(case):
    labels, logits = sample()
    loss = case.make()
    value, gradient = evaluate(case, labels, logits)
    labels = case.labels(labels)

    def fn(y, z):
        return value_and_grad(lambda x: loss(y, x), z)

    if BACKEND == "tensorflow":
        import tensorflow as tf

        compiled = [tf.function(fn), tf.function(fn, jit_compile=True)]
    elif BACKEND == "jax":
        import jax

        compiled = [jax.jit(fn)]
    else:
        pytest.skip("torch runs eagerly")
    for run in compiled:
        other, same = run(
            ops.convert_to_tensor(labels), ops.convert_to_tensor(logits)
        )
        np.testing.assert_allclose(float(other), value, rtol=1e-6)
        np.testing.assert_allclose(array(same), gradient, atol=1e-6)


@every_loss
def test_weight_zero_equals_a_dropped_row(case):
    labels, logits = sample()
    weight = np.random.default_rng(3).integers(0, 2, size=len(labels))
    labels = case.labels(labels)
    kept = weight > 0
    for reduction in ("sum", "mean_with_sample_weight", "none"):
        loss = case.make(reduction=reduction)
        weighted = array(loss(labels, logits, weight))
        dropped = array(loss(labels[kept], logits[kept]))
        if reduction == "none":
            assert (weighted[~kept] == 0).all()
            weighted = weighted[kept]
        np.testing.assert_allclose(weighted, dropped, rtol=1e-6)


@every_loss
def test_an_ignored_pixel_equals_a_deleted_pixel(case):
    rng = np.random.default_rng(0)
    logits = rng.normal(size=(2, 3, 4, 5)).astype("float32") * 4
    labels = rng.integers(5, size=(2, 3, 4))
    labels[0, 0, 1] = labels[1, 2, 3] = 255
    kept = labels != 255
    logits[0, 0, 1] = np.nan
    weights = (None, rng.uniform(0.5, 2, size=labels.shape))
    labels = case.labels(labels)
    for weight in weights:
        for reduction in ("sum_over_batch_size", "mean_with_sample_weight"):
            value, gradient = value_and_grad(
                lambda z, r=reduction, w=weight: case.make(
                    ignore_class=255, reduction=r
                )(labels, z, w),
                logits,
            )
            expected, slopes = value_and_grad(
                lambda z, r=reduction, w=weight: case.make(reduction=r)(
                    labels[kept], z, None if w is None else w[kept]
                ),
                logits[kept],
            )
            np.testing.assert_allclose(float(value), float(expected), rtol=1e-6)
            gradient = array(gradient)
            np.testing.assert_allclose(gradient[kept], array(slopes), atol=1e-6)
            assert (gradient[~kept] == 0).all()


@every_loss
def test_all_pixels_ignored_gives_zero(case):
    loss = case.make(ignore_class=255)
    value, gradient = value_and_grad(
        lambda z: loss(case.labels(np.full((1, 2, 2), 255)), z),
        np.ones((1, 2, 2, 5), "float32"),
    )
    assert float(value) == 0.0
    assert (array(gradient) == 0).all()


@every_loss
def test_classes_on_another_axis_agree_with_moved_classes(case):
    rng = np.random.default_rng(0)
    logits = rng.normal(size=(2, 5, 3, 4)).astype("float32") * 4
    labels = rng.integers(5, size=(2, 3, 4))
    value, _ = evaluate(case, labels, logits, axis=1)
    expected, _ = evaluate(case, labels, np.moveaxis(logits, 1, -1))
    np.testing.assert_allclose(value, expected, rtol=1e-6)
    if not case.objectness:
        value, _ = evaluate(case, labels[:, None], logits, axis=1)
        np.testing.assert_allclose(value, expected, rtol=1e-6)


@every_loss
@pytest.mark.parametrize(
    "reduction", ["sum_over_batch_size", "sum", "mean_with_sample_weight"]
)
def test_one_weight_per_image_spreads_over_its_pixels(case, reduction):
    rng = np.random.default_rng(0)
    logits = rng.normal(size=(2, 3, 4, 5)).astype("float32") * 4
    labels = rng.integers(5, size=(2, 3, 4))
    weight = np.array([0.5, 2.0], "float32")
    spread = np.broadcast_to(weight[:, None, None], labels.shape)
    labels = case.labels(labels)
    loss = case.make(reduction=reduction)
    np.testing.assert_allclose(
        float(loss(labels, logits, weight)),
        float(loss(labels, logits, spread)),
        rtol=1e-6,
    )


@limited
def test_without_its_regulariser_a_loss_is_cross_entropy(case):
    labels, logits = sample(scale=10.0)
    reference = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    expected, slopes = value_and_grad(lambda z: reference(labels, z), logits)
    loss = case.cls(from_logits=True, **case.limit)
    labels = case.labels(labels)
    value, gradient = value_and_grad(lambda z: loss(labels, z), logits)
    np.testing.assert_allclose(float(value), float(expected), rtol=1e-6)
    np.testing.assert_allclose(array(gradient), array(slopes), atol=1e-6)


def test_a_probability_on_a_threshold_of_flsd_is_not_below_it():
    for threshold, gamma in ((0.5, 3.0), (0.501, 5.0)):
        loss = kc.FLSD([[threshold, 5.0], [1.0, 3.0]], from_logits=True)
        value = float(loss(np.array([0]), np.zeros((1, 2), "float32")))
        np.testing.assert_allclose(value, 0.5**gamma * np.log(2), rtol=1e-6)


def test_the_record_of_a_ranking_is_no_variable_of_the_loss():
    logits = np.random.default_rng(0).normal(size=(6, 3)).astype("float32")

    def value(scale):
        record = scale * ops.convert_to_tensor([0, 0.2, 0.9, 0.4, 0.6, 1.0])
        # `scale` itself, as a gradient of nothing is no number.
        return ops.sum(kc.correctness_ranking(logits, record)) + scale

    _, gradient = value_and_grad(value, ops.convert_to_tensor(1.0))
    assert float(gradient) == 1.0


def test_a_linear_loss_averages_over_soft_labels():
    # Cross entropy plus a label-free term is linear in the label.
    rng = np.random.default_rng(0)
    _, logits = sample(n=8, num_classes=3)
    soft = softmax(rng.normal(size=(8, 3))).astype("float32")
    for case in LOSSES:
        if not (case.soft_labels and case.linear):
            continue
        whole = array(case.values(soft, logits))
        rows = np.eye(3, dtype="float32")
        parts = sum(
            soft[:, k] * array(case.values(np.tile(rows[k], (8, 1)), logits))
            for k in range(3)
        )
        np.testing.assert_allclose(whole, parts, rtol=1e-5, err_msg=str(case))


def test_both_conventions_of_label_smoothing_are_one_family():
    labels, logits = sample()
    over_all = kc.LabelSmoothing(0.1 * 5 / 4, from_logits=True)
    over_others = kc.LabelSmoothing(0.1, spread="others", from_logits=True)
    np.testing.assert_allclose(
        float(over_all(labels, logits)),
        float(over_others(labels, logits)),
        rtol=1e-6,
    )


def test_label_relaxation_is_smooth_at_its_boundary():
    # p_y on both sides of 0.9.
    gap = np.log(9.0) + np.array([-1e-2, 1e-2])
    logits = np.stack([gap, np.zeros(2)], axis=-1).astype("float32")
    loss = kc.LabelRelaxation(0.1, from_logits=True, reduction="none")
    outside, inside = array(loss([0, 0], logits))
    assert 0 < outside < 1e-5
    assert inside == 0


@every_loss
def test_configuration_round_trips(case):
    loss = case.make(ignore_class=255, axis=1, reduction="sum", name="mine")
    config = keras.losses.serialize(loss)
    again = keras.losses.deserialize(config)
    assert type(again) is type(loss)
    assert again.get_config() == loss.get_config()
    assert again.get_config()["dtype"] == "float32"


@pytest.mark.parametrize("dtype", ["bfloat16", "float16", "mixed_float16"])
def test_half_precision_losses_keep_large_class_ids(dtype):
    # bfloat16 cannot hold 257, float16 not 2049.
    logits = np.zeros((2, 3000), "float32")
    logits[0, 257] = logits[1, 2049] = 20.0
    loss = kc.LabelSmoothing(0.0, from_logits=True, dtype=dtype)
    assert float(loss([257, 2049], logits)) < 1e-4
    assert loss.get_config()["dtype"] == "float32"


def test_a_negative_ignored_id_works_with_unsigned_labels():
    loss = kc.MbLS(from_logits=True, ignore_class=-1)
    labels = np.array([0, 1], "uint8")
    logits = np.array([[1.0, 0.0], [0.0, 2.0]], "float32")
    plain = kc.MbLS(from_logits=True)
    assert float(loss(labels, logits)) == float(plain(labels, logits))


@every_loss
def test_predictions_that_are_nan_give_nan(case):
    """Not 0, which a run that has diverged would pass for perfect."""
    ids, logits = sample(n=4)
    logits[1, 2] = np.nan
    value, _ = evaluate(case, ids, logits)
    assert np.isnan(value)


@pytest.mark.parametrize("gamma", [0.1, 0.25, 0.5, 0.75, 1.5, 3.0])
def test_focal_gradient_is_right_where_the_prediction_is_sure(gamma):
    ids, logits = sample(n=4096, num_classes=10, scale=1.0)
    logits[:, 0] = 4.0 + np.linspace(10, 20, len(ids))
    _, gradient = value_and_grad(
        lambda z: ops.sum(kc.focal_loss(one_hot(ids * 0, 10), z, gamma=gamma)),
        logits,
    )
    p = softmax(logits.astype("float64"))
    q = p[:, 1:].sum(axis=-1)
    rate = gamma * q ** (gamma - 1) * p[:, 0] * np.log1p(-q) - q**gamma
    expected = rate[:, None] * (one_hot(ids * 0, 10) - p)
    expected[:, 0] = rate * q
    bound = 1e-6 * np.abs(rate).max()
    np.testing.assert_allclose(array(gradient), expected, rtol=0, atol=bound)


@pytest.mark.parametrize("width", [0.01, 0.03, 0.4])
@pytest.mark.parametrize("n", [513, 2048])
def test_narrow_kernels_of_mmce_are_exact_in_large_batches(width, n):
    ids, logits = sample(n=n, num_classes=3, scale=1.5)
    top = softmax(logits.astype("float64")).max(axis=-1)
    error = (logits.argmax(axis=-1) == ids) - top
    kernel = np.exp(-np.abs(top[:, None] - top) / width)
    expected = error @ kernel @ error / n**2
    value = kc.mmce(one_hot(ids, 3), logits, kernel_width=width)
    np.testing.assert_allclose(float(value), expected, rtol=1e-5)


@pytest.mark.skipif(BACKEND != "tensorflow", reason="needs unknown shapes")
@pytest.mark.parametrize(
    "case", [case for case in LOSSES if case.batch_coupled], ids=str
)
def test_an_empty_share_of_a_batch_gives_zero(case):
    """Some replica's, in the last step of an epoch."""
    import tensorflow as tf

    loss = case.make()

    @tf.function(input_signature=[tf.TensorSpec([None, 3])] * 2)
    def run(labels, logits):
        return value_and_grad(lambda z: loss(labels, z), logits)

    value, gradient = run(np.zeros((0, 3)), np.zeros((0, 3)))
    assert float(value) == 0.0
    assert gradient.shape == (0, 3)


def test_objectness_of_an_ignored_label_may_be_anything():
    loss = kc.AdaptiveLabelSmoothing(from_logits=True, ignore_class=255)
    _, logits = sample(n=4)
    pairs = np.array([[0, 0.5], [255, np.nan], [255, -1.0], [2, 0.25]])
    expected = float(loss(pairs[[0, 3]], logits[[0, 3]]))
    assert abs(float(loss(pairs, logits)) - expected) < 1e-6
    metric = kc.NLL(from_logits=True, ignore_class=255, objectness=True)
    metric.update_state(pairs, logits)
    assert np.isfinite(float(metric.result()))
