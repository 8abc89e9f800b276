"""The table of metrics from one state, ranking scores, and certified bounds."""

import functools

import keras
import numpy as np
import pytest
from cases import BACKEND
from cases import METRIC_DATA
from cases import METRICS
from cases import TABLE
from cases import sample
from cases import softmax
from test_metrics import predictions
from test_metrics import stream

import keras_calib as kc
from keras_calib.formulas.scores import SCORE_NAMES

pytestmark = pytest.mark.portable

BOUNDED = [
    case
    for case in METRICS
    if case.has_bounds and case.cls is not kc.CalibrationMetrics
]


# Bounds are read off the state in NumPy: once is enough.
on_host = pytest.mark.skipif(BACKEND == "jax", reason="the same on the host")


# CalibrationMetrics.


@pytest.fixture(scope="module")
def table():
    """Logits, the table of them and each single metric."""
    labels, logits = sample(n=600, num_classes=4, scale=3.0)
    metric = kc.CalibrationMetrics(list(TABLE), from_logits=True)
    singles = {
        name: case.make(from_logits=True) for name, case in TABLE.items()
    }
    for start in range(0, 600, 300):
        part = labels[start : start + 300], logits[start : start + 300]
        for each in (metric, *singles.values()):
            each.update_state(*part)
    return labels, logits, metric, singles


def test_every_value_is_that_of_its_own_class(table):
    labels, logits, metric, singles = table
    values = metric.result()
    assert list(values) == list(TABLE)
    for name, value in values.items():
        single = float(singles[name].result())
        assert float(value) == pytest.approx(single, rel=1e-5, abs=1e-7), name
        case = TABLE[name]
        exact = case.exact(labels, logits, from_logits=True)
        assert case.is_close(float(value), exact), name


def test_every_bound_is_that_of_its_own_class(table):
    _, _, metric, singles = table
    bounds = metric.bounds()
    assert set(bounds) == {n for n, case in TABLE.items() if case.has_bounds}
    for name, found in bounds.items():
        assert found == pytest.approx(singles[name].bounds(), abs=1e-9), name


def test_every_interval_is_that_of_its_own_class(table):
    _, _, metric, singles = table
    intervals = metric.interval(0.9)
    assert set(TABLE) - set(intervals) == {"overconfidence_error", "smooth_ece"}
    for name in set(TABLE) - set(intervals):
        with pytest.raises(NotImplementedError, match="has no interval"):
            singles[name].interval()
    for name, (low, high) in intervals.items():
        own = singles[name].interval(0.9)
        # The table takes the values of a cell for alike.
        assert (low, high) == pytest.approx(own, abs=2e-4), name
        assert low <= high
        wider = singles[name].interval(0.99)
        assert wider[0] <= own[0] + 1e-12 and own[1] <= wider[1] + 1e-12, name


def test_bins_curve_and_decompositions_are_those_of_the_classes(table):
    labels, logits, metric, singles = table
    for ours, other in zip(metric.bins(), singles["ece"].bins(), strict=True):
        np.testing.assert_allclose(ours, other, atol=1e-5)
    for name in ("coverage", "risk"):
        np.testing.assert_array_equal(
            getattr(metric.curve(), name),
            getattr(singles["aurc"].curve(), name),
        )
    for score, single in (("brier", "ece"), ("brier", "brier"), ("nll", "nll")):
        np.testing.assert_allclose(
            metric.decomposition(score),
            singles[single].decomposition(),
            atol=1e-6,
        )
        exact = kc.calibration_decomposition(
            labels, logits, score=score, from_logits=True
        )
        np.testing.assert_allclose(
            metric.decomposition(score), exact, atol=1e-6
        )


def test_thresholds_of_the_curve_accept_what_the_curve_says(table):
    labels, logits, metric, _ = table
    curve = metric.curve()
    probs = softmax(logits.astype("float64"))
    confidence = probs.max(axis=-1)
    log_odds = np.log(confidence / (1 - confidence))
    right = probs.argmax(axis=-1) == labels
    for i in range(0, len(curve.coverage), 50):
        # Rounding may move a sample that lies on the edge.
        accepted = log_odds >= curve.threshold[i] - 1e-5
        assert abs(accepted.mean() - curve.coverage[i]) <= 1 / 600 + 1e-9
        assert abs(1 - right[accepted].mean() - curve.risk[i]) < 0.02


