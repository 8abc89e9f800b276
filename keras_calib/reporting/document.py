"""The report as a file and as numbers."""

from pathlib import Path
from typing import Any

from keras_calib.backend.errors import value_error
from keras_calib.backend.files import replacing
from keras_calib.inputs.options import ReadOptions
from keras_calib.reporting.evaluation import ModelEvaluation
from keras_calib.reporting.verdicts import verdict

__all__ = ["Report", "check_html", "facts_of", "results_of"]


class Report:
    """A page about the confidence of one or several models.

    Made by `report` and `report_of_predictions`. Notebooks show it.

    Args:
        html: The page: one file that needs nothing else.
        results: `{model: {...}}` of what the page says: `verdict`,
            `overconfidence` (mean confidence less accuracy), `metrics` and
            `calibrated_metrics` by name, and `selection`, of which
            `threshold` is a score and `confidence` the same cut as a
            confidence, or None for another score. Each estimate is
            `{"value", "low", "high"}` with its 95 % interval.

    Example:

    >>> import keras_calib
    >>> page = keras_calib.report_of_predictions(
    ...     [0, 1, 1], [[0.9, 0.1]] * 3, verbose=0)
    >>> round(page.results["model"]["overconfidence"]["value"], 4)
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
            path: Of the file, which ends in `.html`; its folder is made if
                it is not there.

        Returns:
            The path.

        Raises:
            ValueError: If the path has another ending, or is a folder.
        """
        path = check_html(path)
        with replacing(path, text=True) as file:
            file.write(self.html)
        return path

    def _repr_html_(self) -> str:
        uri = self.html.replace("&", "&amp;").replace('"', "&quot;")
        return (
            f'<iframe srcdoc="{uri}" sandbox="allow-scripts" '
            'style="width:100%;height:800px;border:0"></iframe>'
        )


def check_html(path: Any) -> Path:
    """The path of a page to write; ValueError if it can be none."""
    path = Path(path)
    if path.suffix.lower() not in (".html", ".htm"):
        raise value_error(
            "`path` must end in .html: a report is a web page, which a "
            "browser prints to PDF",
            path=str(path),
        )
    if path.is_dir():
        raise value_error("`path` must be a file, not a folder", path=str(path))
    return path


def facts_of(
    evaluations: list[ModelEvaluation], options: ReadOptions, num_bins: int
) -> dict[str, Any]:
    """How a report was made, by name."""
    facts = {
        "Models give": "logits" if options.from_logits else "probabilities",
        "Bins": num_bins,
    }
    if options.ignore_class is not None:
        facts["Ignored class"] = options.ignore_class
    for evaluation in evaluations:
        for what in ("calibrator", "selector"):
            part = getattr(evaluation, what)
            if part is not None:
                key = what.capitalize()
                if len(evaluations) > 1:
                    key += f" of {evaluation.name}"
                facts[key] = _described(part)
    return facts


def results_of(evaluation: ModelEvaluation) -> dict[str, Any]:
    """What the page says of a model, in numbers."""
    accepted = evaluation.accepted()
    chosen = getattr(evaluation.selector, "chosen", None)
    threshold = getattr(evaluation.selector, "threshold", None)
    confidence = getattr(chosen, "confidence", None)
    stages = {"metrics": evaluation.before}
    if evaluation.after is not None:
        stages["calibrated_metrics"] = evaluation.after
    return {
        "num_samples": evaluation.num_samples,
        "verdict": verdict(evaluation),
        "overconfidence": evaluation.before.gap()._asdict(),
        **{
            key: {
                name: found._asdict()
                for name, found in stage.estimates().items()
            }
            for key, stage in stages.items()
        },
        "selection": None
        if accepted is None
        else {
            "threshold": threshold,
            "confidence": confidence,
            "total": accepted.total,
            "coverage": accepted.coverage,
            "risk": accepted.risk._asdict(),
        },
    }


def _described(part: Any) -> str:
    """Class of a calibrator or selector, with what was fitted."""
    text = type(part).__name__
    temperature = getattr(part, "temperature", None)
    if temperature is not None:
        text += f", temperature {float(temperature):.4g}"
    chosen = getattr(part, "chosen", None)
    if chosen is not None:
        text += f", score from {chosen.threshold:.6g}"
        if chosen.confidence is not None:
            text += (
                " in log-odds, which is confidence from "
                f"{chosen.confidence:.6g}"
            )
        if chosen.certified_risk is not None:
            text += (
                f", risk {chosen.certified_risk:.4g} with delta "
                f"{chosen.delta:.4g} from {chosen.num_samples:,} samples"
            )
    return text
