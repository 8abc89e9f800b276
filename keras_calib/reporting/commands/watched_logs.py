"""What `keras-calib monitor` does: from logs to alarms."""

import html
import warnings
from argparse import Namespace
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import numpy as np

from keras_calib.backend.errors import value_error, warn
from keras_calib.backend.files import path_of, replacing
from keras_calib.backend.locks import PathLock
from keras_calib.exporting.answer_threshold import load_threshold, promised
from keras_calib.exporting.statement import read_statement
from keras_calib.inputs.checks import check_in
from keras_calib.monitoring import Monitor
from keras_calib.reporting.commands.answer_log import AnswerLog
from keras_calib.reporting.commands.monitor import check_confidence
from keras_calib.reporting.commands.terminal import (
    Found,
    Progress,
    blamed,
    of_arguments,
)

_WAITING = 100_000
_UNCALIBRATED = (
    "If nothing calibrates these confidences, the alarm of calibration is no "
    "change: --tolerance=none leaves it out, --tolerance=0.1 allows such a "
    "gap, and `keras-calib threshold --calibration` fits a calibrator."
)
_PAGE = """\
<!DOCTYPE html>
<html lang="en"><head><meta charset="utf-8"><title>Monitor</title></head>
<body style="max-width: 50em; margin: auto; font-family: sans-serif">
<h1>Monitor</h1>
{picture}
<pre style="white-space: pre-wrap">{text}</pre>
</body></html>
"""


def watch_logs(given: Namespace, progress: Progress) -> Found:
    """What to print; the code is 3 with an alarm, else 0."""
    # Another process would overwrite the state.
    kept = PathLock("state", given.state) if given.state else nullcontext()
    with kept:
        threshold = given.threshold
        if isinstance(threshold, str):
            with blamed(f"--threshold={threshold}"):
                threshold = load_threshold(threshold)
        monitor = _monitor(given, threshold)
        is_old = monitor.counts["answers"] > 0
        if given.restart is not None:
            with of_arguments():
                for name in given.restart:
                    check_in("--restart", name, [*monitor.limits])
            monitor.restart(*given.restart)
        lines: list[str] = []
        last = None
        for flag, path, log in given.opened:
            if flag != "--log" or log.is_empty:
                continue
            with blamed(f"--log={path}"):
                log.threshold = threshold
                if monitor.tolerance is not None:
                    check_confidence(log)
                if given.threshold is not None and "accepted" in log.has:
                    said = "says what was accepted, not --threshold."
                    lines.append(f"{path} {said}")
                if is_old and "ids" in log.has:
                    _check_new(log, monitor, progress)
                log.last = last
                for part in log.watched(progress):
                    watched = monitor.tolerance is not None
                    confidence = part["confidence"] if watched else None
                    answers = confidence, part["accepted"], part["correct"]
                    monitor.update(*answers, ids=part.get("ids"))
                last = log.last
        for flag, path, log in given.opened:
            if flag != "--late-labels" or log.is_empty:
                continue
            left = 0
            with blamed(f"--late-labels={path}"):
                for part in log.watched(progress):
                    here = ~np.isnan(part["correct"])
                    known = part["ids"][here], part["correct"][here]
                    left += monitor.update_labels(*known, unknown=given.unknown)
            if left:
                lines.append(f"{left:,} labels of {path} were left out.")
        known = getattr(threshold, "facts", {}).get("calibrator")
        if known is None and "calibration" in {x.name for x in monitor.alarms}:
            lines.append(_UNCALIBRATED)
        text = "\n".join([*_told(monitor), *lines])
        if given.out:
            progress.say("Drawing ...")
            from keras_calib.plots import MonitorDisplay

            display, out = MonitorDisplay(monitor), Path(given.out)
            if out.suffix.lower() == ".html":
                svg = display.to_svg()
                page = {"picture": svg[svg.index("<svg") :]}
                with replacing(out, text=True) as file:
                    file.write(_PAGE.format(**page, text=html.escape(text)))
            else:
                display.save(out)
        # Last, as a run that fails must leave the state as it was.
        if given.state:
            monitor.save(given.state)
    facts = {
        "counts": monitor.counts,
        "evidence": monitor.evidence,
        "limits": monitor.limits,
        "alarms": monitor.alarms,
    }
    return Found(text, facts, 3 if monitor.alarms else 0)


