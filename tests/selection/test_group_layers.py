"""Selective classifiers with thresholds by group: fits, answers, files."""

from dataclasses import replace

import keras
import numpy as np
import pytest
from cases import BACKEND, array
from refusals import compiled as jitted
from selection_data import noisy, tells_of_compiled, temperature

import keras_calib as kc
from keras_calib.backend.keras_internals import set_keras_mask

IDS = np.array([-5, 2, 40, 2**31 - 2])
NAMES = np.array(["b", "c", "d", "é"])


def data(kind="ids", n=1000):
    """Class ids, logits, and the group of each row."""
    labels, logits = noisy(n=n)
    place = np.random.default_rng(1).integers(4, size=n)
    return labels, logits, (NAMES if kind == "names" else IDS)[place]


def accepted(selector, logits, groups):
    return array(selector(logits, groups=groups)["accept"])


def model_of(selector, logits):
    inputs = keras.Input(logits.shape[1:])
    group = keras.Input((), dtype="int32")
    return keras.Model([inputs, group], selector(inputs, groups=group))


@pytest.mark.portable
@pytest.mark.parametrize("kind", ["ids", "names"])
def test_every_group_is_accepted_by_its_own_threshold(kind):
    labels, logits, groups = data(kind)
    selector = kc.SelectiveClassifier(calibrator=temperature())
    selector.fit(labels, logits, risk=0.02, groups=groups)
    accept = accepted(selector, logits, groups)
    wrong = logits.argmax(-1) != labels
    for place, name in enumerate(selector.groups):
        of = groups == name
        alone = kc.SelectiveClassifier(calibrator=temperature())
        alone.fit(labels[of], logits[of], risk=0.02)
        assert selector.threshold[place] == np.float32(alone.threshold)
        assert accept[of].mean() == selector.chosen.group_coverage[place]
        table, expected = (
            selector.chosen.table(group=name),
            alone.chosen.table(),
        )
        for key, other in vars(expected).items():
            np.testing.assert_array_equal(getattr(table, key), other)
    assert selector.chosen.coverage == accept.mean()
    assert abs(selector.chosen.risk - wrong[accept].mean()) < 1e-12
    assert len(set(selector.threshold)) == 4


@pytest.mark.parametrize("way", ["weight", "ignored", "mask", "scores"])
@pytest.mark.parametrize("one_threshold", [False, True])
def test_a_group_whose_rows_do_not_count_is_no_group(one_threshold, way):
    labels, logits, groups = data()
    options = {"risk": 0.2, "delta": 0.1, "one_threshold": one_threshold}
    kept = groups != IDS[1]
    kept[::5] = False
    outputs, rest = keras.ops.convert_to_tensor(logits), {}
    given, weight = labels, None
    if way == "ignored":
        given, rest = np.where(kept, labels, 9)[:, None], {"ignore_class": 9}
    elif way == "mask":
        set_keras_mask(outputs, keras.ops.convert_to_tensor(kept))
    else:
        weight = kept * 1.0
    alone, found = kc.SelectiveClassifier(), kc.SelectiveClassifier()
    alone.fit(labels[kept], logits[kept], groups=groups[kept], **options)
    if way == "scores":
        records = found.score_of(logits), logits.argmax(-1) == labels
        fit = found.fit_scores
    else:
        records, fit = (given, outputs), found.fit
    fit(*records, groups=groups, sample_weight=weight, **rest, **options)
    assert found.chosen == alone.chosen
    assert found.groups == alone.groups
    assert len(found.chosen.group) == 3


@pytest.mark.parametrize("one_threshold", [False, True])
def test_groups_without_a_row_that_counts_are_told_so(one_threshold):
    labels, logits, groups = data()
    options = {"risk": 0.2, "delta": 0.1, "one_threshold": one_threshold}
    with pytest.raises(ValueError, match="must not be 0 everywhere"):
        kc.SelectiveClassifier().fit(
            labels,
            logits,
            groups=groups,
            sample_weight=np.zeros(len(labels)),
            **options,
        )


