"""Results of reports: classes, votes, labels, pixels, groups, selectors."""

import contextlib
import types
from collections.abc import Iterator
from typing import Any
from unittest import mock

import keras
import numpy as np
from report_pages import report_of

from frozen.api import kc
from frozen.data_sets import CLASSES, GROUPS
from frozen.labels import LABELS
from frozen.stored import Tolerance
from frozen.words import neutral

# Metrics in float32; intervals by seeded bootstraps of them.
TOLERANCE = Tolerance(relative=2e-6, absolute=2e-6)


@contextlib.contextmanager
def _without_pages() -> Iterator[None]:
    """Reports whose pages are empty: they would take nine tenths of the time.

    What is in a page, and how it looks, has tests of its own.
    """

    def drawn(figure: Any, file: Any, **options: Any) -> None:
        file.write(b"<svg/>")

    empty = types.SimpleNamespace(render=lambda *args, **facts: "")
    with (
        mock.patch("matplotlib.figure.Figure.savefig", drawn),
        mock.patch("jinja2.Environment.get_template", lambda *args: empty),
    ):
        yield


def _made(labels: Any, outputs: Any, **options: Any) -> Any:
    """Results under neutral keys, of the only model."""
    found = report_of(labels, outputs, verbose=0, **options)
    (told,) = found.results.values()
    return neutral(told)


def _with_parts() -> Iterator[tuple[str, Any]]:
    data = CLASSES["groups"]
    calibrator = kc.TemperatureScaling(temperature=1.75)
    selector = kc.SelectiveClassifier(calibrator=calibrator)
    selector.fit(data.labels, data.logits, risk=0.3, delta=0.1)
    yield (
        "with calibrator, selector and groups/groups",
        _made(
            data.labels,
            data.logits,
            from_logits=True,
            calibrator=calibrator,
            selector=selector,
            groups={"site": GROUPS},
            num_mistakes=3,
        ),
    )
    labels, logits, mark = LABELS["missing labels"]
    part = kc.labels.MultiLabelCalibrator(
        kc.TemperatureScaling(temperature=1.5), shared=True
    )
    part.fit(labels, logits, ignore_class=mark, num_folds=0)
    selector = kc.labels.MultiLabelSelector(calibrator=part)
    selector.fit(labels, logits, ignore_class=mark, risk=0.2, delta=0.2)
    yield (
        "of labels, with calibrator and selector/missing labels",
        _made(
            labels,
            logits,
            from_logits=True,
            ignore_class=mark,
            calibrator=part,
            selector=selector,
            multi_label=True,
        ),
    )


def _plain() -> Iterator[tuple[str, Any]]:
    for name in ("weights", "votes", "pixels"):
        data = CLASSES[name]
        options = dict(data.options)
        if name == "weights":
            # Thresholds of log-odds; half of the answers are accepted.
            options["selector"] = kc.SelectiveClassifier(threshold=1.0)
            options["groups"] = np.arange(len(data.labels)) % 2
        found = _made(data.labels, data.probs, **options)
        yield f"of classes/{name}", found


def _of_model() -> Iterator[tuple[str, Any]]:
    """A model on data: batches, with the loss that says what it returns."""
    data = CLASSES["overconfident"]
    inputs = keras.Input((5,))
    model = keras.Model(inputs, keras.layers.Identity()(inputs))
    model.compile(loss=kc.LabelSmoothing(from_logits=True))
    found = kc.report(model, (data.logits, data.labels), verbose=0)
    yield "of a model/overconfident", neutral(found.results["model"])


def quantities() -> Iterator[tuple[str, Any]]:
    """All of them."""
    with _without_pages():
        yield from _with_parts()
        yield from _plain()
        yield from _of_model()
