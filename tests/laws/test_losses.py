"""Laws of every loss: what must change nothing, and what must stay finite.

Those that run in a graph stand here together: a process traces each loss once.
"""

import json

import keras
import numpy as np
import pytest
from cases import BACKEND, HAS_FLOAT64, LOSSES, array, one_hot, sample, softmax
from keras import ops
from loss_batches import (
    ALL,
    CASES,
    COUPLED,
    FIRST,
    HERE,
    INVARIANT,
    PER_SAMPLE,
    REPRESENTATIVES,
    K,
    agree,
    compiled,
    draws,
    eager,
    in_a_graph,
    losses_and_gradient,
    run_once,
    smooth,
)

from keras_calib.backend.gradients import value_and_grad

pytestmark = pytest.mark.portable
# All cases of a loss, or one of each class.
EVERY = pytest.mark.parametrize(
    "every", [False, pytest.param(True, marks=pytest.mark.slow)]
)


# What must change nothing.


def test_adding_a_constant_to_the_logits_changes_nothing():
    for case in INVARIANT:
        for ids, logits, _ in draws(case):
            shift = np.random.default_rng(1).integers(-60, 61, len(ids))
            # Exact in float32: logits are multiples of 1/1024.
            moved = logits + shift[:, None].astype("float32")
            found = in_a_graph(case, ids, moved)
            for x, y in zip(found, in_a_graph(case, ids, logits), strict=True):
                agree(case, x, y)


def test_gradients_sum_to_zero_over_the_classes():
    for case in INVARIANT:
        for ids, logits, _ in draws(case):
            _, gradient = in_a_graph(case, ids, logits)
            rest = np.abs(gradient.sum(axis=-1, dtype="float64"))
            largest = np.abs(gradient).max(axis=-1)
            assert (rest <= 1e-6 * (1 + largest)).all(), case
            assert largest.max() > 1e-3, case


def test_renaming_the_classes_changes_nothing():
    order = np.random.default_rng(2).permutation(K)
    for case in ALL:
        for ids, logits, tied in draws(case):
            losses, gradient = in_a_graph(case, ids, logits)
            renamed = np.argsort(order)[ids]
            other, moved = in_a_graph(case, renamed, logits[:, order])
            # Of tied classes another may come first: the gradient goes there,
            # and that prediction may be right where the other was wrong.
            kept = smooth(case, tied)
            agree(case, other[kept], losses[kept])
            agree(case, moved[~tied], gradient[:, order][~tied])


def test_ids_columns_and_one_hot_labels_agree():
    for case in HERE:
        if case.objectness:
            continue
        ids, logits = sample()
        rows = one_hot(ids, 5).astype("float32")
        loss = case.make(reduction="none")
        losses = array(loss(ids, logits))
        np.testing.assert_array_equal(array(loss(rows, logits)), losses)
        # All read labels at one door, from which gradients follow.
        if case not in REPRESENTATIVES:
            continue
        # Operation by operation, also on JAX: programs may round otherwise.
        run = losses_and_gradient(loss)
        z = ops.convert_to_tensor(logits)
        _, gradient = run(ids, z, None)
        for form in (
            rows,
            ids[:, None],
            ids.astype("float32"),
            ids.astype("uint8"),
        ):
            other, same = map(array, run(form, z, None))
            np.testing.assert_array_equal(other, losses, err_msg=str(case))
            np.testing.assert_array_equal(same, array(gradient), str(case))


def test_probabilities_and_logits_agree():
    for case in HERE:
        if not case.shift_invariant:
            continue
        for ids, logits, _ in draws(case, (0.1, 1.0, 3.0), (False,))[:3]:
            losses, _ = in_a_graph(case, ids, logits)
            probs = softmax(logits.astype("float64")).astype("float32")
            loss = case.make(reduction="none", from_logits=False)
            found = run_once(loss)(case.labels(ids), probs)
            agree(case, array(found), losses)


