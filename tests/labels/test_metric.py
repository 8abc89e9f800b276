"""Metrics of several labels at once."""

import keras
import numpy as np
import pytest
from cases import BACKEND, array
from keras import ops
from streams import result_compiled, updated_compiled

import keras_calib as kc

OPTIONS = {"from_logits": True, "ignore_class": -1}
# One of each kind of state, and whether its integers stay exact by column.
METRICS = {
    "ece": (lambda: kc.ECE(**OPTIONS), True),
    "ece_binary": (lambda: kc.ECE(mode="binary", **OPTIONS), True),
    "aece": (lambda: kc.AECE(resolution=1024, **OPTIONS), False),
    "classwise": (lambda: kc.ClasswiseECE(2, **OPTIONS), True),
    "brier_score": (lambda: kc.BrierScore(**OPTIONS), False),
    "nll": (lambda: kc.NLL(**OPTIONS), False),
    "aurc": (lambda: kc.AURC(resolution=1024, **OPTIONS), False),
    "table": (
        lambda: kc.CalibrationMetrics(
            ["ece", "aurc", "nll"], resolution=1024, **OPTIONS
        ),
        False,
    ),
}
# Without the path of the host: one for each way to read columns.
OFF_HOST = ("ece", "nll", "table")


def several(n=200, labels=3, missing=0.2):
    """Labels, some of them -1, logits, and weights by label."""
    rng = np.random.default_rng(0)
    logits = (rng.normal(size=(n, labels)) * 2).astype("float32")
    truth = rng.random((n, labels)) < 1 / (1 + np.exp(-logits / 2))
    truth = np.where(rng.random((n, labels)) < missing, -1, truth)
    weight = rng.gamma(2.0, size=(n, labels)).astype("float32")
    return truth.astype("int32"), logits, weight


def values(result):
    return np.array([float(x) for x in keras.tree.flatten(result)])


def of_column(make, truth, logits, weight, i):
    metric = make()
    part = None if weight is None else weight[:, i]
    metric.update_state(truth[:, i], logits[:, i : i + 1], part)
    return metric


@pytest.mark.parametrize(
    ("name", "on_host"),
    [
        *((name, True) for name in METRICS),
        *(
            pytest.param(name, False, marks=pytest.mark.slow)
            for name in OFF_HOST
        ),
    ],
)
def test_labels_are_their_columns_and_one_label_is_the_binary_path(
    name, on_host, monkeypatch
):
    make, is_exact = METRICS[name]
    if not on_host:
        monkeypatch.setattr(
            "keras_calib.metrics.base.add_on_host", lambda *_: False
        )
    truth, logits, weights = several()
    for weight in (None, weights):
        metric = kc.MultiLabel(make())
        metric.update_state(truth, logits, weight)
        loop = [of_column(make, truth, logits, weight, i) for i in range(3)]
        for i, column in enumerate(loop):
            one = metric.of_label(i)
            if is_exact and weight is None:
                assert (array(one.sums) == array(column.sums)).all()
            np.testing.assert_allclose(
                values(one.result()), values(column.result()), rtol=1e-5
            )
        mean = np.mean([values(x.result()) for x in loop], axis=0)
        np.testing.assert_allclose(values(metric.result()), mean, rtol=1e-5)
        alone = kc.MultiLabel(make())
        part = None if weight is None else weight[:, :1]
        alone.update_state(truth[:, :1], logits[:, :1], part)
        assert (array(alone.of_label(0).sums) == array(loop[0].sums)).all()
        same = values(loop[0].result())
        assert (values(alone.result()) == same).all()


@pytest.mark.skipif(BACKEND == "torch", reason="torch runs eagerly")
@pytest.mark.slow
@pytest.mark.parametrize("name", ["ece", "table", "nll"])
def test_compiled_code_gives_the_values_of_eager_code(name):
    truth, logits, weight = several(n=60)
    eager = kc.MultiLabel(METRICS[name][0]())
    eager.update_state(truth, logits, weight)
    metric = kc.MultiLabel(METRICS[name][0](), num_labels=3)
    jit = [False, True] if name == "ece" else [False]
    for _ in updated_compiled(metric, truth, logits, weight, jit=jit):
        np.testing.assert_allclose(
            values(metric.result()), values(eager.result()), rtol=1e-5
        )
    result = result_compiled(metric)
    names = sorted(result) if isinstance(result, dict) else None
    want = eager.result()
    want = want if names is None else [want[x] for x in names]
    got = result if names is None else [result[x] for x in names]
    np.testing.assert_allclose(values(got), values(want), rtol=2e-5)


