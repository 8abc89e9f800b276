"""One idea has one word in public signatures, the same everywhere."""

import inspect
import itertools
import re
from collections.abc import Iterator

import pytest
from public_names import PUBLIC
from repository_files import options_of

import keras_calib
from keras_calib.calibrators import Calibrator

# Word: what stands for the same idea, and is refused.
WORDS = {
    "labels": ("targets", "y", "y_true"),
    "outputs": ("y_pred", "probs_a", "probs_b"),
    "data": ("dataset", "inputs", "x"),
    "num_draws": ("num_samples", "num_replicates", "num_bootstrap"),
    "delta": ("alpha",),
    "min_count": ("min_size", "min_samples"),
    "max_cost": ("mean_cost",),
    "class_names": ("label_names",),
    "confidence_gap": ("gap", "gap_estimate", "overconfidence"),
    "edges": ("convention",),
    "verbose": ("progress", "silent"),
}
# Words, the callables that may have them, and why.
EXCEPTIONS = (
    (
        "x y y_true y_pred",
        r".*\.(call|compute_loss|compute_metrics|evaluate|evaluated_loss"
        r"|plain_loss|recorded_loss|remember|remember_batch"
        r"|split_labels|train_on_batch|update_state)",
        "Keras calls it by these names, or it is a hook of such a method",
    ),
    (
        "x inputs",
        r"FileModel\.(predict|predict_on_batch|answers)",
        "it stands in for a Keras model and has the names of its methods",
    ),
    (
        "inputs",
        r"LocalTemperatureScaling\.(call|read_inputs|temperature_map)",
        "a Keras layer's word for what it is called on: logits, or a pair",
    ),
    (
        "inputs",
        r"Predictions(\.of_batches)?",
        "the rows that the model was given, one of several things told of them",
    ),
    (
        "inputs",
        r"[A-Za-z]+Model",
        "arguments of `keras.Model` have its names",
    ),
    (
        "dataset",
        r"(cap_classes|context_examples|describe|label_by_largest|map_classes"
        r"|object_examples|pixel_mean|shuffled_epochs|training_pipeline"
        r"|valid_examples|validation_pipeline|with_index)",
        "it takes a `tf.data.Dataset` and nothing else that `fit` takes",
    ),
    (
        "dataset",
        "model_card",
        "the name of a data set, in the words of the Hub's metadata",
    ),
    (
        "num_samples",
        r"(CaPE|ConfidencePruning|CorrectnessRanking|Recording)Model|Choice",
        "the number of samples, not of draws",
    ),
    (
        "num_samples",
        r"[A-Za-z]*(Scaling|Calibration|Calibrator|Binning|Correction)"
        r"|VennAbers",
        "the number of samples of a fit, as that of a `Choice`",
    ),
    (
        "alpha",
        r"LabelRelaxation|LabelSmoothing|label_relaxation|label_smoothing"
        r"|smooth_labels|cutmix|mixup",
        "the paper's letter for its smoothing or mixing, no level of a test",
    ),
)
REFUSED = {x: word for word, others in WORDS.items() for x in others}


def signatures(thing, name: str) -> Iterator[tuple[str, list[str]]]:
    """Parameters of a public callable, and of the methods of its class."""
    try:
        yield name, names_of(thing)
    except (TypeError, ValueError):
        return
    for key, method in vars(thing).items() if inspect.isclass(thing) else ():
        method = getattr(method, "__func__", method)
        if inspect.isfunction(method) and not key.startswith("_"):
            yield f"{name}.{key}", names_of(method)


def names_of(thing) -> list[str]:
    """Parameters, and the options of typed dicts."""
    found = inspect.signature(thing).parameters
    options = [options_of(x.annotation) for x in found.values()]
    return [*found, *itertools.chain(*options)]


def public() -> Iterator[tuple[str, list[str]]]:
    """Those of the namespaces."""
    for name, thing in PUBLIC.items():
        if callable(thing):
            yield from signatures(thing, name)


def test_public_parameters_have_the_words_of_the_vocabulary():
    wrong, needed = [], set()
    for name, parameters in public():
        for word in REFUSED.keys() & set(parameters):
            excuses = [
                x
                for x in EXCEPTIONS
                if word in x[0].split() and re.fullmatch(x[1], name)
            ]
            needed.update(excuses)
            if not excuses:
                wrong.append(f"{name}: `{word}`, say `{REFUSED[word]}`")
    assert not wrong, "\n".join(wrong)
    assert needed == {*EXCEPTIONS}, "an exception that nothing needs"


def test_calibrators_call_a_ridge_a_penalty():
    for name in keras_calib.calibrators.__all__:
        thing = PUBLIC[name]
        if inspect.isclass(thing) and issubclass(thing, Calibrator):
            known = inspect.signature(thing).parameters
            assert not [x for x in known if x.endswith("strength")], name


@pytest.mark.parametrize(
    ("first", "default"), [("logits", True), ("outputs", False)]
)
def test_from_logits_is_by_default_what_the_arguments_name_says(first, default):
    for thing in PUBLIC.values():
        if not inspect.isfunction(thing) and not inspect.isclass(thing):
            continue
        for name, _ in signatures(thing, getattr(thing, "__name__", "")):
            method = thing
            for part in name.split(".")[1:]:
                method = getattr(thing, part)
            known = inspect.signature(method).parameters
            if first in known and "from_logits" in known:
                told = known["from_logits"].default
                assert told in (default, None, inspect.Parameter.empty), name
