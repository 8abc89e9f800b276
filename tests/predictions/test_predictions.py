"""`Predictions`: what a model said, told once and carried on."""

import gc
import pathlib
import re

import keras
import numpy as np
import pytest

import keras_calib as kc
from keras_calib.calibrators import TemperatureScaling
from keras_calib.predictions import Predictions
from keras_calib.predictions.options import DataOptions, PredictionFacts
from keras_calib.predictions.roles import FileOptions

LOGITS = np.random.default_rng(0).normal(size=(40, 3)).astype("float32") * 2
LABELS = np.random.default_rng(1).integers(0, 3, 40)
INPUTS = np.random.default_rng(2).normal(size=(40, 5)).astype("float32")


def model_of(activation=None, channels=3):
    keras.utils.set_random_seed(0)
    last = keras.layers.Dense(channels, activation=activation)
    return keras.Sequential([keras.Input((5,)), last])


class Asked(keras.Sequential):
    """A model that counts how often it is asked."""

    count = 0

    def predict_on_batch(self, x):
        self.count += 1
        return super().predict_on_batch(x)


def asked_model():
    keras.utils.set_random_seed(0)
    return Asked([keras.Input((5,)), keras.layers.Dense(3)])


def test_a_model_is_asked_once_and_answers_stay_on_disk():
    model = asked_model()
    p = Predictions.of_model(model, (INPUTS, LABELS), batch_size=16, verbose=0)
    assert model.count == 0
    assert isinstance(p.outputs, np.memmap)
    np.testing.assert_array_equal(p.outputs, model(INPUTS))
    np.testing.assert_array_equal(p.labels, LABELS)
    parts = [part.outputs for part in p.batches(7)]
    np.testing.assert_array_equal(np.concatenate(parts), p.outputs)
    assert p.probs.shape == p.logits.shape == (40, 3)
    assert model.count == 3


def test_names_of_classes_are_told_or_those_of_data_or_model():
    class Batches(list):
        """Data that may have names."""

    model, data = asked_model(), Batches([(INPUTS, LABELS)])

    def names(**told):
        return Predictions.of_model(model, data, **told).class_names

    assert names() is None
    model.class_names = ["a", "b", "c"]
    assert names() == ["a", "b", "c"]
    data.class_names = ["x", "y", "z"]
    assert names() == ["x", "y", "z"]
    assert names(class_names=["p", "q", "r"]) == ["p", "q", "r"]
    page = kc.report(model, data, verbose=0, num_bins=2)
    assert "class 0" not in page.html and ">x<" in page.html


def test_files_are_deleted_with_the_object():
    p = Predictions.of_model(model_of(), (INPUTS, LABELS), verbose=0)
    path = pathlib.Path(p.outputs.filename)
    part = p[:5]
    held = np.array(part.outputs)
    del p
    gc.collect()
    assert path.exists()
    np.testing.assert_array_equal(part.outputs, held)
    del part
    gc.collect()
    assert not path.exists()


def test_the_first_pass_gives_the_batches_of_the_model():
    p = Predictions.of_model(
        model_of(), (INPUTS, LABELS), batch_size=16, verbose=0
    )
    sizes = [(len(part), len(part.inputs)) for part in p]
    assert sizes == [(16, 16), (16, 16), (8, 8)]
    np.testing.assert_array_equal(p.inputs, INPUTS)


def test_a_pass_that_stops_leaves_nothing_behind():
    model = asked_model()
    p = Predictions.of_model(model, (INPUTS, LABELS), batch_size=16, verbose=0)
    batches = iter(p)
    next(batches)
    batches.close()
    assert "not asked" in repr(p)
    assert len(p) == 40
    assert model.count == 4


@pytest.mark.parametrize(
    ("activation", "from_logits"), [("softmax", False), (None, True)]
)
def test_a_last_layer_says_what_it_returns(activation, from_logits):
    p = Predictions.of_model(model_of(activation), (INPUTS, LABELS), verbose=0)
    assert p.from_logits is from_logits
    np.testing.assert_allclose(p.probs.sum(axis=-1), 1.0, rtol=1e-6)


