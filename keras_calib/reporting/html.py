"""The report: a page of what was gathered, in pictures, tables and words."""

import datetime
from pathlib import Path
from typing import Any, Unpack

import keras

from keras_calib.backend.errors import type_error, value_error
from keras_calib.backend.files import path_of, replacing
from keras_calib.inputs.checks import check_at_most, check_integer
from keras_calib.numerics.results import call_text, with_interval
from keras_calib.plots import ReliabilityDisplay, RiskCoverageDisplay
from keras_calib.plots.display import matplotlib_module, printable
from keras_calib.predictions.options import DataOptions
from keras_calib.reporting.cards import environment
from keras_calib.reporting.gathering import gathered
from keras_calib.reporting.pictures import WIDE, diagram
from keras_calib.reporting.sections import model_of
from keras_calib.version import __version__


class ReportPage:
    """A page about the confidence of one or several models.

    Made by `report`. Notebooks show it.

    Args:
        html: The page: one file that needs nothing else.
        results: The numbers of the page, `{model: {...}}`. Each estimate is
            `{"value", "low", "high"}` with its 95 % interval.

            - `verdict`: its `answer`, `advice` and `headline`. With a
              calibrator also `worse_classes`, which calibration clearly made
              worse: `name`, `group`, the gap `before` and its `value` after,
              from `low` to `high` (95 % for all classes at once).
            - `confidence_gap`: mean confidence less accuracy.
            - `metrics`: estimates by name. `ecce` has a `p_value` too.
            - `calibrated_verdict`, `calibrated_confidence_gap` and
              `calibrated_metrics`, with a calibrator; and `changes`, whose
              paired tests have a `p_value`, and `p_holm` for all rows.
            - `num_units`: images or other units that intervals are over, or
              None where each row is one.
            - `selection`: the selector's `threshold`, which is a score, and
              `confidence`, the same cut as a confidence or None for another
              score.
            - `classes` and `sure`: rows of predicted classes and of least
              confidences.
            - `segments`, of dense predictions: `num_units` images, the mean of
              each of their numbers with its interval over images, 21
              quantiles of three of them, and the `worst` images and regions.

            With several labels at once, `labels` has a row for each, in their
            order. `summary` and `calibrated_summary` have `macro` means over
            labels and `micro` means over all answers. `examples` tells of
            whole examples.

    Example:

    >>> import keras_calib
    >>> p = keras_calib.Predictions([0, 1, 1], [[0.9, 0.1]] * 3)
    >>> page = keras_calib.report(p, verbose=0)
    >>> round(page.results["model"]["confidence_gap"]["value"], 4)
    0.5667

    Reference:
        Guo et al., On Calibration of Modern Neural Networks, ICML 2017,
        https://arxiv.org/abs/1706.04599
    """

    def __init__(self, html: str, results: dict[str, Any]):
        self.html = html
        self.results = results

    def save(self, path: Any) -> Path:
        """Writes the page, whole or not at all.

        Args:
            path: File that ends in `.html`; its folder is made.

        Returns:
            The path.

        Raises:
            ValueError: If the path has another ending, or is a folder.
        """
        path = path_of(path)
        if path.suffix.lower() not in (".html", ".htm") or path.is_dir():
            raise value_error(
                "`path` must be a file that ends in .html", path=str(path)
            )
        with replacing(path, text=True) as file:
            file.write(self.html)
        return path

    def __repr__(self) -> str:
        facts = {"models": [*self.results], "characters": len(self.html)}
        return call_text("ReportPage", facts)

    def _repr_html_(self) -> str:
        uri = self.html.replace("&", "&amp;").replace('"', "&quot;")
        # Sandboxed, so that the page cannot reach the notebook.
        return (
            f'<iframe srcdoc="{uri}" sandbox="allow-scripts" '
            'style="width:100%;height:800px;border:0"></iframe>'
        )


