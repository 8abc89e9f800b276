"""Correctness ranking (CRL): confidence in the order of past correctness."""

import math
from typing import Any

from keras import ops

from keras_calib.formulas.scores import neg_entropy
from keras_calib.inputs.checks import check_in
from keras_calib.inputs.checks import check_rows
from keras_calib.losses.closed_forms import probability_margin
from keras_calib.losses.closed_forms import top_probability
from keras_calib.numerics.arrays import as_numbers
from keras_calib.numerics.arrays import at_least_float32

__all__ = ["correctness_ranking"]

_SCORES = {
    "msp": top_probability,
    "neg_entropy": lambda z: neg_entropy(z) / math.log(z.shape[-1]),
    "prob_margin": probability_margin,
}


def correctness_ranking(
    logits: Any,
    correctness: Any,
    *,
    score: str = "msp",
    condition: str = "margin",
) -> Any:
    """Hinge on pairs whose confidences contradict past correctness.

    Sample i is compared with the next one, j = i + 1 (the last with the
    first). With kappa the score of a sample and c its recorded correctness,

    loss_i = relu(-sign(c_i - c_j) (kappa_i - kappa_j) + margin_i)

    where margin_i = |c_i - c_j|, or 0 for `condition="ranking"`. Pairs of
    equal correctness give 0. The record is a constant of the derivative. Train
    on cross entropy plus strength (1.0 in the paper) times the mean.

    `correctness_ranking(logits, record, condition="ranking") > 0` is the
    ranking condition of ACLS, see `active` of `acls`.

    Derivation: docs/derivations.md, 'Gradients of the losses'.

    Args:
        logits: Logits `(batch, num_classes)`.
        correctness: How often each sample was right so far, in [0, 1],
            `(batch,)`.
        score: `"msp"`, the largest probability; `"prob_margin"`, largest
            less second; `"neg_entropy"`, negative entropy over
            log num_classes.
        condition: `"margin"` or `"ranking"`.

    Returns:
        Losses of the pairs `(batch,)`, each with the gradient of both its
        samples.

    Reference:
        Moon et al., Confidence-Aware Learning for Deep Neural Networks, ICML
        2020, https://arxiv.org/abs/2007.01458; without a margin:
        Park et al., ACLS, ICCV 2023, supplement eq. 18,
        https://arxiv.org/abs/2308.11911

    Differs:
        The released code divides the entropy by the logarithm of 10 (or of
        100 for CIFAR-100), whatever the number of classes.
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
