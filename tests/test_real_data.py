"""Published numbers of real predictions, from the folder KERAS_CALIB_DATA."""

import json

import numpy as np
import pytest

import keras_calib as kc

pytestmark = [pytest.mark.data, pytest.mark.portable]

# Top-label ECE with 10 bins in percent, as printed by their author.
TOP_LABEL = {
    "hollance_imagenet_timm_densenetblur121d_top1": 6.96,
    "hollance_imagenet_timm_efficientnet_b1_top1": 10.0,
    "hollance_imagenet_timm_ese_vovnet19b_dw_top1": 12.29,
    "hollance_imagenet_timm_mobilenetv3_large_100_top1": 6.7,
    "hollance_imagenet_timm_resnext50_32x4d_top1": 5.8,
    "hollance_imagenet_torchvision_densenet161_top1": 5.64,
    "hollance_imagenet_torchvision_resnet101_top1": 4.91,
    "markus93_resnet110_cifar10_top1": 4.75,
}


def load(data_dir, name):
    with np.load(data_dir / "logits" / f"{name}.npz") as arrays:
        return dict(arrays)


def test_densenet40_reproduces_its_published_table(data_dir):
    arrays = load(data_dir, "markus93_densenet40_cifar10")
    index = json.loads((data_dir / "logits" / "index.json").read_text())
    assert "markus93_densenet40_cifar10" in index
    labels, logits = arrays["labels_test"], arrays["logits_test"]
    labels = labels.reshape(-1)
    assert abs(kc.ece(labels, logits, from_logits=True) - 0.055002704) < 1e-6
    clipped = kc.nll(labels, logits, from_logits=True, clip=1e-15)
    assert abs(clipped - 0.428207057) < 1e-6
    scaling = kc.TemperatureScaling().fit(
        arrays["labels_val"].reshape(-1), arrays["logits_val"]
    )
    # Printed 2.883; the exact optimum is a little lower.
    assert abs(scaling.temperature - 2.8825607) < 1e-5
    scaled = logits / scaling.temperature
    assert abs(kc.ece(labels, scaled, from_logits=True) - 0.0094632) < 1e-6
    assert abs(kc.nll(labels, scaled, from_logits=True) - 0.225086) < 1e-5


@pytest.mark.parametrize("name", TOP_LABEL)
def test_published_top_label_ece_is_reproduced(data_dir, name):
    arrays = load(data_dir, name)
    confidence = arrays["confidence"].astype("float64")
    # As two classes: the predicted one, and all others together. Below one
    # half the second would be predicted, so the rest is spread over many.
    rest = np.repeat((1 - confidence)[:, None] / 999, 999, axis=1)
    probs = np.concatenate([confidence[:, None], rest], axis=1)
    wrong = (arrays["label"] != arrays["pred"]).astype("int64")
    value = 100 * kc.ece(wrong, probs.astype("float32"), num_bins=10)
    assert abs(value - TOP_LABEL[name]) < 0.0051


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
    for cls, exact in ((kc.AURC, kc.aurc), (kc.AECE, kc.adaptive_ece)):
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
