"""Make a report of models or of predictions: from data to the page."""

from typing import Any, Unpack

from keras_calib.predictions.options import DataOptions
from keras_calib.reporting.gathering import gathered
from keras_calib.reporting.html import ReportPage, page_of, template
from keras_calib.reporting.model_parts import check_contents


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
        predictions: `Predictions` of test data, which chose nothing, or a dict
            of them by the name of the model, of the same rows. With `data`, a
            Keras model, or a dict of models.
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
            predictions are told an option again.
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
    check_contents(num_bins, num_mistakes, notes)
    evaluations, parts = gathered(
        predictions,
        data,
        {**options},
        {"calibrator": calibrator, "selector": selector},
        num_bins=num_bins,
        num_mistakes=num_mistakes,
    )
    results = {x.name: x.results() for x in evaluations}
    for name, choice in parts.choices.items():
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
        evaluations,
        results,
        title=title,
        num_bins=num_bins,
        notes=notes or {},
    )
    return ReportPage(html, results)
