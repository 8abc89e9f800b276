"""Hyperparameters of losses and targets out of range are refused."""

import re
from functools import partial

import keras
import numpy as np
import pytest

import keras_calib as kc

NAN, INF = float("nan"), float("inf")
LOGITS = np.array([[2.0, 0.0, -1.0], [0.5, 1.0, 0.0]], "float32")
L1ACE = partial(kc.L1ACE, by="batch")
COUPLED = (kc.DCA, L1ACE, kc.MDCA, kc.MMCE)
UNIT = {-0.1: ">= 0.0", 1.5: "<= 1.0"}

RANKING = partial(kc.losses.correctness_ranking, LOGITS, np.array([0.2, 0.9]))
CAPE = partial(
    kc.losses.cape_targets, np.array([0, 1]), np.array([[0.2], [0.7]])
)
TARGETS = partial(kc.losses.objectness_targets, np.array([0]), np.array([0.5]))
THREE_TARGETS = partial(TARGETS, num_classes=3)
LOGIT_NACL = partial(kc.NACL, from_logits=True)
SMOOTH = partial(kc.losses.smooth_labels, np.eye(3))
# What takes the number, its name, and numbers with the rule that they break.
NUMBERS = (
    (kc.ACLS, "lambda1", {-0.1: ">= 0"}),
    (kc.ACLS, "lambda2", {-0.1: ">= 0"}),
    (kc.ACLS, "margin", {-1.0: ">= 0"}),
    (kc.AdaptiveLabelSmoothing, "beta", UNIT),
    (kc.CPC, "lambda1", {-0.1: ">= 0"}),
    (kc.CPC, "lambda2", {-0.1: ">= 0"}),
    (kc.CRLMargin, "margin", {-1.0: ">= 0"}),
    (kc.CRLMargin, "strength", {-0.1: ">= 0"}),
    (kc.ConfidencePenalty, "beta", {-0.1: ">= 0"}),
    (kc.ConfidencePenalty, "threshold", {-0.1: ">= 0"}),
    (kc.DCA, "huber_delta", {-0.1: "> 0", 0.0: "> 0"}),
    (kc.DCA, "strength", {-0.1: ">= 0"}),
    (kc.FocalLoss, "gamma", {-1.0: ">= 0"}),
    (kc.InverseFocalLoss, "gamma", {-1.0: ">= 0"}),
    (kc.L1ACE, "strength", {-0.1: ">= 0"}),
    (kc.LabelRelaxation, "alpha", UNIT),
    (kc.LabelSmoothing, "alpha", {1.5: "<= 1"}),
    (kc.MDCA, "strength", {-0.1: ">= 0"}),
    (kc.MMCE, "kernel_width", {0.0: ">= 0.01", 0.009: ">= 0.01"}),
    (kc.MMCE, "strength", {-0.1: ">= 0"}),
    (kc.MbLS, "margin", {-1.0: ">= 0"}),
    (kc.MbLS, "strength", {-0.1: ">= 0"}),
    (LOGIT_NACL, "sigma", {0.0: "> 0"}),
    (LOGIT_NACL, "strength", {-0.1: ">= 0"}),
    (kc.SVLS, "sigma", {-0.1: "> 0", 0.0: "> 0"}),
    (kc.UniformityPenalty, "strength", {-0.1: ">= 0"}),
    (CAPE, "sigma", {-0.1: "> 0", 0.0: "> 0"}),
    (THREE_TARGETS, "beta", UNIT),
)
INTEGERS = (
    (CAPE, "num_bins", {0: ">= 1", 3: "at most the number of predictions"}),
    (CAPE, "window", {0: ">= 1"}),
    (LOGIT_NACL, "kernel_size", {1: ">= 3", 4: "odd"}),
    (TARGETS, "num_classes", {1: ">= 2"}),
    (kc.L1ACE, "num_bins", {0: ">= 1"}),
    (kc.SVLS, "kernel_size", {1: ">= 3", 4: "odd"}),
)
CHOICES = (
    (kc.ACLS, "condition", ("margin", "none")),
    (kc.ACLS, "reference", ("min", "zero")),
    (kc.ACLS, "smoothing", ("adaptive", "constant")),
    (kc.AdaptiveLabelSmoothing, "floor", (None, "uniform")),
    (kc.CRLMargin, "condition", ("predicted", "each")),
    (kc.L1ACE, "by", ("image", "batch")),
    (LOGIT_NACL, "distance", ("l1", "l2")),
    (LOGIT_NACL, "padding", ("replicate", "background")),
    (LOGIT_NACL, "kernel", ("mean", "gaussian")),
    (kc.ConfidencePenalty, "class_reduction", ("sum", "mean")),
    (kc.LabelSmoothing, "spread", ("all", "others")),
    (kc.MMCE, "variant", ("weighted", "weighted_released")),
    (kc.MbLS, "class_reduction", ("mean", "sum")),
    (CAPE, "event", ("second", "predicted")),
    (CAPE, "method", ("bins", "kernel")),
    (RANKING, "condition", ("margin", "ranking")),
    (RANKING, "score", ("msp", "neg_entropy", "prob_margin")),
    (THREE_TARGETS, "floor", (None, "uniform")),
    (partial(SMOOTH, alpha=0.1), "spread", ("all", "others")),
)


