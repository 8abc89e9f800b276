"""The ways to train that `train_models.py` compares.

Hyperparameters are those of the papers and their releases, but for four that
were chosen on the tuning part of the digits: the strengths of DCA (10, of 10,
50 and 200) and MMCE (4, of 1 and 4), focal loss under MDCA, and the epoch
where CaPE begins (a quarter of all, of that and a tenth).
"""

from collections.abc import Callable
from typing import Any
from typing import NamedTuple

import keras
from keras import ops

import keras_calib

__all__ = ["Method", "Task", "tasks"]

_OPTIONS = {"from_logits": True}
# Of ACLS; the paper's for CIFAR-10.
_MARGIN = 6.0


class Method(NamedTuple):
    """How a network is trained: a class of models, its arguments, a loss."""

    model: type[keras.Model]
    arguments: dict[str, Any] = {}
    loss: Callable | None = None


class Task(NamedTuple):
    """Data for training, tuning and testing, and the methods to compare."""

    name: str
    sets: list
    num_classes: int
    methods: dict[str, Method]


class SharpCorrectnessRanking(
    keras_calib.SharpnessAwareModel, keras_calib.CorrectnessRankingModel
):
    """SAM, in whose steps the loss ranks confidences by correctness."""


def confidence_beyond_margin(labels, logits, *, margin, strength):
    """CRL's pull where a margin says so, not a record: ACLS, table 6, row 2.

    Cross entropy plus strength max_k p_k where the logits span `margin`.
    """
    log_probs = ops.log_softmax(logits)
    span = ops.max(logits, axis=-1) - ops.min(logits, axis=-1)
    active = ops.cast(span >= margin, log_probs.dtype)
    confidence = ops.max(ops.exp(log_probs), axis=-1)
    fidelity = -ops.sum(labels * log_probs, axis=-1)
    return fidelity + strength * active * confidence


def methods_for_classes(num_samples, epochs):
    """Name to method; losses are new in each call."""
    plain = keras_calib.EpochModel
    ranking = keras_calib.CorrectnessRankingModel
    sharp = keras_calib.SharpnessAwareModel
    record = {"num_samples": num_samples}
    crl_margin = keras_calib.PerSampleLoss(
        confidence_beyond_margin, margin=_MARGIN, strength=1.0, **_OPTIONS
    )
    acls_ranking = keras_calib.ACLS(_MARGIN, condition="ranking", **_OPTIONS)
    focal = keras_calib.FocalLoss(gamma=1.0, **_OPTIONS)
    huber = {"huber_delta": 0.005, "fidelity": focal}
    # FLSc-531 is for 350 epochs.
    schedule = {0: 5.0, epochs * 2 // 7: 3.0, epochs * 5 // 7: 1.0}
    return {
        "cross entropy": Method(plain, loss=_cross_entropy()),
        "CRL": Method(ranking, record, _cross_entropy()),
        "CRL, ranking condition": Method(
            ranking, {**record, "condition": "ranking"}, _cross_entropy()
        ),
        "CRL, margin condition": Method(plain, loss=crl_margin),
        "ACLS, ranking condition": Method(
            ranking,
            {**record, "role": "condition", "condition": "ranking"},
            acls_ranking,
        ),
        "ACLS, margin condition": Method(
            plain, loss=keras_calib.ACLS(_MARGIN, **_OPTIONS)
        ),
        "AdaFocal": Method(keras_calib.AdaptiveFocalModel, _OPTIONS),
        "focal schedule 5-3-1": Method(
            keras_calib.ScheduledFocalModel,
            {"schedule": tuple(schedule.items()), **_OPTIONS},
        ),
        "SAM": Method(sharp, {"rho": 0.05}, _cross_entropy()),
        "ASAM": Method(sharp, {"rho": 2.0, "adaptive": True}, _cross_entropy()),
        "SAM + CRL": Method(
            SharpCorrectnessRanking, {"rho": 0.05, **record}, _cross_entropy()
        ),
        "focal": Method(plain, loss=focal),
        "pruning, DCA + focal": Method(
            keras_calib.ConfidencePruningModel,
            record,
            keras_calib.DCA(10.0, **huber, **_OPTIONS),
        ),
        "MDCA + focal": Method(
            plain, loss=keras_calib.MDCA(1.0, fidelity=focal, **_OPTIONS)
        ),
        "MMCE": Method(plain, loss=keras_calib.MMCE(4.0, **_OPTIONS)),
    }


def methods_for_two_classes(num_samples, epochs):
    """As `methods_for_classes`."""
    arguments = {"num_samples": num_samples, "first_epoch": epochs // 4}
    return {
        "cross entropy": Method(keras_calib.EpochModel, loss=_cross_entropy()),
        "CaPE": Method(keras_calib.CaPEModel, arguments, _cross_entropy()),
    }


def tasks(sets, num_classes, epochs):
    """What is learnt, and how: all classes, and which half of them it is."""
    count = len(sets[0][1])
    halves = [(x, (2 * y >= num_classes).astype(y.dtype)) for x, y in sets]
    return [
        Task(
            f"{num_classes} classes",
            sets,
            num_classes,
            methods_for_classes(count, epochs),
        ),
        Task("2 classes", halves, 2, methods_for_two_classes(count, epochs)),
    ]


def _cross_entropy():
    return keras.losses.SparseCategoricalCrossentropy(**_OPTIONS)
