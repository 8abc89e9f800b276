"""Each kind of file that the package writes, by who writes it."""

import functools
from typing import NamedTuple

import keras
import numpy as np

import keras_calib as kc
from keras_calib.exporting.answer_threshold import answer_statement
from keras_calib.exporting.statement import write_statement
from keras_calib.inputs.outcomes import Outcomes
from keras_calib.monitoring.files import EpochTable
from keras_calib.reporting.commands import plan
from keras_calib.reporting.html import ReportPage

KINDS = {
    "tokens.npz": lambda made, path: made["tokens"].save(path),
    "groups.csv": lambda made, path: made["groups"].to_csv(path),
    "monitor.npz": lambda made, path: made["monitor"].save(path),
    "report.html": lambda made, path: made["report"].save(path),
    "threshold.json": lambda made, path: write_statement(path, made["facts"]),
    "records.csv": lambda made, path: kc.exporting.save_records(
        made["selector"], path
    ),
    "records.npz": lambda made, path: kc.exporting.save_records(
        made["selector"], path
    ),
    "backup.npz": lambda made, path: kc.training.save_training_state(
        path, made["model"], 1
    ),
    "epochs.csv": lambda made, path: made["table"](path),
    "plan.csv": lambda made, path: plan._write(made["plan"], path),
}


class Table(NamedTuple):
    samples: np.ndarray
    coverage: np.ndarray


@functools.cache
def writers():
    """What is written; each file has more than 200 bytes."""
    rng = np.random.default_rng(0)
    logits = rng.normal(size=(500, 40)).astype("float32")
    labels = rng.integers(40, size=500)
    names = rng.permutation(np.repeat([f"group {i}" for i in range(50)], 10))
    confidence = rng.uniform(size=500)
    probs = np.stack([confidence, 1.0 - confidence], axis=-1)
    selector = kc.SelectiveClassifier(score="logit_margin")
    selector.fit(labels, logits + 9 * np.eye(40)[labels], risk=0.1)
    model = keras.Sequential([keras.Input((3,)), keras.layers.Dense(50)])
    model.compile("adam", "mse")
    values = {f"value {i}": float(i) for i in range(50)}

    def table(path):
        with_rows = EpochTable(path, [*values])
        try:
            with_rows.put(1, values)
        finally:
            with_rows.close()

    return {
        "tokens": kc.calibrators.CompactLogits().update(labels, logits),
        "groups": kc.by_group(
            np.zeros(500, int), probs, groups=names, min_count=2
        ),
        "monitor": kc.Monitor(risk=0.1).update(
            confidence, True, ids=range(500)
        ),
        "report": ReportPage("<p>" + "text " * 1000, {}),
        "facts": answer_statement(
            kc.choose_threshold([0.9, 0.1], [1, 0], coverage=0.5),
            Outcomes(np.array([0.9, 0.1]), np.array([1.0, 0.0])),
            calibrator=None,
            coverage=0.5,
            group="text " * 1000,
        ),
        "selector": selector,
        "model": model,
        "table": table,
        "plan": kc.plan(accuracy=0.95, risk=0.05, max_samples=1000),
    }
