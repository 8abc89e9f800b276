"""The page: what was gathered, in pictures, tables and words."""

import base64
import datetime
import io
from pathlib import Path
from typing import Any

import keras
import numpy as np

from keras_calib.backend.errors import value_error
from keras_calib.backend.files import replacing
from keras_calib.formulas.intervals import binomial_upper_bound
from keras_calib.metrics import CalibrationMetrics
from keras_calib.numerics.arrays import safe_divide
from keras_calib.numerics.arrays import to_numpy
from keras_calib.numerics.softmax import sigmoid
from keras_calib.plots import ConfidenceDisplay
from keras_calib.plots import ReliabilityDisplay
from keras_calib.plots import RiskCoverageDisplay
from keras_calib.plots.display import Display
from keras_calib.plots.display import as_picture
from keras_calib.plots.display import matplotlib_module
from keras_calib.plots.display import printable
from keras_calib.reporting.evaluation import EXPLAINED
from keras_calib.reporting.evaluation import ModelEvaluation
from keras_calib.version import __version__

__all__ = ["Report", "check_html", "page_of", "template"]

# Pixels of a side of a thumbnail, at most.
_THUMBNAIL = 96
# Positions of the slider.
_NUM_STEPS = 200


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
            path: File that ends in `.html`; its folder is made.

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
    if path.suffix.lower() not in (".html", ".htm") or path.is_dir():
        raise value_error(
            "`path` must be a file that ends in .html", path=str(path)
        )
    return path


def page_of(
    evaluations: list[ModelEvaluation],
    results: dict[str, dict],
    *,
    title: str,
    class_names: list[str] | None,
    num_bins: int,
) -> str:
    """The HTML page of some models and their results."""
    overview = None
    if len(evaluations) > 1:
        display = RiskCoverageDisplay.from_metric(
            {x.name: x.final for x in evaluations}
        )
        overview = _picture(display, "Risk against coverage of all models.")
    return template().render(
        title=title,
        models=[_model(x, results[x.name]) for x in evaluations],
        overview=overview,
        explained={x: EXPLAINED[x] for x in evaluations[0].metrics},
        class_names=class_names,
        evaluations=evaluations,
        num_bins=num_bins,
        made=datetime.datetime.now().isoformat(" ", "minutes"),
        versions=f"keras_calib {__version__}, Keras {keras.__version__} on "
        f"{keras.backend.backend()}",
    )