def test_the_order_of_rows_and_their_groups_is_kept():
    labels, logits, groups = data()
    ignored = np.where(np.arange(1000) % 7 == 0, 9, labels)
    weight = np.arange(1000) % 3
    kept = (ignored != 9) & (weight > 0)
    selector = kc.SelectiveClassifier(calibrator=temperature()).fit(
        ignored,
        logits,
        coverage=0.3,
        groups=groups,
        ignore_class=9,
        sample_weight=weight,
    )
    accept = accepted(selector, logits, groups)
    for place, name in enumerate(selector.groups):
        of = kept & (groups == name)
        assert selector.chosen.group_samples[place] == of.sum()
        share = (weight * accept)[of].sum() / weight[of].sum()
        assert abs(share - selector.chosen.group_coverage[place]) < 1e-12
    # The rows that tune nothing keep their groups too.
    tuned = kc.SelectiveClassifier(calibrator=kc.TemperatureScaling()).fit(
        ignored,
        logits,
        coverage=0.3,
        groups=groups,
        ignore_class=9,
        tune_fraction=0.4,
        seed=2,
    )
    order = np.random.default_rng(2).permutation(1000)
    rest = np.sort(order[400:])
    accept = accepted(tuned, logits, groups)
    for place, name in enumerate(tuned.groups):
        of = rest[(groups[rest] == name) & (ignored[rest] != 9)]
        assert tuned.chosen.group_samples[place] == len(of)
        assert accept[of].mean() == tuned.chosen.group_coverage[place]


def test_a_guarantee_by_group_is_that_of_the_records():
    labels, logits, groups = data(n=3000)
    options = {"risk": 0.03, "delta": 0.1, "groups": groups}
    selector = kc.SelectiveClassifier().fit(labels, logits, **options)
    scores = array(selector.score_of(logits))
    correct = logits.argmax(-1) == labels
    expected = kc.choose_threshold(scores, correct, **options)
    hashes = dict.fromkeys(("data_sha256", "ranking_sha256"))
    assert replace(selector.chosen, **hashes) == expected
    assert (expected.limit, expected.delta) == (0.03, 0.1)
    other = kc.SelectiveClassifier().fit_scores(scores, correct, **options)
    assert other.chosen == selector.chosen
    for place, name in enumerate(selector.groups):
        table = selector.chosen.table(group=name)
        last = np.flatnonzero(table.certified)[-1]
        assert table.threshold[last] == expected.threshold[place]


@pytest.mark.portable
def test_unknown_groups_are_rejected():
    labels, logits, groups = data()
    selector = kc.SelectiveClassifier().fit(
        labels, logits, coverage=1.0, groups=groups
    )
    assert accepted(selector, logits, groups).all()
    for unknown in (-6, 0, 3, 41, 2**31 - 1, 2**33 + 2, -(2**33)):
        other = np.full(1000, unknown)
        assert not accepted(selector, logits, other).any(), unknown
    big = np.full(1000, 2**32 - 5, "uint64")  # In 32 bits it would be -5.
    assert not accepted(selector, logits, big).any()
    named = kc.SelectiveClassifier().fit(
        labels, logits, coverage=1.0, groups=data("names")[2]
    )
    for names in (["a"], ["z"], [""]):
        assert not accepted(named, logits[:1], names).any()
    for names in (["b"], [b"b"], np.array(["b"]), np.array(["b"], object), [0]):
        assert accepted(named, logits[:1], names).all()
    assert not accepted(named, logits[:1], [4]).any()


@pytest.mark.portable
def test_ids_of_tensors_are_compared_in_their_own_dtype():
    labels, logits, groups = data(n=200)
    selector = kc.SelectiveClassifier().fit(
        labels, logits, coverage=1.0, groups=groups
    )
    wide = 2**32, 2**32 + 2, 2**40, 2**63 - 5, 2**63 + 2, 2**64 - 5
    runs, cases = [selector], []
    # Keras has no 64 bits on JAX, and no wide unsigned tensors on torch.
    if BACKEND != "torch":
        runs.append(jitted(lambda x, groups: selector(x, groups=groups)))
        cases.append(("uint32", (2, 40), (3, 2**32 - 5)))
    if BACKEND == "tensorflow":
        cases.append(("uint64", (2, 40), wide))
    if BACKEND != "jax":
        cases.append(("int64", (-5, 40), (2**32 - 5, 2**40, -(2**63))))
    for dtype, known, unknown in cases:
        for group in (*known, *unknown):
            ids = keras.ops.convert_to_tensor(np.full(200, group, dtype))
            for run in runs:
                accept = array(run(logits, groups=ids)["accept"])
                assert accept.all() == accept.any() == (group in known), group


