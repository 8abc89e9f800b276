"""Monitoring of a model in use, with alarms that are valid at any time."""

import copy
import math
from collections.abc import Mapping, Sequence
from typing import Any, Self

import numpy as np

from keras_calib.backend.files import replacing
from keras_calib.backend.locks import in_turn
from keras_calib.inputs.checks import check_in
from keras_calib.monitoring.monitor_setup import (
    Chosen,
    Setup,
    alike,
    load_parts,
    read_state,
    state_of,
)
from keras_calib.monitoring.outcomes import (
    MOST_LOG,
    PIECE,
    Record,
    columns_of,
    labels_of,
    named,
    read_answers,
    read_by,
    read_sums,
    sums_of,
)
from keras_calib.monitoring.waiting import Waiting
from keras_calib.monitoring.watch import Watch
from keras_calib.numerics.results import Result, html_facts
from keras_calib.selection.choice import Choice


class Alarm(Result):
    """An alarm of a `Monitor`.

    Attributes:
        name: `"risk"`, `"calibration"` or `"coverage"`.
        num_outcomes: Outcomes at the alarm: labelled accepted answers,
            labelled answers, or answers.
        evidence: Largest evidence so far against what should hold.
        limit: The evidence that raises the alarm.
        message: What it means, since when, and what to do, in words.
    """

    name: str
    num_outcomes: int
    evidence: float
    limit: float
    message: str


