"""The choice of a calibrator by cross-validation."""

import warnings

import keras
import numpy as np
import pytest
from cases import array, softmax

import keras_calib as kc


def drawn(true, seed=0):
    rng = np.random.default_rng(seed)
    return (true + rng.gumbel(size=true.shape)).argmax(-1)


def logits_of(n, num_classes=4, seed=0):
    rng = np.random.default_rng(seed)
    return (2.0 * rng.normal(size=(n, num_classes))).astype("float32")


# What the labels are drawn from, and what should be chosen.
PLANTED = {
    "none": lambda z: z,
    "temperature_scaling": lambda z: z / 3.0,
    "ensemble_temperature_scaling": lambda z: np.log(
        0.7 * softmax(z) + 0.3 / z.shape[-1]
    ),
    "structured_vector_scaling": lambda z: (
        np.log(softmax(z)) * [1.0, 0.3, 1.0, 0.3] + [1.0, -1.0, 0.0, 0.0]
    ),
    "structured_matrix_scaling": lambda z: z + 0.7 * np.roll(z, 1, axis=-1),
}


def test_the_planted_distortion_is_found():
    logits = logits_of(2000)
    for name, distort in PLANTED.items():
        labels = drawn(distort(logits.astype("float64")))
        choice = kc.choose_calibrator(labels, logits, num_folds=3)
        assert choice.name == name, choice
        scores = {x.name: x for x in choice.candidates}
        assert [*scores] == [*PLANTED]
        if name == "none":
            np.testing.assert_allclose(
                array(choice.calibrator(logits)), logits, rtol=1e-6
            )
            continue
        # It is fitted on all samples, and its interval is below 0.
        assert choice.calibrator.fitted
        assert scores[name].high < 0.0
        lines = str(choice).splitlines()
        assert [x.split()[0] for x in lines if x.endswith("chosen")] == [name]
        assert lines[-1] == choice.reason


def test_two_classes_have_candidates_of_their_own():
    logits = logits_of(300, 2)
    labels = drawn(np.stack([-logits[:, 0], 2.0 + 0 * logits[:, 0]], axis=-1))
    for z in (logits, logits[:, 1:] - logits[:, :1]):
        choice = kc.choose_calibrator(labels, z, num_folds=2)
        names = [x.name for x in choice.candidates]
        # Beta calibration is out, as it raises the NLL of few samples.
        assert names == [
            "none",
            "temperature_scaling",
            "affine_scaling",
            "structured_vector_scaling",
            "quadratic_scaling",
            "venn_abers",
        ]


def test_its_nll_and_interval_are_those_of_samples_left_out():
    logits = logits_of(60)
    labels = drawn(logits / 2)
    choice = kc.choose_calibrator(
        labels, logits, candidates=[kc.TemperatureScaling()], num_folds=60
    )
    losses = []
    for i in range(60):
        rest = np.arange(60) != i
        fitted = kc.TemperatureScaling()
        fitted.fit(labels[rest], logits[rest], num_folds=0)
        row = array(fitted(logits[i : i + 1]))
        losses.append(kc.nll(labels[i : i + 1], row, from_logits=True))
    none, score = choice.candidates
    np.testing.assert_allclose(
        none.nll, kc.nll(labels, logits, from_logits=True), rtol=1e-6
    )
    np.testing.assert_allclose(score.nll - none.nll, score.difference)
    low, high = score.low, score.high
    assert low < score.difference < high
    # A loss of one sample is what a fit without it gives.
    np.testing.assert_allclose(np.mean(losses), score.nll, rtol=1e-5)


def test_candidates_that_do_harm_or_do_not_fit_are_told():
    logits = logits_of(60)
    labels = drawn(logits.astype("float64"))
    candidates = {
        "T": kc.TemperatureScaling(),
        "bins": kc.HistogramBinning(num_bins=100),
        "isotonic": kc.IsotonicCalibration(),
    }
    with pytest.warns(RuntimeWarning) as caught:
        choice = kc.choose_calibrator(labels, logits, candidates=candidates)
    told = " ".join(str(warning.message) for warning in caught)
    assert "isotonic: on samples left out" in told
    assert "could not be tried. Received: bins" in told
    scores = {x.name: x for x in choice.candidates}
    assert "as many samples as parameters" in scores["bins"].note
    assert scores["isotonic"].difference > 0.0
    assert choice.name in ("none", "T")
    assert not candidates["T"].fitted


