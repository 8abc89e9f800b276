"""Compact logits answer as the logits that they stand for."""

import copy

import numpy as np
import pytest

import keras_calib as kc
from keras_calib.calibrators.compact_logits import CompactLogits
from keras_calib.calibrators.fitting_data import FittingData
from keras_calib.calibrators.temperature import optimal_temperature


@pytest.fixture(scope="module")
def tokens():
    rng = np.random.default_rng(0)
    logits = 2.5 * rng.standard_normal((600, 2000))
    logits[:, :20] += np.linspace(12.0, 2.0, 20)
    draws = logits / 1.4 + rng.gumbel(size=logits.shape)
    return draws.argmax(axis=-1), logits.astype("float32")


@pytest.fixture(scope="module")
def compact(tokens):
    labels, logits = tokens
    first = CompactLogits().update(labels[:250], logits[:250])
    return first.merge(CompactLogits().update(labels[250:], logits[250:]))


def test_temperature_is_that_of_all_logits(tokens, compact):
    labels, logits = tokens
    exact = optimal_temperature(FittingData(labels, logits.astype("float64")))
    found = kc.TemperatureScaling().fit(compact).temperature
    assert found == pytest.approx(exact, rel=1e-5)


def hard_rows(kind, rng, shape=(200, 4000)):
    z = rng.standard_normal(shape)
    if kind == "one class above the others":
        z[:, 7] += 12.0
    elif kind == "many classes above the others":
        z -= 20.0
        z[:, :50] += 20.0
    elif kind == "three groups":
        z -= 24.0
        z[:, :400] += 12.0
        z[:, :40] += 12.0
    elif kind == "heavy tails":
        z = 2.0 * rng.standard_t(3, size=shape)
    elif kind == "nearly uniform":
        z *= 0.05
    elif kind == "classes ruled out":
        z[:, 20:] = -np.inf
    return z.astype("float32")


@pytest.mark.parametrize(
    "kind",
    [
        "one class above the others",
        "many classes above the others",
        "three groups",
        "heavy tails",
        "nearly uniform",
        "classes ruled out",
    ],
)
def test_hard_rows_are_as_exact_as_others(kind):
    rng = np.random.default_rng(1)
    logits = hard_rows(kind, rng)
    draws = logits / 1.4 + rng.gumbel(size=logits.shape)
    labels = draws.argmax(axis=-1)
    compact = CompactLogits().update(labels, logits)
    z = np.maximum(logits.astype("float64"), -1e4)
    for temperature in (0.5, 0.8, 1.5, 2.7, 4.0):
        exact = float(kc.nll(labels, z / temperature, from_logits=True))
        assert compact.nll(temperature) == pytest.approx(exact, abs=5e-6)
    if kind != "nearly uniform":
        exact = optimal_temperature(FittingData(labels, z))
        assert compact.optimal_temperature() == pytest.approx(exact, rel=1e-5)


@pytest.mark.parametrize("temperature", [0.5, 1.0, 1.7, 4.0])
def test_errors_are_those_of_all_logits(tokens, compact, temperature):
    labels, logits = tokens
    z = logits.astype("float64") / temperature
    options = {"from_logits": True}
    assert compact.nll(temperature) == pytest.approx(
        float(kc.nll(labels, z, **options)), rel=1e-5
    )
    assert compact.ece(temperature) == pytest.approx(
        float(kc.ece(labels, z, **options)), abs=1e-5
    )


def test_a_file_keeps_all_and_ignored_tokens_are_left_out(
    tokens, compact, tmp_path
):
    labels, logits = tokens
    compact.save(tmp_path / "tokens.npz")
    read = CompactLogits.load(tmp_path / "tokens.npz")
    assert read.optimal_temperature() == compact.optimal_temperature()
    hidden = np.where(np.arange(600) < 100, -1, labels)
    some = CompactLogits().update(hidden, logits, ignore_class=-1)
    rest = CompactLogits().update(labels[100:], logits[100:])
    assert len(some) == 500
    assert some.nll() == pytest.approx(rest.nll(), rel=1e-12)


def test_a_file_of_no_tokens_is_refused(compact, tmp_path):
    path = tmp_path / "tokens.npz"
    compact.save(path)
    with np.load(path) as file:
        saved = dict(file)
    wrong = np.where(np.arange(len(compact)) == 7, 1.0, 0.0).astype("float32")
    for name, change in (
        ("top", -20.0),
        ("top", -wrong[:, None]),
        ("label", 1.0),
        ("label", -1.0),
        ("rest", 50.0),
        ("rest", wrong[:, None]),
        ("rest", np.float32(-2e3)),
    ):
        forged = (saved[name] + np.float32(change)).astype("float32")
        np.savez(path, **{**saved, name: forged})
        with pytest.raises(ValueError, match="that `save` wrote"):
            CompactLogits.load(path)


@pytest.mark.parametrize("copied", [copy.copy, copy.deepcopy])
def test_a_copy_goes_on_by_itself(tokens, compact, copied):
    nll, count = compact.nll(), len(compact)
    for change in (
        lambda x: x.update(*(part[:50] for part in tokens)),
        lambda x: x.merge(compact),
    ):
        made = copied(compact)
        assert made.nll() == nll
        change(made)
        assert (len(compact), compact.nll()) == (count, nll)
        assert len(made) > count


def test_wrong_use_is_refused(tokens, compact):
    labels, logits = tokens
    with pytest.raises(ValueError, match="must hold a token"):
        CompactLogits().nll()
    with pytest.raises(ValueError, match="more than 32 classes"):
        CompactLogits().update(labels % 10, logits[:, :10])
    with pytest.raises(ValueError, match="class of a label"):
        hidden = np.where(np.arange(2000) == labels[0], -np.inf, logits)
        CompactLogits().update(labels, hidden)
    with pytest.raises(ValueError, match="NaN or infinity"):
        CompactLogits().update(labels[:2], np.full((2, 2000), np.nan))
    with pytest.raises(ValueError, match="as many classes"):
        CompactLogits().update(labels % 50, logits[:, :50]).merge(compact)
    with pytest.raises(ValueError, match="between 0.5 and 4"):
        far = CompactLogits().update(labels, 10.0 * logits)
        kc.TemperatureScaling().fit(far)
    with pytest.raises(ValueError, match="temperature"):
        compact.nll(5.0)
    with pytest.raises(ValueError, match="given alone"):
        kc.TemperatureScaling().fit(compact, ignore_class=-1)
    with pytest.raises(TypeError, match="must be given"):
        kc.VectorScaling().fit(compact)
