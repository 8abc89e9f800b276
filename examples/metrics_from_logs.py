r"""Metrics of logged predictions, per model, on Apache Beam.

    pip install "keras-calib[beam,examples]"
    python examples/metrics_from_logs.py
    python examples/metrics_from_logs.py --logs="logs/*.parquet" \
        --from_logits --model_column=model
    python examples/metrics_from_logs.py --logs="logs/*.tfrecord" \
        --format=tfrecord

The first line logs the predictions of two models on the handwritten digits
that scikit-learn ships, and reads them back. The others read files whose
rows hold a class id, the outputs of all classes (a list) and the name of the
model: columns of Parquet files, or features of `tf.train.Example` records in
TFRecord files. One pass serves all models and metrics. Flags that are none
of these go to Beam; its workers must see --logs and --workdir.
"""

import pickle
from pathlib import Path
from urllib.parse import quote

import apache_beam as beam
import numpy as np
from absl import app
from absl import flags
from apache_beam.options.pipeline_options import PipelineOptions
from datasets import load_digits

import keras_calib
import keras_calib.beam

_LOGS = flags.DEFINE_string("logs", None, "Pattern of files.")
_FORMAT = flags.DEFINE_enum(
    "format", "parquet", ["parquet", "tfrecord"], "Of the files."
)
_MODEL = flags.DEFINE_string("model_column", "model", "'' for one model.")
_LABEL = flags.DEFINE_string("label_column", "label", "Class ids.")
_OUTPUTS = flags.DEFINE_string("outputs_column", "outputs", "Lists.")
_WEIGHT = flags.DEFINE_string("weight_column", "", "Weights, '' for none.")
_FROM_LOGITS = flags.DEFINE_bool("from_logits", False, "Outputs are logits.")
_WORKDIR = flags.DEFINE_string("workdir", "work/logs", "For results.")
_SHOWN = ("accuracy", "nll", "ece", "aece", "aurc", "failure_auroc")


def write_demo_logs(folder):
    """Predictions of a sober and of an overfitted model, two files each."""
    from sklearn.linear_model import LogisticRegression

    (images, labels), _, (test_images, test_labels) = load_digits()
    folder.mkdir(parents=True, exist_ok=True)
    write = {"parquet": write_parquet, "tfrecord": write_tfrecord}
    for name, strength in (("sober", 0.1), ("overfitted", 1e4)):
        model = LogisticRegression(C=strength, max_iter=2000)
        model.fit(images[:400], labels[:400])
        probs = model.predict_proba(test_images).astype("float32")
        half = len(probs) // 2
        for i, part in enumerate((slice(half), slice(half, None))):
            path = folder / f"{name}-{i}.{_FORMAT.value}"
            write[_FORMAT.value](path, name, test_labels[part], probs[part])
    return str(folder / f"*.{_FORMAT.value}")


def write_parquet(path, model, labels, outputs):
    import pyarrow as pa
    from pyarrow import parquet

    columns = {"model": [model] * len(labels), "label": labels}
    parquet.write_table(pa.table({**columns, "outputs": list(outputs)}), path)


def write_tfrecord(path, model, labels, outputs):
    import tensorflow as tf

    with tf.io.TFRecordWriter(str(path)) as writer:
        for label, row in zip(labels, outputs, strict=True):
            example = tf.train.Example()
            feature = example.features.feature
            feature["model"].bytes_list.value.append(model.encode())
            feature["label"].int64_list.value.append(label)
            feature["outputs"].float_list.value.extend(row)
            writer.write(example.SerializeToString())


def read_logs(logs, file_format, columns):
    """Rows as dicts by column."""
    if file_format == "parquet":
        return beam.io.ReadFromParquet(logs, columns=columns)
    return beam.io.ReadFromTFRecord(logs) | beam.Map(parse, columns)


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


def measure(logs, kwargs, folder, options):
    """State of the metrics by model, by way of one file for each."""
    state = keras_calib.beam.CalibrationMetrics(output="state", **kwargs)
    names = (_MODEL.value, _LABEL.value, _OUTPUTS.value, _WEIGHT.value)
    with beam.Pipeline(options=options) as pipeline:
        _ = (
            pipeline
            | read_logs(logs, _FORMAT.value, [x for x in names if x])
            | beam.Map(keyed, *names)
            | beam.CombinePerKey(state)
            | beam.Map(save, folder)
        )


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
        for key in _SHOWN:
            low, high = intervals[key]
            rows.append(f"{float(values[key]):9.4f} [{low:.4f},{high:7.4f}]")
        columns.append(rows)
    names = ("model", "weight", "left out", *_SHOWN)
    lines = zip(names, *columns, strict=True)
    return "\n".join(f"{name:14}{''.join(rest)}" for name, *rest in lines)


def main(argv):
    folder = Path(_WORKDIR.value)
    logs = _LOGS.value or write_demo_logs(folder / "logs")
    kwargs = {"include": _SHOWN, "from_logits": _FROM_LOGITS.value}
    states = folder / "states"
    states.mkdir(parents=True, exist_ok=True)
    for old in states.glob("*.state"):
        old.unlink()
    # The default runner of Beam may fetch a program first.
    options = PipelineOptions(["--runner=FnApiRunner", *argv[1:]])
    measure(logs, kwargs, str(states), options)
    found = [pickle.loads(x.read_bytes()) for x in states.glob("*.state")]
    print(table(dict(sorted(found)), kwargs))


if __name__ == "__main__":
    app.run(main, flags_parser=lambda args: flags.FLAGS(args, known_only=True))
