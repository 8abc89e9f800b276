"""Deep ensembles: the log of a weighted mean."""

import functools

import keras
import numpy as np
import pytest
from keras import layers
from small_networks import X, Y, each, log_softmax, network, predicted

import keras_calib as kc

portable = pytest.mark.portable


def members(count=3, **options):
    return [network(seed=i, **options) for i in range(count)]


@portable
def test_the_output_is_the_log_of_the_weighted_mean():
    models = [*members(2), network(activation="softmax", seed=2)]
    probs = [np.exp(log_softmax(predicted(model))) for model in models[:2]]
    probs = np.stack([*probs, predicted(models[2]).astype("float64")])
    told = [True, True, False]
    for weights in (None, [1, 2, 5], [0.5, 0.0, 0.5]):
        made = kc.DeepEnsemble(models, weights=weights, from_logits=told)
        shares = np.array(weights or [1, 1, 1]) / sum(weights or [1, 1, 1])
        wanted = np.log(np.tensordot(shares, probs, axes=1))
        np.testing.assert_allclose(predicted(made), wanted, atol=1e-5)
        np.testing.assert_allclose(each(made), probs, atol=1e-6)
    np.testing.assert_allclose(made.predict_each(X), probs, atol=1e-6)


def test_what_members_return_is_read_from_each():
    models = [network(), network(activation="softmax")]
    models[0].compile(loss=kc.FocalLoss(from_logits=True))
    models[1].compile(loss=kc.FocalLoss())
    np.testing.assert_allclose(
        predicted(kc.DeepEnsemble(models)),
        log_softmax(predicted(models[0])),
        atol=1e-6,
    )


def test_an_ensemble_of_equals_is_the_member():
    made = kc.DeepEnsemble([network() for _ in range(3)], from_logits=True)
    wanted = log_softmax(predicted(network()))
    np.testing.assert_allclose(predicted(made), wanted, atol=1e-6)


def test_the_ensemble_has_at_most_the_mean_loss_of_its_members():
    models = members()
    made = kc.DeepEnsemble(models, from_logits=True)
    nll = kc.nll(Y, predicted(made), from_logits=True)
    alone = [kc.nll(Y, predicted(m), from_logits=True) for m in models]
    assert nll < np.mean(alone) - 1e-3
    passes = kc.MonteCarloDropout(models[0], 5, from_logits=True)
    alone = [kc.nll(Y, p) for p in each(passes)]
    assert kc.nll(Y, predicted(passes), from_logits=True) < np.mean(alone)


@portable
def test_classes_that_are_masked_stay_impossible():
    masked_out = [
        keras.Sequential(
            [
                keras.Input((3,)),
                layers.Rescaling(1.0, offset=np.array([0, 1, -np.inf])),
            ]
        )
        for _ in range(2)
    ]
    made = kc.DeepEnsemble(masked_out, weights=[1, 0], from_logits=True)
    given = np.exp(predicted(made, np.zeros((1, 3))))
    np.testing.assert_allclose(given, [[0.2689414, 0.7310586, 0]], atol=1e-6)


def test_members_may_be_of_dense_outputs_and_of_one_channel():
    image = keras.Input((None, None, 3))
    one = keras.Model(image, layers.Conv2D(1, 3, padding="same")(image))
    image = keras.Input((None, None, 3))
    two = keras.Model(image, layers.Conv2D(2, 3, padding="same")(image))
    made = kc.DeepEnsemble([one, two], from_logits=True)
    x = np.random.default_rng(0).normal(size=(2, 5, 4, 3)).astype("float32")
    z = predicted(one, x).astype("float64")
    p = np.exp(log_softmax(np.concatenate([0 * z, z], axis=-1)))
    p = (p + np.exp(log_softmax(predicted(two, x)))) / 2
    np.testing.assert_allclose(predicted(made, x), np.log(p), atol=1e-5)


@functools.cache
def known():
    """Members that nothing changes."""
    return members()


UNFIT = [
    (list, {}, ValueError, "`models` must not be empty"),
    (lambda: known()[0], {}, TypeError, "`models` must be a list.*Sequential"),
    (lambda: [*known(), 3], {}, TypeError, r"`models\[3\]` must be a Ker"),
    (
        lambda: [known()[0], network(inputs=5)],
        {},
        ValueError,
        r"same inputs.*models\[0\].*6.*models\[1\].*5",
    ),
    (
        lambda: [known()[0], network(4)],
        {},
        ValueError,
        r"classes.*models\[0\]=\(None, 3\), models\[1\]=\(None, 4\)",
    ),
    (
        lambda: known()[:1] * 2,
        {},
        ValueError,
        r"must not share weights.*'models\[0\]'.*'models\[1\]'",
    ),
    (known, {"weights": [1, 2]}, ValueError, "one number for each"),
    (known, {"weights": [1, -1, 1]}, ValueError, "`weights` must be >="),
    (known, {"weights": [0, 0, 0]}, ValueError, "must not all be 0"),
    (known, {"weights": [1, "a", 1]}, TypeError, "must be a number"),
    (known, {"from_logits": [True]}, ValueError, "one value for each"),
]


def test_an_ensemble_of_what_does_not_fit_is_refused():
    for models, options, error, message in UNFIT:
        with pytest.raises(error, match=message):
            kc.DeepEnsemble(models(), **{"from_logits": True, **options})


def test_a_calibrated_pool_beats_a_pool_of_calibrated_members():
    """Averages of calibrated members are underconfident."""
    rng = np.random.default_rng(0)
    truth = rng.normal(size=(4000, 5)) * 2
    labels = (truth + rng.gumbel(size=truth.shape)).argmax(axis=-1)
    each = truth + rng.normal(size=(4, *truth.shape)) * 1.5
    fit, test = slice(0, 2000), slice(2000, None)

    def calibrated(logits):
        layer = kc.TemperatureScaling().fit(labels[fit], logits[fit])
        return logits / float(layer.temperature)

    def pooled(members):
        probs = [np.exp(log_softmax(z)) for z in members]
        return np.log(np.mean(probs, axis=0))

    first, last = (
        calibrated(pooled(each)),
        pooled([calibrated(z) for z in each]),
    )
    values = [
        (metric(labels[test], z[test], from_logits=True))
        for metric in (kc.nll, kc.ece)
        for z in (first, last)
    ]
    assert values[0] < values[1] - 0.01
    assert values[2] < 0.5 * values[3]


def test_a_student_takes_the_temperature_of_its_teachers_shares():
    teacher = np.random.default_rng(0).normal(size=(500, 4)) * 2
    shares = np.exp(log_softmax(teacher))
    layer = kc.TemperatureScaling().fit(shares, 2.5 * teacher)
    np.testing.assert_allclose(float(layer.temperature), 2.5, rtol=1e-4)
