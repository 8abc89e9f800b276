"""Prediction flips, and what the model predicts where nothing counts."""

import importlib.util
import warnings

import keras
import matplotlib as mpl
import numpy as np
import pytest
from cases import BACKEND
from logged_training import (
    KERNELS,
    LOSS,
    Step,
    X,
    Y,
    close,
    fit,
    logger,
    network,
)

import keras_calib as kc

mpl.use("Agg")
portable = pytest.mark.portable
needs_tensorflow = pytest.mark.skipif(
    BACKEND != "tensorflow", reason="reads with TensorFlow"
)
HAS_TENSORFLOW = importlib.util.find_spec("tensorflow") is not None


def flips_by_hand():
    classes = [(X @ kernel).argmax(-1) for kernel in KERNELS]
    return [
        np.mean(one != other)
        for one, other in zip(classes, classes[1:], strict=False)
    ]


class Shuffled(keras.utils.PyDataset):
    """In another order each time it is read."""

    num_batches = 3

    def __init__(self, index, size=None):
        super().__init__()
        self.index = index
        self.size = size
        self.times = 0

    def __getitem__(self, i):
        if i == 0:
            self.times += 1
            rng = np.random.default_rng(self.times)
            self.order = rng.permutation(24)
        part = self.order[8 * i : 8 * i + 8]
        if self.size is not None and self.times > self.size:
            part = part[:4]
        y = {"label": Y[part], "index": part} if self.index else Y[part]
        return X[part], y


@portable
def test_flips_are_counted_between_logged_epochs():
    logs = [
        logger(data, batch_size=8, prefix=prefix)
        for prefix, data in (("xy_", (X, Y)), ("index_", Shuffled(True)))
    ]
    history = fit(network(), Step(KERNELS), *logs, epochs=4).history
    assert min(flips_by_hand()) > 0
    for log in logs:
        # In the first there is nothing to compare with.
        name = f"{log.prefix}prediction_flips"
        assert name not in log.logged[0].values
        assert history[name] == flips_by_hand()


@portable
def test_flips_are_counted_across_a_crash(tmp_path):
    for data, wanted in (
        (Shuffled(True), flips_by_hand()[:2]),
        # Numbers that repeat tell nothing, before the crash and after it.
        ((X, {"label": Y, "index": Y}), [np.nan, np.nan]),
    ):
        found = []
        for epochs in (1, 3):
            log = logger(data, csv_path=tmp_path / "log.csv")
            backup = kc.training.ResumableBackup(
                tmp_path / "b", callbacks=[log]
            )
            with warnings.catch_warnings():
                warnings.filterwarnings("ignore", "No prediction flips")
                fit(network(), Step(KERNELS), log, backup, epochs=epochs)
            found += [x.values.get("cal_prediction_flips") for x in log.logged]
        assert found[0] is None
        np.testing.assert_array_equal(found[1:], wanted)
        rows = (tmp_path / "log.csv").read_text().splitlines()
        assert [x.endswith(",") for x in rows] == [False, True, False, False]
        (tmp_path / "b").unlink()


def test_flips_of_samples_that_cannot_be_matched_are_nan():
    cases = {
        "order have changed": Shuffled(False),
        "size has changed": Shuffled(True, size=2),
        "numbers of samples repeat": (X, {"label": Y, "index": Y}),
    }
    logs = [
        logger(data, prefix=f"{number}_")
        for number, data in enumerate(cases.values())
    ]
    with pytest.warns(RuntimeWarning) as told:
        fit(network(), Step(KERNELS), *logs, epochs=2)
    told = [str(each.message) for each in told]
    for log, problem in zip(logs, cases, strict=True):
        assert any(problem in text for text in told)
        values = log.logged[-1].values
        assert np.isnan(values[f"{log.prefix}prediction_flips"])
        assert np.isfinite(values[f"{log.prefix}ece"])


def test_flips_of_ignored_labels_do_not_count():
    y = np.where(np.arange(24) % 3 == 0, 255, Y)
    log = logger((X, y), ignore_class=255)
    fit(network(), Step(KERNELS), log)
    one, other = ((X[y < 255] @ k).argmax(-1) for k in KERNELS[:2])
    values = log.logged[-1].values
    assert values["cal_prediction_flips"] == np.mean(one != other)
    log = logger(count_flips=False)
    fit(network(), log)
    assert "cal_prediction_flips" not in log.logged[-1].values


def test_a_model_that_predicts_nan_is_logged_as_nan():
    nan = np.full((4, 3), np.nan, "float32")
    steps, log = Step([KERNELS[0], nan, KERNELS[1], KERNELS[2]]), logger()
    with pytest.warns(RuntimeWarning, match="predicts NaN"):
        fit(network(), steps, log, epochs=4)
    assert np.isnan(log.logged[1].values["cal_ece"])
    assert list(log.logged[1].values) == ["cal_ece"]
    assert np.isfinite(log.logged[2].values["cal_ece"])
    exact = keras.metrics.SparseCategoricalAccuracy()
    with pytest.warns(RuntimeWarning, match="predicts NaN"):
        fit(network(), Step([nan, nan]), own := logger(metrics=[exact]))
    assert all(np.isnan(list(x.values.values())) for x in own.logged)
    # Between the epochs that were measured.
    one, other = ((X @ k).argmax(-1) for k in KERNELS[:2])
    flips = log.logged[2].values["cal_prediction_flips"]
    assert flips == np.mean(one != other)


def test_nan_where_the_label_is_ignored_is_no_harm():
    x, y = X.copy(), Y.copy()
    x[::4], y[::4] = np.nan, 255
    log = logger((x, y), ignore_class=255, metrics=["ece", "nll"])
    model = network(kc.MbLS(ignore_class=255, **LOSS))
    fit(model, Step(KERNELS), log)
    logits = X @ KERNELS[1]
    exact = kc.ece(y, logits, from_logits=True, ignore_class=255)
    close(log.logged[-1].values["cal_ece"], exact, 1e-4)
    one, other = ((X[y < 255] @ k).argmax(-1) for k in KERNELS[:2])
    flips = log.logged[-1].values["cal_prediction_flips"]
    assert flips == np.mean(one != other)