def test_groups_of_other_shapes_and_kinds_are_refused():
    labels, logits, groups = data()
    selector = kc.SelectiveClassifier().fit(
        labels, logits, coverage=0.5, groups=groups
    )
    # A column would be compared with every row.
    for bad in (groups[:, None], groups[:1], groups[:-1], groups[0]):
        with pytest.raises(ValueError, match="`groups` must have one value"):
            selector(logits, groups=bad)
    number = keras.ops.convert_to_tensor(groups.astype("float32"))
    for bad in (number, groups + 0.5):
        with pytest.raises(TypeError, match="integers or strings"):
            selector(logits, groups=bad)
    for bad in (["a"] * 1000, groups > 3):
        with pytest.raises(TypeError, match="integers, as in `fit`"):
            selector(logits, groups=bad)
    np.testing.assert_array_equal(
        array(selector(logits, groups=groups.astype("float64"))["accept"]),
        array(selector(logits, groups=groups)["accept"]),
    )
    with pytest.raises(ValueError, match="must be given to a selector with"):
        selector(logits)
    alone = kc.SelectiveClassifier().fit(labels, logits, coverage=0.5)
    with pytest.raises(ValueError, match="must be given to a selector with"):
        alone(logits, groups=groups)
    with pytest.raises(ValueError, match="`group` must name a group"):
        selector.chosen.table()
    with pytest.raises(ValueError, match="a group of the fit.*group=3"):
        selector.chosen.table(group=3)
    with pytest.raises(ValueError, match="`group` must name a group"):
        alone.chosen.table(group=2)


def test_groups_are_refused_with_costs():
    labels, logits, groups = data()
    selector = kc.SelectiveClassifier(costs=1.0 - np.eye(4))
    with pytest.raises(ValueError, match="must be left out with `costs`"):
        selector.fit(labels, logits, reject_cost=0.1, groups=groups)
    assert not selector.fitted


def test_images_take_the_group_of_their_row():
    labels, logits, _ = data()
    dense = labels.reshape(10, 100), logits.reshape(10, 100, 4)
    groups = np.arange(10) % 2
    selector = kc.SelectiveClassifier().fit(*dense, coverage=0.5, groups=groups)
    accept = accepted(selector, dense[1], groups)
    assert accept.shape == (10, 100)
    assert accept[::2].mean() == accept[1::2].mean() == 0.5
    each = np.repeat(groups[:, None], 100, axis=1)
    np.testing.assert_array_equal(accepted(selector, dense[1], each), accept)


@pytest.mark.portable
@pytest.mark.slow
@pytest.mark.parametrize("kind", ["ids", "names"])
def test_it_saves_and_loads_with_its_groups(kind, tmp_path):
    labels, logits, groups = data(kind)
    selector = kc.SelectiveClassifier(calibrator=temperature())
    selector.fit(labels, logits, risk=0.05, delta=0.1, groups=groups)
    assert any(selector.chosen.accepts)
    model = model_of(selector, logits)
    model.save(tmp_path / "model.keras")
    loaded = keras.models.load_model(tmp_path / "model.keras")
    expected = accepted(selector, logits, groups)
    assert expected.any()
    ids = np.searchsorted(NAMES, groups) if kind == "names" else groups
    inputs = [logits, ids.astype("int32")]
    for whole in (model, loaded, keras.models.clone_model(model)):
        found = whole.predict(inputs, batch_size=300, verbose=0)["accept"]
        np.testing.assert_array_equal(found, expected)
    for copy in (
        loaded.layers[-1],
        kc.SelectiveClassifier.from_config(selector.get_config()),
        keras.models.model_from_json(model.to_json()).layers[-1],
    ):
        assert copy.chosen == selector.chosen
        assert copy.groups == selector.groups
        np.testing.assert_array_equal(copy.threshold, selector.threshold)
        found = accepted(copy, logits, groups)
        np.testing.assert_array_equal(found, expected)
        with pytest.raises(RuntimeError, match="loaded layers"):
            copy.chosen.table(group=copy.groups[0])