def _monitor(given: Namespace, threshold: Any) -> Monitor:
    arguments: dict[str, Any] = {
        "risk": given.risk,
        "coverage": given.coverage,
        "delta": given.delta,
        "tolerance": given.tolerance,
        "max_waiting": given.max_waiting,
    }
    arguments = {k: x for k, x in arguments.items() if x is not None}
    if given.tolerance == "none":
        arguments["tolerance"] = None
    selector = None
    if given.selector:
        with blamed(f"--selector={given.selector}"):
            selector = _selector(given.selector)
    elif getattr(threshold, "facts", {"kind": "given"})["kind"] != "given":
        with blamed(f"--threshold={given.threshold}"):
            selector = threshold.chosen
    if not given.state or not path_of(given.state).exists():
        if not given.log:
            raise ValueError(f"--state={given.state}: there is no such file")
        return Monitor(selector, **{"max_waiting": _WAITING, **arguments})
    with blamed(f"--state={given.state}"):
        monitor = Monitor.load(given.state)
    for name, value in arguments.items():
        if (found := getattr(monitor, name)) != value:
            with of_arguments():
                raise value_error(
                    f"`{name}` must be that of --state: leave it out, or "
                    "begin another state",
                    **{name: value, "state": found},
                )
    if selector is not None:
        with warnings.catch_warnings():
            # It was told as the state began.
            warnings.simplefilter("ignore")
            known = {"delta": monitor.delta, "tolerance": monitor.tolerance}
            new = Monitor(selector, **{**known, **arguments})
        if (new.risk, new.coverage) != (monitor.risk, monitor.coverage):
            source = "--selector" if given.selector else "--threshold"
            warn(
                f"{source} has another risk or coverage than --state, which "
                "goes on with its own: begin another state to change them"
            )
    return monitor


def _selector(path: str) -> Any:
    """What a file says of a threshold."""
    if Path(path).suffix.lower() == ".json":
        return promised(read_statement(Path(path), check=True))
    from keras.saving import load_model

    from keras_calib.backend.keras_internals import nested_layers
    from keras_calib.selection import SelectiveClassifier

    layers = nested_layers(load_model(path))
    found = [x for x in layers if isinstance(x, SelectiveClassifier)]
    if len(found) == 1:
        return found[0]
    raise value_error(
        "the model must have one `SelectiveClassifier`",
        file=path,
        count=len(found),
    )


def _check_new(log: AnswerLog, monitor: Monitor, progress: Progress) -> None:
    """Raises ValueError for a log that the state has already.

    Before any is added, as new ids take the place of those remembered.
    """
    for part in log.watched(progress, "Looking for known ids in"):
        try:
            monitor._waiting.check_new(part["ids"], len(part["ids"]))
        except ValueError as error:
            raise ValueError(
                "the log has answers that are in --state already: give each "
                f"log once. {error}"
            ) from error


def _told(monitor: Monitor) -> list[str]:
    """What the monitor found, in words."""
    counts = monitor.counts
    answers, labelled = counts["answers"], counts["labelled"]
    known, wrong = counts["accepted_labelled"], counts["accepted_wrong"]
    lines = [
        f"{answers:,.0f} answers, {counts['accepted']:,.0f} accepted"
        + _share(counts["accepted"], answers),
        f"{labelled:,.0f} labels, {known:,.0f} of accepted answers, of which "
        f"{wrong:,.0f} were wrong" + _share(wrong, known),
        f"{counts['waiting']:,.0f} answers wait for a label, "
        f"{counts['expired']:,.0f} were given up",
        "",
    ]
    expected = {"risk": f"at most {monitor.risk:g}" if monitor.risk else ""}
    if monitor.tolerance is not None:
        expected["calibration"] = f"within {monitor.tolerance:g}"
    if monitor.coverage:
        low, high = monitor.coverage
        expected["coverage"] = f"{low:.4g} to {high:.4g}"
    alarms = {alarm.name: alarm for alarm in monitor.alarms}
    for name, evidence in monitor.evidence.items():
        limit = monitor.limits[name]
        lines.append(
            f"{name} ({expected[name]}): evidence {evidence:.3g}, alarm from "
            f"{limit:.3g}" + " - ALARM" * (name in alarms)
        )
    lines.append("")
    for alarm in alarms.values():
        lines.append(
            f"Alarm of {alarm.name} at outcome {alarm.num_outcomes:,}: "
            f"{alarm.message}"
        )
    return lines if alarms else [*lines, "No alarm."]


def _share(part: float, whole: float) -> str:
    return f" ({100.0 * part / whole:.2f} %)" if whole else ""