def test_the_default_leaves_out_what_is_slow_and_keeps_the_order():
    metric = kc.CalibrationMetrics()
    assert list(metric.result()) == [n for n in TABLE if n != "smooth_ece"]
    chosen = ["aurc", "ece"]
    assert list(kc.CalibrationMetrics(chosen).result()) == chosen


def test_operating_points_are_those_asked_for():
    labels, probs = predictions()
    options = {"risk": 0.2, "accuracy": 0.9, "coverage": 0.5}
    include = ["coverage_at_risk", "coverage_at_accuracy", "risk_at_coverage"]
    metric = kc.CalibrationMetrics(include, **options)
    metric.update_state(labels, probs)
    exact = [
        kc.coverage_at_risk(labels, probs, 0.2),
        kc.coverage_at_accuracy(labels, probs, 0.9),
        kc.risk_at_coverage(labels, probs, 0.5),
    ]
    for (low, high), value in zip(metric.bounds().values(), exact, strict=True):
        assert low <= value <= high


def test_a_table_takes_the_end_of_bins_that_the_metric_takes():
    # Confidences on edges and off them.
    confidence = np.array([0.5, 0.5, 0.6, 0.55, 0.75, 0.9, 1.0, 0.8], "float32")
    labels = [0, 1, 0, 1, 2, 0, 0, 1]
    rest = 1.0 - confidence
    thirds = (np.arange(8, dtype="float32") + 1) / 17
    probs = np.stack([confidence, rest * thirds, rest - rest * thirds], axis=-1)
    values = []
    for closed in ("right", "left"):
        options = {"num_bins": 10, "closed": closed}
        metric = kc.CalibrationMetrics(["ece", "mce"], **options)
        metric.update_state(labels, probs)
        exact = kc.ECE(**options)
        exact.update_state(labels, probs)
        for found, wanted in zip(metric.bins(), exact.bins(), strict=True):
            np.testing.assert_allclose(found, wanted, atol=1e-6)
        values.append(float(metric.result()["ece"]))
        again = kc.CalibrationMetrics.from_config(metric.get_config())
        assert again.closed == closed
        again.load_state_dict(metric.state_dict())
    assert values[0] != values[1]
    # Logits of a confidence of 1/2, whose log-odds round to either side of 0.
    second = -np.linspace(0.05, 0.6, 400, dtype="float32")
    third = np.log1p(-np.exp(second))
    logits = np.stack([np.zeros_like(second), second, third], axis=-1)
    options = {"num_bins": 2, "closed": "left", "from_logits": True}
    weights = []
    for metric in (
        kc.CalibrationMetrics(["ece"], **options),
        kc.ECE(**options),
    ):
        metric.update_state(np.zeros(400, "int32"), logits)
        weights.append(metric.bins().weight)
    np.testing.assert_array_equal(*weights)
    # States that were stored before there was a choice.
    assert "closed" not in kc.CalibrationMetrics().state_dict()["config"]
    with pytest.raises(ValueError, match="`closed` must be one of"):
        kc.CalibrationMetrics(closed="both")


def test_unknown_names_are_refused():
    with pytest.raises(ValueError, match="`include` must be one of"):
        kc.CalibrationMetrics(["ece", "ece2"])
    with pytest.raises(ValueError, match="`score` must be one of"):
        kc.CalibrationMetrics().decomposition("l1")


def test_fit_shows_each_value_for_callbacks_to_monitor():
    rng = np.random.default_rng(0)
    x = rng.normal(size=(96, 5)).astype("float32")
    y = (x @ rng.normal(size=(5, 3))).argmax(-1)
    keras.utils.set_random_seed(0)
    model = keras.Sequential([keras.Input((5,)), keras.layers.Dense(3)])
    include = ["ece", "aurc", "nll"]
    options = {"from_logits": True, "resolution": 2048}
    model.compile(
        optimizer=keras.optimizers.SGD(0.5),
        loss=kc.LabelSmoothing(from_logits=True),
        metrics=[
            kc.CalibrationMetrics(include, **options),
            kc.CalibrationMetrics(["ece"], prefix="other_", **options),
        ],
    )
    stop = keras.callbacks.EarlyStopping("val_ece", mode="min", patience=0)
    history = model.fit(
        x,
        y,
        validation_data=(x, y),
        batch_size=48,
        epochs=20,
        verbose=0,
        callbacks=[stop],
    ).history
    assert {f"val_{name}" for name in include} | {"other_ece"} <= set(history)
    assert 1 <= len(history["val_ece"]) < 20
    values = model.evaluate(x, y, batch_size=48, verbose=0, return_dict=True)
    logits = model.predict(x, batch_size=48, verbose=0)
    for name in ("ece", "nll"):
        exact = getattr(kc, name)(y, logits, from_logits=True)
        assert values[name] == pytest.approx(exact, rel=1e-4)
    metric = kc.AURC(**options)
    metric.update_state(y, logits)
    assert values["aurc"] == pytest.approx(float(metric.result()), rel=1e-4)
    assert values["other_ece"] == values["ece"]


