"""Losses: values by sample and gradients, as classes and as functions."""

from collections.abc import Iterator
from typing import Any, NamedTuple

import keras
import numpy as np
from keras import ops

from frozen.api import kc
from frozen.data_sets import ALL_PIXELS, CLASSES, IGNORED, PIXELS, drawn
from frozen.results import read
from frozen.stored import Tolerance

# Formulas in float32 whose sums another machine orders otherwise.
TOLERANCE = Tolerance(relative=1e-5, absolute=2e-6)

# Quantity: the class, its function, and hyperparameters that both take.
LOSSES = {
    "smoothing": (kc.LabelSmoothing, kc.losses.label_smoothing, {"alpha": 0.1}),
    "smoothing to the others": (
        kc.LabelSmoothing,
        kc.losses.label_smoothing,
        {"alpha": 0.2, "spread": "others"},
    ),
    "margin": (kc.MbLS, kc.losses.mbls, {"margin": 2.0, "strength": 0.3}),
    "margin, summed": (
        kc.MbLS,
        kc.losses.mbls,
        {"margin": 2.0, "class_reduction": "sum"},
    ),
    "adaptive margin": (kc.ACLS, kc.losses.acls, {"margin": 2.0}),
    "adaptive margin to zero": (
        kc.ACLS,
        kc.losses.acls,
        {"margin": 2.0, "reference": "zero", "lambda1": 0.4},
    ),
    "adaptive margin everywhere": (
        kc.ACLS,
        kc.losses.acls,
        {"margin": 2.0, "condition": "none"},
    ),
    "constant margin": (
        kc.ACLS,
        kc.losses.acls,
        {"margin": 2.0, "smoothing": "constant"},
    ),
    "ranking under a margin": (
        kc.CRLMargin,
        kc.losses.crl_margin,
        {"margin": 3.0, "strength": 0.7},
    ),
    "ranking under a margin, of each": (
        kc.CRLMargin,
        kc.losses.crl_margin,
        {"margin": 3.0, "strength": 0.7, "condition": "each"},
    ),
    "focal": (kc.FocalLoss, kc.losses.focal_loss, {"gamma": 3.0}),
    "focal, half": (kc.FocalLoss, kc.losses.focal_loss, {"gamma": 0.5}),
    "inverse focal": (
        kc.InverseFocalLoss,
        kc.losses.inverse_focal_loss,
        {"gamma": 1.5},
    ),
    "focal by probability": (kc.FLSD, kc.losses.flsd, {}),
    "relaxed labels": (
        kc.LabelRelaxation,
        kc.losses.label_relaxation,
        {"alpha": 0.1},
    ),
    "entropy": (
        kc.ConfidencePenalty,
        kc.losses.confidence_penalty,
        {"beta": 0.3},
    ),
    "entropy, mean": (
        kc.ConfidencePenalty,
        kc.losses.confidence_penalty,
        {"beta": 0.3, "class_reduction": "mean"},
    ),
    "entropy below a threshold": (
        kc.ConfidencePenalty,
        kc.losses.confidence_penalty,
        {"beta": 0.3, "threshold": 1.0},
    ),
    "distance to uniform": (
        kc.UniformityPenalty,
        kc.losses.uniformity_penalty,
        {"strength": 0.3},
    ),
    "squared error": (kc.BrierLoss, kc.losses.brier_loss, {}),
    "pairs of classes": (
        kc.CPC,
        kc.losses.cpc,
        {"lambda1": 0.3, "lambda2": 0.5},
    ),
    "kernel": (kc.MMCE, kc.losses.mmce, {"variant": "unweighted"}),
    "kernel, root": (kc.MMCE, kc.losses.mmce, {"variant": "unweighted_sqrt"}),
    "kernel, weighted": (kc.MMCE, kc.losses.mmce, {"variant": "weighted"}),
    "kernel, weighted as released": (
        kc.MMCE,
        kc.losses.mmce,
        {"variant": "weighted_released", "kernel_width": 0.2},
    ),
    "gaps by class": (kc.MDCA, kc.losses.mdca, {}),
    "gap of the batch": (kc.DCA, kc.losses.dca, {}),
    "gap of the batch, smooth": (kc.DCA, kc.losses.dca, {"huber_delta": 0.05}),
    "bins of the batch": (
        kc.L1ACE,
        kc.losses.l1_ace,
        {"num_bins": 4, "by": "batch"},
    ),
}
# Those whose functions give a statistic of the batch, not values by sample.
OF_BATCH = {
    name
    for name in LOSSES
    if name.startswith(("kernel", "gap", "bins of the batch"))
}
# Those that read class ids alone.
HARD = OF_BATCH - {"gaps by class", "gap of the batch"} | {
    *("inverse focal", "focal by probability", "relaxed labels"),
    *("pairs of classes", "gap of the batch, smooth"),
}
# What probabilities do not tell.
NEEDS_LOGITS = {"reference", "condition"}
EFFECTIVE = {
    "labels": "labels",
    "smoothing where predicted": "predicted_smoothing",
    "smoothing elsewhere": "other_smoothing",
}
HISTOGRAM = {"counts": "counts", "edges": "edges", "none": "num_inactive"}


