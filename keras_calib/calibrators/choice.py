"""What `choose_calibrator` returns."""

from typing import NamedTuple

from keras_calib.calibrators.base import Calibrator

__all__ = ["CalibratorChoice", "CandidateScore", "NONE"]

# The candidate that is no calibrator.
NONE = "none"


class CandidateScore(NamedTuple):
    """What cross-validation found of one candidate.

    Attributes:
        name: Name of the candidate; `"none"` is no calibrator.
        nll: Mean NLL of samples that each fit left out, in nats.
        difference: That NLL less that of no calibrator; below 0 helps.
        interval: Confidence interval `(low, high)` of the difference, paired
            by sample.
        behind: That NLL less that of the best candidate, >= 0.
        error: Standard error of `behind`, paired by sample.
        ece: ECE of the same predictions, 15 equal-width bins.
        seconds: Time of all its fits.
        note: Why a candidate was not tried, or `""`.
    """

    name: str
    nll: float
    difference: float
    interval: tuple[float, float]
    behind: float
    error: float
    ece: float
    seconds: float
    note: str = ""


class CalibratorChoice(NamedTuple):
    """The calibrator that `choose_calibrator` chose, and why.

    Its text is the table of all candidates and the reason.

    Attributes:
        calibrator: The chosen calibrator, fitted on all samples. For
            `"none"` it is a temperature of 1.
        name: Name of the chosen candidate.
        reason: The reason, in a sentence.
        candidates: A `CandidateScore` of each candidate, the simplest first.
        level: Level of the intervals.
    """

    calibrator: Calibrator
    name: str
    reason: str
    candidates: tuple[CandidateScore, ...]
    level: float

    def table(self) -> str:
        """The scores as a Markdown table, the chosen candidate in bold."""
        level = f"{100 * self.level:g} %"
        rows = [
            f"| calibrator | held-out NLL | less none ({level}) | ECE | s |",
            "|---|---:|---:|---:|---:|",
        ]
        for x in self.candidates:
            name = f"**{x.name}**" if x.name == self.name else x.name
            if x.note:
                rows.append(f"| {name} | {x.note} | | | |")
                continue
            low, high = x.interval
            change = f"{x.difference:+.4f} ({low:+.4f} to {high:+.4f})"
            change = "" if x.name == NONE else change
            rows.append(
                f"| {name} | {x.nll:.4f} | {change} | {x.ece:.4f} "
                f"| {x.seconds:.2f} |"
            )
        return "\n".join(rows)

    def __str__(self) -> str:
        return f"{self.table()}\n\n{self.reason}"
