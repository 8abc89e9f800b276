"""An alarm of a monitor."""

from typing import NamedTuple

__all__ = ["Alarm"]


class Alarm(NamedTuple):
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
