"""Formulas of bin sums, losses and smoothing: tensors as arrays."""

import numpy as np
import pytest
from keras import ops
from made_up_probs import made_up, same
from streams import compiled

from keras_calib.formulas import binned_errors
from keras_calib.formulas.bins import BinSums, bin_index, bin_sums
from keras_calib.formulas.proper import brier_losses, log_losses
from keras_calib.formulas.smooth import smooth_error_of_points


def test_debiasing_removes_the_noise_of_labels():
    rng = np.random.default_rng(0)
    squares = []
    for _ in range(100):
        confidence = rng.uniform(size=200)
        right = rng.uniform(size=200) < confidence
        index = bin_index(confidence, 10)
        sums = bin_sums(confidence, right.astype("float64"), index, 10)
        squares.append(
            (
                binned_errors.debiased_squared_error(sums),
                binned_errors.calibration_error(sums, "l2") ** 2,
            )
        )
    debiased, plain = np.mean(squares, axis=0)
    noise = np.std(squares, axis=0)[0] / 10
    assert abs(debiased) < 4 * noise < plain / 2


def tensors(sums):
    return BinSums(
        *(ops.convert_to_tensor(x.astype("float32")) for x in sums.parts())
    )


def formulas(sums):
    """Everything that is made of bin sums, as a flat list."""
    return [
        *(
            binned_errors.calibration_error(sums, norm)
            for norm in binned_errors.NORMS
        ),
        binned_errors.average_error(sums),
        binned_errors.overconfidence_error(sums),
        binned_errors.debiased_squared_error(sums),
        binned_errors.debiased_error(sums, True),
        binned_errors.debiased_error(sums, False),
        *vars(binned_errors.brier_decomposition(sums)).values(),
        *vars(binned_errors.nll_decomposition(sums)).values(),
    ]


@pytest.mark.portable
def test_formulas_agree_on_tensors_and_arrays():
    in_graph = compiled(lambda *parts: formulas(BinSums(*parts)))
    for seed in (0, 3):
        labels, probs, weight = made_up(seed)
        confidence = np.where(probs.max(-1) == 1, 0.99, probs.max(-1))
        right = (probs.argmax(-1) == labels).astype("float64")
        weight = None if seed < 2 else weight
        sums = bin_sums(
            confidence, right, bin_index(confidence, 20), 20, weight
        )
        values = [float(value) for value in in_graph(*tensors(sums).parts())]
        np.testing.assert_allclose(
            values, np.array(formulas(sums)), rtol=1e-5, atol=1e-6
        )


@pytest.mark.portable
def test_small_gaps_of_large_sums_survive_float32():
    count, gap = 1e8, 1e-6
    sums = BinSums(
        *(
            np.array([x])
            for x in (
                count,
                count * 0.75,
                count * (0.75 - gap),
                count * gap,
                count,
            )
        )
    )
    for norm in binned_errors.NORMS:
        value = float(binned_errors.calibration_error(tensors(sums), norm))
        np.testing.assert_allclose(value, gap, rtol=1e-5)


def test_empty_bins_add_nothing():
    nothing = BinSums(*(np.zeros(5) for _ in range(5)))
    for value in formulas(nothing) + formulas(tensors(nothing)):
        assert float(value) == 0
    sums = BinSums(*(np.array([0.0, x, 0.0]) for x in (4, 3.2, 2, 1.2, 4)))
    alone = BinSums(*(part[1:2] for part in sums.parts()))
    same(formulas(sums), formulas(alone))


def test_smooth_error_without_residual_is_0():
    assert smooth_error_of_points(np.array([0.2, 1.0]), np.zeros(2)) == 0
    points = ops.convert_to_tensor(np.array([0.2, 1.0], "float32"))
    assert float(smooth_error_of_points(points, 0.0 * points)) == 0


@pytest.mark.portable
def test_smooth_error_agrees_on_tensors_and_arrays():
    in_graph = compiled(smooth_error_of_points)
    rng = np.random.default_rng(0)
    position = np.sort(rng.uniform(0.1, 1.0, 500))
    position[-3:] = 1.0
    for power in (0.3, 1.0, 4.0):
        right = rng.uniform(size=500) < position**power
        residual = (position - right) / 500
        expected = smooth_error_of_points(position, residual, 2**14)
        points = [
            ops.convert_to_tensor(x.astype("float32"))
            for x in (position, residual)
        ]
        assert abs(float(in_graph(*points)) - expected) < 1e-5


@pytest.mark.portable
def test_scores_of_samples_agree_on_tensors_and_arrays():
    labels, probs, _ = made_up(count=40)
    logits = np.random.default_rng(0).normal(size=probs.shape)
    soft = np.eye(4)[labels] * 0.9 + 0.025
    for losses in (log_losses, brier_losses):
        for outputs, from_logits in ((probs, False), (logits, True)):
            for truth, dtype in ((labels, "int32"), (soft, "float32")):
                expected = losses(truth, outputs, from_logits=from_logits)
                assert expected.shape == labels.shape
                values = losses(
                    ops.convert_to_tensor(truth.astype(dtype)),
                    ops.convert_to_tensor(outputs.astype("float32")),
                    from_logits=from_logits,
                )
                np.testing.assert_allclose(
                    ops.convert_to_numpy(values), expected, rtol=1e-5, atol=1e-6
                )
