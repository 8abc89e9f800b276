"""Losses of several labels at once."""

import keras
import numpy as np
import pytest
from cases import array
from keras import ops

import keras_calib as kc

LOSSES = {
    "focal": lambda **o: kc.FocalLoss(gamma=2.0, **o),
    "smoothing": lambda **o: kc.LabelSmoothing(alpha=0.1, **o),
    "brier": lambda **o: kc.BrierLoss(**o),
    "mbls": lambda **o: kc.MbLS(margin=1.0, **o),
    "mmce": lambda **o: kc.MMCE(**o),
    "mdca": lambda **o: kc.MDCA(**o),
}


def several(n=40, labels=3):
    rng = np.random.default_rng(0)
    logits = (rng.normal(size=(n, labels)) * 2).astype("float32")
    truth = (rng.random((n, labels)) < 0.4).astype("float32")
    return truth, logits, rng.gamma(2.0, size=(n, labels)).astype("float32")


@pytest.mark.parametrize("name", LOSSES)
def test_the_loss_is_that_of_the_columns_and_one_label_is_the_same(name):
    make, (truth, logits, weights) = LOSSES[name], several()
    plain = make(from_logits=True)
    loss = kc.MultiLabel(make(from_logits=True))
    for weight in (None, weights):
        columns = [
            float(
                plain(
                    truth[:, i],
                    logits[:, i : i + 1],
                    None if weight is None else weight[:, i],
                )
            )
            for i in range(3)
        ]
        value = float(loss(truth, logits, weight))
        np.testing.assert_allclose(value, np.mean(columns), rtol=2e-6)
        part = None if weight is None else weight[:, :1]
        assert float(loss(truth[:, :1], logits[:, :1], part)) == columns[0]
    again = keras.losses.deserialize(keras.losses.serialize(loss))
    assert float(again(truth, logits)) == float(loss(truth, logits))


@pytest.mark.portable
def test_cross_entropy_is_that_of_keras():
    truth, logits, _ = several()
    loss = kc.MultiLabel(kc.LabelSmoothing(alpha=0.0, from_logits=True))
    peer = keras.losses.BinaryCrossentropy(from_logits=True)
    np.testing.assert_allclose(
        float(loss(truth, logits)), float(peer(truth, logits)), rtol=1e-6
    )


@pytest.mark.portable
def test_missing_labels_and_weights_of_labels_count_as_told():
    truth, logits, _ = several()
    make = LOSSES["focal"]
    each = kc.MultiLabel(make(from_logits=True, reduction=None))
    entries = array(each(truth, logits))
    assert entries.shape == truth.shape
    hidden = truth.copy()
    hidden[::3, 1] = -1
    seen = hidden != -1
    loss = kc.MultiLabel(make(from_logits=True, ignore_class=-1))
    np.testing.assert_allclose(
        float(loss(hidden, logits)), entries[seen].mean(), rtol=1e-6
    )
    hidden[::3, 1] = np.nan
    loss = kc.MultiLabel(
        make(from_logits=True, reduction="mean_with_sample_weight")
    )
    value = float(loss(hidden, logits, seen.astype("float32")))
    np.testing.assert_allclose(value, entries[seen].mean(), rtol=1e-6)
    loss = kc.MultiLabel(make(from_logits=True), label_weights=[1, 0, 3])
    expected = np.average(entries.mean(axis=0), weights=[1, 0, 3])
    np.testing.assert_allclose(float(loss(truth, logits)), expected, rtol=1e-6)


@pytest.mark.slow
def test_a_model_of_several_labels_trains_by_any_loss_and_is_saved(tmp_path):
    truth, x, _ = several(n=64)
    model = keras.Sequential([keras.Input((3,)), keras.layers.Dense(3)])
    model.compile(
        "sgd",
        jit_compile=False,
        loss=kc.MultiLabel(kc.FocalLoss(from_logits=True)),
        metrics=[
            kc.MultiLabel(kc.ECE(from_logits=True)),
            kc.MultiLabel(kc.NLL(from_logits=True), average=None, name="cost"),
        ],
    )
    history = model.fit(x, truth, epochs=2, batch_size=32, verbose=0).history
    assert history["loss"][1] < history["loss"][0]
    assert {"ece", "cost_0", "cost_2"} <= {*history}
    model.save(tmp_path / "model.keras")
    again = keras.models.load_model(tmp_path / "model.keras")
    before = model.evaluate(x, truth, verbose=0, return_dict=True)
    after = again.evaluate(x, truth, verbose=0, return_dict=True)
    assert after == pytest.approx(before)
    metric = kc.MultiLabel(kc.ECE(from_logits=True))
    metric.update_state(truth, ops.convert_to_numpy(model(x)))
    assert before["ece"] == pytest.approx(float(metric.result()), rel=1e-5)


def test_what_is_no_loss_of_two_classes_is_refused():
    truth, logits, _ = several(n=4)
    for loss in (
        keras.losses.BinaryCrossentropy(),
        kc.MultiLabel(kc.FocalLoss()),
        kc.AdaptiveLabelSmoothing(),
    ):
        with pytest.raises(TypeError, match="per-sample loss|has a wrapper"):
            kc.labels.MultiLabelLoss(loss)
    with pytest.raises(ValueError, match="`axis=-1`"):
        kc.MultiLabel(kc.FocalLoss(axis=1))
    with pytest.raises(ValueError, match="for each of `label_weights`"):
        kc.MultiLabel(kc.FocalLoss(from_logits=True), label_weights=[1, 2])(
            truth, logits
        )
    with pytest.raises(ValueError, match="must not contain NaN"):
        kc.MultiLabel(kc.FocalLoss(from_logits=True))(truth * np.nan, logits)
