"""The threshold of answers of any model, applied in Python."""

import json
from typing import Any

import numpy as np

from keras_calib.backend.errors import value_error
from keras_calib.backend.files import each_once, path_of
from keras_calib.inputs.checks import (
    check_above,
    check_at_least,
    check_in,
    check_integer,
    check_number,
    check_share,
)
from keras_calib.numerics.arrays import as_array
from keras_calib.numerics.softmax import log_odds_of, sigmoid

__all__ = [
    "AnswerThreshold",
    "KEY",
    "SCHEMA",
    "bounded_log_odds",
    "calibrated_confidence",
    "load_threshold",
]

# Of a confidence of 0 or 1, whose log-odds are infinite.
_LARGEST = 87.0
# Number of the form of the file.
SCHEMA = 1
KEY = "answer_threshold"


class AnswerThreshold:
    """The threshold of a file of `keras-calib threshold`, as a function.

    Use `load_threshold` to make one. Call it on confidences `(...)`, or on
    scores if the file is for a score. It computes in float64, as the command
    does, so that both accept the same answers.

    Args:
        facts: What the file says, a dict.

    Attributes:
        facts: The same dict.
        column: What it is for, `"confidence"` or `"score"`.

    Example:

    >>> facts = {"column": "score", "calibrator": None, "threshold": 2.0}
    >>> AnswerThreshold(facts)([1.5, 2.5])["accept"].tolist()
    [False, True]

    Reference:
        Geifman and El-Yaniv, Selective Classification for Deep Neural
        Networks, NeurIPS 2017, https://arxiv.org/abs/1705.08500
    """

    def __init__(self, facts: dict[str, Any]):
        _check_facts(facts)
        self.facts = facts
        self.column = facts["column"]
        self._thresholds = None
        if facts.get("groups") is not None:
            self._thresholds = {
                str(one["group"]): float(one["threshold"])
                for one in facts["groups"]
            }

    def __call__(
        self, confidence: Any, group: Any = None
    ) -> dict[str, np.ndarray]:
        """Calibrate the confidences and say which answers to accept.

        Args:
            confidence: Confidences `(...)` in [0, 1], as in the log; scores
                if the file is for a score.
            group: Groups of the answers `(...)`, if the file has a threshold
                for each group; else None. Unknown groups are not accepted.

        Returns:
            A dict of arrays `(...)`: the calibrated `confidence`, or the
            `score`, and `accept`.

        Raises:
            ValueError: If a value is not finite or no confidence, or groups
                are missing or not asked for.
        """
        values = as_array(confidence, self.column, "float64")
        is_score = self.column == "score"
        wrong = ~np.isfinite(values)
        if not is_score:
            wrong = ~((values >= 0.0) & (values <= 1.0))
        if wrong.any():
            rule = "be finite" if is_score else "be in [0, 1]"
            raise value_error(
                f"`{self.column}` must {rule}",
                **{self.column: values[wrong][:4].tolist()},
            )
        values = calibrated_confidence(self.facts.get("calibrator"), values)
        return {
            self.column: values,
            "accept": values >= self._least(values, group),
        }

    def __repr__(self) -> str:
        facts = self.facts
        told = {
            name: facts.get(name)
            for name in ("threshold", "coverage", "certified_risk", "delta")
        }
        if self._thresholds is not None:
            told["threshold"] = f"of {len(self._thresholds)} groups"
        text = ", ".join(f"{name}={value}" for name, value in told.items())
        return f"AnswerThreshold({self.column}, {text})"

    def _least(self, values: np.ndarray, group: Any) -> Any:
        """Threshold of each answer."""
        if (self._thresholds is None) != (group is None):
            raise value_error(
                "`group` must be left out: the file has one threshold"
                if self._thresholds is None
                else "`group` must be given: the file has a threshold for each",
                group=None if group is None else np.shape(group),
            )
        if self._thresholds is None:
            return float(self.facts["threshold"])
        names = np.asarray(group).astype(str)
        if names.shape != values.shape:
            raise value_error(
                f"`group` must have the shape of `{self.column}`",
                **{"group": names.shape, self.column: values.shape},
            )
        found = [self._thresholds.get(x, np.inf) for x in names.reshape(-1)]
        return np.reshape(found, values.shape)