def test_averages_are_those_of_the_values_by_label():
    truth, logits, _ = several()
    truth[:, 2] = -1

    def value(average):
        metric = kc.MultiLabel(kc.ECE(**OPTIONS), average=average)
        metric.update_state(truth, logits)
        return metric, metric.result()

    metric, macro = value("macro")
    by_label = metric.per_label()
    assert np.isnan(by_label[2])
    np.testing.assert_allclose(macro, by_label[:2].mean(), rtol=1e-6)
    support = (truth == 1).sum(axis=0)[:2]
    weighted = np.average(by_label[:2], weights=support)
    np.testing.assert_allclose(value("weighted")[1], weighted, rtol=1e-6)
    given = value([1.0, 3.0, 9.0])[1]
    expected = np.average(by_label[:2], weights=[1, 3])
    np.testing.assert_allclose(given, expected, rtol=1e-6)
    seen = truth != -1
    micro = kc.ece(truth[seen], logits[seen][:, None], from_logits=True)
    np.testing.assert_allclose(value("micro")[1], micro, rtol=1e-5)
    named = kc.MultiLabel(
        kc.ECE(**OPTIONS), average=None, class_names=["cat", "dog", "cow"]
    )
    named.update_state(truth, logits)
    result = named.result()
    assert [*result] == ["ece_cat", "ece_dog", "ece_cow"]
    np.testing.assert_allclose(float(result["ece_dog"]), by_label[1], rtol=1e-6)
    dog = named.of_label("dog")
    assert dog.interval()[0] < by_label[1] < dog.interval()[1]


def area(confidence, risk):
    """The AURC of distinct confidences, in float64."""
    order = np.argsort(-confidence)
    return np.mean(np.cumsum(risk[order]) / np.arange(1, len(risk) + 1))


@pytest.mark.portable
@pytest.mark.parametrize("example", ["worst", "mean"])
def test_examples_rank_by_their_worst_or_mean_label(example):
    truth, logits, _ = several(n=300)
    truth[0] = -1
    metric = kc.MultiLabel(
        kc.AURC(**OPTIONS), by="example", example=example, num_labels=3
    )
    metric.update_state(truth[:100], logits[:100])
    metric.update_state(truth[100:], ops.convert_to_tensor(logits[100:]))
    present, z = truth != -1, logits.astype("float64")
    confidence = 1 / (1 + np.exp(-np.abs(z)))
    right = (z > 0) == (truth == 1)
    if example == "worst":
        confidence = np.where(present, confidence, 2).min(axis=1)
        risk = 1.0 - np.where(present, right, True).all(axis=1)
    else:
        count = np.maximum(present.sum(axis=1), 1)
        confidence = (confidence * present).sum(axis=1) / count
        risk = 1.0 - (right * present).sum(axis=1) / count
    seen = present.any(axis=1)
    expected = area(confidence[seen], risk[seen])
    np.testing.assert_allclose(metric.result(), expected, rtol=1e-3)
    for low, high in (metric.interval(), metric.pooled().bounds()):
        assert low < expected < high


def test_states_of_labels_merge_and_are_saved():
    truth, logits, weight = several()

    def make():
        return kc.MultiLabel(kc.ECE(**OPTIONS), average=None)

    whole, parts = make(), [make(), make()]
    whole.update_state(truth, logits)
    parts[0].update_state(truth[:90], logits[:90])
    parts[1].update_state(truth[90:], logits[90:])
    merged = make()
    merged.merge_state(parts)
    assert (array(merged.sums) == array(whole.sums)).all()
    # The average changes no sum.
    pooled = kc.MultiLabel(kc.ECE(**OPTIONS), average="micro")
    pooled.merge_state([whole, kc.MultiLabel(kc.ECE(**OPTIONS))])
    assert float(pooled.result()) == float(whole.pooled().result())
    again = keras.metrics.deserialize(keras.metrics.serialize(whole))
    assert again.get_config() == whole.get_config()
    again.load_state_dict(whole.state_dict())
    assert values(again.result()).tolist() == values(whole.result()).tolist()
    other = kc.MultiLabel(kc.ECE(num_bins=9, **OPTIONS))
    with pytest.raises(ValueError, match="of one configuration"):
        other.merge_state(whole)


@pytest.mark.parametrize("by", ["label", "example"])
def test_states_of_other_labels_are_refused(by):
    truth, logits, _ = several()

    def made(labels=3, names=None):
        metric = kc.MultiLabel(kc.ECE(**OPTIONS), by=by, class_names=names)
        metric.update_state(truth[:, :labels], logits[:, :labels])
        return metric

    whole = made(names=["a", "b", "c"])
    before = whole.state_dict()["sums"].tolist()
    fresh = kc.MultiLabel(kc.ECE(**OPTIONS), by=by)
    for metric, others in (
        (whole, made(2)),
        (whole, [made(), made(2).state_dict()]),
        (fresh, [made(), made(2)]),
    ):
        with pytest.raises(ValueError, match="as many labels"):
            metric.merge_state(others)
    with pytest.raises(ValueError, match="as many labels"):
        whole.load_state_dict(made(2).state_dict())
    with pytest.raises(ValueError, match="in this order"):
        whole.merge_state(made(names=["a", "c", "b"]))
    assert whole.state_dict()["sums"].tolist() == before
    # A refused merge leaves a new metric open for any number of labels.
    assert fresh.num_labels is None
    whole.merge_state(made())
    assert (array(whole.sums) != before).any()