def test_a_second_fit_may_have_other_groups_or_none():
    labels, logits, groups = data()
    selector = kc.SelectiveClassifier()
    for again in (groups, groups % 2, None, groups, data("names")[2], None):
        selector.fit(labels, logits, coverage=0.5, groups=again)
        fresh = kc.SelectiveClassifier()
        fresh.fit(labels, logits, coverage=0.5, groups=again)
        assert selector.chosen == fresh.chosen
        assert selector.groups == fresh.groups
        np.testing.assert_array_equal(selector.threshold, fresh.threshold)
        if again is None:
            assert isinstance(selector.threshold, float)
            assert array(selector(logits)["accept"]).mean() == 0.5
        else:
            np.testing.assert_array_equal(
                accepted(selector, logits, again),
                accepted(fresh, logits, again),
            )


def test_a_failed_fit_keeps_the_previous_one():
    labels, logits, groups = data()
    selector = kc.SelectiveClassifier()
    selector.fit(labels, logits, coverage=0.5, groups=groups)
    before = selector.chosen
    with pytest.raises(ValueError, match="certified to have this `risk`"):
        selector.fit(
            labels, logits, risk=1e-4, delta=0.1, groups=data("names")[2]
        )
    assert selector.chosen == before
    assert selector.groups == tuple(IDS.tolist())
    assert accepted(selector, logits, groups).mean() > 0.49


@pytest.fixture(scope="module")
def compiled():
    """A selector of four groups, and a model of it that is compiled once."""
    labels, logits, groups = data()
    selector = kc.SelectiveClassifier(calibrator=temperature())
    selector.fit(labels, logits, coverage=0.5, groups=groups)
    return selector, model_of(selector, logits)


@pytest.mark.portable
def test_a_part_that_is_fitted_again_rejects_all_groups(compiled):
    labels, logits, groups = data()
    selector, model = compiled
    selector.fit(labels, logits, coverage=0.5, groups=groups)
    inputs = [logits, groups.astype("int32")]
    assert model.predict_on_batch(inputs)["accept"].any()
    with tells_of_compiled():
        selector.calibrator.fit(labels, logits)
    if keras.backend.backend() != "torch":  # There nothing is compiled.
        assert not model.predict_on_batch(inputs)["accept"].any()
    with pytest.raises(RuntimeError, match="were fitted again"):
        selector(logits, groups=groups)
    selector.fit(labels, logits, coverage=0.5, groups=groups)
    assert model.predict_on_batch(inputs)["accept"].any()


@pytest.mark.portable
def test_a_compiled_function_keeps_its_groups(compiled):
    labels, logits, groups = data()
    selector, model = compiled
    selector.fit(labels, logits, coverage=0.5, groups=groups)
    inputs = [logits, groups.astype("int32")]
    before = model.predict_on_batch(inputs)["accept"]
    selector.fit(labels, logits, coverage=0.2, groups=groups)
    after = model.predict_on_batch(inputs)["accept"]
    assert after.mean() < 0.25 < before.mean()
    # As many groups with other ids: 2 is the second of both.
    other = np.where(groups == 2, 2, np.where(groups == 40, -5, 41))
    other = np.where(groups == -5, -7, other)
    selector.fit(labels, logits, coverage=0.5, groups=other)
    found = model.predict_on_batch([logits, other.astype("int32")])["accept"]
    np.testing.assert_array_equal(found, accepted(selector, logits, other))
    assert not model.predict_on_batch([logits, inputs[1] * 0])["accept"].any()
    if keras.backend.backend() == "tensorflow":
        for fewer in (groups % 2, None):
            with pytest.raises(ValueError, match="must not change its size"):
                selector.fit(labels, logits, coverage=0.5, groups=fewer)
        assert len(selector.groups) == 4
        return
    selector.fit(labels, logits, coverage=0.5, groups=groups % 2)
    inputs[1] = (groups % 2).astype("int32")
    found = model.predict_on_batch(inputs)["accept"]
    expected = accepted(selector, logits, groups % 2)
    np.testing.assert_array_equal(found, expected)


def test_known_thresholds_need_no_fit_and_match_their_groups():
    labels, logits, groups = data()
    facts = (
        kc.SelectiveClassifier()
        .fit(labels, logits, coverage=0.5, groups=groups)
        .chosen
    )
    made = kc.SelectiveClassifier(threshold=facts.threshold, chosen=facts)
    assert 0.49 < accepted(made, logits, groups).mean() < 0.51
    for bad in (0.5, [0.5], [0.5, 1.0, np.nan, 2.0]):
        with pytest.raises(ValueError, match="must be that of `chosen`"):
            kc.SelectiveClassifier(threshold=bad, chosen=facts)
