"""Labels that are annotators' votes: metrics are means over the votes."""

import functools

import keras
import numpy as np
import pytest
from cases import BACKEND, METRICS, TABLE, array
from keras import ops
from streams import (
    ALL_CLASSES,
    case_of,
    predictions,
    state,
    stream,
    updated_compiled,
)

import keras_calib as kc
from keras_calib.metrics import base

# Its estimate of the noise takes samples as independent, not votes.
_OF_SAMPLES = ("DebiasedCalibrationError", "CalibrationMetrics")
_N = 700


def _voted(seed=0, num_classes=4, n=_N):
    """Counts of 1 to 7 votes, probabilities, and weights of the samples."""
    rng = np.random.default_rng(seed)
    _, probs = predictions(seed, n, num_classes)
    share = probs.astype("float64") ** 0.5
    share /= share.sum(axis=-1, keepdims=True)
    counts = [rng.multinomial(rng.integers(1, 8), p / p.sum()) for p in share]
    return np.array(counts), probs, rng.choice([0.3, 1.0, 2.5], n)


def _one_by_one(counts, probs, weight):
    """Each vote as a sample of its own, of its part of the weight."""
    row, label = np.nonzero(counts)
    repeats = counts[row, label]
    row, label = np.repeat(row, repeats), np.repeat(label, repeats)
    return label, probs[row], (weight / counts.sum(axis=-1))[row]


_EXACT = {
    str(case): case.exact
    for case in METRICS
    if case.name not in (*_OF_SAMPLES, "Accuracy")
} | {
    "average precision": kc.functional.failure_average_precision,
    "E-AUGRC": kc.functional.eaugrc,
    "geifman": functools.partial(
        kc.functional.classwise_ece, classes="to_largest_label"
    ),
}


@pytest.mark.parametrize("name", _EXACT)
def test_a_value_of_votes_is_that_of_the_votes_one_by_one(name):
    counts, probs, weight = _voted()
    labels, rows, weights = _one_by_one(counts, probs, weight)
    for votes in (counts, counts / counts.sum(axis=-1, keepdims=True)):
        found = _EXACT[name](votes, probs, votes=True, sample_weight=weight)
        wanted = _EXACT[name](labels, rows, sample_weight=weights)
        assert found == pytest.approx(wanted, rel=1e-9)


def test_areas_of_whole_samples_are_means_over_prefixes_of_their_risks():
    counts, probs, _ = _voted(n=60)
    share = counts / counts.sum(axis=-1, keepdims=True)
    order = np.argsort(-probs.max(axis=-1), kind="stable")
    risk = 1.0 - share[np.arange(60), probs.argmax(axis=-1)][order]
    through = np.cumsum(risk) / np.arange(1, 61)
    assert kc.aurc(counts, probs, votes=True) == pytest.approx(through.mean())
    found = kc.functional.risk_at_coverage(
        counts, probs, coverage=0.5, votes=True
    )
    assert found == pytest.approx(through[29])


@pytest.mark.parametrize("num_bins", [1, 15])
def test_debiasing_subtracts_the_variance_between_samples(num_bins):
    counts, probs, _ = _voted(n=300)
    confidence = probs.max(axis=-1).astype("float64")
    share = counts / counts.sum(axis=-1, keepdims=True)
    residual = confidence - share[np.arange(300), probs.argmax(axis=-1)]
    index = np.ceil(confidence * num_bins).astype(int)
    total = 0.0
    for b in np.unique(index):
        r = residual[index == b]
        if len(r) > 1:
            total += len(r) / 300 * (r.mean() ** 2 - r.var(ddof=1) / len(r))
    found = kc.functional.debiased_calibration_error(
        counts, probs, num_bins=num_bins, votes=True
    )
    assert found == pytest.approx(np.sqrt(max(total, 0.0)), abs=1e-9)


_STREAMED = [
    case_of(name)
    for name in ("CalibrationMetrics", "ClasswiseECE", "ClasswiseECE-mass")
    + ("ECE", "RMSCE", "AURC-gini", "Overconfidence", "NLL", "BrierScore")
]


def _exact(case, counts, probs, weight):
    if case.name != "CalibrationMetrics":
        return case.exact(counts, probs, votes=True, sample_weight=weight)
    share = (counts / counts.sum(axis=-1, keepdims=True))[
        np.arange(len(probs)), probs.argmax(axis=-1)
    ]
    accuracy = float(np.average(share, weights=weight))
    others = [
        single.exact(counts, probs, votes=True, sample_weight=weight)
        for name, single in TABLE.items()
        if name != "accuracy"
    ]
    return np.array([accuracy, *others])


