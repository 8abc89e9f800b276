"""Wrong keywords are answered with what was called and what was meant."""

import inspect
import pickle

import keras
import numpy as np
import pytest
from public_names import PUBLIC

import keras_calib as kc

IDS, PROBS = np.array([0, 1]), np.array([[0.8, 0.2], [0.6, 0.4]])


def shown():
    return kc.ReliabilityDisplay(kc.Predictions(IDS, PROBS))


# They pass on what they do not take, and who gets it answers.
PASS_ON = {
    "MultiLabel",
    "PerSampleLoss",
    "compare",
    "get",
    "per_image",
}
METHODS = ("fit", "fit_on", "plot")
MISSPELT = {
    "n_bins": (lambda **x: kc.ECE(**x), "ECE", "num_bins"),
    "bins": (lambda **x: kc.functional.mce(IDS, PROBS, **x), "mce", "num_bins"),
    "y_prob": (lambda **x: kc.ece(IDS, **x), "ece", "outputs"),
    "ignore_index": (lambda **x: kc.AUGRC(**x), "AUGRC", "ignore_class"),
    "from_logit": (lambda **x: kc.MbLS(**x), "MbLS", "from_logits"),
    "adaptive": (
        lambda **x: kc.ece(IDS, PROBS, **x),
        "ece",
        "use `AECE`, whose bins have equal mass",
    ),
    "norm": (lambda **x: kc.AECE(**x), "AECE", "use `ECE`, which has it"),
    "num_classes": (
        lambda **x: kc.NLL(**x),
        "NLL",
        "leave it out, because the outputs tell it",
    ),
    "class_weight": (
        lambda **x: kc.TemperatureScaling().fit(IDS, PROBS, **x),
        "TemperatureScaling.fit",
        "sample_weight",
    ),
    "dataset": (
        lambda **x: kc.CalibrationLogger(**x),
        "CalibrationLogger",
        "data",
    ),
    "titel": (
        lambda **x: shown().plot(**x),
        "ReliabilityDisplay.plot",
        "title",
    ),
    "zom": (
        lambda **x: kc.ReliabilityDisplay(kc.Predictions(IDS, PROBS), **x),
        "ReliabilityDisplay",
        "zoom",
    ),
}


def test_a_misspelt_keyword_is_answered_with_the_one_that_was_meant():
    for name, (call, called, meant) in MISSPELT.items():
        if " " not in meant:
            meant = f"did you mean `{meant}`?"
        with pytest.raises(TypeError) as told:
            call(**{name: 1})
        rule = f"`{name}` must be an argument of `{called}`: {meant}"
        assert str(told.value).startswith(rule), told.value
        assert f"Received: arguments=['{name}']" in str(told.value)


def called_publicly():
    """Public functions, constructors and methods by name."""
    for name, thing in PUBLIC.items():
        if inspect.isfunction(thing):
            yield name, thing
        if not inspect.isclass(thing) or issubclass(
            thing, tuple | dict | Exception
        ):
            continue
        yield name, thing
        for method in dir(thing):
            found = getattr(thing, method)
            if method[0] == "_" or method == "from_config":
                continue
            ours = getattr(found, "__module__", "").startswith("keras_calib")
            told = inspect.ismethod(found) or method in METHODS
            if ours and told:
                new = thing.__new__(thing)
                yield f"{name}.{method}", getattr(new, method)


def test_every_public_callable_names_itself_and_the_wrong_keyword():
    callables = dict(called_publicly())
    assert len(callables) > 250
    for name, function in callables.items():
        if name not in PASS_ON and not name.endswith(".plot"):
            rule = f"`nonsense_word` must be an argument of `{name}`: "
            with pytest.raises(TypeError) as told:
                function(nonsense_word=1)
            assert str(told.value).startswith(rule), (name, told.value)


def test_what_is_passed_on_is_answered_by_who_gets_it():
    with pytest.raises(TypeError, match="argument of `ece`: .* `num_bins`"):
        p = kc.Predictions(IDS, PROBS)
        kc.compare(p, p, kc.ece, n_bins=3)


@pytest.mark.parametrize(
    ("call", "rule"),
    [
        (
            lambda: kc.ece(IDS, PROBS, labels=IDS),
            "labels: ece(labels, outputs)",
        ),
        (lambda: kc.ECE(9, num_bins=3), "num_bins: ECE(num_bins)"),
        (
            lambda: kc.VectorScaling().fit(IDS, logits=PROBS, labels=IDS),
            "labels: VectorScaling.fit(labels, logits, sample_weight)",
        ),
        (
            lambda: kc.Predictions.read("a.csv", path="b.csv"),
            "path: Predictions.read(path)",
        ),
    ],
)
def test_an_argument_given_twice_is_named_without_its_values(call, rule):
    name, called = rule.split(": ")
    with pytest.raises(TypeError) as told:
        call()
    assert str(told.value) == (
        f"`{name}` must be given once: `{called}` takes these in this order. "
        f"Received: arguments=['{name}']"
    )


def test_keywords_of_keras_and_of_other_bases_are_taken():
    layer = kc.TemperatureScaling(name="t", dtype="float32", trainable=False)
    assert (layer.name, layer.trainable) == ("t", False)
    assert kc.ECE(dtype="float64", name="e").name == "e"

    class Both(kc.SharpnessAwareModel, kc.CorrectnessRankingModel):
        pass

    inputs = keras.Input((3,))
    outputs = keras.layers.Dense(2)(inputs)
    model = Both(inputs, outputs, rho=0.1, num_samples=9, name="b")
    assert (model.name, model.rho) == ("b", 0.1)
    with pytest.raises(TypeError, match="argument of `Both`: .* `num_samples`"):
        Both(inputs, outputs, num_sample=9)


def test_a_class_of_a_user_is_named_as_it_is_called():
    class Mine(kc.ECE):
        def __init__(self, mine=1, **kwargs):
            super().__init__(**kwargs)

    assert Mine(mine=2, num_bins=3).num_bins == 3
    with pytest.raises(TypeError, match="argument of `Mine`: .* `num_bins`"):
        Mine(n_bins=3)


def test_signatures_and_pickles_are_those_of_the_functions():
    for name, thing in called_publicly():
        assert inspect.signature(thing) is not None
        if inspect.isfunction(thing):
            assert pickle.loads(pickle.dumps(thing)) is thing, name
    assert "num_bins" in inspect.signature(kc.ECE).parameters
    assert kc.ECE.__init__.__name__ == "__init__"


def test_other_mistakes_keep_the_message_of_python():
    with pytest.raises(TypeError, match="positional arguments? but"):
        kc.ece(IDS, PROBS, 15)
    with pytest.raises(TypeError, match="`outputs` must be given beside"):
        kc.ece(IDS)