class Batch(NamedTuple):
    """Labels and logits of one batch."""

    labels: Any
    logits: Any
    weight: Any = None
    options: dict = {}


def _batches() -> dict[str, Batch]:
    ids, logits = drawn(0, 16, 6, sharpness=1.5)
    ignored = np.where(np.arange(16) % 5 == 1, IGNORED, ids)
    # Rows of ties and of large logits are half of that batch.
    tied = np.round(logits)[np.arange(16) % 5] * 8
    tied = np.where(np.arange(16)[:, None] < 8, logits, tied)
    weight = (np.arange(16) % 4 / 2).astype("float32")
    rng = np.random.default_rng(5)
    soft = 0.75 * np.eye(6)[ids] + 0.25 * np.eye(6)[rng.integers(6, size=16)]
    return {
        "plain": Batch(ids, logits),
        "weights, ties and an ignored class": Batch(
            ignored, tied, weight, {"ignore_class": IGNORED}
        ),
        "soft labels": Batch(soft.astype("float32"), logits),
    }


def _with_gradient(loss, batch):
    """Values by sample, and the gradient of their sum."""
    import tensorflow as tf

    logits = tf.constant(batch.logits)
    with tf.GradientTape() as tape:
        tape.watch(logits)
        values = loss(batch.labels, logits, batch.weight)
        total = ops.sum(values)
    return {"values": values, "gradient": tape.gradient(total, logits)}


def _of_classes() -> Iterator[tuple[str, Any]]:
    batches = _batches()
    plain = batches["plain"]
    hot = np.eye(6, dtype="float32")[plain.labels]
    probs = ops.softmax(plain.logits)
    for quantity, (cls, function, given) in LOSSES.items():
        for name, batch in batches.items():
            if name == "soft labels" and quantity in HARD:
                continue
            options = {"from_logits": True, "reduction": "none", **given}
            loss = cls(**options, **batch.options)
            yield f"{quantity}/{name}", _with_gradient(loss, batch)
        if not given.keys() & NEEDS_LOGITS:
            value = cls(**given)(plain.labels, probs)
            yield f"{quantity}, mean of probabilities/plain", value
        value = function(hot, plain.logits, **given)
        yield f"{quantity}, function/plain", value


def _with_fidelity() -> Iterator[tuple[str, Any]]:
    plain = _batches()["plain"]
    options = {"from_logits": True, "reduction": "none"}
    for quantity, cls in {"gaps": kc.MDCA, "kernel": kc.MMCE}.items():
        loss = cls(
            strength=3.0, fidelity=kc.FocalLoss(1.0, **options), **options
        )
        yield f"{quantity} beside focal/plain", _with_gradient(loss, plain)
    share = np.arange(16) % 9 / 8
    pairs = np.stack([plain.labels, share], axis=-1).astype("float32")
    for floor in (None, "uniform"):
        given = {"beta": 0.75, "floor": floor}
        loss = kc.AdaptiveLabelSmoothing(**given, **options)
        found = _with_gradient(loss, plain._replace(labels=pairs))
        yield f"smoothing by objectness, {floor}/plain", found
    hot = np.eye(6, dtype="float32")[plain.labels]
    found = kc.losses.adaptive_label_smoothing(
        hot, plain.logits, objectness=share, beta=0.5
    )
    yield "smoothing by objectness, function/plain", found
    found = kc.losses.adaptive_focal(
        hot,
        plain.logits,
        edges=np.array([0.0, 0.3, 1.0]),
        gammas=np.array([2.0, -0.5]),
    )
    yield "focal by bins/plain", found
    for score in ("msp", "prob_margin", "neg_entropy"):
        for condition in ("margin", "ranking"):
            yield (
                f"ranking of records, {score}, {condition}/plain",
                kc.losses.correctness_ranking(
                    plain.logits, share, score=score, condition=condition
                ),
            )
    found = kc.losses.cape_loss(share, plain.logits, classes=plain.labels)
    yield "cross entropy of target probabilities/plain", found
    found = kc.losses.cape_loss(share, plain.logits[:, :1])
    yield "cross entropy of target probabilities/one column", found