@pytest.mark.parametrize(
    "case",
    [
        pytest.param(x, marks=pytest.mark.portable) if x in ALL_CLASSES else x
        for x in _STREAMED
    ],
    ids=str,
)
@pytest.mark.parametrize("weighted", [False, True])
def test_streamed_votes_follow_the_exact_function(case, weighted):
    counts, probs, weight = _voted()
    weight = weight if weighted else None
    exact = np.atleast_1d(_exact(case, counts, probs, weight))
    metric = stream(case.make(labels="votes"), counts, probs, weight, 350)
    low, high = case.bounds(metric)
    assert ((low <= exact) & (exact <= high)).all()
    for value in case.values(metric):
        free = np.isinf(low)
        assert case.is_close(value, exact)[free].all()


@pytest.mark.portable
@pytest.mark.parametrize("case", ALL_CLASSES, ids=str)
def test_votes_count_alike_compiled_merged_and_as_shares(case, monkeypatch):
    counts, probs, weight = _voted(n=200)
    counts, weight = counts.astype("float32"), weight.astype("float32")
    metric = case.make(labels="votes")
    metric.update_state(counts, probs, weight)
    other = case.make(labels="votes")
    if BACKEND == "torch":
        monkeypatch.setattr(base, "add_on_host", lambda *args: False)
        other.update_state(counts, probs, weight)
        np.testing.assert_allclose(case.value(other), case.value(metric), 1e-5)
    else:
        jit = [case.name == "ClasswiseECE"]
        for _ in updated_compiled(other, counts, probs, weight, jit=jit):
            found = case.value(other)
            np.testing.assert_allclose(found, case.value(metric), 1e-5)
    parts = [case.make(labels="votes") for _ in range(2)]
    parts[0].update_state(counts[:90], probs[:90], weight[:90])
    parts[1].update_state(
        ops.convert_to_tensor(counts[90:]), probs[90:], weight[90:]
    )
    parts[0].merge_state(parts[1])
    np.testing.assert_allclose(
        case.value(parts[0]), case.value(metric), rtol=1e-6, atol=1e-7
    )
    shares = case.make(labels="votes")
    shares.update_state(
        counts / counts.sum(axis=-1, keepdims=True), probs, weight
    )
    np.testing.assert_allclose(
        case.value(shares), case.value(metric), rtol=1e-5, atol=1e-6
    )
    again = type(metric).from_config(metric.get_config())
    again.load_state_dict(metric.state_dict())
    assert (state(again) == state(metric)).all()


@pytest.mark.portable
def test_votes_of_one_class_are_class_ids():
    labels, probs = predictions()
    voted, classes = (
        kc.CalibrationMetrics(labels=form) for form in ("votes", "classes")
    )
    voted.update_state(3 * np.eye(4, dtype="int32")[labels], probs)
    classes.update_state(labels, probs)
    size = voted.summary.parts["histogram"].num_cells
    wanted = state(classes)
    end = 4 * size + 15
    assert (state(voted)[:, :end] == wanted[:, :end]).all()
    assert (state(voted)[:, end + size :] == wanted[:, end:]).all()
    named = voted.result()
    # Its noise is that of the residual, not of the class alone.
    apart = "debiased_calibration_error"
    for name, value in classes.result().items():
        tolerance = 2e-3 if name == apart else 1e-7
        assert float(named[name]) == pytest.approx(float(value), abs=tolerance)
    assert "labels" not in classes.get_config()


def test_other_forms_of_votes_and_predictions_are_read():
    counts, probs, _ = _voted(n=24, num_classes=2)
    wanted = kc.ECE(labels="votes")
    wanted.update_state(counts, probs)
    share = counts[:, 1] / counts.sum(axis=-1)
    logits = np.log(probs)
    forms = {
        "one output, both classes": (counts, probs[:, 1:], {}),
        "one output, share": (share, probs[:, 1:], {}),
        "one output, (n, 1)": (share[:, None], probs[:, 1:], {}),
        "dense": (counts.reshape(4, 6, 2), probs.reshape(4, 6, 2), {}),
        "axis": (
            np.moveaxis(counts.reshape(4, 6, 2), -1, 1),
            np.moveaxis(probs.reshape(4, 6, 2), -1, 1),
            {"axis": 1},
        ),
        "logits": (counts, logits, {"from_logits": True}),
        "lists": (counts.tolist(), probs.tolist(), {}),
    }
    for name, (votes, outputs, options) in forms.items():
        metric = kc.ECE(labels="votes", **options)
        metric.update_state(votes, outputs)
        close = pytest.approx(float(wanted.result()), abs=1e-6)
        assert float(metric.result()) == close, name
    image = kc.PerImage(kc.ECE(labels="votes"))
    image.update_state(counts.reshape(1, 24, 2), probs.reshape(1, 24, 2))
    assert float(image.result()) == pytest.approx(float(wanted.result()))
    scored = kc.ECE(labels="votes")
    right = np.take_along_axis(counts, probs.argmax(axis=-1)[:, None], axis=-1)[
        :, 0
    ]
    scored.update_scores(probs.max(axis=-1), right / counts.sum(axis=-1))
    assert float(scored.result()) == pytest.approx(float(wanted.result()))


