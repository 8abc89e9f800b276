"""Public callables whose arrays have shapes of their own, for the battery.

Several labels at once, boxes of images, tokens, pixels and records: each takes
the odd arrays of `odd_inputs` in the place of every array that it reads.
"""

import numpy as np
from odd_inputs import INF, NAN, ODD_WEIGHTS, _first
from shaped_boxes import BOXES
from shaped_case import Shaped
from shaped_records import RECORDS

import keras_calib as kc

NUM, LABELS = 40, 3
_rng = np.random.default_rng(0)
LOGITS = np.round(4 * _rng.normal(size=(NUM, LABELS)), 1).astype("float32")
PROBS = (1 / (1 + np.exp(-LOGITS))).astype("float32")
TRUTH = ((LOGITS > 0) ^ (_rng.random(LOGITS.shape) < 0.2)).astype("int32")
WEIGHT = np.ones((NUM, LABELS), "float32")


_BITS = {
    "2": lambda y: np.where(y == 1, 2, y),
    "-1": lambda y: np.where(y == 1, -1, y),
    "NaN": lambda y: _first(y, NAN),
    "inf": lambda y: _first(y, INF),
    "class ids": lambda y: y[:, 0],
    "a label too few": lambda y: y[:, :-1],
    "(n, labels, 2)": lambda y: np.stack([y, 1 - y], axis=-1),
    "no labels": lambda y: y[:, :0],
}
_OUTPUTS = {
    "NaN": lambda x: _first(x, NAN),
    "infinite": lambda x: _first(x, INF),
    "of one axis": lambda x: x[:, 0],
    "no labels": lambda x: x[:, :0],
    "a label more": lambda x: np.concatenate([x, x[:, :1]], axis=1),
}
_UNIT = {
    "percent": lambda p: 100 * p,
    "below 0": lambda p: p - 0.5,
    "-inf": lambda p: _first(p, -INF),
}
_OF_ENTRIES = {
    **ODD_WEIGHTS,
    "a label too few": lambda w: w[:, :-1],
    "a weight more": lambda w: np.ones(len(w) + 1),
}
# A weight for each or for all.
_FINE_WEIGHTS = ("sample_weight None", "sample_weight one number")


def _several(call, outputs, fine=(), nan=False, every=1):
    """A callable of labels, outputs and weights by label."""
    name = "logits" if outputs is LOGITS else "y_pred"
    first = "labels" if outputs is LOGITS else "y_true"
    return Shaped(
        call,
        {first: TRUTH, name: outputs, "sample_weight": WEIGHT},
        {
            first: _BITS,
            name: _OUTPUTS if outputs is LOGITS else _OUTPUTS | _UNIT,
            "sample_weight": _OF_ENTRIES,
        },
        (*_FINE_WEIGHTS, *fine),
        nan=nan,
        every=every,
    )


def _metric(part, **options):
    def call(**arrays):
        metric = kc.labels.MultiLabelMetric(part(), LABELS, **options)
        metric.update_state(**arrays)
        return metric.result()

    return call


def _fitted(make, **options):
    def call(labels, logits, sample_weight):
        made = make()
        return made.fit(labels, logits, sample_weight=sample_weight, **options)(
            LOGITS
        )

    return call


# Sequences of tokens.
_TOKENS = np.round(2 * _rng.normal(size=(4, 5, 7)), 1).astype("float32")
_TOKEN_IDS = _rng.integers(1, 7, size=(4, 5))
_LOG_PROBS = np.log(np.linspace(0.1, 0.9, 20)).reshape(4, 5).astype("float32")
_MASK = np.tile(np.array([True, True, True, False, False]), (4, 1))
_OF_TOKENS = {
    "NaN": lambda z: _first(z, NAN),
    "infinite": lambda z: _first(z, INF),
    "of one axis": lambda z: z[0, 0],
    "no tokens in the vocabulary": lambda z: z[..., :0],
}

# Pixels of images, and a vocabulary.
_PIXELS = np.round(2 * _rng.normal(size=(3, 4, 5, 3)), 1).astype("float32")
_CLASSES = _rng.integers(3, size=(3, 4, 5))
_WORDS = np.round(2 * _rng.normal(size=(NUM, 40)), 1).astype("float32")
_WORD_IDS = _rng.integers(40, size=NUM)
_OF_CLASSES = {
    "id too large": lambda y: np.where(y == 1, 99, y),
    "id -1": lambda y: np.where(y == y.flat[0], -1, y),
    "NaN": lambda y: _first(y, NAN),
    "half an id": lambda y: y + 0.5,
    "of one axis more": lambda y: np.stack([y, y], axis=-1),
}
_OF_LOGITS = {
    "NaN": lambda z: _first(z, NAN),
    "infinite": lambda z: _first(z, INF),
    "without the classes": lambda z: z[..., 0],
    "no classes": lambda z: z[..., :0],
}


def _spatial(make):
    return Shaped(
        lambda y_true, y_pred, sample_weight: make()(
            y_true, y_pred, sample_weight
        ),
        {
            "y_true": _CLASSES,
            "y_pred": _PIXELS,
            "sample_weight": np.ones(_CLASSES.shape, "float32"),
        },
        {
            "y_true": _OF_CLASSES,
            "y_pred": _OF_LOGITS | {"rows": _PIXELS[0, 0]},
            "sample_weight": ODD_WEIGHTS,
        },
        _FINE_WEIGHTS,
        nan=True,
        every=2,
    )


