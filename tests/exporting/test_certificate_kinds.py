"""Certificates of thresholds by group and by cost: what was changed is found.

Files are hashed as those of every certificate, of every format:
test_certificates.py.
"""

import copy
import functools
import itertools
import json
import os
import re
import shutil
from dataclasses import replace

import numpy as np
import pytest
from cases import BACKEND
from exported import trained
from forged import BAD, changed, got, other, places, put
from selection_data import noisy, temperature

import keras_calib as kc
from keras_calib.exporting.statement import statement_path
from keras_calib.predictions.tables import Table
from keras_calib.reporting.command_line import main

pytestmark = pytest.mark.skipif(
    BACKEND != "tensorflow", reason="export needs TensorFlow"
)
LABELS, LOGITS = noisy(n=900, signal=1.6)
COSTS = np.array(
    [[0, 1, 1, 1], [5, 0, 1, 1], [1, 1, 0, 2], [1, 1, 1, 0]], "float64"
)
ERRORS = 1.0 - np.eye(4)
NAMES = np.array(['a "1"|b', "é, long", "few"])
# The last group is too small to be certified.
PLACES = np.where(np.arange(900) < 10, 2, np.arange(900) % 2)
FITS = {
    "names": (None, {"groups": NAMES[PLACES], "risk": 0.15, "delta": 0.1}),
    "ids": (
        None,
        {"groups": 7 * PLACES - 3, "risk": 0.15, "delta": 0.1},
    ),
    "betting": (COSTS, {"max_cost": 0.3, "delta": 0.1, "reject_cost": 0.9}),
    "hoeffding": (
        COSTS,
        {"max_cost": 0.3, "delta": 0.1, "method": "hoeffding_bentkus"},
    ),
    "binomial": (3.0 * ERRORS, {"max_cost": 0.5, "delta": 0.1}),
    "chow": (COSTS, {"reject_cost": 0.3}),
}


def fitted(name):
    costs, target = FITS[name]
    made = kc.SelectiveClassifier(calibrator=temperature(), costs=costs)
    return made.fit(LABELS, LOGITS, **target)


@pytest.fixture(scope="module")
def exports(tmp_path_factory):
    """A certified export by its name, its selector, and the name.

    They are ONNX files, which take the least time to write. The records of the
    fit are beside them.
    """
    pytest.importorskip("tf2onnx")
    pytest.importorskip("onnxruntime")

    @functools.cache
    def export(name):
        path = tmp_path_factory.mktemp("kinds") / "m.onnx"
        made = fitted(name)
        kc.export(trained(4)[0], path, selector=made, certificate=True)
        kc.exporting.save_records(made, path.with_name("data.npz"))
        return path, made, name

    return export


@pytest.fixture(params=FITS)
def certified(request, exports):
    return exports(request.param)


def records(path):
    """Arguments of `check_certificate`, of the records beside an export."""
    called = {"score": "scores", "group": "groups"}
    with np.load(path.with_name("data.npz")) as file:
        return {called.get(name, name): file[name] for name in file.files}


@pytest.fixture
def copied(certified, tmp_path):
    """A certificate that may be changed, and the data of its kind."""
    path, _, name = certified
    shutil.copy(path, new := tmp_path / "m.onnx")
    shutil.copy(statement_path(path), statement_path(new))
    return new, {} if name == "chow" else records(path)


@pytest.mark.parametrize(
    "certified",
    [
        "names",
        "hoeffding",
        "binomial",
        "chow",
        # Chosen again as the first and second, by other tests.
        pytest.param("ids", marks=pytest.mark.slow),
        pytest.param("betting", marks=pytest.mark.slow),
    ],
    indirect=True,
)
def test_every_changed_fact_is_found_even_with_a_new_digest(copied):
    path, data = copied
    assert kc.exporting.check_certificate(path, **data).differences == ()
    found = places(json.loads(statement_path(path).read_text()))
    assert len(found) > 20
    for at in found:
        file, text = changed(
            path, lambda x, at=at: put(x, at, other(got(x, at)))
        )
        try:
            assert not kc.exporting.check_certificate(path, **data).holds, at
        except ValueError as error:
            assert re.search("certificate|`cost`", str(error)), at
        file.write_text(text)


@pytest.mark.parametrize(
    "certified",
    [
        "names",
        "ids",
        "hoeffding",
        "chow",
        # Of the form of the third.
        pytest.param("betting", marks=pytest.mark.slow),
        pytest.param("binomial", marks=pytest.mark.slow),
    ],
    indirect=True,
)
def test_no_fact_of_another_type_is_certified(copied):
    path, data = copied
    facts = json.loads(statement_path(path).read_text())
    found = [at for at in places(facts) if not {1, 2, 3} & {*at}]
    found += {at[:k] for at in found for k in range(1, len(at))}
    for at, value in itertools.product(found, BAD):
        if repr(value) == repr(got(facts, at)):
            continue
        file, text = changed(path, lambda x, at=at, v=value: put(x, at, v))
        try:
            is_found = not kc.exporting.check_certificate(path).holds
            if not is_found:
                is_found = not kc.exporting.check_certificate(
                    path, **data
                ).holds
            assert is_found, (at, value)
        except ValueError as error:
            assert re.search("certificate|`cost`", str(error)), (at, value)
        file.write_text(text)