def test_a_calibrator_or_an_operation_at_the_end_says_it_too():
    inputs = keras.Input((5,))
    probs = keras.ops.softmax(keras.layers.Dense(3)(inputs))
    scaling = TemperatureScaling(temperature=2.0)
    logits = scaling(keras.layers.Dense(3)(inputs))
    # What passes values on changes nothing.
    cast = keras.layers.Activation("linear")(probs)
    dropped = keras.layers.Dropout(0.5)(keras.layers.Identity()(probs))
    of_each = (probs, False), (logits, True), (cast, False), (dropped, False)
    for outputs, from_logits in of_each:
        model = keras.Model(inputs, outputs)
        p = Predictions.of_model(model, (INPUTS, LABELS), verbose=0)
        assert p.from_logits is from_logits


def test_a_softmax_is_asked_for_nothing_whatever_the_loss():
    steps = keras.Input((None, 5))
    dense = keras.layers.Dense(3, "softmax")
    tagger = keras.Model(steps, keras.layers.TimeDistributed(dense)(steps))
    p = Predictions.of_model(tagger, (INPUTS[None], LABELS[None]), verbose=0)
    assert not p.from_logits
    inputs = keras.Input((5,))
    logits = keras.layers.Dense(3)(inputs)
    named = {"logits": logits, "probabilities": keras.ops.softmax(logits)}
    both = keras.Model(inputs, named)
    once = keras.Model(inputs, named["probabilities"])
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    for model, names in (both, named), (once, [None]):
        model.compile(loss=loss)
        for name in names:
            p = Predictions.of_model(
                model, (INPUTS, LABELS), output=name, verbose=0
            )
            assert p.from_logits is (name == "logits")
    one = model_of("sigmoid", 1)
    one.compile(loss=keras.losses.BinaryCrossentropy(from_logits=True))
    p = Predictions.of_model(one, (INPUTS, LABELS % 2), verbose=0)
    assert not p.from_logits


def test_logits_of_probabilities_are_their_logs():
    probs = Predictions(LABELS, LOGITS, from_logits=True).probs
    again = Predictions(LABELS, probs)
    np.testing.assert_allclose(again.logits, np.log(probs), rtol=1e-5)
    one = Predictions(LABELS % 2, np.float32([0.25] * 40)).logits
    np.testing.assert_allclose(one, np.full((40, 1), np.log(1 / 3)), rtol=1e-6)
    several = Predictions(LABELS[:, None] % 2, [[0.25]] * 40, multi_label=True)
    np.testing.assert_allclose(several.logits, one, rtol=1e-6)
    # What weighs nothing may hold anything.
    outputs, weight = np.full((40, 2), 0.25), np.ones(40)
    outputs[0], weight[0] = 7.0, 0.0
    labels = np.stack([LABELS % 2] * 2, axis=-1)
    facts = {"multi_label": True, "sample_weight": weight}
    found = Predictions(labels, outputs, **facts).logits
    np.testing.assert_allclose(found[1:, :1], one[1:], rtol=1e-6)


def test_masked_rows_weigh_nothing():
    inputs = keras.Input((4,), dtype="int32")
    emb = keras.layers.Embedding(6, 3, mask_zero=True)(inputs)
    model = keras.Model(inputs, keras.layers.Dense(3)(emb))
    ids = np.array([[1, 2, 0, 0], [3, 4, 5, 0]])
    p = Predictions.of_model(model, (ids, np.ones_like(ids)), verbose=0)
    np.testing.assert_array_equal(p.sample_weight, ids > 0)
    assert p.correct.shape == (2, 4)
    assert p.outcomes().unit.tolist() == [0, 0, 1, 1, 1]


# Keras tells whoever builds the model.
@pytest.mark.filterwarnings("ignore:Layer .* was passed an input with a mask")
def test_a_mask_that_a_layer_loses_is_told():
    inputs = keras.Input((4,), dtype="int32")
    x = keras.layers.Embedding(6, 3, mask_zero=True)(inputs)
    model = keras.Model(inputs, keras.layers.Conv1D(3, 1)(x))
    ids = np.array([[1, 2, 0, 0], [3, 4, 5, 0]])
    data = ids, np.ones_like(ids)
    with pytest.warns(RuntimeWarning, match="loses the mask, so that padding"):
        assert Predictions.of_model(model, data, verbose=0).correct.size == 8
    # Whoever leaves padding out is told nothing.
    weighted = Predictions.of_model(model, (*data, ids > 0), verbose=0)
    assert weighted.sample_weight.sum() == 5
    p = Predictions.of_model(model, data, ignore_class=0, verbose=0)
    assert p.outputs.shape == (2, 4, 3)


