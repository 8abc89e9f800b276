"""Published numbers of real predictions, from the folder KERAS_CALIB_DATA."""

import json

import numpy as np
import pytest
from cases import array, softmax

import keras_calib as kc
from keras_calib.functional.calibration_errors import aece, ece, mce
from keras_calib.functional.proper import nll

pytestmark = pytest.mark.data

# Of the predicted class, as their authors printed it: (function, options,
# published, tolerance). Percent as fractions.
TOP_LABEL = {
    f"hollance_imagenet_{name}_top1": [(ece, {"num_bins": 10}, value, 5.1e-5)]
    for name, value in (
        ("timm_densenetblur121d", 0.0696),
        ("timm_efficientnet_b1", 0.1),
        ("timm_ese_vovnet19b_dw", 0.1229),
        ("timm_mobilenetv3_large_100", 0.067),
        ("timm_resnext50_32x4d", 0.058),
        ("torchvision_densenet161", 0.0564),
        ("torchvision_resnet101", 0.0491),
    )
} | {
    "markus93_resnet110_cifar10_top1": [
        (ece, {"num_bins": 10}, 0.0475, 5.1e-5),
        # In float32 by their author.
        (ece, {}, 0.047503518641, 1e-7),
        (mce, {}, 0.295798957348, 1e-6),
    ]
}
# Before and after temperature scaling. The temperature was printed as 2.883;
# of those that round to it this one gives all that was printed with it.
DENSENET40 = [
    ("test", 1.0, ece, {}, 0.055002704373, 1e-8),
    ("test", 1.0, mce, {}, 0.333955179269, 1e-7),
    ("test", 1.0, nll, {"clip": 1e-15}, 0.42820705658, 1e-7),
    ("test", 1.0, aece, {}, 0.0549, 5e-5),
    ("test", 2.88255, ece, {}, 0.00946355, 1e-7),
    ("test", 2.88255, mce, {}, 0.0992925, 1e-7),
    ("test", 2.88255, nll, {}, 0.225086, 5e-7),
    ("test", 2.88255, aece, {}, 0.0092, 5e-5),
    ("val", 2.88255, ece, {}, 0.005947, 5e-7),
    ("val", 2.88255, mce, {}, 0.107191, 5e-7),
    ("val", 2.88255, nll, {}, 0.186612, 5e-7),
]


def load(data_dir, name):
    with np.load(data_dir / "logits" / f"{name}.npz") as arrays:
        return dict(arrays)


def test_published_table_of_densenet40_is_reproduced(data_dir):
    arrays = load(data_dir, "markus93_densenet40_cifar10")
    for part, temperature, function, options, published, within in DENSENET40:
        labels = arrays[f"labels_{part}"].reshape(-1)
        logits = arrays[f"logits_{part}"].astype("float64") / temperature
        value = function(labels, logits, from_logits=True, **options)
        row = part, temperature, function.__name__
        assert abs(value - published) <= within, row


def test_published_temperature_of_densenet40_is_reproduced(data_dir):
    arrays = load(data_dir, "markus93_densenet40_cifar10")
    scaling = kc.TemperatureScaling().fit(
        arrays["labels_val"].reshape(-1), arrays["logits_val"]
    )
    # Printed 2.883; the exact optimum is a little lower.
    assert abs(scaling.temperature - 2.8825607) < 1e-5


@pytest.mark.parametrize(
    "name",
    [
        # Those of ImageNet are 50,000 rows of 1,000 classes.
        pytest.param(
            name, marks=[pytest.mark.slow] if "imagenet" in name else []
        )
        for name in TOP_LABEL
    ],
)
def test_published_error_of_the_predicted_class_is_reproduced(data_dir, name):
    arrays = load(data_dir, name)
    confidence = arrays["confidence"].astype("float64")
    # As two classes: the predicted one, and all others together. Below one
    # half the second would be predicted, so the rest is spread over many.
    rest = np.repeat((1 - confidence)[:, None] / 999, 999, axis=1)
    probs = np.concatenate([confidence[:, None], rest], axis=1)
    probs = probs.astype("float32")
    wrong = (arrays["label"] != arrays["pred"]).astype("int64")
    for function, options, published, tolerance in TOP_LABEL[name]:
        value = function(wrong, probs, **options)
        assert abs(value - published) <= tolerance, function.__name__


@pytest.mark.parametrize(
    "name",
    [
        "netcal_wideresnet_16_4_cifar100",
        "widmann19_cifar10_resnet18",
        "cleanlab_20news_xval",
    ],
)
def test_streaming_bounds_hold_on_real_predictions(data_dir, name):
    arrays = load(data_dir, name)
    labels, probs = arrays["labels"].reshape(-1), arrays["probs"]
    for cls, exact in ((kc.AURC, kc.aurc), (kc.AECE, kc.functional.aece)):
        metric = cls()
        for start in range(0, len(labels), 1000):
            part = slice(start, start + 1000)
            metric.update_state(labels[part], probs[part])
        low, high = metric.bounds()
        assert low <= exact(labels, probs) <= high
        assert low <= float(metric.result()) <= high
        assert abs(float(metric.result()) - exact(labels, probs)) < 1e-4
    ece = kc.ECE()
    ece.update_state(labels, probs)
    assert abs(float(ece.result()) - kc.ece(labels, probs)) < 1e-6


def test_published_calibrators_are_reproduced(data_dir):
    name = "markus93_densenet40_cifar10"
    data = load(data_dir, name)
    index = json.loads((data_dir / "logits" / "index.json").read_text())
    published = index[name]["published"]["test"]
    labels = data["labels_test"]
    epsilon = float(np.finfo("float32").eps)
    for row, calibrator, tolerance in (
        ("temperature_scaling", kc.TemperatureScaling(), 1e-6),
        ("histogram_binning_1vsK", kc.HistogramBinning(empty="zero"), 1e-4),
        ("isotonic_1vsK", kc.IsotonicCalibration(), 5e-5),
        ("beta_abm_1vsK", kc.BetaCalibration(clip=epsilon), 2e-4),
    ):
        calibrator.fit(data["labels_val"], data["logits_val"])
        logits = array(calibrator(data["logits_test"])).astype("float64")
        expected, probs = published[row], softmax(logits)
        error = 100 * np.mean(probs.argmax(-1) != labels)
        assert abs(error - expected["error_pct"]) < 1e-9, row
        found = {
            "ece15": kc.ece(labels, probs),
            "mce15": kc.functional.mce(labels, probs),
        }
        if row != "temperature_scaling":
            # The published NLL clips before rows are renormalised.
            clipped = np.clip(np.exp(logits), 1e-15, 1 - 1e-15)
            probs = clipped / clipped.sum(-1, keepdims=True)
        found["nll"] = kc.nll(labels, probs, clip=1e-15)
        for key, value in found.items():
            assert abs(value - expected[key]) < tolerance, (row, key)
