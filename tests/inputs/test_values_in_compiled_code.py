"""Compiled code cannot raise: what is wrong there is NaN, counted or told."""

from functools import partial

import numpy as np
import pytest
from cases import BACKEND
from keras import ops
from refusals import (
    HARD_LOSSES,
    IDS,
    LOSSES,
    NAN,
    PROBS,
    compiled,
    compiled_update,
    of_library,
    read_by_loss,
    read_by_metric,
)

from keras_calib import (
    AURC,
    ECE,
    FLSD,
    MMCE,
    NLL,
    MbLS,
    RiskCoverageDisplay,
    aurc,
    ece,
    nll,
)
from keras_calib.losses import BatchCoupledLoss, effective_labels

IMPOSSIBLE = {
    "class id too large": np.array([0, 3]),
    "negative class id": np.array([0, -1]),
    "class id too large, shape (n, 1)": np.array([[0], [3]]),
    "two classes": np.array([[1.0, 0.0, 0.0], [1.0, 1.0, 0.0]]),
    "no class": np.array([[1.0, 0.0, 0.0], [0.0, 0.0, 0.0]]),
    "NaN": np.array([[1.0, 0.0, 0.0], [NAN, 1.0, 0.0]]),
}
if BACKEND != "jax":  # It has no int64.
    IMPOSSIBLE["class id of 33 bits"] = np.array([0, 2**32])


# Of soft labels, of hard ones, and of the batch.
THREE = (MbLS, FLSD, MMCE)


@pytest.mark.parametrize(
    "losses",
    [
        pytest.param(THREE, id="three", marks=pytest.mark.portable),
        pytest.param(LOSSES, id="all", marks=pytest.mark.slow),
    ],
)
def test_an_impossible_label_makes_a_compiled_loss_nan(losses):
    logits = np.array([[5.0, 1.0, 0.0], [0.5, 2.0, 1.0]], "float32")
    for cls in losses:
        loss = cls(from_logits=True, reduction=None)
        run = compiled(loss)
        # One class shows all the forms, the others that ids are looked at.
        forms = [*IMPOSSIBLE.values()][: None if cls is MbLS else 1]
        for labels in forms:
            values = ops.convert_to_numpy(run(labels, logits))
            assert np.isnan(values[1]), cls
            if not issubclass(cls, BatchCoupledLoss):
                alone = ops.convert_to_numpy(loss(labels[:1], logits[:1]))
                np.testing.assert_allclose(
                    values[0], alone[0], rtol=1e-5, atol=1e-7
                )


@pytest.mark.portable
def test_an_impossible_label_makes_a_compiled_mean_nan():
    for cls in (MbLS, MMCE):
        run = compiled(cls(from_logits=True))
        assert np.isfinite(float(run(IDS, PROBS)))
        assert np.isnan(float(run(np.array([0, 3]), PROBS)))


def test_a_soft_label_makes_a_compiled_loss_of_hard_labels_nan():
    labels = np.array([[1.0, 0.0, 0.0], [0.5, 0.5, 0.0]])
    for cls in HARD_LOSSES:
        loss = cls(from_logits=True, reduction=None)
        values = ops.convert_to_numpy(compiled(loss)(labels, PROBS))
        assert np.isfinite(values[0])
        assert np.isnan(values[1])


def test_rows_that_are_no_distribution_are_not_read_as_one():
    rows = np.array([[0.7, 0.2, 0.1], [0.3, 0.6, 0.2]], "float32")
    for cls in (MbLS, MMCE):
        run = compiled(cls(reduction=None))
        good, bad = (ops.convert_to_numpy(run(IDS, x)) for x in (PROBS, rows))
        assert np.isfinite(good).all()
        assert np.isnan(bad[1])
        logits = np.array([[5.0, 1.0, 0.0], [0.5, 2.0, 1.0]], "float32")
        assert np.isnan(float(compiled(cls())(IDS, logits)))
    run = compiled(MbLS())
    for half in ("float16", "bfloat16"):
        found = ops.softmax(ops.cast(np.log(PROBS), half))
        for x in (found, ops.cast(found, "float32")):
            assert np.isfinite(float(MbLS()(IDS, x)))
            assert np.isfinite(float(run(IDS, x)))
            assert np.isfinite(ece(IDS, ops.convert_to_numpy(x)))
    for count in (ECE, NLL):
        metric = count()
        compiled_update(metric)(IDS, rows)
        assert metric.num_invalid == 1
        with pytest.warns(RuntimeWarning, match="leaves out 1 predictions"):
            metric.result()


def test_a_softmax_in_half_precision_that_was_cast_counts():
    # Values that no half precision holds: a layer in float32 came after it.
    cast = PROBS * np.array([[1.004], [0.98]], "float32")
    readers = (ece, partial(read_by_metric, ECE), partial(read_by_loss, MbLS))
    for reader in readers:
        reader(IDS, cast)
        for rows in (PROBS * 0.5, PROBS * 1.04):
            with pytest.raises(ValueError, match="must sum to 1 over"):
                reader(IDS, rows)
    for count in (ECE, NLL):
        metric = count()
        compiled_update(metric)(IDS, cast)
        assert metric.num_invalid == 0
        compiled_update(metric)(IDS, PROBS * 0.5)
        assert metric.num_invalid == 2


