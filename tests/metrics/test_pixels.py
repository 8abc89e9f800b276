"""Some pixels of each image: the same for every model."""

import numpy as np
import pytest
from cases import BACKEND, array, softmax
from streams import (
    case_of,
    compiled_update,
    holds,
    state,
    stream,
    updated_compiled,
)

import keras_calib as kc


def images(seed=0, count=6, shape=(5, 8), num_classes=4):
    rng = np.random.default_rng(seed)
    labels = rng.integers(num_classes, size=(count, *shape))
    probs = softmax(2 * rng.normal(size=(count, *shape, num_classes)))
    return labels, probs.astype("float32")


def places_of(labels, **options):
    """Which pixels of each image are looked at."""
    count, *shape = labels.shape
    size = int(np.prod(shape))
    # Each pixel in a bin of its own.
    top = 0.5 + (np.arange(size) + 0.5) / (2 * size)
    probs = np.stack([top, 1 - top], axis=-1).reshape(1, *shape, 2)
    metric, found = kc.ECE(num_bins=2 * size, **options), []
    for image in labels:
        metric.reset_state()
        metric.update_state(image[None], probs.astype("float32"))
        found.append(list(np.flatnonzero(metric.bins().weight) - size))
    return found


def test_the_pixels_are_of_the_labels_alone():
    labels, _ = images(count=2, num_classes=2)
    first = places_of(labels, pixels_per_image=7)
    assert [len(seen) for seen in first] == [7, 7]
    assert first[0] != first[1]
    assert first != places_of(labels, pixels_per_image=7, seed=1)


@pytest.mark.parametrize("name", ["ECE", "ClasswiseECE"])
def test_some_pixels_do_not_depend_on_the_order_of_images(name):
    case = case_of(name)
    labels, probs = images()
    options = {"pixels_per_image": 7, "ignore_class": 3}
    whole = case.make(**options)
    whole.update_state(labels, probs)
    order = np.array([4, 1, 5, 0, 2, 3])
    parts = stream(case.make(**options), labels[order], probs[order], batch=3)
    np.testing.assert_allclose(
        case.value(parts), case.value(whole), rtol=1e-5, atol=1e-7
    )
    # One more model, the same pixels.
    masses = []
    for seed in (0, 1):
        metric = kc.ClasswiseECE(4, num_bins=1, **options)
        metric.update_state(labels, images(seed)[1])
        limbs = state(metric)
        masses.append(limbs[:, 4:9])
    np.testing.assert_array_equal(*masses)
    if BACKEND == "tensorflow":
        # A graph that does not know how many images come.
        graph = case.make(**options)
        update = compiled_update(graph)
        for part in (slice(4), slice(4, 6)):
            update(labels[part], probs[part])
        assert holds(case, graph, 42)
    channels_first = case.make(axis=1, **options)
    channels_first.update_state(labels, np.moveaxis(probs, -1, 1))
    np.testing.assert_array_equal(state(channels_first), state(whole))


def test_some_pixels_equal_the_exact_function_of_them():
    labels, probs = images(count=3, num_classes=2)
    index = [
        i * 40 + place
        for i, seen in enumerate(places_of(labels, pixels_per_image=7))
        for place in seen
    ]
    picked = labels.reshape(-1)[index], probs.reshape(-1, 2)[index]
    for cls, exact in ((kc.ECE, kc.ece), (kc.NLL, kc.nll), (kc.AURC, kc.aurc)):
        metric = cls(pixels_per_image=7)
        metric.update_state(labels, probs)
        assert float(metric.result()) == pytest.approx(exact(*picked), abs=1e-5)


def test_ignored_pixels_are_looked_at_last():
    labels, probs = images()
    labels[:, :4] = 255
    labels[0, 4, :5] = 255
    for count, expected in ((2, 12), (5, 3 + 25), (8, 3 + 40), (999, 43)):
        metric = kc.ECE(pixels_per_image=count, ignore_class=255)
        metric.update_state(labels, probs)
        assert metric.bins().weight.sum() == expected
    whole = kc.ECE(ignore_class=255)
    whole.update_state(labels, probs)
    np.testing.assert_allclose(
        metric.bins().confidence_gap, whole.bins().confidence_gap, atol=1e-7
    )


def test_pixels_keep_their_weights_and_soft_labels():
    labels, probs = images()
    weight = (labels > 0).astype("float32") * 2.0
    metric = kc.Accuracy(pixels_per_image=40)
    metric.update_state(labels, probs, weight)
    right = (probs.argmax(-1) == labels)[labels > 0]
    assert float(metric.result()) == pytest.approx(right.mean())
    one = kc.ECE(pixels_per_image=7)
    one.update_state(labels, probs)
    soft = kc.ECE(pixels_per_image=7)
    soft.update_state(np.eye(4, dtype="float32")[labels], probs)
    np.testing.assert_array_equal(state(one), state(soft))


def test_pixels_need_images():
    with pytest.raises(ValueError, match="`pixels_per_image` needs"):
        kc.ECE(pixels_per_image=3).update_state([0], [[0.4, 0.6]])


@pytest.mark.portable
@pytest.mark.skipif(BACKEND == "torch", reason="torch runs eagerly")
def test_compiled_code_looks_at_the_same_pixels():
    labels, probs = images()
    options = {"pixels_per_image": 7, "ignore_class": 3}
    eager = kc.ECE(**options)
    eager.update_state(labels, probs)
    metric = kc.ECE(**options)
    for _ in updated_compiled(
        metric, labels.astype("int32"), probs, jit=[False]
    ):
        np.testing.assert_array_equal(array(metric.sums), state(eager))