def test_sequences_of_several_lengths_end_in_rows_without_weight():
    inputs = keras.Input((None, 2))
    model = keras.Model(inputs, keras.layers.Dense(3)(inputs))
    data = [(np.ones((2, n, 2)), np.ones((2, n), int)) for n in (3, 5, 4)]
    p = Predictions.of_model(model, data, verbose=0)
    assert p.outputs.shape == (6, 5, 3)
    assert p.sample_weight.sum() == 24
    weighted = [(x, y, np.ones(2)) for x, y in data]
    p = Predictions.of_model(model, weighted, verbose=0)
    assert p.sample_weight.sum() == 24


def test_groups_and_units_come_from_batches_or_beside_them():
    site = np.where(INPUTS[:, 0] > 0, "a", "b")
    of_batch = {"site": lambda x: np.where(x[:, 0] > 0, "a", "b")}
    units = np.arange(40) // 4
    p = Predictions.of_model(
        model_of(),
        (INPUTS, LABELS),
        groups=of_batch,
        units=units,
        ids=lambda x: [f"row {value:.6f}" for value in x[:, 1]],
        batch_size=16,
        verbose=0,
    )
    assert p.ids.tolist() == [f"row {value:.6f}" for value in INPUTS[:, 1]]
    np.testing.assert_array_equal(p.groups["site"], site)
    np.testing.assert_array_equal(p.units, units)
    first, second = p.split(0.5, seed=3)
    assert not {*first.units} & {*second.units}
    assert len(first) == len(second) == 20
    first, second = p.split(0.5, by="site")
    assert {*first.groups["site"]} | {*second.groups["site"]} == {"a", "b"}
    assert not {*first.groups["site"]} & {*second.groups["site"]}
    # Functions come first, and the others in their order.
    groups = dict.fromkeys("qwertyuiop", units) | of_batch
    p = Predictions.of_model(
        model_of(), (INPUTS, LABELS), groups=groups, verbose=0
    )
    assert [*p.groups] == ["site", *"qwertyuiop"]
    short = Predictions.of_model(
        model_of(), (INPUTS, LABELS), units=units[:20], verbose=0
    )
    with pytest.raises(ValueError, match="`units` must have a value for each"):
        len(short)
    batches = iter([(INPUTS, LABELS)])
    p = Predictions.of_model(model_of(), batches, ids=units, verbose=0)
    with pytest.raises(ValueError, match="`ids` must belong to rows in a fix"):
        len(p)


def test_rows_are_told_apart_by_slices_places_and_masks():
    p = Predictions(LABELS, LOGITS, from_logits=True, ids=range(40))
    for rows in (slice(3, 9), [5, 2, 2], LABELS == 1):
        part = p[rows]
        np.testing.assert_array_equal(part.outputs, LOGITS[rows])
        np.testing.assert_array_equal(part.ids, np.arange(40)[rows])
        assert part.from_logits
    for wrong in ("labels", [True, False], LOGITS > 0):
        with pytest.raises(TypeError, match="must be indexed by a slice"):
            p[wrong]