def _spatial_function(function):
    return Shaped(
        function,
        {"labels": np.eye(3, dtype="float32")[_CLASSES], "logits": _PIXELS},
        {"logits": _OF_LOGITS | {"rows": _PIXELS[0, 0]}},
        nan=True,
        every=2,
    )


def _compact(**arrays):
    return kc.calibrators.CompactLogits().update(**arrays).nll()


SHAPED = {
    "MultiLabel": _several(
        lambda y_true, y_pred, sample_weight: kc.MultiLabel(
            kc.LabelSmoothing(alpha=0.1)
        )(y_true, y_pred, sample_weight),
        PROBS,
        nan=True,
        every=2,
    ),
    "MultiLabelLoss": _several(
        lambda y_true, y_pred, sample_weight: kc.labels.MultiLabelLoss(
            kc.FocalLoss(gamma=2.0), label_weights=[1, 2, 1]
        )(y_true, y_pred, sample_weight),
        PROBS,
        nan=True,
    ),
    "MultiLabelLoss, logits": _several(
        lambda labels, logits, sample_weight: kc.labels.MultiLabelLoss(
            kc.MbLS(margin=1.0, from_logits=True)
        )(labels, logits, sample_weight),
        LOGITS,
        nan=True,
        every=2,
    ),
    "MultiLabelMetric": _several(_metric(kc.ECE), PROBS),
    "MultiLabelMetric, AURC": _several(
        _metric(lambda: kc.AURC(resolution=256)), PROBS, every=3
    ),
    "MultiLabelMetric, NLL": _several(_metric(kc.NLL), PROBS, every=3),
    "MultiLabelMetric, by example": _several(
        _metric(kc.ECE, by="example"), PROBS, every=3
    ),
    "MultiLabelCalibrator": _several(
        _fitted(
            lambda: kc.labels.MultiLabelCalibrator(kc.TemperatureScaling()),
            num_folds=0,
        ),
        LOGITS,
    ),
    "MultiLabelCalibrator, shared": _several(
        _fitted(
            lambda: kc.labels.MultiLabelCalibrator(
                kc.AffineScaling(), shared=True
            ),
            num_folds=0,
        ),
        LOGITS,
    ),
    "MultiLabelSelector": _several(
        _fitted(kc.labels.MultiLabelSelector, coverage=0.5), LOGITS
    ),
    "MultiLabelSelector, by example": _several(
        _fitted(
            lambda: kc.labels.MultiLabelSelector(by="example"), coverage=0.5
        ),
        LOGITS,
    ),
    **BOXES,
    **RECORDS,
    "token_log_probs": Shaped(
        kc.text.token_log_probs,
        {"logits": _TOKENS, "token_ids": _TOKEN_IDS},
        {
            "logits": _OF_TOKENS,
            "token_ids": {
                "outside": lambda y: y + 7,
                "-1": lambda y: y - 7,
                "floats": lambda y: y + 0.0,
                "of one axis": lambda y: y[0],
            },
        },
        nan=True,
    ),
    "sequence_confidence": Shaped(
        kc.text.sequence_confidence,
        {"log_probs": _LOG_PROBS, "mask": _MASK},
        {
            "log_probs": {
                "NaN": lambda x: _first(x, NAN),
                "above 0": lambda x: -x,
                "probabilities": np.exp,
                "no token": lambda x: x[:, :0],
            },
            "mask": {
                "nothing kept": np.zeros_like,
                "of one axis": lambda m: m[0],
            },
        },
        # Answers may have any length.
        ("mask None", "log_probs ragged"),
    ),
    "choice_logits": Shaped(
        kc.text.choice_logits,
        {"logits": _TOKENS, "choices": np.array([0, 2, 4])},
        {
            "logits": _OF_TOKENS,
            "choices": {
                "outside": lambda c: c + 7,
                "-1": lambda c: c - 2,
                "twice": lambda c: c * 0,
                "one alone": lambda c: c[:1],
                "none": lambda c: c[:0],
                "floats": lambda c: c + 0.0,
            },
        },
        # Of any shape; and two choices are a choice.
        (
            *("logits too short", "logits too long", "logits of one axis"),
            *("choices ragged", "choices too short"),
        ),
        nan=True,
    ),
    "SVLS": _spatial(lambda: kc.SVLS(from_logits=True)),
    "NACL": _spatial(lambda: kc.NACL(from_logits=True)),
    "svls": _spatial_function(kc.losses.svls),
    "nacl": _spatial_function(kc.losses.nacl),
    "CompactLogits": Shaped(
        _compact,
        {
            "labels": _WORD_IDS,
            "logits": _WORDS,
            "sample_weight": np.ones(NUM, "float32"),
        },
        {
            "labels": _OF_CLASSES,
            "logits": _OF_LOGITS
            | {
                "few classes": lambda z: z[:, :20],
                "all ruled out": lambda z: np.full_like(z, -INF),
            },
            "sample_weight": ODD_WEIGHTS | {"nothing kept": np.zeros_like},
        },
        _FINE_WEIGHTS,
    ),
}
