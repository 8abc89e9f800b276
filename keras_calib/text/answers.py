"""What services of language models return, as arrays."""

from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np

from keras_calib.backend.errors import value_error

# Most tokens that an error shows.
_SHOWN = 8


def listed(values: Any) -> list | None:
    """A list, tuple or column of Python objects as a list; else None."""
    if str(getattr(values, "dtype", None)) == "object":
        return values.tolist()
    return [*values] if isinstance(values, list | tuple) else None


def spelled(token: Any) -> Any:
    """A token as it is compared: a text without the white space around it."""
    return token.strip() if isinstance(token, str) else token


def reads_tokens(answers: list | None) -> bool:
    """Whether an answer names its tokens, as those of services do."""
    return any(
        isinstance(x, Mapping) or any(map(_is_record, listed(x) or ()))
        for x in answers or ()
    )


def of_tokens(answers: list, choices: list[list]) -> np.ndarray:
    """Log-probabilities of choices `(answers, choices)`, -inf for absent ones.

    Raises ValueError for an answer that has none of them.
    """
    places = {x: i for i, tokens in enumerate(choices) for x in tokens}
    found = np.full((len(answers), len(choices)), -np.inf)
    for number, answer in enumerate(answers):
        name = f"logits[{number}]"
        told = []
        for token, value in _pairs(answer, name):
            told.append(spelled(token))
            log_p, place = _number(value, name), places.get(told[-1])
            if log_p > 0.0:
                raise value_error(
                    f"`{name}` must hold log-probabilities, which are at most "
                    "0: take logarithms of probabilities",
                    value=log_p,
                )
            if place is not None:
                here = number, place
                found[here] = np.logaddexp(found[here], log_p)
        if not np.isfinite(found[number]).any():
            raise value_error(
                f"`{name}` must have one of the `choices`: ask for more "
                "log-probabilities of the token that answers, or leave the "
                "question out",
                **{name: told[:_SHOWN], "choices": choices},
            )
    return found


def padded(log_probs: Any, mask: Any) -> tuple[Any, Any]:
    """Log-probabilities of tokens with their mask, as arrays if of lists.

    Shorter answers end in padding, which the mask leaves out.
    """
    answers = listed(log_probs)
    rows = [x for x in map(listed, answers or ()) if x is not None]
    lengths = {len(x) for x in rows}
    are_lists = answers is not None and len(rows) == len(answers)
    if not are_lists or not (len(lengths) > 1 or reads_tokens(answers)):
        return log_probs, mask
    shape = len(rows), max(lengths)
    values, counts = np.zeros(shape), np.zeros(shape, bool)
    kept = [None] * len(rows) if mask is None else listed(mask) or [*mask]
    if len(kept) != len(rows):
        raise value_error(
            "`mask` must have a list for each answer",
            answers=len(rows),
            masks=len(kept),
        )
    for number, (row, keep) in enumerate(zip(rows, kept, strict=True)):
        name = f"log_probs[{number}]"
        for place, x in enumerate(row):
            value = _pair(x, name)[1] if _is_record(x) else x
            values[number, place] = _number(value, name)
        if keep is None:
            keep = [True] * len(row)
        if len(keep) not in (len(row), shape[1]):
            raise value_error(
                f"`mask[{number}]` must be as long as `{name}`",
                mask=len(keep),
                log_probs=len(row),
            )
        counts[number, : len(row)] = keep[: len(row)]
    return values, counts


def _is_record(x: Any) -> bool:
    return isinstance(x, Mapping) or hasattr(x, "logprob")


def _pairs(answer: Any, name: str) -> Iterator[tuple[Any, Any]]:
    """Tokens and their log-probabilities of one answer."""
    if isinstance(answer, Mapping) and "top_logprobs" in answer:
        answer = answer["top_logprobs"]
    if isinstance(answer, Mapping):
        yield from answer.items()
    else:
        yield from (_pair(x, name) for x in listed(answer) or ())


def _pair(record: Any, name: str) -> tuple[Any, Any]:
    """The token of a record, a dict or an object, and its log-probability."""
    try:
        if isinstance(record, Mapping):
            return record.get("token"), record["logprob"]
        return record.token, record.logprob
    except (AttributeError, KeyError):
        raise value_error(
            f"`{name}` must be a dict of log-probabilities by token, or a list "
            'of `{"token", "logprob"}`',
            **{name: record},
        ) from None


def _number(value: Any, name: str) -> float:
    """A logit or a log-probability; ValueError for what is none."""
    if not isinstance(value, int | float | np.number) or not value < np.inf:
        raise value_error(
            f"`{name}` must hold numbers, not NaN and not infinity", value=value
        )
    return float(value)