def test_the_facts_are_those_of_the_fit(certified):
    path, made, name = certified
    facts = kc.exporting.check_certificate(path).certificate
    chosen, selection = made.chosen, facts["selection"]
    card = kc.reporting.model_card(path, name="m", intended_use="A test.")
    assert facts["guarantee"]["statement"] in card
    if name == "chow":
        assert np.float32(-0.3) == selection["threshold"]
        assert "price of a rejection" in card
        assert "selection data" not in card
    else:
        assert selection["coverage"] == chosen.coverage
        assert f"| {chosen.coverage} |" in card
        assert facts["guarantee"]["delta"] == chosen.delta == 0.1
    if FITS[name][0] is not None:
        assert facts["costs"]["matrix"] == FITS[name][0].tolist()
        assert "| 1 | " + " | ".join(map(str, FITS[name][0][1])) + " |" in card
        return
    groups = selection["groups"]
    assert tuple(x["group"] for x in groups) == made.groups
    few = [x for x in groups if not x["tested"]]
    assert [x["num_samples"] for x in few] == [10]
    assert few[0]["threshold"] == "inf"
    assert "rejects everything" in card
    assert card.count("| a &quot;1&quot;\\|b |") == (name == "names")
    score, correct = (records(path)[x] for x in ("scores", "correct"))
    given = records(path)["groups"]
    for one in groups:
        own = given == one["group"]
        accepted = own & (score >= np.float32(one["threshold"]))
        assert own.sum() == one["num_samples"]
        assert accepted.sum() == one["num_accepted"]
        assert (correct[accepted] == 0).sum() == one["num_wrong"]


def test_the_order_of_the_data_does_not_matter(certified):
    path, _, name = certified
    if name == "chow":
        return
    order = np.random.default_rng(0).permutation(len(LABELS))
    data = {k: x[order] for k, x in records(path).items()}
    assert kc.exporting.check_certificate(path, **data).differences == ()
    file = path.with_name("data.npz")
    assert kc.exporting.check_certificate(path, file).differences == ()


def test_calibrated_predictions_are_data_of_every_kind(certified):
    path, made, name = certified
    p = kc.Predictions(
        LABELS, LOGITS, from_logits=True, groups={"site": NAMES[PLACES]}
    )
    groups = {"names": "site", "ids": 7 * PLACES - 3}.get(name)
    if name != "chow":
        found = kc.exporting.check_certificate(
            path, made.calibrator.calibrate(p), groups=groups
        )
        assert found.holds, found.differences
        assert not kc.exporting.check_certificate(path, p, groups=groups).holds


def test_other_data_are_found(certified):
    path, _, name = certified
    for column, values in ({} if name == "chow" else records(path)).items():
        data = records(path)
        if column == "groups":
            data[column] = np.roll(values, 40)
        elif column == "scores":
            data[column][20] = np.nextafter(values[20], np.float32(99))
        elif column == "correct":
            data[column][20] = 1 - values[20]
        else:
            data[column][20] = {0.0: 1.0}.get(values[20], 0.0)
            if name == "binomial":
                data[column][20] *= 3.0
        told = kc.exporting.check_certificate(path, **data).differences
        assert told, column
        short = {k: x[1:] for k, x in data.items()}
        told = kc.exporting.check_certificate(path, **short).differences
        assert "899 rows instead of 900" in told[0]
    if name in ("names", "ids"):
        data = records(path)
        unknown = data["groups"].astype("U9")
        unknown[3] = "unknown"
        (told,) = kc.exporting.check_certificate(
            path, **{**data, "groups": unknown}
        ).differences
        assert "1 rows have a group that the certificate" in told


def test_confidences_stand_for_scores_of_groups(certified):
    path, made, _ = certified
    data = {} if made.costs is not None else records(path)
    if data:
        score = data["scores"].astype("float64")
        for most in (np.inf, 0.9):
            confidence = np.minimum(1.0 / (1.0 + np.exp(-score)), most)
            p = kc.Predictions(correct=data["correct"], confidence=confidence)
            found = kc.exporting.check_certificate(
                path, p, groups=data["groups"]
            )
            assert found.holds == (most > 1.0)


