"""CutMix, Mixup and RICAP: images and targets mixed alike."""

import numpy as np
import pytest
import tensorflow as tf

import keras_calib as kc

MIXES = [kc.data.cutmix, kc.data.mixup, kc.data.ricap]
COUNT = 6


def batch(height=12, width=18):
    """Images whose every pixel tells which image it is of."""
    images = np.ones((COUNT, height, width, 3), "float32")
    images *= np.arange(COUNT)[:, None, None, None]
    return images, np.eye(COUNT, dtype="float32")


def traced(mix, *arrays, **options):
    """From a seed to what `mix` makes of these arrays."""
    arrays = [tf.constant(array) for array in arrays]
    run = tf.function(
        lambda seed: mix(*arrays, seed, **options), autograph=False
    )
    return lambda *seed: [x.numpy() for x in run(tf.constant(seed))]


def targets_of(mix, arrays, count, **options):
    """Mixed targets of many seeds."""
    arrays = [tf.constant(array) for array in arrays]
    seeds = np.stack([np.arange(count), np.full(count, 5)], axis=1)
    mixed = tf.data.Dataset.from_tensor_slices(seeds.astype("int32")).map(
        lambda seed: mix(*arrays, seed, **options)[1]
    )
    return list(mixed.as_numpy_iterator())


@pytest.fixture(scope="module", params=MIXES, ids=lambda mix: mix.__name__)
def mixes(request):
    return request.param, traced(request.param, *batch())


def test_targets_weigh_images_as_the_pixels_do(mixes):
    mix, run = mixes
    images, _ = batch()
    for seed in range(12):
        mixed, soft = run(seed, 1)
        assert mixed.shape == images.shape
        np.testing.assert_allclose(soft.sum(-1), 1, rtol=1e-6)
        if mix is kc.data.mixup:
            # One blend over the whole image.
            assert np.ptp(mixed, axis=(1, 2, 3)).max() < 1e-5
            value = soft @ np.arange(COUNT)
            np.testing.assert_allclose(mixed[:, 0, 0, 0], value, atol=1e-5)
        else:
            shares = [(mixed[..., 0] == k).mean((1, 2)) for k in range(COUNT)]
            np.testing.assert_allclose(soft, np.stack(shares, -1), atol=1e-6)


def test_soft_targets_are_mixed_as_hard_ones_and_eagerly_as_in_graphs(mixes):
    mix, run = mixes
    images, _ = batch()
    soft = kc.losses.objectness_targets(
        np.arange(COUNT), np.linspace(0, 1, COUNT), COUNT
    ).astype("float32")
    _, weights = run(3, 4)
    _, mixed = mix(images, soft, (3, 4))
    np.testing.assert_allclose(mixed, weights @ soft, atol=1e-6)


def test_a_seed_repeats_and_another_differs(mixes):
    _, run = mixes
    first, again = (run(7, 1)[1] for _ in range(2))
    np.testing.assert_array_equal(first, again)
    others = [run(k, 2)[1] for k in range(8)]
    assert max(np.abs(other - first).max() for other in others) > 0.05


def test_what_cutmix_replaces_is_one_rectangle_of_all_images():
    images, targets = batch()
    run = traced(kc.data.cutmix, images, targets)
    for seed in range(10):
        changed = (run(seed, 3)[0] != images).any((0, 3))
        if not changed.any():
            continue
        rows, columns = changed.any(1), changed.any(0)
        np.testing.assert_array_equal(changed, rows[:, None] & columns)
        for side in (rows, columns):
            assert np.abs(np.diff(side.astype(int))).sum() <= 2


def test_areas_of_cutmix_are_those_of_the_paper():
    # alpha = 1: lam is uniform, and what is clipped at the border is the
    # whole deviation.
    mixed = targets_of(kc.data.cutmix, batch(32, 32), 300)
    kept = [np.diag(soft).min() for soft in mixed]
    rng = np.random.default_rng(0)
    expected = []
    for _ in range(4000):
        cut = np.sqrt(1 - rng.uniform())
        side = int(32 * cut)
        y, x = rng.integers(32, size=2)
        extent = [
            np.clip(c + side // 2, 0, 32) - np.clip(c - side // 2, 0, 32)
            for c in (y, x)
        ]
        expected.append(1 - np.prod(extent) / 32**2)
    assert abs(np.mean(kept) - np.mean(expected)) < 0.06


def test_cutmix_happens_as_often_as_asked():
    images, targets = batch()
    never = kc.data.cutmix(images, targets, (0, 1), probability=0.0)
    np.testing.assert_array_equal(never[0], images)
    np.testing.assert_array_equal(never[1], targets)
    mixed = targets_of(kc.data.cutmix, batch(), 100, probability=0.5)
    changed = [(soft != targets).any() for soft in mixed]
    assert 0.3 < np.mean(changed) < 0.6


def test_ricap_patches_four_images():
    images, targets = batch(40, 40)
    mixed, _ = kc.data.ricap(images, targets, (2, 1), beta=5.0)
    quarters = [
        np.unique(part)
        for rows in np.split(mixed.numpy()[0, ..., 0], [4, 36])[::2]
        for part in (rows[:, :4], rows[:, 36:])
    ]
    assert [len(values) for values in quarters] == [1] * 4


def test_mixup_of_a_small_alpha_mostly_leaves_images_alone():
    mixed = targets_of(kc.data.mixup, batch(), 200, alpha=0.1)
    lams = [soft[np.argmin(np.diag(soft))].max() for soft in mixed]
    assert np.mean(np.array(lams) > 0.95) > 0.5


def test_what_cannot_be_mixed_is_refused():
    images, targets = np.zeros((4, 8, 8, 3)), np.eye(4)
    for mix in MIXES:
        for x, y, seed, rule in (
            (images[..., 0], targets, (0, 1), "`images` must have shape"),
            (images, np.arange(4), (0, 1), "`labels` must be soft"),
            (images, np.eye(4, dtype=int), (0, 1), "`labels` must be soft"),
            (images, targets, 3, "`seed` must be two integers"),
        ):
            with pytest.raises(ValueError, match=rule):
                mix(x, y, seed)
    for mix, options, rule in (
        (kc.data.cutmix, {"alpha": 0.0}, "`alpha` must be > 0"),
        (kc.data.cutmix, {"probability": 1.5}, "`probability` must be <= 1"),
        (kc.data.mixup, {"alpha": -1.0}, "`alpha` must be > 0"),
        (kc.data.ricap, {"beta": 0.0}, "`beta` must be > 0"),
    ):
        with pytest.raises(ValueError, match=rule):
            mix(images, targets, (0, 1), **options)
