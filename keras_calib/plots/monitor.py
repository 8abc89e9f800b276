"""Display of a monitor's evidence, risk and coverage over time."""

from typing import Any

import numpy as np

from keras_calib.backend.errors import type_error
from keras_calib.plots.display import BLUE, GREY, ORANGE, Display, line_style

_HEAD = "evidence_"
# What the evidence is shown between.
_LEAST, _MOST = 1e-3, 1e12


class MonitorDisplay(Display):
    """Evidence of a `Monitor` over time, above the running risk and coverage.

    Use it to see when an alarm began and what changed. The upper panel has
    the evidence against each hypothesis, from 0.001 to 1e12, over its limit:
    1 is an alarm. The lower panel has the shares between two points of the
    history: wrong answers among the accepted, and accepted answers.

    Args:
        monitor: A `Monitor`, which is drawn as it is now.
        name: Name of the model, for the title.

    Raises:
        TypeError: If `monitor` is none.

    Example:

    >>> from keras_calib import Monitor
    >>> monitor = Monitor(risk=0.1).update([0.9] * 500, True, [1.0] * 500)
    >>> display = MonitorDisplay(monitor)
    >>> display.history["answers"].tolist()
    [200.0, 400.0, 500.0]

    Reference:
        Ramdas et al., Game-Theoretic Statistics and Safe Anytime-Valid
        Inference, Statistical Science 2023, https://arxiv.org/abs/2210.01948
    """

    _size = (6.4, 5.6)
    _panels = (2,)

    def __init__(self, monitor: Any, *, name: str | None = None):
        if not hasattr(monitor, "history") or not hasattr(monitor, "limits"):
            raise type_error(
                "`monitor` must be a `Monitor`", monitor=type(monitor).__name__
            )
        self.history, self.limits = monitor.history, monitor.limits
        self.risk, self.coverage = monitor.risk, monitor.coverage
        self.alarms = [alarm.name for alarm in monitor.alarms]
        self.name = name

    def _axes(self, figure: Any) -> list:
        return [*figure.subplots(2, 1, sharex=True)]

    def _draw(self, *axes: Any) -> None:
        above, below = axes
        answers = np.asarray(self.history["answers"], "float64")
        for i, (name, limit) in enumerate(self.limits.items()):
            share = np.asarray(self.history[_HEAD + name]) / limit
            shown = np.clip(share, _LEAST, _MOST)
            above.plot(
                answers, shown, label=f"evidence, {name}", **line_style(i)
            )
        above.axhline(1.0, color=GREY, linewidth=1, linestyle="--")
        rule = "no alarm"
        if self.alarms:
            rule = f"alarm: {', '.join(self.alarms)} not as expected"
        above.set(
            yscale="log",
            ylabel="evidence / limit of alarm",
            title=self._title(rule),
        )
        above.title.set_fontsize("medium")
        self._legend(above)
        self._draw_shares(below, answers)

    def _draw_shares(self, ax: Any, answers: np.ndarray) -> None:
        pairs = (
            ("accepted risk", "accepted_wrong", "accepted_labelled", ORANGE),
            ("coverage", "accepted", "answers", BLUE),
        )
        # Labels that come between two answers are one point.
        last = np.r_[np.diff(answers) > 0, np.ones(len(answers[:1]), bool)]
        for label, part, whole, color in pairs:
            gained = np.diff(np.r_[0.0, self.history[part][last]])
            of = np.diff(np.r_[0.0, self.history[whole][last]])
            keep = of > 0
            share = gained[keep] / of[keep]
            ax.plot(
                answers[last][keep],
                share,
                color=color,
                linewidth=1.2,
                # A line has two points at least.
                marker="." if len(share) == 1 else None,
                label=label,
            )
        style: dict[str, Any] = {"linewidth": 1, "linestyle": "--"}
        if self.risk is not None:
            ax.axhline(self.risk, color=ORANGE, **style)
        for end in self.coverage or ():
            ax.axhline(end, color=BLUE, **style)
        ax.set(
            ylim=(-0.02, 1.02),
            xlabel="answers",
            ylabel="share; dashed: expected",
        )
        self._legend(ax)
