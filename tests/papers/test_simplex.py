"""Figure 1 of Label Relaxation: targets lie where the formulas say."""

import numpy as np
import pytest
from figures import simplex
from PIL import Image
from scipy.optimize import minimize

import keras_calib

# Predictions of three classes, of which some give the second 0.7 and more.
PROBS = np.random.default_rng(0).dirichlet([1, 1.5, 1], size=12)
ALPHA = 0.3


def divergence(target, probs):
    return float(np.sum(target * np.log(np.maximum(target, 1e-12) / probs)))


def nearest(probs):
    """The distribution with at most ALPHA off the second class."""
    least = {"type": "ineq", "fun": lambda t: t[1] - (1 - ALPHA)}
    whole = {"type": "eq", "fun": lambda t: t.sum() - 1}
    found = minimize(
        divergence,
        [0.1, 0.8, 0.1],
        args=(probs,),
        bounds=[(1e-9, 1)] * 3,
        constraints=[least, whole],
        method="SLSQP",
        options={"ftol": 1e-14, "maxiter": 500},
    )
    assert found.success
    return found.x, found.fun


def test_relaxed_targets_are_the_nearest_in_the_set():
    loss = keras_calib.LabelRelaxation(alpha=ALPHA, from_logits=True)
    targets = simplex.targets_of(loss, PROBS)
    inside = PROBS[:, 1] >= 1 - ALPHA
    assert 0 < inside.sum() < len(PROBS)
    for probs, target in zip(PROBS, targets, strict=True):
        expected, least = nearest(probs)
        np.testing.assert_allclose(target, expected, atol=1e-5)
        found = loss.call(np.eye(3)[[1]], np.log(probs[np.newaxis]))
        assert float(found[0]) == pytest.approx(least, abs=1e-6)
    np.testing.assert_allclose(targets[inside], PROBS[inside], atol=1e-6)


def test_a_smoothed_target_is_one_for_all_predictions():
    loss = keras_calib.LabelSmoothing(alpha=ALPHA, from_logits=True)
    expected = np.tile([ALPHA / 3, 1 - ALPHA + ALPHA / 3, ALPHA / 3], (12, 1))
    np.testing.assert_allclose(
        simplex.targets_of(loss, PROBS), expected, atol=1e-6
    )


def test_probabilities_are_distances_to_the_sides():
    points, corners = simplex.on_plane(PROBS), simplex.on_plane(np.eye(3))
    for k in range(3):
        start, end = np.delete(corners, k, axis=0)
        (dx, dy), away = (end - start) / np.linalg.norm(end - start), points
        distance = np.abs((away - start) @ [-dy, dx])
        np.testing.assert_allclose(distance, PROBS[:, k], atol=1e-12)


def test_the_picture_is_drawn(tmp_path):
    figure = simplex.draw_targets(0.25, num_points=20)
    figure.savefig(tmp_path / "targets.png")
    with Image.open(tmp_path / "targets.png") as picture:
        colors = np.asarray(picture.convert("RGB")).reshape(-1, 3)
    # Predictions in blue, targets in orange.
    for color in ((0, 0x72, 0xB2), (0xD5, 0x5E, 0)):
        assert (colors == color).all(axis=1).sum() > 50