def test_without_its_regulariser_a_loss_is_cross_entropy():
    for case in HERE:
        if case.limit is None:
            continue
        loss = case.cls(from_logits=True, reduction="none", **case.limit)
        for ids, logits, _ in draws(case)[:3]:
            given = map(ops.convert_to_tensor, (case.labels(ids), logits))
            run = run_once(losses_and_gradient(loss))
            losses, gradient = run(*given, None)
            exact, rows = logits.astype("float64"), one_hot(ids, K)
            expected = -np.sum(rows * np.log(softmax(exact) + 1e-300), -1)
            agree(case, array(losses), expected)
            agree(case, array(gradient), softmax(exact) - rows)


def test_the_value_of_a_sample_does_not_depend_on_the_others():
    for case in PER_SAMPLE:
        ((ids, logits, _),) = draws(case)
        other = logits.copy()
        other[::2] = np.roll(logits, 7, axis=0)[::2]
        one, two = (in_a_graph(case, ids, z) for z in (logits, other))
        for x, y in zip(one, two, strict=True):
            np.testing.assert_allclose(
                x[1::2], y[1::2], rtol=1e-6, atol=1e-6, err_msg=str(case)
            )


@pytest.mark.skipif(BACKEND != "tensorflow", reason="the same code there")
def test_compiled_code_agrees_with_eager_code():
    for case in HERE:
        for ids, logits, tied in draws(case)[:1]:
            weight = np.random.default_rng(3).uniform(0.5, 2, len(ids))
            expected = eager(case, ids, logits, weight)
            losses, gradient = in_a_graph(case, ids, logits, weight)
            agree(case, losses, expected[0], 1e-6)
            kept = smooth(case, tied)
            agree(case, gradient[kept], expected[1][kept], 1e-6)


@pytest.mark.skipif(BACKEND != "tensorflow", reason="JAX has no other compiler")
def test_xla_agrees_with_eager_code():
    for name in ("ACLS", "MMCE-weighted", "AdaptiveLabelSmoothing"):
        case = CASES[name]
        ids, logits, _ = draws(case)[0]
        loss, labels = case.make(), case.labels(ids)

        def run(y, z, loss=loss):
            return value_and_grad(lambda x: loss(y, x), z)

        value, gradient = map(array, run(labels, logits))
        tensors = map(ops.convert_to_tensor, (labels, logits))
        other, same = map(array, compiled(run, jit_compile=True)(*tensors))
        np.testing.assert_allclose(other, value, rtol=1e-6, err_msg=name)
        np.testing.assert_allclose(same, gradient, atol=1e-6, err_msg=name)


def test_a_sample_of_weight_0_may_hold_anything():
    for case in HERE:
        ids, logits, _ = draws(case)[0]
        weight = np.random.default_rng(3).uniform(0.5, 2, len(ids))
        weight[[1, 2, 3]] = 0.0
        wrong, odd = ids.copy(), logits.copy()
        wrong[[1, 2]] = -1, K
        odd[2:4] = [[np.nan], [-np.inf]]
        runs = [in_a_graph] + [eager] * (case in REPRESENTATIVES)
        for run in runs:
            expected = run(case, ids, logits, weight)
            found = run(case, wrong, odd, weight)
            for x, y in zip(found, expected, strict=True):
                np.testing.assert_array_equal(x, y, err_msg=str(case))
                assert not x[1:4].any(), case


# What weights and ignored labels mean.


def test_weights_multiply_the_losses_of_single_samples():
    for case in PER_SAMPLE:
        ((ids, logits, _),) = draws(case)
        weight = np.random.default_rng(1).choice([0.0, 0.5, 2.0], len(ids))
        losses, gradient = in_a_graph(case, ids, logits, weight)
        plain, slopes = in_a_graph(case, ids, logits)
        agree(case, losses, weight * plain)
        agree(case, gradient, weight[:, None] * slopes)


