"""The table, pictures and events that a logger writes."""

import csv
import importlib.util
import json
import os
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor

import matplotlib as mpl
import numpy as np
import pytest
from cases import BACKEND
from file_writers import writer
from logged_training import (
    LOSS,
    close,
    fails_before_training,
    fit,
    logger,
    network,
)
from paths import ROOT

import keras_calib as kc
from keras_calib.monitoring.files import EpochTable

mpl.use("Agg")
needs_tensorflow = pytest.mark.skipif(
    BACKEND != "tensorflow", reason="reads with TensorFlow"
)
HAS_TENSORFLOW = importlib.util.find_spec("tensorflow") is not None


def rows(path):
    with open(path, newline="") as file:
        return list(csv.DictReader(file))


def test_what_cannot_be_written_does_not_end_training(tmp_path, monkeypatch):
    path, folder = tmp_path / "log.csv", tmp_path / "pictures"
    log = logger(csv_path=path, picture_dir=folder)
    replace, calls = EpochTable.put, []

    def put(table, epoch, values):
        calls.append(epoch)
        if epoch == 0:
            raise OSError("disk full")
        replace(table, epoch, values)

    monkeypatch.setattr(EpochTable, "put", put)
    with pytest.warns(RuntimeWarning, match="epoch 0.*disk full"):
        history = fit(network(), log).history
    assert calls == [0, 1] and len(history["cal_ece"]) == 2
    assert [row["epoch"] for row in rows(path)] == ["1"]
    assert len(list(folder.iterdir())) == 2


def test_a_run_that_is_taken_up_replaces_the_rows_it_trains_anew(tmp_path):
    path = tmp_path / "runs" / "log.csv"
    first = logger(csv_path=path)
    fit(network(), first, epochs=4)
    written = rows(path)
    assert [row["epoch"] for row in written] == list("0123")
    assert written[0]["cal_prediction_flips"] == ""
    for row, entry in zip(written, first.logged, strict=True):
        assert float(row["cal_ece"]) == entry.values["cal_ece"]
    # A new object, as in a new process.
    again = logger(csv_path=path)
    fit(network(rate=0.3), again, epochs=5, initial_epoch=2)
    taken_up = rows(path)
    assert [row["epoch"] for row in taken_up] == list("01234")
    assert taken_up[:2] == written[:2]
    for row, entry in zip(taken_up[2:], again.logged, strict=True):
        assert float(row["cal_ece"]) == entry.values["cal_ece"]
    # What a shorter run that starts anew did not train is not its own.
    fit(network(), logger(csv_path=path), epochs=1)
    assert [row["epoch"] for row in rows(path)] == ["0"]


def test_a_fault_while_the_table_is_written_leaves_it_whole(
    tmp_path, monkeypatch
):
    def full(number):
        raise OSError("disk full")

    path = tmp_path / "log.csv"
    table = EpochTable(path, ["a"])
    table.put(0, {"a": 0.1})
    with monkeypatch.context() as patch:
        patch.setattr(os, "fsync", full)
        with pytest.raises(OSError, match="disk full"):
            table.put(1, {"a": 0.2})
    assert rows(path) == [{"epoch": "0", "a": "0.1"}]
    # Another thread may have it only when it is closed.
    with ThreadPoolExecutor(1) as pool:
        with pytest.raises(RuntimeError, match="one writer at a time"):
            pool.submit(EpochTable, path, ["a"]).result()
        table.close()
        pool.submit(EpochTable, path, ["a"]).result().close()
    assert os.listdir(tmp_path) == ["log.csv"]


@pytest.mark.slow
def test_a_kill_while_the_table_is_written_leaves_it_whole(tmp_path):
    path = tmp_path / "log.csv"
    table = EpochTable(path, ["a"])
    table.put(0, {"a": 0.1})
    table.close()
    code = (
        "import os, sys; from keras_calib.monitoring.files import EpochTable\n"
        "os.fsync = lambda number: os._exit(9)\n"
        "EpochTable(sys.argv[1], ['a'])"
    )
    run = subprocess.run(
        (sys.executable, "-c", code, path),
        cwd=ROOT,
        capture_output=True,
    )
    assert run.returncode == 9
    # Half a file, and the lock of that process.
    assert len(list(tmp_path.iterdir())) == 3
    assert rows(path) == [{"epoch": "0", "a": "0.1"}]
    table = EpochTable(path, ["a"])
    table.put(1, {"a": 0.2})
    table.close()
    assert [row["a"] for row in rows(path)] == ["0.1", "0.2"]
    assert not (tmp_path / ".log.csv.lock").exists()


@pytest.mark.slow
def test_a_table_has_one_writer_at_a_time(tmp_path):
    path = tmp_path / "log.csv"
    match = "`csv_path` must have one writer at a time"
    with writer("keep", path):
        log = logger(csv_path=path, picture_dir=tmp_path / "pictures")
        fails_before_training(RuntimeError, match, network(), log)
    assert os.listdir(tmp_path) == [".log.csv.lock"]

    # Killed, it has lost the table.
    log = logger(csv_path=path)
    fit(network(), log)
    assert [row["epoch"] for row in rows(path)] == ["0", "1"]
    assert os.listdir(tmp_path) == ["log.csv"]


