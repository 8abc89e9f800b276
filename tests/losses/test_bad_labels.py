"""Labels that a loss cannot read: soft ones, pairs, shapes that do not fit."""

from functools import partial

import numpy as np
import pytest
from cases import BACKEND, array, one_hot
from loss_batches import FIRST, REPRESENTATIVES, compiled
from odd_inputs import WIDE_IDS, with_wide_id

import keras_calib as kc

traces = pytest.mark.skipif(BACKEND == "torch", reason="torch runs eagerly")
NAN, INF = float("nan"), float("inf")
LOGITS = np.array([[2.0, 0.0, -1.0], [0.5, 1.0, 0.0]], "float32")
SOFT = np.array([[1.0, 0.0, 0.0], [0.25, 0.75, 0.0]], "float32")
TWO = np.array([[0.7, 0.3], [0.4, 0.6]], "float32")
THREE = np.array([[0.7, 0.2, 0.1], [0.3, 0.6, 0.1]], "float32")
FIT = "`(y_true|labels)` must be class ids or one-hot or soft labels that fit"

# Soft labels where only hard ones have a meaning.


def of_fidelity(cls, inner, **options):
    return cls(fidelity=inner(**options), **options)


HARD = [
    *(partial(case.cls) for case in FIRST if not case.soft_labels),
    partial(of_fidelity, kc.DCA, kc.LabelRelaxation),
    partial(of_fidelity, kc.MDCA, kc.FLSD),
    partial(of_fidelity, kc.MMCE, kc.FocalLoss),
]


def test_soft_labels_without_a_meaning_are_refused():
    image = np.tile(SOFT[:, None], (1, 4, 1))
    logits = np.tile(LOGITS[:, None], (1, 4, 1))
    beyond = np.array([[1.0, 0.0, 0.0], [1.25, -0.25, 0.0]])
    rule = "`y_true` must be class ids or one-hot; .* soft labels.*=0.25"
    for make in (partial(make, from_logits=True) for make in HARD):
        with pytest.raises(ValueError, match=rule):
            make()(SOFT, LOGITS)
        with pytest.raises(ValueError, match=r"must lie in \[0, 1\]"):
            make()(beyond, LOGITS)
        assert np.isfinite(float(make()(one_hot([0, 1], 3), LOGITS)))
    for call in (
        partial(make(), SOFT.astype("float64"), LOGITS),
        partial(make(), image, logits),
        partial(make(axis=1), SOFT, LOGITS),
        partial(make(reduction="sum"), SOFT, LOGITS, np.ones(2)),
    ):
        with pytest.raises(ValueError, match=rule):
            call()


@pytest.mark.portable
@traces
def test_soft_labels_without_a_meaning_make_compiled_losses_nan():
    # Of each class: tests/inputs/test_values_in_compiled_code.py.
    for make in HARD[-3:] if BACKEND == "tensorflow" else HARD[-1:]:
        run = compiled(make(from_logits=True, reduction="none"))
        values = array(run(SOFT, LOGITS))
        assert np.isnan(values[1]), make
        assert np.isfinite(values[0]), make


# Pairs of class id and objectness, given to what takes plain labels.

PAIRS = np.array([[0.0, 0.4], [1.0, 0.75]])
HINT = "pairs .*need the loss `AdaptiveLabelSmoothing` and metrics with "
READERS = {
    "loss": kc.MbLS(),
    "loss of the batch": kc.MDCA(),
    "metric": kc.NLL().update_state,
    "function": kc.ece,
}


def test_pairs_are_not_taken_for_plain_labels():
    sum_to_1 = f"must sum to 1 over.*{HINT}"
    for pairs, probs, rule in (
        (PAIRS, THREE, f"{FIT}.*{HINT}"),
        (PAIRS, TWO[:, 1:], f"{FIT}.*{HINT}"),
        (PAIRS, TWO, sum_to_1),
        (np.array([[0.0, 1.0], [1.0, 1.0]]), TWO, sum_to_1),
        (
            np.tile(PAIRS[:, None], (1, 4, 1)),
            np.tile(TWO[:, None], (1, 4, 1)),
            sum_to_1,
        ),
        # Pairs that look like the ids of two pixels.
        (PAIRS, np.tile(THREE[:, None], (1, 2, 1)), "must hold whole numbers"),
    ):
        with pytest.raises(ValueError, match=rule):
            kc.MbLS()(pairs, probs)
    for read in READERS.values():
        with pytest.raises(ValueError, match=sum_to_1):
            read(PAIRS, TWO)


@traces
def test_pairs_taken_for_two_classes_make_a_compiled_loss_nan():
    for case in REPRESENTATIVES:
        if not case.objectness:
            run = compiled(case.make())
            assert np.isnan(float(run(PAIRS.astype("float32"), np.log(TWO))))


# What `AdaptiveLabelSmoothing` and metrics beside it take for pairs.

NO_PAIRS = r"`y_true` must be pairs \(class id, objectness\) of shape"
OUTSIDE = r"`y_true` must hold an objectness in \[0, 1\]"
IN_RANGE = r"`y_true` must hold class ids in \[0, 3\)"


def column(*pairs):
    return np.array(pairs, "float32")