# The last row counts for nothing: what is there is not judged.
PADDED = {
    "id -1": (np.array([0, 1, -1]), None),
    "id too large": (np.array([0, 1, 9]), None),
    "no class": (np.eye(3)[[0, 1, 1]] * [[1], [1], [0]], None),
    "label NaN": (np.array([0, 1, NAN]), None),
    "soft label NaN": (np.array([*np.eye(3)[:2], [NAN] * 3]), None),
    "no probabilities": (np.array([0, 1, 2]), -7.0),
    "zeros": (np.array([0, 1, 2]), 0.0),
    "NaN": (np.array([0, 1, 2]), NAN),
}


@pytest.mark.parametrize("how", ["weight 0", "ignored"])
def test_what_does_not_count_is_not_judged(how):
    for labels, value in PADDED.values():
        probs = np.concatenate([PROBS, PROBS[:1]])
        if value is not None:
            probs[2] = value
        weight, options = np.array([1.0, 1.0, 0.0]), {}
        if how == "ignored":
            if labels.ndim > 1 or np.isnan(labels[2]):
                continue
            weight, options = None, {"ignore_class": int(labels[2])}
        for exact, cls in ((ece, ECE), (nll, NLL), (aurc, AURC)):
            expected = exact(IDS, PROBS)
            found = exact(labels, probs, sample_weight=weight, **options)
            np.testing.assert_allclose(found, expected, rtol=1e-6)
            metric, plain = cls(**options), cls()
            metric.update_state(labels, probs, weight)
            assert metric.num_invalid == 0
            plain.update_state(IDS, PROBS)
            assert float(metric.result()) == float(plain.result())


@pytest.mark.portable
@pytest.mark.parametrize(
    ("dtype", "ignored", "label"),
    [("float16", 2049, 2048), ("float32", 2**24 + 1, 2**24)]
    + [("uint8", -1, 255), ("uint64", -1, 2**64 - 1)] * (BACKEND != "jax"),
)
def test_no_label_is_ignored_for_a_class_that_its_dtype_cannot_hold(
    dtype, ignored, label
):
    labels = np.array([*IDS, label], dtype)
    probs = np.concatenate([PROBS, PROBS[:1]])
    with pytest.raises(ValueError, match="must hold class ids in"):
        ece(labels, probs, ignore_class=ignored)
    metric = ECE(ignore_class=ignored)
    compiled_update(metric)(labels, probs)
    assert int(metric.num_invalid) == 1


def test_probabilities_read_as_logits_are_told_once():
    rule = "looks like probabilities"
    loss, metric = MbLS(from_logits=True), ECE(from_logits=True)
    with pytest.warns(RuntimeWarning, match=rule) as caught:
        loss(IDS, PROBS)
        loss(IDS, PROBS)
    (told,) = of_library(caught)
    assert told.filename == __file__
    compiled_update(metric)(IDS, PROBS)
    with pytest.warns(RuntimeWarning, match=f"`ece` {rule}") as caught:
        metric.bins()
        metric.result()
    assert [w.filename for w in of_library(caught)] == [__file__]
    rank = AURC(from_logits=True)
    compiled_update(rank)(IDS, PROBS)
    with pytest.warns(RuntimeWarning, match=f"`aurc` {rule}"):
        RiskCoverageDisplay(rank)
    with pytest.warns(RuntimeWarning, match=f"`logits` {rule}"):
        effective_labels(loss, IDS, PROBS)
    # One row, whole numbers and other sums tell nothing.
    for logits in (PROBS[:1], np.eye(3)[:2], PROBS * 1.1, PROBS - 0.1):
        ece(IDS[: len(logits)], logits, from_logits=True)
    # Nor do few values of one channel, those that hardly vary and whole
    # numbers, nor the upper edge of a picture.
    probs = np.linspace(0.02, 0.98, 100, dtype="float32")[:, None]
    ids = np.arange(100) % 2
    for z in (probs - 0.1, probs + 0.1, probs[::2], 0.4 * probs, probs > 0.5):
        ece(ids[: len(z)], z.astype("float32"), from_logits=True)
    with pytest.warns(RuntimeWarning, match=rf"`outputs` {rule} \(one output"):
        ece(ids, probs, from_logits=True)
    one = np.full((200, 1), 0.995, "float32")
    told = ECE(from_logits=True)
    told.update_state(np.zeros(200, int), one)
    edge = np.concatenate([np.tile(PROBS, (60, 1)), np.eye(3)[[0] * 300] * 9])
    told.update_state(np.zeros(420, int), edge)
    ece(np.zeros(420, int), edge, from_logits=True)
    assert told.state_dict()["flags"][3] == 0


def test_bad_rows_are_located():
    labels, probs = np.tile(IDS, 4), np.tile(PROBS, (4, 1))
    for value in (NAN, 0.9):
        probs[[2, 5, 6], 0] = value
        for reader in (ece, partial(read_by_metric, ECE)):
            with pytest.raises(ValueError, match=r"rows=3, first=\[2, 5, 6\]"):
                reader(labels, probs)
    with pytest.raises(ValueError, match=r"`outputs\[:, None\]`"):
        ece(IDS, PROBS[:, 0])
