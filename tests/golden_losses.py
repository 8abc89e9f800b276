"""Every stored value and gradient of a loss that this library can express.

The keys are `loss/<method>/<hyperparameters>/<data>`. Most come from the
`goldens` of the cases; here are those that need the function, a constant, or
more inputs. `NOT_EXPRESSED` says which stored methods are left, and why.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from cases import LOSSES, one_hot
from keras import ops

import keras_calib as kc

DATA = ("A", "B", "C", "T", "D", "D0", "OK", "KO", "F")
DENSE = ("D", "D0")

NOT_EXPRESSED = {
    "ce": "Keras' own loss, and the limit of most others",
    "ecp_tu": "adds 1e-6 inside the logarithm and a constant log K",
    "label_relaxation_legacy_tf": "clips probabilities at 1e-7",
}
# float32 steps by 3e-8 at 0.5, and one p_y is 5.6e-9 below this threshold.
FLOAT64_ONLY = {"loss/flsd_mean/g2/T", "loss/flsd_sum/g2/T"}
# The released code writes log 10 as 2.302585.
FLOAT32_ONLY = {"crl_entropy"}
# Where classes tie, torch.topk keeps to no stated order.
VALUE_ONLY = {"loss/crl_margin/w1/T", "loss/crl_margin/w0.5/T"}
# The released code takes log 10 for 6 classes too.
LEFT_OUT = {"loss/crl_entropy/w1/T", "loss/crl_entropy/w0.5/T"}


@dataclass(frozen=True)
class Golden:
    """A stored value with what computes it.

    `total(labels, logits)` gives the scalar from class ids and logits; its
    mean or sum is taken in the dtype of the logits.
    """

    key: str
    data: str
    total: Callable[[np.ndarray, Any], Any]

    def __str__(self):
        return self.key.removeprefix("loss/")


def of_cases(stored):
    """What the `goldens` of the cases name."""
    for case in LOSSES:
        for method, ids in case.goldens.items():
            for hyper_id, hyperparameters in ids.items():
                variant = replace(case, hyperparameters=hyperparameters)
                for data in DATA:
                    key = f"loss/{method}/{hyper_id}/{data}"
                    if f"{key}/value" in stored:
                        yield Golden(key, data, _of_class(variant, data))


def special(stored):
    """What needs more than a class and its hyperparameters."""
    for key, data, function in _functions(stored):
        if f"{key}/value" in stored:
            yield Golden(key, data, function)


def all_goldens(stored):
    found = [*of_cases(stored), *special(stored)]
    assert len({golden.key for golden in found}) == len(found)
    return found


def _of_class(case, data):
    dense = {"axis": 1, "ignore_class": 255} if data in DENSE else {}
    is_sum = case.hyperparameters.get("reduction") == "sum"

    def total(labels, logits):
        loss = case.make(**dense)
        # Keras takes means in float32 on torch.
        values = ops.sum(loss.call(labels, logits))
        return values if is_sum else values / np.sum(labels != 255)

    return total


def _mean(fn, **hyperparameters):
    """The mean over the batch of a function of one-hot labels."""

    def total(labels, logits):
        labels = one_hot(labels, logits.shape[-1])
        labels = ops.cast(labels, logits.dtype)
        values = fn(labels, logits, **hyperparameters)
        return ops.sum(values) / len(labels)

    return total


def _statistic(fn, **hyperparameters):
    def total(labels, logits):
        labels = ops.cast(one_hot(labels, logits.shape[-1]), logits.dtype)
        return fn(labels, logits, **hyperparameters)

    return total


def _plus(total, constant):
    return lambda labels, logits: total(labels, logits) + constant


def _cross_entropy(labels, logits):
    return kc.losses.label_smoothing(labels, logits, alpha=0.0)


def _functions(stored):
    yield from _smoothing(stored)
    yield from _margins(stored)
    yield from _pairs(stored)
    yield from _statistics(stored)
    yield from _records(stored)


def _smoothing(stored):
    for data in DATA:
        num_classes = _num_classes(stored, data)
        # Divergence from the target, rather than cross entropy with it.
        entropy = -0.9 * math.log(0.9) - 0.1 * math.log(0.1 / (num_classes - 1))
        fn = _mean(kc.losses.label_smoothing, alpha=0.1, spread="others")
        yield f"loss/ls_km1_kl/alpha0.1/{data}", data, _plus(fn, -entropy)
        for alpha in (0.1, 0.25):
            key = f"loss/label_relaxation_legacy_torch/alpha{alpha}/{data}"
            yield key, data, _mean(kc.losses.label_relaxation, alpha=alpha)
    for beta in (1, 0.75, 0):
        for data in ("A", "T"):
            alpha = stored[f"in/als/{data}/alpha"]
            fn = _mean(
                kc.losses.adaptive_label_smoothing,
                objectness=1 - alpha,
                beta=beta,
            )
            yield f"loss/als_objectness/beta{beta}/{data}", data, fn
    for hyper_id in ("bin10", "bin7", "kde_s0.1_w500", "kde_s0.05_w6"):
        targets = stored[f"state/cape/{hyper_id}/target_p1"]

        def fn(labels, logits, targets=targets):
            return kc.losses.cape_loss(targets, logits)

        yield f"loss/cape/{hyper_id}/F", "F", _mean(fn)


def _margins(stored):
    settings = {
        "default": {},
        "m6": {"margin": 6.0},
        "nondef": {"margin": 3.0, "lambda1": 0.6, "lambda2": 0.15},
    }
    for data in DATA:
        others = _num_classes(stored, data) - 1
        for hyper_id, options in settings.items():
            # The sum over the other classes, rather than their mean.
            lambda2 = options.get("lambda2", 0.01) * others
            fn = _mean(kc.losses.acls, **{**options, "lambda2": lambda2})
            yield f"loss/acls_eq13_sum/{hyper_id}/{data}", data, fn
    active = stored["in/A/rank_cond"]
    for reference in ("min", "zero"):
        fn = _mean(
            kc.losses.acls, reference=reference, condition="none", active=active
        )
        yield f"loss/acls_rank_{reference}/default/A", "A", fn


def _pairs(stored):
    settings = {
        "cals_cfg": (0.1, 1.0),
        "ctor": (1.0, 1.0),
        "nondef": (0.3, 0.05),
    }
    for data in DATA:
        others = _num_classes(stored, data) - 1
        for hyper_id, (lambda1, lambda2) in settings.items():
            # Each class paired with itself; 1e-10 inside is below rounding.
            diagonal = lambda2 * 0.5 * math.log(2) / max(others - 1, 1)
            key = f"loss/cpc_cals/{hyper_id}/{data}"
            if data in DENSE:
                case = next(x for x in LOSSES if x.cls is kc.CPC)
                hyper = {"lambda1": lambda1, "lambda2": lambda2}
                fn = _of_class(replace(case, hyperparameters=hyper), data)
            else:
                fn = _mean(kc.losses.cpc, lambda1=lambda1, lambda2=lambda2)
            yield key, data, _plus(fn, diagonal)
        # Sums over the pairs, and both logarithms of each.
        fn = _mean(
            kc.losses.cpc,
            lambda1=0.1 * others,
            lambda2=0.01 * 4 * others * (others - 1),
        )
        yield f"loss/cpc_acls_supp/l0.1_l0.01/{data}", data, fn


def _statistics(stored):
    for data in DATA:
        yield f"loss/mmce_term/default/{data}", data, _statistic(kc.losses.mmce)
        released = _statistic(kc.losses.mmce, variant="weighted_released")
        yield f"loss/mmce_w_code_term/default/{data}", data, released
        weighted = _statistic(kc.losses.mmce, variant="weighted")
        yield f"loss/mmce_w_netcal/term/{data}", data, weighted
        yield f"loss/mdca_term/default/{data}", data, _statistic(kc.losses.mdca)


def _records(stored):
    scores = {
        "softmax": "msp",
        "entropy": "neg_entropy",
        "margin": "prob_margin",
    }
    for data in ("A", "T", "OK"):
        record = stored[f"in/crl/{data}/correctness"]
        least = record.min()
        record = record[stored[f"in/crl/{data}/idx"]] - least
        record = record / (stored[f"in/crl/{data}/max_correctness"] - least)
        for name, score in scores.items():
            if name == "entropy" and data == "T":
                continue  # The released code takes log 10 for 6 classes.
            for strength in (1, 0.5):

                def fn(labels, logits, r=record, s=score, w=strength):
                    rank = kc.losses.correctness_ranking(logits, r, score=s)
                    return _cross_entropy(labels, logits) + w * rank

                yield f"loss/crl_{name}/w{strength}/{data}", data, _mean(fn)
    for state in ("default", "nondef"):
        upper = stored[f"state/adafocal/{state}/upper"]
        edges = np.concatenate([[0.0], upper])
        for data in DATA:
            for step in (1, 4):
                gammas = stored[f"state/adafocal/{state}/gamma_after{step}"]
                yield _adafocal(f"{state}_step{step}", data, edges, gammas)
    for data in DATA:
        edges = np.linspace(0.0, 1.0, 16)
        yield _adafocal("init", data, edges, np.ones(15))


def _adafocal(hyper_id, data, edges, gammas):
    def total(labels, logits):
        labels = ops.cast(one_hot(labels, logits.shape[-1]), logits.dtype)
        return ops.sum(
            kc.losses.adaptive_focal(labels, logits, edges=edges, gammas=gammas)
        )

    return f"loss/adafocal/{hyper_id}/{data}", data, total


def _num_classes(stored, data):
    return stored[f"in/{data}/logits"].shape[1]
