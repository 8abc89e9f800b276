"""Metrics over logs in pipelines of Apache Beam."""

import pickle
import tempfile

import pytest
from beam_logs import assert_same, assert_same_sums, keras_metric, predictions
from cases import BACKEND

import keras_calib

beam = pytest.importorskip("apache_beam")
from keras_calib import beam as calib_beam  # noqa: E402

pytestmark = pytest.mark.skipif(
    BACKEND != "tensorflow", reason="one backend shows it"
)
CalibrationCombineFn = calib_beam.CalibrationCombineFn
NAMES = keras_calib.metrics.table._NAMES


def keep(pair, folder):
    """Writes a result where other threads can read it."""
    with tempfile.NamedTemporaryFile(
        dir=folder, suffix=".pickle", delete=False
    ) as file:
        pickle.dump(pair, file)


def kept(folder):
    pairs = [pickle.loads(x.read_bytes()) for x in folder.glob("*.pickle")]
    assert len(dict(pairs)) == len(pairs)
    return dict(pairs)


@pytest.mark.slow
@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize("output", ["values", "state"])
def test_models_of_a_parquet_log_in_one_pass(tmp_path, weighted, output):
    import pyarrow as pa
    import pyarrow.parquet

    kwargs = {"from_logits": True, "include": NAMES}
    logs = {"a": predictions(1500, seed=1), "b": predictions(900, seed=2)}
    for name, (labels, logits, weight) in logs.items():
        columns = {
            "model": [name] * len(labels),
            "label": labels,
            "outputs": list(logits),
            "weight": weight,
        }
        pyarrow.parquet.write_table(
            pa.table(columns), tmp_path / f"{name}.parquet", row_group_size=400
        )

    def keyed(row):
        key = row.pop("model")
        if not weighted:
            del row["weight"]
        return key, row

    with beam.Pipeline(runner="FnApiRunner") as pipeline:
        _ = (
            pipeline
            | beam.io.ReadFromParquet(str(tmp_path / "*.parquet"))
            | beam.Map(keyed)
            | beam.Reshuffle()
            | beam.CombinePerKey(CalibrationCombineFn(output=output, **kwargs))
            | beam.Map(keep, str(tmp_path))
        )
    found = kept(tmp_path)
    assert found.keys() == logs.keys()
    for name, (labels, logits, weight) in logs.items():
        metric = keras_metric(
            labels, logits, weight if weighted else None, **kwargs
        )
        if output == "values":
            assert_same(found[name], metric)
            assert found[name]["num_invalid"] == 0
            total = weight.sum(dtype="float64") if weighted else len(labels)
            assert found[name]["weight"] == pytest.approx(total, rel=1e-7)
        else:
            assert_same_sums(found[name], metric, moved=3)


@pytest.mark.slow
def test_bundles_in_several_threads(tmp_path):
    labels, logits, _ = predictions(4000)
    fn = CalibrationCombineFn(include=["ece", "aurc"], from_logits=True)
    batches = [
        (labels[i : i + 40], logits[i : i + 40]) for i in range(0, 4000, 40)
    ]
    options = beam.options.pipeline_options.PipelineOptions(
        direct_running_mode="multi_threading", direct_num_workers=3
    )
    with beam.Pipeline(runner="FnApiRunner", options=options) as pipeline:
        _ = (
            pipeline
            | beam.Create(batches)
            | beam.Reshuffle()
            | beam.CombineGlobally(fn)
            | beam.Map(lambda values: (None, values))
            | beam.Map(keep, str(tmp_path))
        )
    metric = keras_metric(
        labels, logits, include=["ece", "aurc"], from_logits=True
    )
    assert_same(kept(tmp_path)[None], metric)


def test_a_pipeline_gives_the_values_of_the_metric(tmp_path):
    labels, logits, weight = predictions(90)
    rows = zip(labels, logits, weight, strict=True)
    fn = CalibrationCombineFn(from_logits=True, include=["ece"])
    with beam.Pipeline() as pipeline:
        _ = (
            pipeline
            | beam.Create([(i % 2, row) for i, row in enumerate(rows)])
            | beam.CombinePerKey(fn)
            | beam.Map(keep, str(tmp_path))
        )
    found = kept(tmp_path)
    for key in (0, 1):
        part = (x[key::2] for x in (labels, logits, weight))
        metric = keras_metric(*part, from_logits=True, include=["ece"])
        assert_same(found[key], metric)


@pytest.mark.slow
def test_without_rows_the_values_are_those_of_a_new_metric(tmp_path):
    fn = CalibrationCombineFn(include=NAMES)
    with beam.Pipeline(runner="FnApiRunner") as pipeline:
        _ = (
            pipeline
            | beam.Create([])
            | beam.CombineGlobally(fn)
            | beam.Map(lambda values: (None, values))
            | beam.Map(keep, str(tmp_path))
        )
    values = kept(tmp_path)[None]
    metric = keras_calib.CalibrationMetrics(include=NAMES)
    assert_same(values, metric)
    assert values["num_invalid"] == values["weight"] == 0.0