def report(
    predictions: Any,
    data: Any = None,
    *,
    calibrator: Any = None,
    selector: Any = None,
    num_bins: int = 15,
    num_mistakes: int = 12,
    title: str = "Calibration report",
    notes: dict[str, str] | None = None,
    **options: Unpack[DataOptions],
) -> ReportPage:
    """A page that says how far the confidence of models can be trusted.

    Use it to show others whether confidence holds, what a calibrator repairs,
    and how much can be automated. The data are read once for all models, in
    memory that does not grow with the data.

    Args:
        predictions: `Predictions` of test data, which chose nothing; or a list
            of them, or a dict by the name of the model, of the same rows. With
            `data`, a Keras model, or a list or dict of models.
        data: Test data of the models, as in `Predictions.of_model`.
        calibrator: Fitted calibrator of the model's logits, or a dict of
            them by the name of the model; by default that of the selector.
            Models of probabilities give it log-probabilities. It may be the
            result of `choose_calibrator`, whose table the page then shows.
        selector: Fitted `SelectiveClassifier`, or a dict of them.
        num_bins: Number of bins of the calibration errors, at most 1000.
        num_mistakes: How many of the surest mistakes to show, with the
            images if the inputs are images.
        title: Title of the page.
        notes: What readers must know of the data, by name, such as
            `{"Data set": "CIFAR-10 test"}`; shown as plain text.
        **options: With `data`: how the models are run and what is known of
            the rows, as in `Predictions.of_model`, such as `groups` and
            `class_names`. Without: `verbose` alone, 0 for no progress bar.

    Returns:
        The page and its numbers; `save(path)` writes it.

    Raises:
        ImportError: If Jinja2 or matplotlib is not installed.
        RuntimeError: If a calibrator or selector is not fitted.
        TypeError: If a model has several outputs and none is named, or
            predictions are told an option again, or come with data.
        ValueError: If shapes or names do not fit, there are no data, or it
            is not known what the models return.

    Example:

    >>> import keras_calib
    >>> p = keras_calib.Predictions([0, 1, 1], [[0.9, 0.1]] * 3)
    >>> page = keras_calib.report(p, verbose=0)
    >>> page.results["model"]["verdict"]["headline"]
    'Too few errors to say'

    Reference:
        Guo et al., On Calibration of Modern Neural Networks, ICML 2017,
        https://arxiv.org/abs/1706.04599
    """
    # Check what can be checked before hours of predictions.
    template()
    check_integer("num_bins", num_bins, 1)
    check_at_most("num_bins", num_bins, 1000)
    check_integer("num_mistakes", num_mistakes, 0)
    if not isinstance(notes, dict | None):
        raise type_error("`notes` must be a dict of texts by name", notes=notes)
    evaluations, choices = gathered(
        predictions,
        data,
        {**options},
        {"calibrator": calibrator, "selector": selector},
        num_bins=num_bins,
        num_mistakes=num_mistakes,
    )
    results = {x.name: x.results() for x in evaluations}
    for name, choice in choices.items():
        results[name]["choice"] = {
            "name": choice.name,
            "reason": choice.reason,
            "candidates": [
                # A candidate that was not tried has no numbers.
                {
                    k: v if not x.note or k in ("name", "note") else None
                    for k, v in x.to_dict().items()
                }
                for x in choice.candidates
            ],
        }
    html = page_of(
        evaluations, results, title=title, num_bins=num_bins, notes=notes or {}
    )
    return ReportPage(html, results)


def page_of(
    evaluations: list[Any],
    results: dict[str, dict],
    *,
    title: str,
    num_bins: int,
    notes: dict[str, str],
) -> str:
    """The HTML page of some models and their results."""
    kind, pictures = evaluations[0].kind, []
    if kind != "labels" and len(evaluations) > 1:
        models = {x.name: x.final for x in evaluations}
        pictures = [
            diagram(display, f"{text} of all models.", WIDE)
            for display, text in (
                (ReliabilityDisplay(models), "Accuracy against confidence"),
                (RiskCoverageDisplay(models), "Risk against coverage"),
            )
        ]
    return template().render(
        kind=kind,
        title=title,
        models=[
            model_of(x, results[x.name], i)
            for i, x in enumerate(evaluations, 1)
        ],
        pictures=pictures,
        evaluations=evaluations,
        num_bins=num_bins,
        notes=notes,
        made=datetime.datetime.now().isoformat(" ", "minutes"),
        versions=f"keras_calib {__version__}, Keras {keras.__version__} on "
        f"{keras.backend.backend()}",
    )


def template() -> Any:
    """The template of a page; ImportError if a package is missing."""
    matplotlib_module("figure")
    made = environment("A report", autoescape=True, finalize=_printed)
    made.globals["with_interval"] = with_interval
    return made.get_template("page.html.jinja")


def _printed(value: Any) -> Any:
    """A text without the characters that a page must not hold."""
    # The type tells what is escaped already and must not be escaped again.
    return type(value)(printable(value)) if isinstance(value, str) else value