def refused(call, error, rule, **received):
    """In one form: the argument, the rule, and what was received."""
    with pytest.raises(error, match=rule) as caught:
        call(**received)
    assert caught.type is error
    told = ", ".join(f"{name}={x!r}" for name, x in received.items())
    assert f"Received: {told}" in str(caught.value)


def test_numbers_out_of_range_are_refused_and_told():
    for call, name, bad in NUMBERS:
        for value, rule in bad.items():
            rule = f"`{name}` must be {rule}"
            refused(call, ValueError, rule, **{name: value})
        for value in (NAN, INF):
            rule = f"`{name}` must be finite"
            refused(call, ValueError, rule, **{name: value})
        for value in ("1", True, 1j):
            rule = f"`{name}` must be a number"
            refused(call, TypeError, rule, **{name: value})
    for call, name, bad in INTEGERS:
        for value, rule in bad.items():
            rule = f"`{name}` must be {rule}"
            refused(call, ValueError, rule, **{name: value})
        for value in (2.5, True, None):
            rule = f"`{name}` must be an integer"
            refused(call, TypeError, rule, **{name: value})
    # `alpha` may be an array, so only a number is checked.
    refused(SMOOTH, ValueError, "`alpha` must be <= 1", alpha=1.1)


def test_unknown_names_are_refused_and_the_known_ones_told():
    for call, name, known in CHOICES:
        told = re.escape(repr(known)[1:-1])
        for value in ("median", known[-1].upper(), f" {known[-1]}", "", 0):
            rule = f"`{name}` must be one of .*{told}"
            refused(call, ValueError, rule, **{name: value})


def test_a_reference_of_zero_needs_logits():
    rule = "`reference` .* needs `from_logits=True`"
    received = {"reference": "zero", "from_logits": False}
    refused(kc.ACLS, ValueError, rule, **received)


def test_bad_tables_of_gammas_are_refused():
    rows = r"rows of \(threshold, gamma\)"
    for gammas, rule, told in (
        *(
            (gammas, rows, gammas)
            for gammas in (
                None,
                3.0,
                "flsd",
                [],
                [[]],
                [0.2, 5.0],
                [(0.2,)],
                [(0.2, 5.0, 1.0)],
                [(0.2, 5.0), (1.0,)],
                [("low", 5.0)],
                [(0.2, None)],
                {0.2: 5.0},
            )
        ),
        ([(0.2, -1.0), (1.0, 3.0)], ">= 0", -1.0),
        ([(0.2, NAN), (1.0, 3.0)], "finite", NAN),
        ([(0.2, INF), (1.0, 3.0)], "finite", INF),
        ([(0.5, 5.0), (0.2, 3.0)], "> 0.5", 0.2),
        ([(0.5, 5.0), (0.5, 3.0)], "> 0.5", 0.5),
        ([(0.2, 5.0), (0.5, 4.0), (0.3, 3.0)], "> 0.5", 0.3),
        ([(0.2, 5.0), (NAN, 3.0)], "finite", NAN),
    ):
        rule = f"`gammas` must be {rule}.* Received: gammas="
        with pytest.raises(ValueError, match=rule + re.escape(repr(told))):
            kc.FLSD(gammas)


# The fidelity of losses that look at the whole batch.

SHARED = {
    "from_logits": (True, False),
    "axis": (-1, 1),
    "ignore_class": (None, 255),
    "reduction": ("sum_over_batch_size", "sum"),
    "dtype": ("float32", "float64"),
}


def test_a_fidelity_that_reads_in_another_way_is_refused():
    for name, both in SHARED.items():
        for own, other in (both, both[::-1]):
            rule = f"`fidelity` must have the `{name}` of the loss around it"
            told = re.escape(f". Received: {name}={own!r}, fidelity.{name}=")
            with pytest.raises(ValueError, match=rule + told):
                kc.DCA(fidelity=kc.FocalLoss(**{name: other}), **{name: own})


def test_what_the_function_does_not_take_is_refused():
    told = "arguments of focal_loss: .*'gama'.*Received: hyperparameters"
    with pytest.raises(TypeError, match=told):
        kc.losses.PerSampleLoss(kc.losses.focal_loss, gama=2.0)


def test_what_is_no_fidelity_is_refused():
    for cls in COUPLED:
        for told, fidelity in (
            ("'focal_loss'", "focal_loss"),
            ("<class .*FocalLoss", kc.FocalLoss),
            ("categorical_fo", keras.losses.CategoricalFocalCrossentropy()),
            ("MDCA", kc.MDCA()),
            ("1.0", 1.0),
            ("AdaptiveLabelSmoothing", kc.AdaptiveLabelSmoothing()),
        ):
            with pytest.raises(TypeError, match=f"`fidelity` must .*{told}"):
                cls(fidelity=fidelity)


def test_a_fidelity_that_reads_as_the_loss_does_is_taken():
    probs = np.array([[0.7, 0.2, 0.1], [0.3, 0.6, 0.1]], "float32")
    for cls in COUPLED:
        for index, outputs in enumerate((LOGITS, probs)):
            shared = {
                name: both[index]
                for name, both in SHARED.items()
                if name != "dtype"
            }
            loss = cls(fidelity=kc.FocalLoss(gamma=0.0, **shared), **shared)
            value, plain = (
                float(f([0, 1], outputs)) for f in (loss, cls(**shared))
            )
            np.testing.assert_allclose(value, plain, rtol=1e-6)
