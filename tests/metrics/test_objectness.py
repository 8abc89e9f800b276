"""Metrics of labels that are pairs of class id and objectness."""

import keras
import numpy as np
import pytest
from cases import BACKEND, array, softmax
from streams import updated_compiled

import keras_calib as kc


def pairs(n=120, num_classes=4):
    rng = np.random.default_rng(0)
    ids = rng.integers(num_classes, size=n)
    share = rng.uniform(size=n)
    probs = softmax(2 * rng.normal(size=(n, num_classes))).astype("float32")
    return ids, share, probs, np.stack([ids, share], axis=-1)


@pytest.mark.parametrize("weighted", [False, True])
def test_deviation_from_objectness_follows_the_exact_function(weighted):
    ids, share, probs, y = pairs()
    weight = np.linspace(0, 2, len(y), dtype="float32") if weighted else None
    metric = kc.ObjectnessDeviation()
    metric.update_state(y, probs, weight)
    exact = kc.functional.objectness_deviation(
        ids, probs, objectness=share, sample_weight=weight
    )
    assert float(metric.result()) == pytest.approx(exact, abs=1e-6)
    parts = [kc.ObjectnessDeviation() for _ in range(2)]
    for i, part in enumerate(parts):
        index = slice(i, None, 2)
        w = None if weight is None else weight[index]
        part.update_state(y[index], probs[index], w)
    parts[0].merge_state(parts[1])
    assert float(parts[0].result()) == pytest.approx(exact, abs=1e-6)
    low, high = metric.interval()
    assert low < exact < high
    metric.reset_state()
    assert float(metric.result()) == 0.0


def test_deviation_from_objectness_in_other_forms():
    ids, share, probs, y = pairs()
    logits = np.log(probs)
    exact = kc.functional.objectness_deviation(ids, probs, objectness=share)
    metric = kc.ObjectnessDeviation(from_logits=True)
    metric.update_state(y, logits)
    assert float(metric.result()) == pytest.approx(exact, abs=1e-6)
    again = keras.metrics.deserialize(keras.metrics.serialize(metric))
    assert again.get_config() == metric.get_config()
    # Ignored pairs may have any objectness.
    y[:7] = 255, 99.0
    dense = kc.ObjectnessDeviation(ignore_class=255)
    dense.update_state(y.reshape(12, 10, 2), probs.reshape(12, 10, 4))
    rest = kc.functional.objectness_deviation(
        ids[7:], probs[7:], objectness=share[7:]
    )
    assert float(dense.result()) == pytest.approx(rest, abs=1e-6)
    with pytest.raises(ValueError, match="`objectness` must be True"):
        kc.ObjectnessDeviation(objectness=False)
    with pytest.raises(ValueError, match="must be pairs"):
        kc.ObjectnessDeviation().update_state(ids, probs)


@pytest.mark.skipif(BACKEND == "torch", reason="torch runs eagerly")
def test_deviation_from_objectness_in_compiled_code():
    ids, share, probs, y = pairs()
    probs[3] = np.nan
    kept = np.arange(len(y)) != 3
    exact = kc.functional.objectness_deviation(
        ids[kept], probs[kept], objectness=share[kept]
    )
    metric = kc.ObjectnessDeviation()
    for _ in updated_compiled(metric, y.astype("float32"), probs, jit=[False]):
        assert metric.num_invalid == 1
        with pytest.warns(RuntimeWarning, match="leaves out 1"):
            assert float(metric.result()) == pytest.approx(exact, abs=1e-6)


def test_metrics_of_pairs_read_the_ids():
    ids, _, probs, y = pairs()
    for cls in (kc.Accuracy, kc.ECE, kc.AURC):
        plain, paired = cls(), cls(objectness=True)
        plain.update_state(ids, probs)
        paired.update_state(y, probs)
        np.testing.assert_array_equal(array(paired.sums), array(plain.sums))
    assert float(kc.Accuracy().result()) == 0.0