@pytest.mark.parametrize("on_disk", [False, True])
def test_a_mask_of_class_ids_takes_tokens_as_rows(on_disk):
    """They belong to the units of their texts, and are read as one by one."""
    logits, labels = LOGITS.reshape(8, 5, 3), LABELS.reshape(8, 5)
    facts = {"units": np.arange(8) // 2, "ids": list("abcdefgh")}
    facts["groups"] = {"text": np.arange(8) % 2, "token": labels % 2}
    weight = np.arange(1.0, 9.0)
    p = Predictions(
        labels, logits, from_logits=True, sample_weight=weight, **facts
    )
    if on_disk:
        batch = [(labels, logits, weight)]
        p = Predictions.of_batches(batch, from_logits=True, **facts)
    mask = labels > 0
    taken = p[p.labels > 0]
    text = np.nonzero(mask)[0]
    assert isinstance(taken.outputs, np.memmap) is on_disk
    np.testing.assert_array_equal(taken.outputs, logits[mask])
    np.testing.assert_array_equal(taken.labels, labels[mask])
    np.testing.assert_array_equal(taken.units, text // 2)
    np.testing.assert_array_equal(taken.ids, np.array(facts["ids"])[text])
    np.testing.assert_array_equal(taken.sample_weight, weight[text])
    np.testing.assert_array_equal(taken.groups["text"], text % 2)
    np.testing.assert_array_equal(taken.groups["token"], labels[mask] % 2)
    every = p[np.ones((8, 5), bool)]
    assert kc.nll(every) == pytest.approx(kc.nll(p), rel=1e-12)
    alone = Predictions(labels, logits, from_logits=True)[mask]
    np.testing.assert_array_equal(alone.units, text)
    assert len(p[labels[:, 0] > 0]) == np.count_nonzero(labels[:, 0])


def test_a_log_has_two_columns():
    p = Predictions(correct=[True, False, True], confidence=[0.9, 0.4, 0.6])
    assert p.kind == "records"
    np.testing.assert_array_equal(p.correct, [1, 0, 1])
    np.testing.assert_array_equal(p.confidence, [0.9, 0.4, 0.6])
    with pytest.raises(ValueError, match="`probs` must be of all classes"):
        _ = p.probs


def test_names_of_classes_are_their_places():
    names = ["cat", "dog"]
    p = Predictions(["dog", "cat"], [[0.3, 0.7]] * 2, class_names=names)
    np.testing.assert_array_equal(p.labels, [1, 0])
    assert p.class_names == names


@pytest.mark.parametrize(
    ("arguments", "error", "told"),
    [
        ({"labels": [1]}, TypeError, "must have `labels` and `outputs`"),
        (
            {"labels": [1], "outputs": [[1.0, 0.0]] * 2},
            ValueError,
            "labels=1, outputs=2",
        ),
        (
            {"labels": [], "outputs": np.zeros((0, 2))},
            ValueError,
            "must not be empty",
        ),
        ({"correct": [2], "confidence": [0.5]}, ValueError, "wrong=[2.0]"),
        ({"correct": [1], "confidence": [np.nan]}, ValueError, "wrong=[nan]"),
        (
            {"labels": ["x"], "outputs": [[0.5, 0.5]], "class_names": ["y"]},
            ValueError,
            "unknown=['x']",
        ),
        (
            {"labels": [1], "outputs": [[0, 1]], "group": [1]},
            TypeError,
            "`group` must be an argument",
        ),
        (
            {
                "labels": [[1]],
                "outputs": [[0.5]],
                "votes": True,
                "multi_label": True,
            },
            ValueError,
            "`votes` must be False",
        ),
    ],
)
def test_what_contradicts_itself_is_refused(arguments, error, told):
    with pytest.raises(error, match=re.escape(told)):
        Predictions(**arguments)


def test_help_tells_every_option():
    options = {
        Predictions: PredictionFacts,
        Predictions.of_batches: PredictionFacts,
        Predictions.of_model: DataOptions,
        Predictions.read: FileOptions,
    }
    for taker, told in options.items():
        args = taker.__doc__.partition("Args:\n")[2].partition("\n\n")[0]
        for name in told.__annotations__:
            assert args.count(f"\n    {name}: ") == 1, (taker, name)


@pytest.mark.parametrize(
    ("call", "name"),
    [
        (lambda p: kc.TemperatureScaling().fit(p), "outputs"),
        (
            lambda p: kc.TemperatureScaling().fit(
                p.labels, p.outputs, from_logits=False
            ),
            "logits",
        ),
        (lambda p: kc.evaluate(p, verbose=0), "outputs"),
        (lambda p: p.logits, "outputs"),
        (kc.ece, "outputs"),
    ],
)
def test_errors_name_what_the_caller_passed(call, name):
    with pytest.raises(ValueError, match=f"`{name}` must be probabilities"):
        call(Predictions(LABELS, LOGITS))


@pytest.mark.parametrize("fraction", [0.0, 1.0, 1e-9])
def test_both_parts_have_units(fraction):
    with pytest.raises(ValueError, match="`fraction` must"):
        Predictions(LABELS, LOGITS, from_logits=True).split(fraction)


def test_other_outputs_are_made_part_by_part():
    p = Predictions.of_model(model_of(), (INPUTS, LABELS), verbose=0)
    doubled = p.with_outputs(
        lambda part: part.outputs * 2, {"from_logits": True}
    )
    assert isinstance(doubled.outputs, np.memmap)
    np.testing.assert_array_equal(doubled.outputs, p.outputs * 2)
    held = doubled.collect()
    assert not isinstance(held.outputs, np.memmap)
    np.testing.assert_array_equal(held.outputs, doubled.outputs)