@pytest.mark.parametrize("jit_compile", [False, True])
def test_the_progress_bar_may_show_values_of_earlier_steps(jit_compile):
    rng = np.random.default_rng(0)
    x = rng.normal(size=(70, 3)).astype("float32")
    y = np.eye(3)[rng.integers(3, size=70)]
    model = keras.Sequential([keras.Input((3,)), keras.layers.Flatten()])
    every = kc.CalibrationMetrics(["ece", "nll"], from_logits=True)
    seldom = kc.CalibrationMetrics(
        ["ece", "nll"], from_logits=True, refresh_every=3, prefix="seldom_"
    )
    if BACKEND == "torch" and jit_compile:
        pytest.skip("Keras compiles by torch.compile there")
    metrics = [every, seldom]
    model.compile(loss="mse", metrics=metrics, jit_compile=jit_compile)
    is_compiled = jit_compile or BACKEND == "tensorflow"
    shown = []

    def keep(_, logs):
        shown.append([float(logs[k]) for k in ("nll", "seldom_nll")])

    step = keras.callbacks.LambdaCallback(on_test_batch_end=keep)
    for _ in range(2):
        # Nothing is left over from the evaluation before.
        shown.clear()
        values = model.evaluate(
            x, y, batch_size=10, verbose=0, callbacks=[step], return_dict=True
        )
        exact, late = np.transpose(shown)
        assert len(np.unique(exact)) == 7
        steps = [0, 0, 0, 3, 3, 3, 6] if is_compiled else range(7)
        np.testing.assert_array_equal(late, exact[list(steps)])
        for name in every.include:
            assert values[f"seldom_{name}"] == values[name]


# Scores.


@keras.saving.register_keras_serializable(package="keras_calib_tests")
def largest_gap(logits):
    """A score of any size: how far the largest logit is from the smallest."""
    return keras.ops.max(logits, axis=-1) - keras.ops.min(logits, axis=-1)


@keras.saving.register_keras_serializable(package="keras_calib_tests")
def collision(logits):
    """A score in [0, 1]: the probability that two draws agree."""
    return keras.ops.sum(keras.ops.square(keras.ops.softmax(logits)), axis=-1)


SCORES = [
    *((name, None) for name in SCORE_NAMES),
    (largest_gap, None),
    (collision, "unit"),
]


@pytest.mark.parametrize(
    ("score", "score_range"),
    SCORES,
    ids=lambda x: getattr(x, "__name__", str(x)),
)
def test_every_score_ranks_as_the_exact_function_does(score, score_range):
    labels, logits = sample(n=500, num_classes=6, scale=3.0)
    labels = np.where(np.arange(500) % 3, logits.argmax(-1), labels)
    metric = kc.AURC(score=score, score_range=score_range, from_logits=True)
    metric.update_state(labels, logits)

    def exact_score(z):
        return keras.ops.convert_to_numpy(score(z))

    exact = kc.aurc(
        labels,
        logits,
        score=exact_score if callable(score) else score,
        from_logits=True,
    )
    low, high = metric.bounds()
    assert low <= exact <= high
    assert float(metric.result()) == pytest.approx(exact, abs=3e-4)
    again = keras.metrics.deserialize(keras.metrics.serialize(metric))
    assert again.score == score
    again.merge_state(metric)
    assert float(again.result()) == float(metric.result())