@pytest.mark.parametrize("ending", ["npz", "csv", "parquet"])
def test_the_command_takes_the_records_of_every_kind(
    certified, tmp_path, capsys, ending
):
    path, made, name = certified
    data = kc.exporting.save_records(made, tmp_path / f"data.{ending}")
    code = main(["verify", str(path), f"--data={data}"])
    shown = capsys.readouterr()
    if name == "chow":
        assert code == 1
        assert "must be left out, as all other data" in shown.err
        assert main(["verify", str(path)]) == 0
        assert "The facts agree" in capsys.readouterr().out
        return
    assert (code, shown.err) == (0, "")
    assert "The certificate holds." in shown.out
    bare = tmp_path / "bare.npz"
    np.savez(bare, score=[1.0], correct=[1])
    assert main(["verify", str(path), f"--data={bare}"]) == 1
    column = "group" if made.costs is None else "cost"
    assert f"absent=['{column}']" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("change", "error", "told"),
    [
        ({"groups": None}, ValueError, "`groups` must be given for this"),
        ({"cost": [0.0]}, ValueError, "`cost` must be left out for this"),
        ({"groups": np.full(900, 0.5)}, ValueError, "or whole numbers"),
        ({"groups": ["a"]}, ValueError, "`groups` must have a group for"),
        (
            {"groups": np.array([None] * 900)},
            ValueError,
            "`groups` must have a value in every row",
        ),
    ],
)
def test_groups_of_a_wrong_form_are_refused(certified, change, error, told):
    path, _, name = certified
    if name == "names":
        with pytest.raises(error, match=told):
            kc.exporting.check_certificate(path, **{**records(path), **change})


@pytest.mark.parametrize("cost", [-1.0, np.nan, 5.5, "a"])
def test_costs_outside_of_the_matrix_are_refused(certified, cost):
    path, _, name = certified
    if name == "betting":
        given = {**records(path), "cost": np.full(900, cost)}
        with pytest.raises((TypeError, ValueError), match="`cost` must"):
            kc.exporting.check_certificate(path, **given)


def test_a_loaded_selector_has_its_certificate_still(certified, tmp_path):
    path, made, name = certified
    again = kc.SelectiveClassifier.from_config(made.get_config())
    assert again.chosen == made.chosen
    if name != "chow":
        assert again.chosen.data_sha256
    with pytest.raises(RuntimeError, match="must have its data"):
        kc.exporting.save_records(again, tmp_path / "again.npz")


@pytest.mark.parametrize(
    ("costs", "target", "told"),
    [
        (COSTS, {"max_cost": 0.3}, "`max_cost` and `delta`"),
        (COSTS, {"coverage": 0.5}, "`max_cost` and `delta`"),
        (
            COSTS,
            {"reject_cost": 0.3, "method": "empirical"},
            "`max_cost` and `delta`",
        ),
        (None, {"groups": PLACES, "risk": 0.15}, "`risk` and `delta`"),
        (None, {"groups": PLACES, "coverage": 0.5}, "`risk` and `delta`"),
    ],
)
def test_what_nothing_guarantees_is_refused(tmp_path, costs, target, told):
    made = kc.SelectiveClassifier(calibrator=temperature(), costs=costs)
    made.fit(LABELS, LOGITS, **target)
    given = {"selector": made, "certificate": True}
    with pytest.raises(ValueError, match=told):
        kc.export(trained(4)[0], tmp_path / "m", **given)
    assert os.listdir(tmp_path) == []


def test_thresholds_of_another_procedure_are_refused(tmp_path):
    """Such as a prior of other data, which records do not tell."""
    made = fitted("ids")
    for chosen in (
        replace(made.chosen, kind="prior"),
        replace(made.chosen, method="mixture"),
        replace(made.chosen, delta=None),
        replace(made.chosen, data_sha256=None),
    ):
        again = copy.copy(made)
        again._chosen = chosen
        given = {"selector": again, "certificate": True}
        with pytest.raises(ValueError, match="`certificate=True` needs"):
            kc.export(trained(4)[0], tmp_path / "m", **given)
    made._threshold.assign([0.0, 0.0, 0.0])
    given = {"selector": made, "certificate": True}
    with pytest.raises(RuntimeError, match="must be the one that `fit`"):
        kc.export(trained(4)[0], tmp_path / "m", **given)


def test_chows_rule_is_certified_without_a_fit(tmp_path):
    pytest.importorskip("tf2onnx")
    pytest.importorskip("onnxruntime")
    made = kc.SelectiveClassifier(costs=COSTS, threshold=-0.5)
    given = {"selector": made, "certificate": True}
    path = kc.export(trained(4)[0], tmp_path / "m.onnx", **given)
    facts = kc.exporting.check_certificate(path).certificate
    assert facts["guarantee"]["reject_cost"] == 0.5
    for threshold in (0.5, -np.inf):
        given["selector"] = kc.SelectiveClassifier(
            costs=COSTS, threshold=threshold
        )
        with pytest.raises(ValueError, match="minus the price"):
            kc.export(trained(4)[0], tmp_path / "n", **given)


@pytest.mark.parametrize("ending", ["npz", "csv", "tsv", "parquet", "jsonl"])
def test_records_keep_odd_names_of_groups(tmp_path, ending):
    groups = np.where(PLACES == 1, "a\nb", "=c, d")
    made = kc.SelectiveClassifier(calibrator=temperature())
    made.fit(LABELS, LOGITS, groups=groups, risk=0.15, delta=0.1)
    table = Table(kc.exporting.save_records(made, tmp_path / f"data.{ending}"))
    parts = [x["group"] for x in table.parts(["group"])]
    assert {*np.concatenate(parts)} == {"a\nb", "=c, d"}