NO_OBJECTNESS = {
    "ids": (np.array([0, 1]), NO_PAIRS + r".*y_true\.shape=\(2,\)"),
    "ids as floats": (np.array([0.0, 1.0]), NO_PAIRS),
    "ids of shape (n, 1)": (np.array([[0], [1]]), NO_PAIRS),
    "one id": (np.array(0), NO_PAIRS),
    "one-hot labels": (np.eye(3)[:2], NO_PAIRS),
    "triples": (np.zeros((2, 3)), NO_PAIRS),
    "objectness in front": (PAIRS.T[:, None, :1], NO_PAIRS),
    "too few pairs": (PAIRS[:1], "`y_true` must be class ids"),
    "two pixels": (np.zeros((2, 2, 2)), "`y_true` must be class ids"),
    "below 0": (column((0, 0.5), (1, -0.1)), OUTSIDE),
    "below -1": (column((0, -1.5), (1, 0.1)), OUTSIDE),
    "above 1": (column((0, 1.1), (1, 0.5)), OUTSIDE),
    "in percent": (column((0, 40.0), (1, 75.0)), OUTSIDE),
    "infinite": (column((0, INF), (1, 0.5)), OUTSIDE),
    "NaN": (column((0, 0.5), (1, NAN)), OUTSIDE),
    "objectness first": (column((0.4, 0), (0.75, 1)), "hold whole numbers"),
    "large id": (column((0, 0.5), (3, 0.5)), IN_RANGE + ".*maximum=3"),
    "negative id": (column((0, 0.5), (-1, 0.5)), IN_RANGE + ".*minimum=-1"),
    "id that is NaN": (column((0, 0.5), (NAN, 0.5)), IN_RANGE),
}


def test_what_is_no_pair_is_refused():
    loss = kc.AdaptiveLabelSmoothing()
    for name, (labels, rule) in NO_OBJECTNESS.items():
        with pytest.raises(ValueError, match=rule):
            loss(labels, THREE)
            pytest.fail(name)
    for name in ("ids", "above 1"):
        labels, rule = NO_OBJECTNESS[name]
        with pytest.raises(ValueError, match=rule):
            kc.NLL(objectness=True).update_state(labels, THREE)


@pytest.mark.portable
@traces
def test_compiled_pairs_are_clipped_or_give_nan():
    loss = kc.AdaptiveLabelSmoothing(from_logits=True, reduction="none")
    run = compiled(loss)
    good = array(run(PAIRS.astype("float32"), LOGITS))
    assert np.isfinite(good).all()
    for bad in ((3, 0.75), (-1, 0.75), (0.5, 0.75), (1, NAN)):
        values = array(run(column(PAIRS[0], bad), LOGITS))
        np.testing.assert_allclose(values[0], good[0], rtol=1e-6)
        assert np.isnan(values[1])
    outside = array(run(column((0, 1.7), (1, -0.3)), LOGITS))
    edges = array(run(column((0, 1.0), (1, 0.0)), LOGITS))
    np.testing.assert_allclose(outside, edges, rtol=1e-6)
    assert (np.abs(outside - good) > 1e-2).all()


# Shapes.


def test_targets_of_cape_that_do_not_fit_are_refused():
    shape = "`labels` must have the shape"
    for targets, outputs, rule in (
        ((3, 2), (3, 2), shape),
        ((2,), (3, 1), shape),
        ((), (3, 1), shape),
        ((3,), (3, 3), "`logits` must have two classes"),
    ):
        with pytest.raises(ValueError, match=rule):
            kc.losses.cape_loss(
                np.full(targets, 0.5), np.zeros(outputs, "float32")
            )


@pytest.mark.portable
def test_classes_and_targets_of_cape_are_judged_before_they_are_cast():
    halves = np.full(2, 0.5)
    odd = [with_wide_id(np.array([0, 1]), kind) for kind in WIDE_IDS]
    for classes in (*odd, [0, -1], [0, 3], [0.0, NAN]):
        with pytest.raises((ValueError, TypeError), match="`classes` must"):
            kc.losses.cape_loss(halves, LOGITS, classes=classes)
    for wrong in (1.5, -0.2, NAN):
        with pytest.raises(ValueError, match="`labels` must lie in"):
            kc.losses.cape_loss([0.5, wrong], LOGITS[:, :2])
    if BACKEND == "torch":
        return
    run = compiled(lambda c: kc.losses.cape_loss(halves, LOGITS, classes=c))
    kept = array(kc.losses.cape_loss(halves, LOGITS, classes=[0, 1]))
    for wrong in (-1.0, 3.0, 0.5, 2.0**31, NAN):
        found = array(run(np.array([0.0, wrong], "float32")))
        assert np.isnan(found[1]) and found[0] == pytest.approx(kept[0])


def test_what_is_not_one_number_per_sample_is_refused():
    for shape in ((2, 1), (3,), (1,), ()):
        ones = np.ones(shape)
        rule = "`correctness` must have the shape"
        with pytest.raises(ValueError, match=rule):
            kc.losses.correctness_ranking(LOGITS, ones)
        with pytest.raises(ValueError, match="`active` must have the shape"):
            kc.losses.acls(THREE, LOGITS, active=ones)


def test_labels_of_a_ranking_condition_bring_a_factor():
    loss = kc.ACLS(condition="ranking", from_logits=True)
    for labels in (np.array([0, 1]), np.array([[0], [1]])):
        with pytest.raises(ValueError, match="a factor per sample"):
            loss(labels, LOGITS)