def _of_images() -> Iterator[tuple[str, Any]]:
    for name, data in {"pixels": PIXELS, "all pixels": ALL_PIXELS}.items():
        labels, logits = data.labels[:2], data.logits[:2]
        options = {"from_logits": True, "reduction": "none"}
        options |= data.options
        for quantity, loss in {
            "labels smoothed over places": kc.SVLS(**options),
            "neighbours, mean": kc.NACL(strength=0.4, **options),
            "neighbours, gaussian": kc.NACL(
                kernel="gaussian", distance="l2", **options
            ),
            "bins of each image": kc.L1ACE(
                num_bins=5, include_background=False, **options
            ),
            "margin": kc.MbLS(margin=1.0, **options),
        }.items():
            found = _with_gradient(loss, Batch(labels, logits))
            yield f"{quantity}/{name}", found
    hot = np.eye(3, dtype="float32")[ALL_PIXELS.labels[:2]]
    for quantity, function in {
        "smoothed": kc.losses.svls,
        "neighbours": kc.losses.nacl,
    }.items():
        found = function(hot, ALL_PIXELS.logits[:2])
        yield f"{quantity}, function/all pixels", found


def _of_labels() -> Iterator[tuple[str, Any]]:
    data = CLASSES["ten classes"]
    logits = data.logits[:12, :4]
    labels = (data.logits[20:32, :4] > 0).astype("int32")
    missing = np.where(np.arange(12)[:, None] % 3 == np.arange(4), -1, labels)
    options = {"from_logits": True, "reduction": "none"}
    for quantity, loss in {
        "smoothing": kc.LabelSmoothing(alpha=0.1, **options),
        "focal": kc.FocalLoss(2.0, ignore_class=-1, **options),
        "kernel": kc.MMCE(**options),
    }.items():
        given = {"label_weights": [1.0, 2.0, 0.5, 1.0]}
        given = given if quantity == "focal" else {}
        part = kc.labels.MultiLabelLoss(loss, **given)
        batch = Batch(missing if quantity == "focal" else labels, logits)
        found = _with_gradient(part, batch)
        yield f"several labels, {quantity}/labels", found
    made = kc.MultiLabel(kc.BrierLoss(from_logits=True))
    yield "several labels, squared error/labels", made(labels, logits)


def _told_of_losses() -> Iterator[tuple[str, Any]]:
    """What a loss does to its labels."""
    batch = _batches()["plain"]
    for quantity in ("smoothing", "adaptive margin", "margin", "entropy"):
        cls, _, given = LOSSES[quantity]
        args = cls(from_logits=True, **given), batch.labels, batch.logits
        found = read(kc.losses.effective_labels(*args), EFFECTIVE)
        yield f"labels that the loss has, {quantity}/plain", found
        found = kc.losses.regularizer_histogram(
            *args, num_bins=6, limits=(0, 1.5)
        )
        share = found.inactive_share
        yield f"share without a penalty, {quantity}/plain", share
        yield f"penalties, {quantity}/plain", read(found, HISTOGRAM)
    other = CLASSES["ten classes"].logits[20:36, :6]
    found = kc.functional.prediction_flips(batch.logits, other)
    yield "share of changed predictions/plain", found


def quantities() -> Iterator[tuple[str, Any]]:
    """All of them."""
    keras.utils.set_random_seed(0)
    yield from _of_classes()
    yield from _with_fidelity()
    yield from _of_images()
    yield from _of_labels()
    yield from _told_of_losses()