def test_weights_and_ignored_samples_count_as_they_should():
    logits = logits_of(300)
    labels = drawn(logits / 2)
    marked = np.where(np.arange(300) < 60, 255, labels)
    options = {"candidates": [kc.TemperatureScaling()]}
    whole = kc.choose_calibrator(labels[60:], logits[60:], **options)
    part = kc.choose_calibrator(marked, logits, ignore_class=255, **options)
    weighed = kc.choose_calibrator(
        labels, logits, np.arange(300) >= 60, **options
    )
    for other in (part, weighed):
        np.testing.assert_allclose(
            other.calibrator.temperature, whole.calibrator.temperature
        )
        np.testing.assert_allclose(
            other.candidates[0].nll, whole.candidates[0].nll
        )


def test_a_model_and_its_data_do_as_well():
    logits = logits_of(500)
    labels = drawn(logits / 3)
    model = keras.Sequential([keras.Input((4,)), keras.layers.Identity()])
    given = kc.Predictions.of_model(
        model, (logits, labels), from_logits=True, verbose=0
    )
    found = kc.choose_calibrator(given, num_folds=2)
    expected = kc.choose_calibrator(labels, logits, num_folds=2)
    assert found.name == expected.name == "temperature_scaling"
    assert abs(found.calibrator.temperature - 3.0) < 0.5


def test_bad_candidates_and_folds_are_refused():
    logits = logits_of(50)
    labels = drawn(logits)
    for how, error, rule in (
        ({"candidates": []}, ValueError, "must hold a calibrator"),
        (
            {"candidates": {"none": kc.TemperatureScaling()}},
            ValueError,
            "must hold a calibrator",
        ),
        ({"candidates": [3]}, TypeError, "must be a calibrator"),
        ({"candidates": "temperature"}, TypeError, "must be a list or dict"),
        ({"candidates": kc.VectorScaling}, TypeError, "must be a list or dict"),
        ({"seed": -1}, ValueError, "`seed` must be >= 0"),
        ({"candidates": [kc.TemperatureScaling()] * 2}, ValueError, "a dict"),
        (
            {"candidates": [kc.PriorCorrection([0.25] * 4, [0.25] * 4)]},
            TypeError,
            "then wrap the result",
        ),
        (
            {"candidates": [kc.LocalTemperatureScaling()]},
            TypeError,
            "must fit on logits alone",
        ),
        (
            {"candidates": {"M": kc.MatrixScaling(penalty=None)}},
            ValueError,
            "must hold one that these data can fit",
        ),
        ({"num_folds": 1}, ValueError, "`num_folds` must be >= 2"),
        ({"level": 1.0}, ValueError, "`level` must be < 1"),
    ):
        with pytest.raises(error, match=rule):
            kc.choose_calibrator(labels[:12], logits[:12], **how)
    with pytest.raises(ValueError, match="two classes or more"):
        kc.choose_calibrator(np.zeros(50, int), logits)


def test_pixels_of_an_image_share_a_fold():
    # Pixels of an image are alike: by pixel every calibrator seems to help.
    rng = np.random.default_rng(0)
    logits = np.repeat(2.0 * rng.normal(size=(12, 1, 5)), 200, axis=1)
    labels = np.repeat(drawn(logits[:, :1]), 200, axis=1)
    logits += 0.01 * rng.normal(size=logits.shape)
    by_image = [(labels[:7], logits[:7]), (labels[7:], logits[7:])]
    flat = labels.reshape(-1), logits.reshape(-1, 5)
    candidates = [kc.StructuredMatrixScaling(penalty=1e-3)]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", RuntimeWarning)
        units = np.repeat(np.arange(12), 200)
        by_unit = kc.Predictions(*flat, from_logits=True, units=units)
        by_image = kc.Predictions.of_batches(by_image, from_logits=True)
        for data in ((labels, logits), (by_image,), (by_unit,)):
            choice = kc.choose_calibrator(*data, candidates=candidates)
            assert choice.name == "none"
        choice = kc.choose_calibrator(*flat, candidates=candidates)
        assert choice.name == "structured_matrix_scaling"
        with pytest.raises(ValueError, match="as many images as folds"):
            kc.choose_calibrator(np.arange(200)[None] % 5, logits[:1])


def test_whole_weights_are_repeats_of_the_standard_error():
    logits = logits_of(400)
    labels = drawn(logits / 2)
    options = {"candidates": [kc.TemperatureScaling()], "num_folds": 2}
    scores = [
        kc.choose_calibrator(*data, **options).candidates[1]
        for data in (
            (labels, logits),
            (labels, logits, np.full(400, 9.0)),
            (labels, logits, np.full(400, 0.1)),
        )
    ]
    errors = [x.high - x.low for x in scores]
    assert abs(errors[0] / errors[1] - 3.0) < 0.05
    assert abs(errors[0] / errors[2] - 1.0) < 0.05
