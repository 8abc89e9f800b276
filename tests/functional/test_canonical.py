"""The calibration error of the whole probability vector."""

import numpy as np
import pytest
from cases import softmax

import keras_calib as kc

# Widmann et al., NeurIPS 2019, CIFAR-10: bins of equal width and by medians.
PUBLISHED = {
    "densenet121": (0.06607267260685921, 0.029532869835646354),
    "densenet169": (0.06496751907840302, 0.031188340072043963),
    "inception_v3": (0.06622328174328834, 0.027411723147251238),
    "resnet_orig": (0.09817285190958805, 0.04414388945292799),
    "resnet18": (0.07488154767161395, 0.03644622574154899),
    "vgg11_bn": (0.0828966903027505, 0.03679525436809021),
    "vgg16_bn": (0.06611851748458264, 0.02912703229915157),
}


@pytest.mark.data
def test_published_errors_are_reproduced(data_dir):
    error = kc.canonical_calibration_error
    for name, (width, median) in PUBLISHED.items():
        path = data_dir / "logits" / f"widmann19_cifar10_{name}.npz"
        with np.load(path) as arrays:
            labels = arrays["labels"].astype("int64")
            probs = arrays["probs"].astype("float64")
        # The packed probabilities are float32.
        assert abs(error(labels, probs) - width) < 1e-8, name
        found = error(labels, probs, edges="median")
        assert abs(found - median) < 1e-8, name


def predictions(n=400, num_classes=3):
    rng = np.random.default_rng(0)
    logits = 2 * rng.normal(size=(n, num_classes))
    probs = softmax(logits)
    labels = np.array([rng.choice(num_classes, p=p) for p in probs])
    return labels, logits, probs


def loop(labels, probs, num_bins=10, weight=None):
    weight = np.ones(len(labels)) if weight is None else weight
    bins = {}
    for y, p, w in zip(labels, probs, weight, strict=True):
        key = tuple(np.maximum(np.ceil(p * num_bins), 1).astype(int))
        bins.setdefault(key, np.zeros(len(p)))
        bins[key] += w * (p - np.eye(len(p))[y])
    return sum(np.abs(r).sum() for r in bins.values()) / (2 * weight.sum())


def test_a_loop_agrees():
    labels, logits, probs = predictions()
    error = kc.canonical_calibration_error
    assert abs(error(labels, probs) - loop(labels, probs)) < 1e-12
    from_logits = error(labels, logits, from_logits=True)
    assert abs(from_logits - loop(labels, probs)) < 1e-12
    weight = np.random.default_rng(1).gamma(2.0, size=len(labels))
    weighted = error(labels, probs, sample_weight=weight)
    assert abs(weighted - loop(labels, probs, weight=weight)) < 1e-12
    one_hot = error(np.eye(3)[labels], probs)
    assert abs(one_hot - loop(labels, probs)) < 1e-12


def test_one_bin_compares_the_class_shares():
    labels, _, probs = predictions()
    shares = np.bincount(labels, minlength=3) / len(labels)
    expected = np.abs(probs.mean(axis=0) - shares).sum() / 2
    for options in ({"num_bins": 1}, {"edges": "median", "min_bin_size": 201}):
        value = kc.canonical_calibration_error(labels, probs, **options)
        assert abs(value - expected) < 1e-12


def test_median_bins_split_where_a_class_varies_most():
    # Two groups, each calibrated on average only together.
    probs = np.repeat([[0.8, 0.2], [0.2, 0.8]], 100, axis=0)
    labels = np.repeat([0, 1], 100)
    options = {"edges": "median", "min_bin_size": 100}
    value = kc.canonical_calibration_error(labels, probs, **options)
    assert abs(value - 0.2) < 1e-12
    options["min_bin_size"] = 101
    value = kc.canonical_calibration_error(labels, probs, **options)
    assert value < 1e-12


def test_bad_choices_are_refused():
    labels, _, probs = predictions(n=5)
    with pytest.raises(ValueError, match="`edges` must be one of"):
        kc.canonical_calibration_error(labels, probs, edges="mass")
    with pytest.raises(ValueError, match="`min_bin_size` must be >= 1"):
        kc.canonical_calibration_error(labels, probs, min_bin_size=0)
