r"""Metrics of logged predictions, per model, on Apache Beam.

    pip install "keras-calib[beam,examples]"
    python examples/metrics_from_logs.py
    python examples/metrics_from_logs.py --logs="logs/*.parquet" \
        --from_logits --model_column=model
    python examples/metrics_from_logs.py --logs="logs/*.tfrecord" \
        --format=tfrecord

Without flags the script logs predictions of two models on the handwritten
digits of scikit-learn. It reads them back and prints six metrics of each model
with their intervals, in ten seconds. One pass serves all models and metrics.

With --logs it reads your own Parquet files, or `tf.train.Example` records of
TFRecord files. Each row holds a class id, the outputs of all classes (a list)
and the name of the model. Beam takes all other flags. Its workers must be able
to read --logs and write to --workdir.
"""

import pickle
from pathlib import Path
from urllib.parse import quote

import apache_beam as beam
import numpy as np
from absl import app, flags
from apache_beam.options.pipeline_options import PipelineOptions

import keras_calib
import keras_calib.beam

_LOGS = flags.DEFINE_string("logs", None, "Pattern of the log files.")
_FORMAT = flags.DEFINE_enum(
    "format", "parquet", ["parquet", "tfrecord"], "Format of the files."
)
_MODEL = flags.DEFINE_string("model_column", "model", "Model; '' for one.")
_LABEL = flags.DEFINE_string("label_column", "label", "Class ids.")
_OUTPUTS = flags.DEFINE_string("outputs_column", "outputs", "Model outputs.")
_WEIGHT = flags.DEFINE_string("weight_column", "", "Weights; '' for none.")
_FROM_LOGITS = flags.DEFINE_bool("from_logits", False, "Outputs are logits.")
_WORKDIR = flags.DEFINE_string("workdir", "work/logs", "Output folder.")

SHOWN = ("accuracy", "nll", "ece", "aece", "aurc", "failure_auroc")


def write_demo_logs(folder):
    """Predictions of a sober and of an overfitted model, as Parquet files."""
    import pyarrow as pa
    from pyarrow import parquet
    from sklearn.datasets import load_digits
    from sklearn.linear_model import LogisticRegression

    x, y = load_digits(return_X_y=True)
    order = np.random.default_rng(0).permutation(len(y))
    x, y = x[order] / 16, y[order]
    folder.mkdir(parents=True, exist_ok=True)
    for name, strength in (("sober", 0.1), ("overfitted", 1e4)):
        model = LogisticRegression(C=strength, max_iter=2000)
        probs = model.fit(x[:400], y[:400]).predict_proba(x[1198:])
        columns = {"model": [name] * len(probs), "label": y[1198:]}
        columns["outputs"] = list(probs.astype("float32"))
        parquet.write_table(pa.table(columns), folder / f"{name}.parquet")
    return str(folder / "*.parquet")


def parse(record, columns):
    """A dict of a `tf.train.Example`: text, a whole number or floats."""
    import tensorflow as tf

    features = tf.train.Example.FromString(record).features.feature
    row = {}
    for name in columns:
        feature = features[name]
        if feature.bytes_list.value:
            row[name] = feature.bytes_list.value[0].decode()
        elif feature.int64_list.value:
            row[name] = feature.int64_list.value[0]
        elif feature.float_list.value:
            row[name] = list(feature.float_list.value)
        else:
            raise ValueError(f"A record has no feature {name!r}.")
    return row


def keyed(row, model, label, outputs, weight):
    element = (row[label], row[outputs])
    if weight:
        # TFRecord knows floats by lists only.
        element += (np.ravel(row[weight])[0],)
    return (row[model] if model else "all"), element


def save(pair, folder):
    path = Path(folder) / f"{quote(str(pair[0]), safe='')}.state"
    path.write_bytes(pickle.dumps(pair))


def table(states, kwargs):
    """Values with 95 % intervals, a column per model."""
    columns = []
    for name, state in states.items():
        metric = keras_calib.CalibrationMetrics(**kwargs)
        metric.load_state_dict(state)
        values, intervals = metric.result(), metric.interval()
        rows = [f"{name:>26}", f"{metric.bins().weight.sum():26.0f}"]
        rows.append(f"{metric.num_invalid:26}")
        for key in SHOWN:
            low, high = intervals[key]
            rows.append(f"{float(values[key]):9.4f} [{low:.4f},{high:7.4f}]")
        columns.append(rows)
    names = ("model", "weight", "left out", *SHOWN)
    lines = zip(names, *columns, strict=True)
    return "\n".join(f"{name:14}{''.join(rest)}" for name, *rest in lines)


def run(logs, file_format, columns, *, from_logits, states, options):
    """Measures each model, by way of a file with the state of its metrics."""
    kwargs = {"include": SHOWN, "from_logits": from_logits}
    states.mkdir(parents=True, exist_ok=True)
    for old in states.glob("*.state"):
        old.unlink()
    names = [name for name in columns if name]
    rows = beam.io.ReadFromParquet(logs, columns=names)
    if file_format == "tfrecord":
        rows = beam.io.ReadFromTFRecord(logs) | beam.Map(parse, names)
    metrics = keras_calib.beam.CalibrationCombineFn(output="state", **kwargs)
    with beam.Pipeline(options=options) as pipeline:
        pairs = pipeline | rows | beam.Map(keyed, *columns)
        _ = pairs | beam.CombinePerKey(metrics) | beam.Map(save, str(states))
    found = [pickle.loads(path.read_bytes()) for path in states.glob("*.state")]
    print(table(dict(sorted(found)), kwargs))


def main(argv):
    folder = Path(_WORKDIR.value)
    columns = (_MODEL.value, _LABEL.value, _OUTPUTS.value, _WEIGHT.value)
    run(
        _LOGS.value or write_demo_logs(folder / "logs"),
        _FORMAT.value,
        columns,
        from_logits=_FROM_LOGITS.value,
        states=folder / "states",
        # The default runner of Beam may fetch a program first.
        options=PipelineOptions(["--runner=FnApiRunner", *argv[1:]]),
    )


if __name__ == "__main__":
    app.run(main, flags_parser=lambda args: flags.FLAGS(args, known_only=True))
