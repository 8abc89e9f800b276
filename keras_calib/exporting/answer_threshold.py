"""The threshold of answers of any model: its statement, applied in Python."""

import hashlib
from typing import Any

import numpy as np

from keras_calib.backend.errors import value_error
from keras_calib.backend.files import path_of
from keras_calib.exporting.statement import (
    check_form,
    read_statement,
    score_of_column,
    stated,
)
from keras_calib.exporting.statement_facts import facts_of
from keras_calib.inputs.outcomes import Outcomes
from keras_calib.numerics.arrays import as_array, to_numpy
from keras_calib.numerics.results import call_text, html_facts
from keras_calib.numerics.softmax import log_odds_of, sigmoid
from keras_calib.predictions.predictions import Predictions
from keras_calib.selection.choice import Choice
from keras_calib.selection.ladder import named_group

# Of a confidence of 0 or 1, whose log-odds are infinite.
_LARGEST = 87.0


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

    Raises:
        ValueError: If these are no facts of such a file.

    Example:

    >>> AnswerThreshold({"answer": 42})  # doctest: +ELLIPSIS
    Traceback (most recent call last):
    ValueError: The certificate must have the facts of its form, and a kind ...

    Reference:
        Geifman and El-Yaniv, Selective Classification for Deep Neural
        Networks, NeurIPS 2017, https://arxiv.org/abs/1705.08500
    """

    def __init__(self, facts: dict[str, Any]):
        check_form(facts)
        if facts["artefact"] is not None:
            raise value_error(
                "`facts` must be of a threshold of answers, not of a model: "
                "`keras-calib monitor` takes its certificate as --selector",
                artefact=facts["artefact"]["format"],
            )
        self.facts = facts
        self.column = facts["score"]["name"]
        self._thresholds = None
        if facts["selection"].get("groups") is not None:
            self._thresholds = {
                one["group"]: float(one["threshold"])
                for one in facts["selection"]["groups"]
            }

    def __call__(
        self, confidence: Any, group: Any = None
    ) -> dict[str, np.ndarray]:
        """Calibrate the confidences and say which answers to accept.

        Args:
            confidence: Confidences `(...)` in [0, 1], as in the log; scores
                if the file is for a score. Or `Predictions`.
            group: Groups of the answers `(...)`, if the file has a threshold
                for each group; else None. Unknown groups are not accepted.
                With `Predictions` a name of their groups; None takes the name
                that the log of the file had.

        Returns:
            A dict of arrays `(...)`: the calibrated `confidence`, or the
            `score`, and `accept`.

        Raises:
            ValueError: If a value is not finite or no confidence, or groups
                are missing or not asked for.
        """
        if isinstance(confidence, Predictions):
            if self.column == "score":
                raise value_error(
                    "`confidence` must be the scores that this file is for, "
                    "which `Predictions` do not have",
                    column=self.column,
                )
            if self._thresholds is not None:
                name = self.facts["data"].get("group")
                group = named_group(
                    confidence, name if group is None else group
                )
            confidence = confidence.confidence
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
        values = calibrated_confidence(self.facts["calibrator"], values)
        return {
            self.column: values,
            "accept": values >= self._least(values, group),
        }

    @property
    def chosen(self) -> Choice:
        """Coverage, risk and guarantee, which a `Monitor` takes."""
        return promised(self.facts)

    def __repr__(self) -> str:
        return call_text(f"AnswerThreshold of {self.column} ", self._told())

    def _repr_html_(self) -> str:
        return html_facts(f"AnswerThreshold of {self.column}", self._told())

    def _told(self) -> dict[str, Any]:
        known = {**self.facts["guarantee"], **self.facts["selection"]}
        if self._thresholds is not None:
            known["threshold"] = self._thresholds
        names = "threshold", "coverage", "certified_risk", "delta"
        return {name: known.get(name) for name in names}

    def _least(self, values: np.ndarray, group: Any) -> Any:
        if (self._thresholds is None) != (group is None):
            raise value_error(
                "`group` must be left out: the file has one threshold"
                if self._thresholds is None
                else "`group` must be given: the file has a threshold for each",
                group=None if group is None else np.shape(group),
            )
        if self._thresholds is None:
            return float(self.facts["selection"]["threshold"])
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
            was changed since it was written.

    Example:

    >>> import pathlib, tempfile
    >>> from keras_calib.reporting.command_line import main
    >>> log = pathlib.Path(tempfile.mkdtemp()) / "log.csv"
    >>> rows = ["confidence,correct", *["0.9,1"] * 60, *["0.6,0"] * 40]
    >>> _ = log.write_text(chr(10).join(rows))
    >>> out = log.with_name("threshold.json")
    >>> given = [f"--log={log}", f"--out={out}", "--risk=0.1", "--quiet"]
    >>> _ = main(["threshold", *given])  # doctest: +ELLIPSIS
    Accept a confidence of at least 0.75: 60.00% of 100 answers...
    >>> load_threshold(out)([0.7, 0.8])["accept"].tolist()
    [False, True]

    Reference:
        Geifman and El-Yaniv, Selective Classification for Deep Neural
        Networks, NeurIPS 2017, https://arxiv.org/abs/1705.08500
    """
    try:
        return AnswerThreshold(read_statement(path_of(path), check=True))
    except ValueError as error:
        raise value_error(
            "`path` must be a .json file as `keras-calib threshold --out` "
            "writes it",
            path=str(path),
            error=str(error),
        ) from error


