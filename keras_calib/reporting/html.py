"""The page: what was gathered, in pictures, tables and HTML."""

import base64
import datetime
import io
from typing import Any

import keras
import numpy as np

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
from keras_calib.reporting.evaluation import Mistake
from keras_calib.reporting.evaluation import ModelEvaluation
from keras_calib.reporting.verdicts import percent
from keras_calib.version import __version__

__all__ = ["page_of", "template"]

_ABSENT = (
    "Reports need Jinja2 and matplotlib: pip install 'keras-calib[report]'"
)
# Pixels of a side of a thumbnail, at most.
_THUMBNAIL = 96
# Positions of the slider.
_NUM_STEPS = 200


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
        models=[_model(x, results[x.name], class_names) for x in evaluations],
        overview=overview,
        columns=list(EXPLAINED.values()),
        facts=_facts(evaluations, num_bins),
    )


def _facts(evaluations: list[ModelEvaluation], num_bins: int) -> dict[str, Any]:
    """How the report was made, by name."""
    options = evaluations[0].options
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
    backend = keras.backend.backend()
    return {
        **facts,
        "Made": datetime.datetime.now().isoformat(" ", "minutes"),
        "With": f"keras_calib {__version__}, Keras {keras.__version__} on "
        f"{backend}",
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


def template() -> Any:
    """The template of the page; what it shows is escaped.

    Raises:
        ImportError: If Jinja2 or matplotlib is not installed.
    """
    try:
        import jinja2
    except ImportError as error:
        raise ImportError(_ABSENT) from error
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


def _model(
    evaluation: ModelEvaluation, results: dict, class_names: list[str] | None
) -> dict[str, Any]:
    stages = {"Before": evaluation.before}
    estimates = [results["metrics"]]
    if evaluation.after is not None:
        stages = {"Before calibration": evaluation.before}
        stages["After calibration"] = evaluation.after
        estimates.append(results["calibrated_metrics"])
    pictures = []
    for title, metrics in stages.items():
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
    curves = stages if len(stages) > 1 else {"model": evaluation.before}
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
        "stages": list(stages),
        "rows": [
            (*words, [_cell(name, found[name]) for found in estimates])
            for name, words in EXPLAINED.items()
        ],
        "pictures": pictures,
        "steps": _risk_steps(evaluation.final),
        "mistakes": [_mistake(m, class_names) for m in evaluation.mistakes],
        "num_samples": evaluation.num_samples,
        "num_classes": evaluation.num_classes,
    }


def _cell(name: str, found: dict[str, float]) -> tuple[str, str]:
    digits = 3 if name == "nll" else 4
    value, low, high = (f"{x:.{digits}f}" for x in found.values())
    finite = np.isfinite([found["low"], found["high"]]).all()
    return value, f"{low} to {high}" if finite else ""


def _picture(display: Display, text: str) -> dict[str, str]:
    svg = display.to_svg().encode("utf-8")
    return {"uri": _data_uri(svg, "image/svg+xml"), "text": text}


def _data_uri(data: bytes, kind: str) -> str:
    return f"data:{kind};base64,{base64.b64encode(data).decode('ascii')}"


def _mistake(mistake: Mistake, class_names: list[str] | None) -> dict:
    def named(number: int) -> str:
        return str(
            f"class {number}" if class_names is None else class_names[number]
        )

    thumbnail, text = _shown(mistake.sample)
    return {
        "index": mistake.index,
        "label": named(mistake.label),
        "predicted": named(mistake.predicted),
        "confidence": percent(mistake.confidence, 2),
        "thumbnail": thumbnail,
        "text": text,
    }


def _shown(sample: Any) -> tuple[str | None, str | None]:
    """A sample as a picture or as text, if it is either."""
    if sample is None:
        return None, None
    if sample.dtype.kind in "OSU":
        value = sample.reshape(-1)[0] if sample.size == 1 else sample.tolist()
        if isinstance(value, bytes):
            value = value.decode("utf-8", "replace")
        return None, str(value)[:300]
    if sample.ndim == 2:
        sample = sample[..., None]
    if sample.ndim != 3 or sample.shape[-1] not in (1, 3, 4):
        return None, None
    return _data_uri(_png(sample), "image/png"), None


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