def test_whole_weights_are_repeats():
    # More rows than before: a mean divides by another number.
    weight = np.array([2, 1, 0, 3, 0, 2, 0, 3])
    repeated = np.repeat(np.arange(8), weight)
    for case in COUPLED:
        # Tied logits near 0, and others that are apart.
        for ids, logits, tied in draws(case)[1:3]:
            losses, gradient = in_a_graph(case, ids, logits, weight)
            values, slopes = eager(case, ids[repeated], logits[repeated])
            agree(case, losses.sum(), values.sum())
            assert (losses[weight == 0] == 0).all(), case
            assert (gradient[weight == 0] == 0).all(), case
            if smooth(case, tied).all():
                expected = np.zeros_like(gradient)
                np.add.at(expected, repeated, slopes)
                agree(case, gradient, expected)


def test_an_ignored_label_is_a_dropped_row():
    for case in ALL:
        for ids, logits, tied in draws(case):
            lost = np.random.default_rng(2).permutation(len(ids))
            lost = lost[: len(ids) // 3]
            weight = np.ones(len(ids))
            weight[lost] = 0
            expected = in_a_graph(case, ids, logits, weight)
            ids[lost], logits[lost] = 255, np.nan
            # The share of an objectness is by place.
            losses, gradient = in_a_graph(case, ids, logits)
            agree(case, losses, expected[0])
            assert (losses[lost] == 0).all(), case
            assert (gradient[lost] == 0).all(), case
            kept = smooth(case, tied)
            agree(case, gradient[kept], expected[1][kept])


def test_nothing_but_ignored_labels_gives_zero():
    for case in ALL:
        ids, logits, _ = draws(case)[0]
        ids[:] = 255
        for x in in_a_graph(case, ids, logits):
            assert (x == 0).all(), case


# Derivatives.


@pytest.mark.skipif(not HAS_FLOAT64, reason="JAX computes in 32 bits")
def test_gradients_are_finite_differences():
    # The released ACLS stops a gradient on purpose.
    step = 1e-5
    for case in INVARIANT:
        scales = (0.1, 3.0) if case.batch_coupled else (0.1, 3.0, 10.0)
        for ids, logits, _ in draws(case, scales, (False,))[:2]:
            labels, z = one_hot(ids, K), logits.astype("float64")
            move = step * np.random.default_rng(4).normal(size=z.shape)
            run = losses_and_gradient(lambda y, z, _, f=case.values: f(y, z))
            given = map(ops.convert_to_tensor, (labels, z))
            middle, gradient = map(array, run(*given, None))
            up, down = _values_at(case, labels, z + move, z - move)
            slopes = np.sum(gradient * move, axis=-1) / step
            if case.batch_coupled:
                middle, up, down, slopes = (
                    x.sum(keepdims=True) for x in (middle, up, down, slopes)
                )
            # A kink or a jump within the step has no derivative.
            flat = np.abs(up - 2 * middle + down) < 1e-7 * (1 + np.abs(middle))
            assert flat.mean() > 0.95 or case.batch_coupled, case
            error = np.abs((up - down) / (2 * step) - slopes)[flat]
            steepest = np.abs(gradient).max()
            assert error.max(initial=0.0) <= 1e-6 * (1 + steepest), case


def _values_at(case, labels, *places):
    """Values at each of these logits, in one call where rows are apart."""
    if case.batch_coupled or case.objectness:
        return [
            array(case.values(labels, ops.convert_to_tensor(z))) for z in places
        ]
    rows = ops.convert_to_tensor(np.concatenate(places))
    values = case.values(np.tile(labels, (len(places), 1)), rows)
    return np.split(array(values), len(places))


# Finite everywhere.


@EVERY
def test_huge_logits_give_finite_values_and_gradients(every):
    rng = np.random.default_rng(0)
    for case in ALL:
        n = 8 if case.batch_coupled else 480
        ids = rng.integers(K, size=n)
        logits = rng.choice([-1e4, -90.0, 0.0, 20.0, 1e4], size=(n, K))
        found = in_a_graph(case, ids, logits.astype("float32"))
        assert all(np.isfinite(x).all() for x in found), case
        if case not in (HERE if every else REPRESENTATIVES):
            continue
        for dtype in ("bfloat16", "float16"):
            half = ops.cast(logits.astype("float32"), dtype)
            labels = ops.convert_to_tensor(case.labels(ids))
            run = losses_and_gradient(case.make(reduction="none"))
            losses, gradient = run(labels, half, None)
            assert keras.backend.standardize_dtype(losses.dtype) == "float32"
            for found in (losses, gradient):
                found = array(ops.cast(found, "float32"))
                assert np.isfinite(found).all(), (case, dtype)


@EVERY
def test_few_classes_and_small_batches_are_finite(every):
    rng = np.random.default_rng(0)
    for case in HERE:
        if not (every or case in FIRST):
            continue
        logits = rng.normal(size=(7, 2)).astype("float32") * 3
        right, wrong = logits.argmax(axis=-1), logits.argmin(axis=-1)
        one = rng.normal(size=(1, 3)).astype("float32") * 3
        batches = [(one.argmax(axis=-1), one)]
        if case.batch_coupled:
            batches += (wrong, logits), (right, 0 * logits)
        else:
            batches.append((np.where(np.arange(7) % 2, right, wrong), logits))
        for ids, z in batches:
            found = eager(case, ids, z)
            assert all(np.isfinite(x).all() for x in found), (case, z.shape)


def test_a_probability_of_zero_gives_a_finite_loss_and_gradient():
    probs = np.array([[1.0, 0.0, 0.0], [0.5, 0.5, 0.0]], "float32")
    for case in HERE:
        if case.shift_invariant:
            found = eager(case, np.array([1, 2]), probs, from_logits=False)
            assert all(np.isfinite(x).all() for x in found), case


def test_predictions_that_are_nan_give_nan():
    """Not 0, which a run that has diverged would pass for perfect."""
    for case in ALL:
        ids, logits, _ = draws(case)[0]
        logits[1, 2] = np.nan
        losses, _ = in_a_graph(case, ids, logits)
        assert np.isnan(losses if case.batch_coupled else losses[1]).all(), case
        if not case.batch_coupled:
            assert np.isfinite(np.delete(losses, 1)).all(), case


def test_a_linear_loss_averages_over_soft_labels():
    # Cross entropy plus a label-free term is linear in the label.
    rng = np.random.default_rng(0)
    _, logits = sample(n=8, num_classes=3)
    soft = softmax(rng.normal(size=(8, 3))).astype("float32")
    for case in HERE:
        if not (case.soft_labels and case.linear):
            continue
        whole = array(case.values(soft, logits))
        expected = 0
        for share, row in zip(soft.T, np.eye(3, dtype="float32"), strict=True):
            labels = np.tile(row, (8, 1))
            expected = expected + share * array(case.values(labels, logits))
        np.testing.assert_allclose(whole, expected, 1e-5, err_msg=str(case))


def test_configurations_round_trip():
    for case in LOSSES:
        loss = case.make(ignore_class=255, axis=1, reduction="sum", name="mine")
        config = json.loads(json.dumps(keras.losses.serialize(loss)))
        name = f"keras_calib>{case.cls.__name__}"
        assert keras.saving.get_registered_object(name) is case.cls
        for again in (
            keras.losses.deserialize(config),
            keras.losses.get({"class_name": name, "config": config["config"]}),
            case.cls.from_config(loss.get_config()),
        ):
            assert type(again) is case.cls
            assert again.get_config() == loss.get_config(), case
            assert again.get_config()["dtype"] == "float32"
        plain = keras.losses.get({"class_name": name, "config": {}})
        assert plain.get_config() == case.cls().get_config()