def test_scores_beyond_the_histogram_are_told():
    labels, logits = sample(n=90, num_classes=3, scale=3.0)
    labels = np.where(np.arange(90) % 3, logits.argmax(-1), labels)
    for metric, value in (
        (kc.AURC(from_logits=True), float),
        (
            kc.CalibrationMetrics(["aurc"], from_logits=True),
            lambda x: x["aurc"],
        ),
        (kc.AURC(score="max_logit", from_logits=True), float),
    ):
        metric.update_state(labels, logits)
        expected = float(value(metric.result()))
        metric.reset_state()
        metric.update_state(labels, logits * 2000)
        rule = rf"`{metric.name}` has seen scores .* within `bounds\(\)`"
        with pytest.warns(RuntimeWarning, match=rule):
            found = float(value(metric.result()))
        assert found != pytest.approx(expected, rel=1e-3)
    # Probabilities of 1 are tied indeed, and so are right ones among them.
    probs = softmax(logits * 2000)
    metric = kc.AURC()
    metric.update_state(labels, probs)
    metric.result()
    metric = kc.AURC(from_logits=True)
    metric.update_scores(probs.max(-1), labels == probs.argmax(-1))
    metric.result()
    metric.reset_state()
    metric.update_state(logits.argmax(-1), logits * 2000)
    metric.result()


@on_host
@pytest.mark.parametrize(
    "case", [c for c in BOUNDED if c.cls is not kc.AECE], ids=str
)
def test_every_rank_metric_takes_a_function(case):
    labels, logits = sample(n=300, num_classes=4, scale=3.0)
    metric = case.cls(**{**case.kwargs, "score": largest_gap})
    by_name = case.cls(**{**case.kwargs, "score": "msp"})
    assert metric.summary.shape != by_name.summary.shape
    metric = case.cls(**{**case.kwargs, "score": largest_gap}, from_logits=True)
    metric.update_state(labels, logits)
    exact = case.exact.func(
        labels,
        logits,
        **{
            **case.exact.keywords,
            "score": lambda z: z.max(axis=-1) - z.min(axis=-1),
        },
        from_logits=True,
    )
    low, high = metric.bounds()
    assert low <= exact <= high
    again = keras.metrics.deserialize(keras.metrics.serialize(metric))
    assert again.get_config() == metric.get_config()


def test_unknown_scores_are_refused():
    with pytest.raises(ValueError, match="`score` must be a function or one"):
        kc.AURC(score="best")
    with pytest.raises(ValueError, match="`score_range` must be one of"):
        kc.AURC(score="gini", score_range="all")


# Bounds, whatever the order inside cells.


def tied(rng, n):
    confidence = rng.choice(np.linspace(0.51, 0.99, 7), n)
    return confidence, rng.uniform(size=n) < confidence


def saturated(rng, n):
    return 1 - 10.0 ** -rng.uniform(0.5, 9, n), rng.uniform(size=n) < 0.8


def all_in_one_cell(rng, n):
    return 0.7 + 1e-5 * rng.uniform(size=n), rng.uniform(size=n) < 0.4


