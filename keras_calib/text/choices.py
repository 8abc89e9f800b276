"""Multiple-choice answers as classes: their logits and their labels."""

from collections.abc import Sequence
from typing import Any

import numpy as np
from keras import ops

from keras_calib.backend.errors import type_error, value_error
from keras_calib.inputs.checks import check_rank
from keras_calib.numerics.arrays import as_array, at_least_float32, shape_of
from keras_calib.numerics.softmax import logsumexp
from keras_calib.text.answers import listed, of_tokens, reads_tokens, spelled


def choice_logits(logits: Any, choices: Sequence) -> Any:
    """Logits of multiple-choice answers, from a model or from a service.

    Use it where a language model answers with a letter: the answers are then
    the classes of an ordinary classifier, for all losses, metrics, calibrators
    and selectors. The softmax is over the choices alone.

    A choice that a question lacks has a logit of -inf, which is a probability
    of 0. What fits or measures refuses a label on it.

    Args:
        logits: Logits of the token that answers `(..., vocabulary)`, such as
            those of a `CausalLM` at the last token of the prompt. From a
            service: a dict of log-probabilities by token for each question, or
            a list of `{"token", "logprob"}`. With choices that are texts also
            one number for each choice, as an array `(..., num_choices)` or as
            lists; a shorter list is a question with fewer choices.
        choices: Id of the token of each choice, or its text, such as "A". For
            each choice a list of ids or texts that mean it may be given: their
            probabilities are added. White space around a text does not count,
            so "A" is " A" too.

    Returns:
        Logits `(..., num_choices)`, `(questions, num_choices)` from a service.

    Raises:
        ValueError: If there are fewer than two choices, or an id is outside
            the vocabulary or given twice. If a question has none of the
            choices, or more than there are.

    Example:

    >>> import keras
    >>> logits = np.log([[0.1, 0.4, 0.2, 0.3]])
    >>> probs = keras.ops.softmax(choice_logits(logits, [[0, 2], 1, 3]))
    >>> print(np.round(keras.ops.convert_to_numpy(probs), 4))
    [[0.3 0.4 0.3]]

    >>> answers = [{"A": -0.1, "B": -2.4}, {" B": -0.3, "C": -1.5, "I": -4}]
    >>> logits = choice_logits(answers, ["A", "B", "C"])
    >>> print(keras.ops.convert_to_numpy(logits))
    [[-0.1 -2.4 -inf]
     [-inf -0.3 -1.5]]

    Reference:
        Hendrycks et al., Measuring Massive Multitask Language Understanding,
        ICLR 2021, https://arxiv.org/abs/2009.03300
    """
    groups = _groups(choices)
    answers = listed(logits)
    if reads_tokens(answers):
        return at_least_float32(of_tokens(answers or [], groups))
    if _are_texts(groups):
        return _by_place(logits, answers, len(groups))
    logits = at_least_float32(logits)
    check_rank("logits", logits, 1, "(..., vocabulary)")
    ids = _ids(groups, shape_of(logits)[-1])
    if all(len(group) == 1 for group in ids):
        return ops.take(logits, np.concatenate(ids), axis=-1)
    parts = (ops.take(logits, group, axis=-1) for group in ids)
    return ops.stack([logsumexp(part) for part in parts], axis=-1)


