"""Log-probabilities of tokens, and confidence of sequences of them.

All are functions of `keras.ops`, so that they run in exported models.
"""

from typing import Any

import numpy as np
from keras import ops

from keras_calib.backend.errors import type_error, value_error
from keras_calib.inputs.checks import check_flag, check_in, check_rank
from keras_calib.inputs.labels import narrowed_ids
from keras_calib.inputs.values import read_mask
from keras_calib.numerics.arrays import (
    as_numbers,
    at_least,
    at_least_float32,
    fits,
    shape_of,
    tanh,
    value_if_eager,
)
from keras_calib.numerics.softmax import is_ruled_out, logsumexp
from keras_calib.text.answers import padded

_REDUCTIONS = "geometric_mean", "mean", "minimum", "product"
# The least float32: 1 - confidence is at least this, so log-odds are finite.
_TINY = float(np.finfo("float32").tiny)


def token_log_probs(
    logits: Any, token_ids: Any, *, next_token: bool = False
) -> Any:
    """Log-probability of each token of a sequence, log p(token).

    Use it to score answers of a language model whose logits you have, and give
    the result to `sequence_confidence`. Services that return a log-probability
    of each token need only that function.

    log p = -log(1 + sum_{k != token} exp(z_k - z_token))

    Args:
        logits: Logits over the vocabulary `(..., length, vocabulary)`.
        token_ids: Ids of the tokens `(..., length)`, in [0, vocabulary). Give
            padding any such id, and leave it out by the mask of
            `sequence_confidence`.
        next_token: Whether the logits of a place are for the token after it,
            as those of a `CausalLM` are. Then the first token has no
            probability, and the result is that of `token_ids[..., 1:]`.

    Returns:
        Log-probabilities <= 0, `(..., length)`, with `next_token`
        `(..., length - 1)`. They keep their digits where p is near 1, and are
        -inf for a token that a logit of -inf rules out.

    Raises:
        ValueError: If shapes do not fit, or an id is outside the vocabulary.
            Compiled code cannot raise, and gives NaN there.

    Example:

    >>> import keras
    >>> logits = np.log([[[0.5, 0.25, 0.25], [0.1, 0.8, 0.1]]])
    >>> log_probs = token_log_probs(logits, [[0, 1]])
    >>> print(np.round(np.exp(keras.ops.convert_to_numpy(log_probs)), 4))
    [[0.5 0.8]]

    Reference:
        Malinin and Gales, Uncertainty Estimation in Autoregressive Structured
        Prediction, ICLR 2021, https://arxiv.org/abs/2002.07650
    """
    check_flag("next_token", next_token)
    logits = at_least_float32(logits)
    check_rank("logits", logits, 2, "(..., length, vocabulary)")
    shape = shape_of(logits)
    ids = as_numbers(token_ids, "token_ids")
    kind = str(getattr(ids.dtype, "name", ids.dtype)).rpartition(".")[-1]
    if "int" not in kind:
        raise type_error("`token_ids` must be whole numbers", dtype=kind)
    # -1 outside of the vocabulary.
    ids = narrowed_ids(ids, shape[-1])
    if not fits(shape_of(ids), shape[:-1]):
        raise value_error(
            "`token_ids` must have the shape of `logits` without the "
            "vocabulary",
            **{"token_ids.shape": shape_of(ids), "logits.shape": shape},
        )
    if next_token:
        logits, ids = logits[..., :-1, :], ids[..., 1:]
    known = ids >= 0
    outside = value_if_eager(known)
    if outside is not None and not outside.all():
        raise value_error(
            "`token_ids` must be in [0, vocabulary): give padding the id 0, "
            "and leave it out by `mask`",
            vocabulary=shape[-1],
            places=np.argwhere(~outside)[:4].tolist(),
        )
    ids = ops.expand_dims(ops.where(known, ids, 0), -1)
    own = ops.take_along_axis(logits, ids, axis=-1)
    is_own = ops.arange(shape[-1], dtype="int32") == ids
    low = ops.cast(-float("inf"), logits.dtype)
    # Log-odds against the token: without it in the sum, no digit cancels.
    against = logsumexp(ops.where(is_own, low, logits - own))
    ruled_out = is_ruled_out(ops.squeeze(own, axis=-1))
    found = ops.where(ruled_out, low, -ops.softplus(against))
    return ops.where(known, found, float("nan"))