def right_ones_last(rng, n):
    # Inside each of a few narrow clusters the least sure are right.
    inside = np.arange(n) % 50
    confidence = 0.6 + 0.05 * (np.arange(n) // 50 % 6) + 1e-7 * inside
    return confidence, inside < rng.integers(1, 50)


def spread(rng, n):
    confidence = rng.beta(5, 1.5, n) / 2 + 0.5
    return confidence, rng.uniform(size=n) < confidence - 0.1


# Of the histogram: cells of many predictions.
RESOLUTION = 64
KINDS_OF_DATA = [tied, saturated, all_in_one_cell, right_ones_last, spread]


def two_classes(confidence, right):
    """Predictions of class 0 with these confidences."""
    confidence = np.asarray(confidence, "float32")
    labels = np.where(right, 0, 1)
    return labels, np.stack([confidence, 1 - confidence], axis=-1)


@functools.cache
def data_and_cells(make, n):
    """Predictions, and which cell of the histogram each falls in."""
    confidence, right = make(np.random.default_rng(0), n)
    labels, probs = two_classes(confidence, right)
    single, cells = kc.AURC(resolution=RESOLUTION), []
    for row in probs:
        single.reset_state()
        single.update_state([0], row[None])
        sums = keras.ops.convert_to_numpy(single.sums)
        cells.append(int(single.summary.cells(sums).mass.argmax()))
    return labels, probs, right, np.array(cells)


@on_host
@pytest.mark.parametrize("make", KINDS_OF_DATA)
@pytest.mark.parametrize(
    "case", [c for c in BOUNDED if "score" not in c.kwargs], ids=str
)
def test_any_order_inside_the_cells_is_within_the_bounds(case, make):
    rng = np.random.default_rng(1)
    for n in (17, 150):
        labels, probs, right, cells = data_and_cells(make, n)
        metric = case.make(resolution=RESOLUTION)
        metric.update_state(labels, probs)
        low, high = case.bounds(metric)
        value = float(metric.result())
        # As float32 has it.
        assert low - 1e-6 <= value <= high + 1e-6
        assert low <= case.exact(labels, probs) <= high
        for right_first in (True, False, None):
            shuffled = reordered(rng, cells, probs, right, right_first)
            value = case.exact(*two_classes(*shuffled))
            assert low <= value <= high, (n, right_first)


def reordered(rng, cells, probs, right, right_first):
    """The same confidences, correctness dealt anew inside each cell.

    The mean confidence of a cell stays, and so what the metric sees of it,
    but for the offsets of right and wrong ones.
    """
    confidence, right = probs[:, 0].copy(), right.copy()
    for cell in np.unique(cells):
        inside = np.flatnonzero(cells == cell)
        inside = inside[np.argsort(-confidence[inside], kind="stable")]
        dealt = rng.permutation(right[inside])
        if right_first is not None:
            dealt = np.sort(dealt)[::-1] if right_first else np.sort(dealt)
        right[inside] = dealt
    return confidence, right


def test_bounds_of_the_areas_are_reached():
    # One cell: all right ones first, or last.
    confidence = 0.7 + 1e-6 * np.arange(40)
    low, high = [], []
    for right in (np.arange(40) >= 12, np.arange(40) < 28):
        labels, probs = two_classes(confidence, right)
        for cls, exact in ((kc.AURC, kc.aurc), (kc.AUGRC, kc.augrc)):
            metric = cls(resolution=64)
            metric.update_state(labels, probs)
            bounds = metric.bounds()
            value = exact(labels, probs)
            (low if right[-1] else high).append((value, bounds))
    for value, bounds in low:
        assert bounds[0] == pytest.approx(value, rel=1e-5)
    for value, bounds in high:
        assert bounds[1] == pytest.approx(value, rel=1e-5)


def test_aece_bounds_are_reached():
    # Two bins share one cell: right ones all in the one, or spread evenly.
    confidence = np.full(40, 0.7)
    apart = two_classes(confidence, np.arange(40) < 20)
    mixed = two_classes(confidence, np.arange(40) % 2 == 0)
    metric = kc.AECE(2)
    metric.update_state(*apart)
    low, high = metric.bounds()
    options = {"num_bins": 2, "ties": "order"}
    assert kc.adaptive_ece(*apart, **options) == pytest.approx(high, abs=1e-3)
    assert kc.adaptive_ece(*mixed, **options) == pytest.approx(low, abs=1e-3)
    assert high - low > 0.2


@on_host
@pytest.mark.parametrize("num_bins", [8, 15])
@pytest.mark.parametrize("data", METRIC_DATA)
def test_aece_by_the_edges_of_the_papers_follows_their_code(
    goldens, data, num_bins
):
    labels = goldens[f"in/m_{data}/labels"]
    probs = goldens[f"in/m_{data}/probs"]
    expected = goldens[f"metric/aece_{num_bins}/{data}"]
    metric = kc.AECE(num_bins, edges="interp")
    stream(metric, labels, probs, batch=len(labels))
    low, high = metric.bounds()
    assert low <= expected <= high
    assert low <= float(metric.result()) <= high
    if data not in ("edges", "onehot"):
        # The smallest confidence is left out of both.
        assert float(metric.result()) == pytest.approx(expected, abs=1e-5)


@on_host
def test_bounds_narrow_with_the_resolution():
    labels, probs = predictions(n=2000)
    widths = []
    for resolution in (64, 512, 8192):
        metric = kc.AURC(resolution=resolution)
        metric.update_state(labels, probs)
        low, high = metric.bounds()
        assert low <= kc.aurc(labels, probs) <= high
        widths.append(high - low)
    assert widths[0] > 4 * widths[1] > 16 * widths[2]