def choice_labels(labels: Any, choices: Sequence) -> np.ndarray:
    """Class ids of the right answers, which are letters or numbers.

    Use it beside `choice_logits`, with the same choices.

    Args:
        labels: The right choice of each question `(n,)`: its text, or its
            place from 0.
        choices: The text of each choice, or for each choice a list of texts,
            as in `choice_logits`.

    Returns:
        Class ids `(n,)`, int32.

    Raises:
        ValueError: If a label is none of the choices.

    Example:

    >>> choice_labels(["B", "A", 2], ["A", "B", "C"]).tolist()
    [1, 0, 2]

    Reference:
        Hendrycks et al., Measuring Massive Multitask Language Understanding,
        ICLR 2021, https://arxiv.org/abs/2009.03300
    """
    groups = _groups(choices)
    if not _are_texts(groups):
        raise type_error(
            "`choices` must be texts: labels of other choices are class ids "
            "already",
            choices=choices,
        )
    places = {x: i for i, texts in enumerate(groups) for x in texts}
    ids = []
    for number, label in enumerate(np.asarray(labels, object).reshape(-1)):
        place = places.get(spelled(label), label)
        is_number = isinstance(place, int | np.integer)
        if not is_number or not 0 <= place < len(groups):
            raise value_error(
                f"`labels[{number}]` must be one of `choices`, which may have "
                "letters that some questions lack, or its place from 0",
                **{f"labels[{number}]": label, "choices": choices},
            )
        ids.append(place)
    return np.array(ids, "int32")


def _by_place(logits: Any, rows: list | None, count: int) -> Any:
    """Logits of texts, one a choice; shorter lists end in -inf."""
    questions = [listed(x) for x in rows or ()]
    if questions and None not in questions:
        logits = np.full((len(questions), count), -np.inf)
        for number, one in enumerate(questions):
            values = one or ()
            if not 1 <= len(values) <= count:
                raise value_error(
                    f"`logits[{number}]` must have a number for each of "
                    "`choices`, or for the first of them",
                    numbers=len(values),
                    choices=count,
                )
            logits[number, : len(values)] = as_array(values, "logits")
    logits = at_least_float32(logits)
    check_rank("logits", logits, 1, "(..., num_choices)")
    if shape_of(logits)[-1] != count:
        raise value_error(
            "`logits` must have a number for each of `choices`; logits over a "
            "vocabulary need the ids of the choices",
            **{"logits.shape": shape_of(logits), "choices": count},
        )
    return logits


def _groups(choices: Any) -> list[list]:
    """The ids, or the texts as they are compared, that mean each choice."""
    if hasattr(choices, "shape") and len(choices.shape):
        choices = as_array(choices, "choices").tolist()
    if not isinstance(choices, Sequence) or isinstance(choices, str):
        raise type_error(
            "`choices` must be a list of ids or texts, or of lists of them",
            choices=choices,
        )
    of_arrays = [
        as_array(x, "choices").tolist() if hasattr(x, "shape") else x
        for x in choices
    ]
    groups = [
        [*map(spelled, x)] if isinstance(x, list | tuple) else [spelled(x)]
        for x in of_arrays
    ]
    nested = any(isinstance(x, list) for group in groups for x in group)
    if len(groups) < 2 or nested or not all(groups):
        raise value_error(
            "`choices` must be at least two ids or texts, or lists of them",
            choices=choices,
        )
    if _are_texts(groups):
        groups = [[*dict.fromkeys(x)] for x in groups]
        texts = [x for group in groups for x in group]
        if len({*texts}) < len(texts) or "" in texts:
            raise value_error(
                "`choices` must be texts, each once, white space aside",
                choices=choices,
            )
    return groups


def _are_texts(groups: list[list]) -> bool:
    return all(isinstance(x, str) for group in groups for x in group)


def _ids(choices: list[list], vocabulary: int | None) -> list[np.ndarray]:
    """Ids of each choice, each an int32 array."""
    groups = [as_array(x, "choices") for x in choices]
    ids = np.concatenate(groups)
    if ids.dtype.kind not in "iu":
        raise type_error("`choices` must be whole numbers", dtype=ids.dtype)
    most = np.inf if vocabulary is None else vocabulary
    if len({*ids.tolist()}) < len(ids) or ids.min() < 0 or ids.max() >= most:
        raise value_error(
            "`choices` must be ids in [0, vocabulary), each once",
            choices=choices,
            vocabulary=vocabulary,
        )
    return [x.astype("int32") for x in groups]