class Monitor:
    """Watches a model in use: accepted risk, calibration and coverage.

    Use it where a model answers and some labels come later. You may look after
    each update. While all that it watches holds, the probability that it ever
    raises an alarm is at most `delta`.

    It holds evidence against three hypotheses, each by e-processes:

    - risk: given the past, an accepted answer is wrong with a probability of
      at most `risk`;
    - calibration: an answer of confidence c is right with a probability of at
      least c - `tolerance` and at most c + `tolerance`;
    - coverage: an answer is accepted with a probability in `coverage`.

    An alarm is raised when the evidence reaches 1 over its part of `delta`.
    The risk has half, calibration and coverage a quarter each, in proportion
    where one is not watched. If the data of a selector give `coverage`, half
    of its quarter allows for their error, which doubles its limit. A mixture
    over the times at which a change may begin keeps good times from delaying
    an alarm. An alarm stays until `restart`.

    Which answers get a label, and when, must not depend on whether they are
    right. A certified risk fails with probability `delta`, which adds to
    `delta`.

    Args:
        selector: A fitted `SelectiveClassifier`, or its `chosen`, or what
            `load_threshold` returns. It gives `risk`, its certified risk, and
            `coverage`, the shares that its data allow. Without `delta` its fit
            has certified no risk, and a warning says that none is watched. None
            to give them yourself.
        risk: Largest share of wrong answers among the accepted, in (0, 1).
            None takes that of the selector; without both it is not watched.
        coverage: Least and largest accepted share that are as expected. None
            takes that of the selector; without both it is not watched.
        delta: Probability of a false alarm, in (0, 1), at any time.
        tolerance: Gap between confidence and accuracy that is no cause for an
            alarm, in [0, 1). None does not watch calibration, for scores that
            are no probabilities.
        max_waiting: Number of answers, >= 0, that may wait for their labels
            and that are remembered to refuse a second label.

    Raises:
        ValueError: If an argument is out of its range, or nothing is watched.

    Example:

    >>> rng = np.random.default_rng(0)
    >>> confidence = rng.uniform(0.9, 1.0, size=4000)
    >>> monitor = Monitor(risk=0.1)
    >>> correct = rng.random(4000) < confidence
    >>> monitor.update(confidence, True, correct).alarms
    []
    >>> wrong_more_often = rng.random(4000) < confidence - 0.15
    >>> monitor.update(confidence, True, wrong_more_often).alarms[0].name
    'risk'

    Reference:
        Ramdas et al., Game-Theoretic Statistics and Safe Anytime-Valid
        Inference, Statistical Science 2023, https://arxiv.org/abs/2210.01948
    """

    def __init__(
        self,
        selector: Chosen | Choice | None = None,
        *,
        risk: float | None = None,
        coverage: tuple[float, float] | None = None,
        delta: float = 0.05,
        tolerance: float | None = 0.01,
        max_waiting: int = 20_000,
    ):
        self._set_up(
            Setup.of(selector, risk, coverage, delta, tolerance, max_waiting)
        )

    def _set_up(self, setup: Setup) -> None:
        self._setup = setup
        self.risk, self.coverage = setup.risk, setup.coverage
        self.delta, self.tolerance = setup.delta, setup.tolerance
        self.max_waiting = setup.max_waiting
        self._waiting = Waiting(setup.max_waiting)
        self._holds = setup.hypotheses()
        self._watches = {
            name: Watch(holds.prior, -math.log(setup.parts[name]))
            for name, holds in self._holds.items()
        }
        self._record = Record(self._holds)

    @in_turn
    def update(
        self,
        confidence: Any,
        accepted: Any,
        correct: Any = None,
        *,
        ids: Any = None,
    ) -> Self:
        """Adds answers in the order in which they were given; returns self.

        Args:
            confidence: Confidence of the predicted class `(n,)`, in [0, 1].
                It may be None if calibration is not watched. Or `Predictions`,
                which know correctness and ids; their rows of weight 0 or of
                the ignored class have no label.
            accepted: Whether each answer was accepted, `(n,)` or one for all.
                With `Predictions` also what accepts them: a
                `SelectiveClassifier` for outputs, or for a log what
                `load_threshold` returns.
            correct: 1 for a right and 0 for a wrong prediction `(n,)`, NaN
                without a label. None if none has one.
            ids: Ids of the answers `(n,)`, texts or whole numbers. Answers
                without a label then wait for `update_labels`.

        Raises:
            ValueError: If a value is out of its range or an id came before.
                Nothing is added then.
        """
        given, ids = columns_of(confidence, accepted, correct, ids)
        outcomes = read_answers(*given, self._holds)
        confidence, accepted, correct = outcomes
        known = ~np.isnan(correct)
        if ids is not None:
            hashes = self._waiting.check_new(ids, len(confidence))
            left = np.where(known, np.nan, confidence)
            self._waiting.add(hashes, left, accepted)
        self._add(accepted, known, outcomes)
        return self

    @in_turn
    def update_labels(
        self, ids: Any, correct: Any = None, *, unknown: str = "raise"
    ) -> int:
        """Adds labels of answers that wait for them, in order of arrival.

        Args:
            ids: Ids of the answers `(n,)`; or `Predictions` that have them.
            correct: 1 for a right and 0 for a wrong prediction `(n,)`. None
                with `Predictions`.
            unknown: `"raise"`, or `"skip"` to leave out and count labels of
                unknown answers, and all but the first of an answer.

        Returns:
            Number of labels that were left out.

        Raises:
            ValueError: If a label is not 0 or 1, or its answer is unknown or
                has a label already. Nothing is added then.
        """
        check_in("unknown", unknown, ("raise", "skip"))
        ids, correct = labels_of(ids, correct)
        hashes, found, left_out = self._waiting.find(
            ids, len(correct), unknown == "skip"
        )
        self._waiting.take(hashes, found)
        keep = ~np.isnan(found)
        value, correct = found[keep], correct[keep]
        # The confidence of a rejected answer has a minus.
        outcomes = np.abs(value), ~np.signbit(value), correct
        self._add(np.zeros(0, bool), np.ones(len(value), bool), outcomes)
        return left_out

    def sums(
        self, confidence: Any, accepted: Any, correct: Any = None
    ) -> np.ndarray:
        """Sums of outcomes `(num_sums,)`, which add; the monitor is unchanged.

        Use them where workers see parts of a window in no order: add their
        arrays, and give the total to `add_sums`. Arguments as in `update`.
        """
        given, _ = columns_of(confidence, accepted, correct)
        outcomes = read_answers(*given, self._holds)
        return sums_of(outcomes, self._holds, self._setup.marks())

    @in_turn
    def add_sums(self, sums: Any) -> Self:
        """Adds the sums of a window of outcomes; returns self.

        It is as one stream of which nobody looks within the window: as strong
        as `update`, with the same guarantee. A change is taken to begin
        between windows, so an alarm is at most a window late. Which outcomes
        a window holds must not depend on whether they are right.

        Args:
            sums: Array of `sums`, or a sum of such arrays of monitors with
                the same arguments.

        Raises:
            ValueError: If it is of other arguments, or no sum of counts.
                Nothing is added then.
        """
        parts, totals = read_sums(sums, self._holds, self._setup.marks())
        for name, part in parts.items():
            self._watches[name].add_sum(*part)
        self._record.note(totals, self._logs())
        return self

    @property
    @in_turn
    def alarms(self) -> list[Alarm]:
        """Alarms since the last `restart`, the risk first."""
        return [
            Alarm(
                name,
                watch.alarm_at,
                math.exp(min(watch.highest, MOST_LOG)),
                1.0 / self._setup.parts[name],
                self._holds[name].message(*watch.at_alarm()),
            )
            for name, watch in self._watches.items()
            if watch.alarm_at >= 0
        ]

    @property
    @in_turn
    def evidence(self) -> dict[str, float]:
        """Evidence now against each hypothesis, 1 at the start."""
        return {
            name: math.exp(min(watch.log_evidence, MOST_LOG))
            for name, watch in self._watches.items()
        }

    @property
    def limits(self) -> dict[str, float]:
        """Evidence at which each hypothesis raises its alarm."""
        return {name: 1.0 / part for name, part in self._setup.parts.items()}

    @property
    @in_turn
    def counts(self) -> dict[str, float]:
        """Sums since the start.

        They are the number of `answers`, of `accepted` ones, of
        `accepted_labelled` and of `accepted_wrong` ones, of `labelled` and of
        `correct` ones, and the sum of the `confidence` of labelled ones. Also
        the number that is `waiting` for a label and that `expired`.
        """
        found = named(self._record.totals)
        found["waiting"] = len(self._waiting)
        found["expired"] = self._waiting.num_expired
        return found

    @property
    @in_turn
    def history(self) -> dict[str, np.ndarray]:
        """Past `counts` and evidence `(num_points,)`, at most 513 points.

        It has the sums of `counts`, and `evidence_risk` and so on.
        """
        return self._record.history(self._logs())

    @in_turn
    def restart(self, *names: str) -> None:
        """Starts anew after a repair: alarms and evidence are forgotten.

        The probability `delta` of a false alarm holds anew from here. Counts
        and history stay.

        Args:
            *names: Hypotheses to restart; none for all.
        """
        for name in names:
            check_in("names", name, tuple(self._watches))
        for name in names or self._watches:
            self._watches[name].reset()

    @classmethod
    @in_turn
    def merge(cls, monitors: Sequence["Monitor"]) -> Self:
        """A new monitor with the mean evidence of several, which are unchanged.

        Use it for servers that each keep a monitor. The mean is valid at
        every time if what is watched holds given the past of all streams. But
        k servers need more evidence in sum than one monitor with `add_sums`.
        Alarms of the parts do not count: only the mean is compared with the
        limit. Counts add, answers wait together, and the history begins anew.

        Args:
            monitors: Monitors with the same arguments, one or more. Ids must
                be unique over all, such as by the server's name before each.

        Raises:
            TypeError: If they are no list of monitors.
            ValueError: If there are none, their arguments differ, or an
                answer waits for its label whose id another one has too.
        """
        monitors = alike(monitors, Monitor)
        made = cls._of(monitors[0]._setup)
        for name in made._watches:
            parts = [monitor._watches[name] for monitor in monitors]
            made._watches[name] = Watch.mean(parts)
        totals = np.sum([m._record.totals for m in monitors], axis=0)
        made._record.note(totals, made._logs())
        made._waiting.merge([m._waiting for m in monitors])
        return made

    @in_turn
    def state_dict(self) -> dict[str, Any]:
        """The whole state as arrays by name, below 2 MB by default."""
        return state_of(self._setup.config(), self._parts())

    @in_turn
    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Replaces the state.

        Raises:
            ValueError: If it is of another configuration or version, not
                complete, or has values that no state has. Nothing is replaced
                then.
        """
        made = self._of(self._setup)
        load_parts(self._setup.config(), made._parts(), state)
        self.__dict__.update(made.__dict__)

    def save(self, path: Any) -> None:
        """Writes arguments and state as one file, which is replaced whole."""
        with replacing(path) as file:
            np.savez_compressed(file, **self.state_dict())

    @classmethod
    def load(cls, path: Any) -> Self:
        """The monitor of a file of `save`, with its arguments.

        Raises:
            ValueError: If the file is damaged or another one, or of another
                version.
        """
        return read_state(path, lambda x: cls._of(Setup.of_config(x)))

    @in_turn
    def __getstate__(self) -> dict[str, Any]:
        # Copies of all kinds go on by themselves, as those of a metric.
        return copy.deepcopy(self.__dict__)

    def __repr__(self) -> str:
        alarms = ", ".join(alarm.name for alarm in self.alarms) or "none"
        told, counts = self._setup.told(), self.counts
        answers = f"answers={counts['answers']:,.0f}"
        labelled = f"labelled={counts['labelled']:,.0f}"
        return f"Monitor({told}; {answers}, {labelled}, alarms={alarms})"

    def _repr_html_(self) -> str:
        facts = {"watches": self._setup.told(), **self.counts}
        note = "\n".join(alarm.message for alarm in self.alarms)
        return html_facts("Monitor", facts, note or "No alarms.")

    @classmethod
    def _of(cls, setup: Setup) -> Self:
        made = cls.__new__(cls)
        made._set_up(setup)
        return made

    def _parts(self) -> dict[str, Any]:
        named = {"waiting": self._waiting, "record": self._record}
        return named | self._watches

    def _logs(self) -> list[float]:
        return [watch.log_evidence for watch in self._watches.values()]

    def _add(
        self, accepted: np.ndarray, known: np.ndarray, outcomes: tuple
    ) -> None:
        """Adds answers: `accepted` of all, and outcomes that are `known`."""
        for i in range(0, len(known), PIECE):
            part = slice(i, i + PIECE)
            labelled = [x[part][known[part]] for x in outcomes]
            parts, totals = read_by(self._holds, accepted[part], labelled)
            for name, found in parts.items():
                self._watches[name].add(*found)
            self._record.note(totals, self._logs())