_ROWS = np.array([[2.0, 1.0], [0.0, 3.0], [1.0, 0.0]])
_REFUSED = {
    "negative": ([-1.0, 2.0], ">= 0"),
    "NaN": ([np.nan, 1.0], ">= 0 and finite"),
    "infinity": ([np.inf, 1.0], ">= 0 and finite"),
    "no vote": ([0.0, 0.0], "must have a vote"),
    "neither": ([0.5, 0.7], "counts, which are whole numbers, or shares"),
}


@pytest.mark.parametrize("name", _REFUSED)
def test_rows_that_are_no_votes_are_refused_unless_of_weight_0(name):
    row, message = _REFUSED[name]
    votes, probs = _ROWS.copy(), np.full((3, 2), 0.5, "float32")
    votes[1] = row
    metric = kc.ECE(labels="votes")
    with pytest.raises(ValueError, match=message):
        metric.update_state(votes, probs)
    with pytest.raises(ValueError, match=message):
        kc.ece(votes, probs, votes=True)
    weight = np.array([1.0, 0.0, 1.0])
    kc.nll(votes, probs, votes=True, sample_weight=weight)
    metric.update_state(votes, probs, weight)
    left = kc.ECE(labels="votes")
    left.update_state(_ROWS[[0, 2]], probs[[0, 2]])
    assert float(metric.result()) == pytest.approx(float(left.result()))
    assert metric.num_invalid == 0


@pytest.mark.skipif(BACKEND == "torch", reason="nothing is compiled on torch")
@pytest.mark.portable
def test_rows_that_are_no_votes_are_counted_in_compiled_code():
    votes = np.array([*_ROWS, [0.5, 0.7], [0, 0], [-1, 2]], "float32")
    metric = kc.ECE(labels="votes")
    for _ in updated_compiled(metric, votes, np.full((6, 2), 0.5, "float32")):
        assert metric.num_invalid == 3
        assert float(array(metric.bins().weight.sum())) == 3.0


_CALLS = {
    "ids": (lambda: kc.ECE(labels="votes").update_state([0, 1, 0], _P), "rows"),
    "ids of functions": (lambda: kc.ece([0, 1, 0], _P, votes=True), "rows"),
    "other classes": (lambda: kc.ece(_ROWS, _P3, votes=True), "rows of votes"),
    "ignored class": (lambda: kc.ECE(labels="votes", ignore_class=0), "weight"),
    "ignored in functions": (
        lambda: kc.ece(_ROWS, _P, votes=True, ignore_class=0),
        "weight of 0",
    ),
    "objectness": (lambda: kc.ECE(labels="votes", objectness=True), "pairs"),
    "another form": (lambda: kc.ECE(labels="soft"), "must be one of"),
    "shares in tests": (
        lambda: kc.functional.calibration_test(_P, _P, votes=True),
        "must be counts of votes",
    ),
    "a share of one column in tests": (
        lambda: kc.functional.calibration_test([0.3], [[0.5]], votes=True),
        "must be counts of votes",
    ),
    "counts as classes": (lambda: kc.ece(_ROWS, _P), "votes"),
    "counts in fits": (
        lambda: kc.TemperatureScaling().fit(_ROWS, 3.0 * _ROWS - 2.0),
        "divided by their sum",
    ),
}
_P, _P3 = np.full((3, 2), 0.5), np.full((3, 3), 1 / 3)


@pytest.mark.parametrize("name", _CALLS)
def test_what_votes_cannot_mean_is_refused(name):
    call, message = _CALLS[name]
    with pytest.raises(ValueError, match=message):
        call()


def test_votes_that_are_no_bool_are_refused():
    with pytest.raises(TypeError, match="`votes` must be"):
        kc.ece(_ROWS, _P, votes="yes")


def test_fit_reports_values_of_votes():
    counts, probs, _ = _voted(n=64)
    model = keras.Sequential([keras.layers.Activation("softmax")])
    metric = kc.CalibrationMetrics(["ece", "aurc"], labels="votes")
    model.compile(
        loss="categorical_crossentropy",
        weighted_metrics=[metric],
        jit_compile=False,
    )
    logits = np.log(probs)
    share = (counts / counts.sum(axis=-1, keepdims=True)).astype("float32")
    found = model.evaluate(
        logits, share, batch_size=32, verbose=0, return_dict=True
    )
    for name, function in (("ece", kc.ece), ("aurc", kc.aurc)):
        exact = function(counts, probs, votes=True)
        assert found[name] == pytest.approx(exact, rel=1e-3), name