def load_threshold(path: Any) -> AnswerThreshold:
    """Load the threshold of answers that `keras-calib threshold` wrote.

    Use it in a program that answers with a language model, or any other model
    that says how sure it is.

    Args:
        path: The `.json` file of `--out`.

    Returns:
        `AnswerThreshold`: a function of confidences that returns a dict of
        the calibrated `confidence` and `accept`.

    Raises:
        ValueError: If the file is no threshold that this version knows, or
            has a name twice, a number that is none, or a calibrator that does
            not rise.

    Example:

    >>> import json, pathlib, tempfile
    >>> path = pathlib.Path(tempfile.mkdtemp()) / "threshold.json"
    >>> facts = {"answer_threshold": 1, "column": "confidence"}
    >>> facts["calibrator"] = {"name": "affine", "slope": 0.5, "intercept": 0}
    >>> _ = path.write_text(json.dumps({**facts, "threshold": 0.7}))
    >>> answer = load_threshold(path)([0.8, 0.9])
    >>> print(answer["confidence"].round(2), answer["accept"])
    [0.67 0.75] [False  True]

    Reference:
        Geifman and El-Yaniv, Selective Classification for Deep Neural
        Networks, NeurIPS 2017, https://arxiv.org/abs/1705.08500
    """
    try:
        facts = json.loads(
            path_of(path).read_text(encoding="utf-8"),
            parse_constant=_no_number,
            object_pairs_hook=each_once,
        )
    except (OSError, ValueError, RecursionError) as error:
        raise value_error(
            "`path` must be a .json file of `keras-calib threshold --out`",
            path=str(path),
            error=repr(error),
        ) from error
    if not isinstance(facts, dict) or facts.get(KEY) != SCHEMA:
        raise value_error(
            "`path` must be a threshold of a form that this version knows: use "
            "the version of keras-calib that made it",
            path=str(path),
            known=SCHEMA,
        )
    try:
        return AnswerThreshold(facts)
    except (AttributeError, KeyError, TypeError, ValueError) as error:
        raise value_error(
            "`path` must be as `keras-calib threshold` writes it",
            path=str(path),
            error=repr(error),
        ) from error


def _no_number(text: str) -> None:
    raise ValueError(f"{text} is no number of JSON")


def _check_facts(facts: dict[str, Any]) -> None:
    """Raises unless facts are numbers in their ranges, and order is kept."""
    calibrator = facts.get("calibrator")
    known = ("confidence", "score")[: 1 + (calibrator is None)]
    check_in("column", facts["column"], known)
    if facts.get("num_samples") is not None:
        check_integer("num_samples", facts["num_samples"], 0)
    for name in ("coverage", "risk", "certified_risk", "delta"):
        if facts.get(name) is not None:
            check_share(name, facts[name])
    every = [facts] if facts.get("groups") is None else facts["groups"]
    if not every or len({str(x.get("group")) for x in every}) < len(every):
        raise ValueError("groups must be there, each once")
    for one in every:
        # JSON has no infinity, which is a text.
        if one["threshold"] not in ("inf", "-inf"):
            check_number("threshold", one["threshold"])
    if calibrator is not None:
        affine = calibrator["name"] == "affine"
        *rising, free = ("slope", "intercept") if affine else ("a", "b", "c0")
        check_number(free, calibrator[free])
        for name in rising:
            check_at_least(name, calibrator[name], 0.0)
        check_above(name, max(calibrator[x] for x in rising), 0.0)
    calibrated_confidence(calibrator, np.array([0.5]))


def bounded_log_odds(confidence: np.ndarray) -> np.ndarray:
    """log(c / (1 - c)), finite for c of 0 and 1."""
    return np.clip(log_odds_of(confidence), -_LARGEST, _LARGEST)


def calibrated_confidence(
    calibrator: dict[str, Any] | None, confidence: np.ndarray
) -> np.ndarray:
    """The confidence after a calibrator of the file, in float64."""
    if calibrator is None:
        return confidence
    odds = bounded_log_odds(confidence)
    if calibrator["name"] == "affine":
        odds = calibrator["slope"] * odds + calibrator["intercept"]
    elif calibrator["name"] == "beta":
        # log c and log(1 - c), of log-odds that are finite.
        own, other = -np.logaddexp(0.0, -odds), -np.logaddexp(0.0, odds)
        odds = calibrator["a"] * own - calibrator["b"] * other
        odds = odds + calibrator["c0"]
    else:
        raise value_error(
            "`calibrator` must be affine or beta", name=calibrator["name"]
        )
    return sigmoid(odds)