def test_of_several_processes_the_first_writes(tmp_path, monkeypatch):
    module = importlib.import_module("keras_calib.monitoring.logger")
    monkeypatch.setattr(module, "is_chief", lambda: False)
    paths = {
        "csv_path": tmp_path / "log.csv",
        "log_dir": tmp_path / "logs",
        "picture_dir": tmp_path / "a",
    }
    log = logger(**paths)
    fit(network(), log, epochs=1)
    assert len(log.logged) == 1 and os.listdir(tmp_path) == []
    assert {name: getattr(log, name) for name in paths} == paths


def test_a_picture_per_epoch_leaves_pyplot_alone(tmp_path):
    import matplotlib.pyplot as plt

    plt.close("all")
    mine = plt.figure()
    backend = mpl.get_backend()
    fit(network(), logger(metrics=[kc.AURC(from_logits=True)]))
    log = logger(metrics=["aurc"], picture_dir=tmp_path / "a" / "b")
    fit(network(), log)
    files = sorted((tmp_path / "a" / "b").iterdir())
    assert [x.name for x in files] == [
        "cal_reliability_0000.png",
        "cal_reliability_0001.png",
    ]
    for file in files:
        assert plt.imread(file).std() > 0.05
    assert plt.get_fignums() == [mine.number] and plt.gcf() is mine
    assert mpl.get_backend() == backend
    # Drawn though no metric that is shown has bins.
    log = logger(
        metrics=[kc.AURC(from_logits=True)], picture_dir=tmp_path, num_bins=7
    )
    fit(network(kc.MbLS(**LOSS)), log, epochs=1)
    assert len(log.logged[0].bins.weight) == 7
    assert sorted(log.logged[0].values) == ["cal_aurc", "cal_inactive_share"]
    assert (tmp_path / "cal_reliability_0000.png").stat().st_size > 5000
    plt.close("all")


@needs_tensorflow
def test_tensorboard_reads_values_image_and_histogram(tmp_path):
    import tensorflow as tf

    log = logger(log_dir=tmp_path / "logs", prefix="cal/")
    fit(network(kc.MbLS(**LOSS)), log)
    (file,) = (tmp_path / "logs").iterdir()
    assert "tfevents" in file.name
    events = [
        tf.compat.v1.Event.FromString(x.numpy())
        for x in tf.data.TFRecordDataset(str(file))
    ]
    assert events[0].file_version == "brain.Event:2"
    found = {}
    for event in events[1:]:
        for value in event.summary.value:
            plugin = value.metadata.plugin_data.plugin_name
            array = tf.make_ndarray(value.tensor)
            found[value.tag, event.step] = plugin, array
    for entry in log.logged:
        for name, value in entry.values.items():
            plugin, array = found.pop((name, entry.epoch))
            assert plugin == "scalars" and array == np.float32(value)
        plugin, bars = found.pop(("cal/regularizer", entry.epoch))
        assert plugin == "histograms"
        np.testing.assert_array_equal(bars[:, 2], entry.regularizer.counts)
        np.testing.assert_array_equal(bars[1:, 0], bars[:-1, 1])
        plugin, (width, height, png) = found.pop(
            ("cal/reliability", entry.epoch)
        )
        assert plugin == "images"
        shape = tf.io.decode_png(png).shape
        assert shape[:2] == (int(height), int(width))
    assert not found


REPLICAS = """
import json, os, sys, warnings
import keras, numpy as np, tensorflow as tf
import keras_calib as kc
cpu = tf.config.list_physical_devices("CPU")[0]
tf.config.set_logical_device_configuration(
    cpu, [tf.config.LogicalDeviceConfiguration()] * 2)
rng = np.random.default_rng(0)
x = rng.normal(size=(100, 4)).astype("float32") * 3
y = rng.integers(3, size=100)

def values():
    keras.utils.set_random_seed(1)
    model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(3)])
    model.compile("sgd", loss=kc.MbLS(margin=2.0, from_logits=True))
    own = kc.AUGRC(from_logits=True)
    log = kc.CalibrationLogger(
        (x, y), metrics=["ece", "nll", own], log_dir=sys.argv[1],
        csv_path=sys.argv[1] + "/log.csv")
    fit = lambda: model.fit(
        x, y, batch_size=50, epochs=2, shuffle=False, verbose=0,
        callbacks=[log])
    return model, log, fit

strategy = tf.distribute.MirroredStrategy(["CPU:0", "CPU:1"])
logs = []
with strategy.scope():
    model, log, fit = values()
    fit()
    logs.append(log.logged)
model, log, fit = values()
fit()
logs.append(log.logged)
print(json.dumps([[entry.values for entry in log] for log in logs]))
"""


@pytest.mark.slow
@needs_tensorflow
def test_replicas_log_what_one_device_logs(tmp_path):
    run = subprocess.run(
        (sys.executable, "-c", REPLICAS, str(tmp_path)),
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert run.returncode == 0, run.stderr[-2000:]
    mirrored, one = json.loads(run.stdout.splitlines()[-1])
    assert len(one) == len(mirrored) == 2
    for a, b in zip(mirrored, one, strict=True):
        assert a.keys() == b.keys() and {"cal_augrc", "cal_ece"} <= set(a)
        for name in a:
            close(a[name], b[name], 1e-6)
