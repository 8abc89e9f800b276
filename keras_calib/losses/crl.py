"""Correctness ranking (CRL), and its penalty under a margin.

Derivation: docs/derivations.md, 'Gradients of the losses'.
"""

from typing import Any, Unpack

import keras
from keras import ops

from keras_calib.formulas.scores import neg_entropy, prob_margin
from keras_calib.inputs.checks import check_at_least, check_in, check_rows
from keras_calib.losses.base import LossOptions, PerSampleLoss
from keras_calib.losses.closed_forms import (
    mark_first,
    of_softmax,
    reads_ids,
    top_probability,
)
from keras_calib.numerics.arrays import (
    as_numbers,
    at_least_float32,
    safe_divide,
)
from keras_calib.numerics.softmax import num_allowed

_SCORES = {
    "msp": top_probability,
    # One class that is left alone has an entropy of 0.
    "neg_entropy": lambda z: safe_divide(
        neg_entropy(z), ops.log(num_allowed(z)[..., 0])
    ),
    "prob_margin": prob_margin,
}


def correctness_ranking(
    logits: Any,
    correctness: Any,
    *,
    score: str = "msp",
    condition: str = "margin",
) -> Any:
    """Correctness ranking loss (CRL) of neighbouring samples in a batch.

    Use it to make confidences follow how often each sample was predicted
    correctly so far. `CorrectnessRankingModel` keeps that record and trains
    with it.

    loss_i = relu(-sign(c_i - c_j) (kappa_i - kappa_j) + margin_i)

    Sample i is compared with the next one, j = i + 1, and the last one with
    the first. Each sample has a score kappa and a recorded correctness c. The
    margin is |c_i - c_j|, or 0 for `condition="ranking"`. Pairs of equal
    correctness give 0. No gradient flows into the record.

    To train, add the mean times a strength (1.0 in the paper) to the cross
    entropy. The test `correctness_ranking(logits, record,
    condition="ranking") > 0` is the ranking condition of ACLS: pass it to
    `acls` as `active`.

    Args:
        logits: Logits `(batch, num_classes)`.
        correctness: Share of the past predictions of each sample that were
            correct, in [0, 1], `(batch,)`.
        score: `"msp"` is the largest probability, `"prob_margin"` the largest
            minus the second, `"neg_entropy"` the negative entropy divided by
            log num_classes.
        condition: `"margin"` or `"ranking"`.

    Returns:
        Losses of the pairs `(batch,)`. Each has a gradient to both samples.

    Reference:
        Moon et al., Confidence-Aware Learning for Deep Neural Networks, ICML
        2020, https://arxiv.org/abs/2007.01458; without a margin:
        Park et al., ACLS, ICCV 2023, supplement eq. 18,
        https://arxiv.org/abs/2308.11911

    Differs:
        The released code divides the entropy by log 10, or by log 100 for
        CIFAR-100, whatever the number of classes.
    """
    check_in("score", score, tuple(_SCORES))
    check_in("condition", condition, ("margin", "ranking"))
    logits = at_least_float32(logits)
    record = ops.stop_gradient(
        ops.cast(as_numbers(correctness, "correctness"), logits.dtype)
    )
    check_rows("correctness", record, logits)
    kappa = _SCORES[score](logits)
    lead = record - ops.roll(record, -1, axis=0)
    gap = kappa - ops.roll(kappa, -1, axis=0)
    margin = ops.abs(lead) if condition == "margin" else 0.0
    return ops.relu(margin - ops.sign(lead) * gap)


@reads_ids
def crl_margin(
    labels: Any,
    logits: Any,
    *,
    margin: float = 10.0,
    strength: float = 1.0,
    condition: str = "predicted",
) -> Any:
    """Cross entropy plus the confidence of samples with distant logits.

    Use it inside a loss of your own; compile with `CRLMargin`.

    CE + strength max_k p_k [max_k z_k - min_k z_k >= margin]

    Args:
        labels, logits: One-hot or soft labels, logits z `(..., num_classes)`.
        margin, strength, condition: As in `CRLMargin`.

    Returns:
        Losses `(...)`, in nats.

    Reference:
        That of `CRLMargin`.
    """

    def closed_form(targets, parts):
        lowest = parts.lowest
        active = strength * ops.cast(lowest <= -margin, lowest.dtype)
        penalty = active * ops.max(parts.probs, axis=-1, keepdims=True)
        value = targets.cross_entropy(parts) + ops.squeeze(penalty, axis=-1)

        def gradient():
            first = mark_first(ops.equal(parts.shifted, 0.0), lowest.dtype)
            # 1 - p as a sum: it does not cancel where p is nearly 1.
            others = (1.0 - first) * parts.probs
            rest = ops.sum(others, axis=-1, keepdims=True)
            if condition == "each":
                # Eq. 11 asks the margin of each class: one that is nearer
                # keeps its share of the value, but gets no gradient.
                far = parts.shifted <= -margin
                others = ops.where(far, others, ops.zeros_like(others))
            slope = targets.subtract_from(parts.probs)
            return slope + penalty * (first * rest - others)

        return value, gradient

    return of_softmax(labels, logits, closed_form)


@keras.saving.register_keras_serializable(package="keras_calib")
class CRLMargin(PerSampleLoss):
    """The penalty of CRL under a margin in place of the ranking condition.

    Use it when you want to penalise high confidence as CRL does, but keep no
    record of past correctness. Any model can train with it, also on pixels.

    CE + strength max_k p_k [max_k z_k - min_k z_k >= margin]

    CRL lowers a confidence that contradicts the record of past correctness.
    This loss lowers the confidence of samples whose logits are far apart.

    Args:
        margin: Distance from the largest to the smallest logit at which the
            penalty begins, >= 0. ACLS reports 6 for CIFAR-10.
        strength: Coefficient of the confidence, >= 0. Above 1, the loss also
            lowers high confidences that are correct.
        condition: With `"predicted"` the gradient is that of the value. With
            `"each"`, as eq. 11 is printed, classes that are not `margin`
            below the largest logit get no gradient of the penalty. That is
            not the gradient of a function; it does not sum to 0 over classes,
            and a residual network on CIFAR-10 lost much accuracy with it.
        **kwargs: `name` and arguments of `PerSampleLoss`.

    Example:

    >>> loss = CRLMargin(margin=2.0, from_logits=True)
    >>> round(float(loss([0], [[4.0, 0.0, 0.0]])), 4)
    1.0006

    Reference:
        Park et al., ACLS: Adaptive and Conditional Label Smoothing for
        Network Calibration, ICCV 2023, table 2 (smoothing of CRL), eq. 11
        and table 6, https://arxiv.org/abs/2308.11911

    Differs:
        The paper gives no formula and no code for table 6; the penalty is this
        library's interpretation. The pairs of CRL also raise the confidence
        of the other sample.
    """

    def __init__(
        self,
        margin: float = 10.0,
        *,
        strength: float = 1.0,
        condition: str = "predicted",
        **kwargs: Unpack[LossOptions],
    ):
        check_at_least("margin", margin, 0.0)
        check_at_least("strength", strength, 0.0)
        check_in("condition", condition, ("predicted", "each"))
        super().__init__(
            crl_margin,
            margin=margin,
            strength=strength,
            condition=condition,
            **kwargs,
        )