def sequence_confidence(
    log_probs: Any,
    mask: Any = None,
    *,
    reduction: str = "geometric_mean",
    log_odds: bool = False,
) -> Any:
    """Confidence of a sequence from the log-probabilities of its tokens.

    Use it for answers of a language model. None of the reductions is the
    probability that an answer is right: fit a calibrator for two classes on
    labelled answers, with `log_odds=True` as its logits.

    reduction          confidence of tokens 1, ..., n
    "geometric_mean"   (p_1 ... p_n)^(1/n), 1 / perplexity
    "mean"             (p_1 + ... + p_n) / n
    "minimum"          min_t p_t
    "product"          p_1 ... p_n, the probability of the sequence

    Args:
        log_probs: Log-probabilities of the tokens `(..., length)`, <= 0. Or
            what a service returns: a list for each answer, of any length, of
            numbers or of `{"token", "logprob"}`.
        mask: True or 1 for tokens of the answer `(..., length)`; False or 0
            for those of the prompt and for padding. None takes all.
        reduction: One of the names above. The product falls with the length,
            the others do not need to.
        log_odds: Whether to return log(c / (1 - c)) of the confidence c, which
            does not saturate. It is at most 87.3.

    Returns:
        Confidences in [0, 1] or log-odds `(...)`.

    Raises:
        ValueError: If shapes do not fit, a value is NaN or above 0, or a
            sequence has no token. Compiled code cannot raise, and gives NaN.

    Example:

    >>> import keras
    >>> log_probs = np.log([[0.5, 0.5, 0.9], [0.9, 0.4, 0.1]])
    >>> mask = [[True, True, True], [True, True, False]]
    >>> confidence = sequence_confidence(log_probs, mask, reduction="product")
    >>> print(np.round(keras.ops.convert_to_numpy(confidence), 4))
    [0.225 0.36 ]

    Reference:
        Malinin and Gales, Uncertainty Estimation in Autoregressive Structured
        Prediction, ICLR 2021, https://arxiv.org/abs/2002.07650 (product and
        length-normalised product)
    """
    check_in("reduction", reduction, _REDUCTIONS)
    check_flag("log_odds", log_odds)
    log_probs, mask = padded(log_probs, mask)
    log_p = at_least_float32(log_probs, "log_probs")
    check_rank("log_probs", log_p, 1, "(..., length)")
    counts = _mask(mask, log_p)
    kept = ops.where(counts, log_p, 0.0)
    number = ops.sum(ops.cast(counts, log_p.dtype), axis=-1)
    # NaN, what is above 0, and sequences without a token.
    usable = ops.all(kept <= 0.0, axis=-1) & (number > 0.0)
    _check(usable, kept, number)
    log_c = _log_confidence(kept, counts, number, reduction)
    log_c = ops.where(usable, log_c, float("nan"))
    if not log_odds:
        return ops.exp(log_c)
    rest = _complement(log_c)
    if reduction == "mean":
        # Not by way of log c, which loses digits of c near 0 or 1.
        rest = ops.sum(_complement(kept), axis=-1) / number
    return log_c - ops.log(at_least(rest, _TINY))


def _log_confidence(
    log_p: Any, counts: Any, number: Any, reduction: str
) -> Any:
    """Log of the confidence; tokens that do not count have log_p = 0."""
    if reduction == "minimum":
        return ops.min(log_p, axis=-1)
    if reduction == "mean":
        low = ops.cast(-float("inf"), log_p.dtype)
        total = logsumexp(ops.where(counts, log_p, low))
        return -at_least(ops.log(number) - total, 0.0)
    total = ops.sum(log_p, axis=-1)
    return total if reduction == "product" else total / number


def _complement(log_p: Any) -> Any:
    """1 - p, to the last digits of p near 1; ONNX has no expm1."""
    return -tanh(0.5 * log_p) * (1.0 + ops.exp(log_p))


def _mask(mask: Any, log_p: Any) -> Any:
    """Which tokens count, a bool tensor of the shape of `log_p`."""
    if mask is None:
        return ops.ones_like(log_p, dtype="bool")
    mask = read_mask(mask)
    shapes = {"mask.shape": shape_of(mask), "log_probs.shape": shape_of(log_p)}
    if not fits(*shapes.values()):
        raise value_error(
            "`mask` must have the shape of `log_probs`; with `next_token` "
            "that is `mask[..., 1:]`",
            **shapes,
        )
    return mask


def _check(usable: Any, log_p: Any, number: Any) -> None:
    """Raises ValueError, if eager, for what has no confidence."""
    right = value_if_eager(usable)
    if right is None or right.all():
        return
    places = np.argwhere(~right)[:4].tolist()
    count = value_if_eager(number)
    if count is not None and not count.all():
        raise value_error(
            "`mask` must keep a token of every sequence", places=places
        )
    values = value_if_eager(log_p)
    wrong = None if values is None else values[~(values <= 0.0)][:4].tolist()
    raise value_error(
        "`log_probs` must be <= 0 and not NaN where `mask` is True: they are "
        "logarithms of probabilities",
        sequences=places,
        values=wrong,
    )