@pytest.mark.parametrize("by", ["label", "example"])
def test_a_metric_without_a_batch_has_a_state_that_adds_nothing(by):
    truth, logits, _ = several()

    def make():
        return kc.MultiLabel(kc.ECE(**OPTIONS), by=by)

    fresh, whole = make(), make()
    whole.update_state(truth, logits)
    state = whole.state_dict()["sums"].tolist()
    assert fresh.num_invalid == 0 and float(fresh.result()) == 0.0
    assert float(fresh.pooled().result()) == 0.0
    fresh.reset_state()
    for states in (make(), [make(), whole, make().state_dict()]):
        fresh.merge_state(states)
    whole.merge_state(make())
    assert fresh.state_dict()["sums"].tolist() == state
    assert whole.state_dict()["sums"].tolist() == state
    whole.load_state_dict(make().state_dict())
    assert float(whole.result()) == 0.0
    late = make()
    with pytest.raises(ValueError, match="the shape of `y_pred`"):
        late.update_state(truth[:, 0], logits)
    # What was refused does not set the number of labels.
    late.update_state(truth[:, :2], logits[:, :2])
    with pytest.raises(ValueError, match="must have `num_labels` labels"):
        late.update_state(truth, logits)
    if by == "label":
        with pytest.raises(ValueError, match="as many labels as this metric"):
            late.merge_state(fresh)
        with pytest.raises(ValueError, match="no outputs tell it so far"):
            make().of_label(0)


@pytest.mark.skipif(BACKEND == "torch", reason="torch runs eagerly")
@pytest.mark.parametrize(
    "example", [pytest.param("worst", marks=pytest.mark.portable), "mean"]
)
def test_compiled_code_leaves_out_the_example_of_an_invalid_label(example):
    truth, logits, weight = several(n=40)
    # Nothing of the first row counts; the second has a weight of 0 there.
    truth[0, 1], logits[1, 2], weight[1, 2] = 2, np.nan, 0
    options = {"by": "example", "example": example, "num_labels": 3}
    valid = kc.MultiLabel(kc.ECE(**OPTIONS), **options)
    valid.update_state(truth[1:], logits[1:], weight[1:])
    metric = kc.MultiLabel(kc.ECE(**OPTIONS), **options)
    for _ in updated_compiled(metric, truth, logits, weight, jit=[False]):
        assert metric.num_invalid == 1
        with pytest.warns(RuntimeWarning, match="leaves out 1 predictions"):
            value = float(metric.result())
        np.testing.assert_allclose(value, valid.result(), rtol=1e-5)


def test_a_weight_of_zero_hides_a_label_whatever_it_is():
    truth, logits, _ = several()
    by_class, by_weight = (kc.MultiLabel(METRICS["table"][0]()) for _ in "ab")
    by_class.update_state(truth, logits)
    hidden = np.where(truth == -1, np.nan, truth)
    weight = (truth != -1).astype("float32")
    by_weight.update_state(hidden, logits, weight)
    np.testing.assert_allclose(
        values(by_weight.result()), values(by_class.result()), rtol=1e-6
    )


def test_labels_that_cannot_be_read_are_refused():
    truth, logits, _ = several(n=4)
    metric = kc.MultiLabel(kc.ECE(from_logits=True), num_labels=3)
    nan = np.where(truth == -1, np.nan, truth)
    nan[0, 0] = np.nan
    for data, match in (
        ((nan, logits), "must not contain NaN: give missing labels"),
        ((truth[:, 0], logits), "the shape of `y_pred`, with 0 or 1"),
        ((truth[:, :2], logits[:, :2]), "must have `num_labels` labels"),
        ((np.full((4, 3), 2), logits), r"must lie in \[0, 1\]"),
    ):
        with pytest.raises(ValueError, match=match):
            metric.update_state(*data)
    for make, match in (
        (lambda: kc.MultiLabel(keras.metrics.AUC()), "has a wrapper"),
        (lambda: kc.MultiLabel(metric), "for two classes"),
        (lambda: kc.MultiLabel(kc.PerImage(kc.ECE())), "for two classes"),
        (lambda: kc.MultiLabel(kc.NLL(), by="example"), "confidence alone"),
    ):
        with pytest.raises(TypeError, match=match):
            make()
    for options, match in (
        ({"average": "mean"}, "must be one of"),
        ({"average": [0.0, 0.0]}, "not all 0"),
        ({"class_names": ["a", "a"]}, "all different"),
        ({"num_labels": 2, "class_names": ["a"]}, "one name for each"),
        ({"by": "example", "average": "micro"}, 'needs `by="label"`'),
    ):
        with pytest.raises(ValueError, match=match):
            kc.MultiLabel(kc.ECE(), **options)
    with pytest.raises(ValueError, match="number or name"):
        metric.of_label(3)
    with pytest.raises(NotImplementedError, match="of_label"):
        metric.interval()