def template() -> Any:
    """The template of the page; ImportError if a package is missing."""
    try:
        import jinja2
    except ImportError as error:
        raise ImportError(
            "Reports need Jinja2 and matplotlib: "
            "pip install 'keras-calib[report]'"
        ) from error
    matplotlib_module("figure")
    environment = jinja2.Environment(
        loader=jinja2.PackageLoader("keras_calib", "reporting"),
        autoescape=True,
        finalize=_printed,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    return environment.get_template("page.html.jinja")


def _printed(value: Any) -> Any:
    """What a page shows, without what no file of a page may hold."""
    # Of the kind that it was: escaped text is not escaped again.
    return type(value)(printable(value)) if isinstance(value, str) else value


def _risk_steps(metrics: CalibrationMetrics) -> list[dict[str, float | None]]:
    """Rows for risks from 0 to that of all samples: what to accept.

    Each has the `risk` asked for, and if a threshold meets it: the
    `threshold` on the confidence with the largest `coverage`, the same as a
    `score` in log-odds, the `observed` risk there and its `bound`, exact
    binomial at 95 %.
    """
    curve, sums = metrics.curve(), metrics.bins()
    weight, squares = sums.weight.sum(), sums.squared_weight.sum()
    accepted = curve.coverage * safe_divide(weight**2, squares)
    bounds = binomial_upper_bound(
        np.minimum(curve.risk * accepted, accepted), accepted
    )
    rows = []
    for risk in np.linspace(0.0, float(curve.risk[-1]), _NUM_STEPS + 1):
        met = np.flatnonzero(curve.risk <= risk + 1e-12)
        row = {"risk": float(risk)}
        if len(met):
            i = met[-1]
            score = float(curve.threshold[i])
            row |= {
                "threshold": float(sigmoid(curve.threshold[i])),
                # Not in JSON if it is infinite: everything is accepted.
                "score": score if np.isfinite(score) else None,
                "coverage": float(curve.coverage[i]),
                "observed": float(curve.risk[i]),
                "bound": float(bounds[i]),
            }
        rows.append(row)
    return rows


def _model(evaluation: ModelEvaluation, results: dict) -> dict[str, Any]:
    stages = {"model": (evaluation.before, results["metrics"])}
    if evaluation.after is not None:
        after = evaluation.after, results["calibrated_metrics"]
        stages = {
            "Before calibration": stages["model"],
            "After calibration": after,
        }
    pictures = []
    for title, (metrics, _) in stages.items():
        when = "" if len(stages) == 1 else f" {title.lower()}"
        pictures += [
            _picture(
                ReliabilityDisplay.from_metric(metrics),
                f"Accuracy against confidence{when}. Bars reach to the "
                "confidence; lines are exact 95 % intervals.",
            ),
            _picture(
                ConfidenceDisplay.from_metric(metrics),
                f"Confidence of correct and wrong predictions{when}.",
            ),
        ]
    curves = {title: metrics for title, (metrics, _) in stages.items()}
    chosen = getattr(evaluation.selector, "chosen", None)
    points = {"chosen threshold": chosen} if chosen else {}
    pictures.append(
        _picture(
            RiskCoverageDisplay.from_metric(curves, points=points),
            "Error rate of the accepted as more predictions are accepted, "
            "the surest first"
            + (", and the point chosen on held-out data." if points else "."),
        )
    )
    return {
        "name": evaluation.name,
        "verdict": results["verdict"],
        "stages": {title: found for title, (_, found) in stages.items()},
        "pictures": pictures,
        "steps": _risk_steps(evaluation.final),
        "mistakes": [
            {**x._asdict(), **_shown(x.sample)} for x in evaluation.mistakes
        ],
        "num_samples": evaluation.num_samples,
        "num_classes": evaluation.num_classes,
    }


def _picture(display: Display, text: str) -> dict[str, str]:
    svg = display.to_svg().encode("utf-8")
    return {"uri": _data_uri(svg, "image/svg+xml"), "text": text}


def _data_uri(data: bytes, kind: str) -> str:
    return f"data:{kind};base64,{base64.b64encode(data).decode('ascii')}"


def _shown(sample: Any) -> dict[str, str | None]:
    """A sample as a picture or as text, if it is either."""
    shown = {"thumbnail": None, "text": None}
    if sample is None:
        return shown
    if sample.dtype.kind in "OSU":
        value = sample.reshape(-1)[0] if sample.size == 1 else sample.tolist()
        if isinstance(value, bytes):
            value = value.decode("utf-8", "replace")
        return {**shown, "text": str(value)[:300]}
    if sample.ndim == 2:
        sample = sample[..., None]
    if sample.ndim != 3 or sample.shape[-1] not in (1, 3, 4):
        return shown
    return {**shown, "thumbnail": _data_uri(_png(sample), "image/png")}


def _png(image: np.ndarray) -> bytes:
    """An image `(height, width, channels)` as a small PNG file."""
    pixels = as_picture("inputs", np.nan_to_num(image)[..., :3])
    pixels = pixels.reshape(*image.shape[:2], -1).astype("float32")
    scale = _THUMBNAIL / max(pixels.shape[:2])
    if scale < 1.0:
        size = [max(1, round(scale * side)) for side in pixels.shape[:2]]
        pixels = keras.ops.image.resize(
            pixels, size, antialias=True, data_format="channels_last"
        )
    pixels = np.clip(to_numpy(pixels), 0.0, 1.0)
    file = io.BytesIO()
    rgb = np.broadcast_to(pixels, (*pixels.shape[:2], 3))
    matplotlib_module("image").imsave(file, rgb, format="png")
    return file.getvalue()