def promised(facts: dict[str, Any]) -> Choice:
    """The choice of a certificate or of a threshold of answers, to watch."""
    selection, guarantee = facts["selection"], facts["guarantee"]
    if selection.get("groups") is not None:
        raise value_error(
            "the file must have one threshold, not one for each group: run "
            "`threshold` on the rows of each group alone, with the same "
            "--calibration and --delta over the number of groups, and watch "
            "the log of each group by its own file",
            groups=[one["group"] for one in selection["groups"]][:20],
        )
    if facts["kind"] not in ("errors", "coverage"):
        raise value_error(
            "the certificate must be of one threshold that limits the share "
            "of errors: give `risk` and `coverage`",
            kind=facts["kind"],
        )
    return Choice(
        threshold=float(selection["threshold"]),
        coverage=float(selection["coverage"]),
        risk=float(selection["risk"]),
        num_samples=selection["num_samples"],
        limit=guarantee.get("certified_risk"),
        delta=guarantee.get("delta"),
    )


def answer_statement(
    chosen: Choice,
    log: Outcomes,
    *,
    calibrator: dict[str, Any] | None,
    coverage: float | None,
    group: str | None,
) -> dict[str, Any]:
    """The statement of a threshold of answers, or of those of groups.

    The log has the answers that chose it, by a risk or else a `coverage`, and
    `group` is its column of groups. Their confidence goes through the
    calibrator first.
    """
    kind = "errors" if coverage is None else "coverage"
    if log.names:
        kind = "groups" if coverage is None else "group_coverage"
    score = score_of_column("score" if log.confidence is None else "confidence")
    return stated(
        kind,
        facts_of(kind, chosen, score["scale"], coverage=coverage),
        score=score,
        calibrator=calibrator,
        data={
            "group": group,
            "wrong": int((log.correct == 0.0).sum()),
            "rows_sha256": rows_sha256(log),
        },
        weights=None,
        artefact=None,
    )


def rows_sha256(log: Outcomes) -> str:
    """SHA-256 of labelled answers, in whatever order they are.

    It is that of the sorted rows of value and correctness in float64, with the
    name of the group before them where there is one.
    """
    values = log.score if log.confidence is None else log.confidence
    names = np.zeros(len(values), str)
    if log.names:
        names = np.array(log.names, str)[log.group]
    order = np.lexsort((log.correct, values, names))
    hashed = hashlib.sha256()
    if log.names:
        hashed.update("\0".join(names[order].tolist()).encode())
    # -0.0 is 0.0.
    rows = np.stack([values[order], log.correct[order]], axis=-1) + 0.0
    hashed.update(rows.astype("<f8").tobytes())
    return hashed.hexdigest()


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


def calibrator_facts(
    confidence: np.ndarray, correct: np.ndarray, name: str
) -> dict[str, Any]:
    """What is told of a calibrator that is fitted to labelled answers.

    A temperature is told as the affine map with its slope.
    """
    # Fits are those of layers, which alone need Keras here.
    from keras_calib.calibrators import (
        AffineScaling,
        BetaCalibration,
        TemperatureScaling,
    )

    log_odds = bounded_log_odds(confidence)[:, None].astype("float32")
    labels = correct.astype(int)
    if name == "temperature":
        layer = TemperatureScaling().fit(labels, log_odds)
        facts = {"name": "affine", "slope": 1.0 / layer.temperature}
        facts["intercept"] = 0.0
        return {**facts, "num_samples": len(labels)}
    beta = name == "beta"
    layer = BetaCalibration() if beta else AffineScaling()
    layer.fit(labels, log_odds)
    (fitted,) = to_numpy(layer.coefficients).astype("float64").tolist()
    if max(fitted[:-1]) <= 0.0:
        raise value_error(
            "the confidence must rise with the share of right answers, for a "
            "calibrator to keep its order: take another confidence",
            coefficients=fitted,
        )
    names = ("a", "b", "c0") if beta else ("slope", "intercept")
    return {
        "name": "beta" if beta else "affine",
        **dict(zip(names, fitted, strict=True)),
        "num_samples": len(labels),
    }


def told_calibrator(facts: dict[str, Any]) -> str:
    """A sentence with the formula of a calibrator."""
    count = facts["num_samples"]
    if facts["name"] == "affine":
        formula = (
            f"{facts['slope']:.6g} * log(c / (1 - c)) {facts['intercept']:+.6g}"
        )
    else:
        formula = (
            f"{facts['a']:.6g} * log(c) - {facts['b']:.6g} * log(1 - c) "
            f"{facts['c0']:+.6g}"
        )
    return (
        f"Calibrated on {count:,} answers: log(q / (1 - q)) = {formula}, of "
        "the confidence c."
    )
