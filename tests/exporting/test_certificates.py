"""Certificates: what was changed is found, and what holds is confirmed."""

import functools
import json
import os
import shutil
import subprocess
import sys
from functools import partial

import numpy as np
import pytest
from cases import BACKEND
from exported import trained
from paths import ROOT
from selection_data import noisy, temperature

import keras_calib as kc
from keras_calib.exporting.statement import digest_of, statement_path, text_of
from keras_calib.reporting.command_line import main

pytestmark = pytest.mark.skipif(
    BACKEND != "tensorflow", reason="export needs TensorFlow"
)
NAMES = {"savedmodel": "m", "litert": "m.tflite", "onnx": "m.onnx"}


@pytest.fixture(scope="module")
def exports(tmp_path_factory):
    """A certified export by its format, and the selector of its threshold."""

    @functools.cache
    def export(made):
        if made == "onnx":
            pytest.importorskip("tf2onnx")
            pytest.importorskip("onnxruntime")
        elif made == "litert":
            pytest.importorskip("ai_edge_litert")
        folder = tmp_path_factory.mktemp("certified")
        model, _ = trained(4)
        selector = kc.SelectiveClassifier(calibrator=temperature())
        selector.fit(*noisy(), risk=0.1, delta=0.05)
        path = folder / NAMES[made]
        kc.export(model, path, selector=selector, certificate=True)
        kc.exporting.save_records(selector, folder / "data.npz")
        return path, selector

    return export


# Both others are of one file.
KINDS = ("savedmodel", "onnx", pytest.param("litert", marks=pytest.mark.slow))


@pytest.fixture(params=KINDS)
def certified(request, exports):
    return exports(request.param)


def records(path):
    with np.load(path.with_name("data.npz")) as file:
        return file["score"], file["correct"]


def copied(path, folder):
    """The export under another name in another place."""
    new = folder / f"copy{path.suffix}"
    (shutil.copytree if path.is_dir() else shutil.copy)(path, new)
    if not path.is_dir():
        shutil.copy(statement_path(path), statement_path(new))
    return new


def rewritten(path, change):
    """Changes a certificate, and makes its digest fit."""
    file = statement_path(path)
    facts = json.loads(file.read_text())
    change(facts)
    facts["digest"] = digest_of(facts)
    file.write_text(text_of(facts))


def test_a_copy_is_confirmed_by_the_data_in_any_order(certified, tmp_path):
    path, selector = certified
    score, correct = records(path)
    order = np.random.default_rng(0).permutation(len(score))
    copy = copied(path, tmp_path)
    found = kc.exporting.check_certificate(copy, score[order], correct[order])
    assert found.holds, found.differences
    p = kc.Predictions(*noisy(), from_logits=True)
    calibrated = selector.calibrator.calibrate(p)
    again = kc.exporting.check_certificate(copy, calibrated)
    assert again.holds, again.differences
    assert str(again).startswith("CertificateCheck(holds=True, differences=[]")
    facts, chosen = found.certificate, selector.chosen
    assert facts["selection"]["coverage"] == chosen.coverage
    assert facts["guarantee"]["risk"] == 0.1
    assert facts["calibrator"]["name"] == "TemperatureScaling"
    assert not any("numbers" in x for x in found.not_checked)
    # Without data only the files are checked, and that is said.
    files_only = kc.exporting.check_certificate(copy)
    assert files_only.holds
    assert any("numbers" in x for x in files_only.not_checked)


def test_a_file_stands_for_the_data_that_it_holds(certified, tmp_path):
    path, selector = certified
    check = kc.exporting.check_certificate
    score, correct = records(path)
    p = kc.Predictions(*noisy(), from_logits=True)
    files = {
        "records.csv": partial(kc.exporting.save_records, selector),
        "outputs.npz": selector.calibrator.calibrate(p).write,
        "log.npz": as_log(score, correct).write,
    }
    for name, write in files.items():
        file = tmp_path / name
        write(file)
        found = check(path, str(file))
        assert found.holds, (name, found.differences)
        assert not any("numbers" in x for x in found.not_checked)
    np.savez(tmp_path / "other.npz", score=score, correct=0 * correct)
    assert not check(path, tmp_path / "other.npz").holds
    with pytest.raises(TypeError, match="`correct` must not be given beside"):
        check(path, file, correct)


def test_the_threshold_and_counts_are_those_of_the_served_answers(certified):
    path, selector = certified
    score, correct = records(path)
    facts = kc.exporting.check_certificate(path).certificate["selection"]
    accepted = score >= facts["threshold"]
    assert accepted.sum() == facts["num_accepted"]
    assert (correct[accepted] == 0).sum() == facts["num_wrong"]
    table = selector.chosen.table()
    (row,) = np.flatnonzero(
        np.float32(table.threshold) == np.float32(facts["threshold"])
    )
    assert table.certified[row]
    assert table.upper_bound[row] == pytest.approx(facts["upper_bound"], 1e-9)


def test_a_changed_byte_of_any_file_is_found(certified, tmp_path):
    path = copied(certified[0], tmp_path)
    files = [path]
    if path.is_dir():
        files = [p for p in path.rglob("*") if p.is_file()]
    else:
        files.append(statement_path(path))
    assert len(files) > 1
    for file in files:
        data = file.read_bytes()
        for place in {0, len(data) // 3, len(data) // 2, len(data) - 1}:
            changed = bytearray(data)
            changed[place] ^= 1
            file.write_bytes(changed)
            try:
                assert not kc.exporting.check_certificate(path).holds, (
                    file,
                    place,
                )
            except ValueError as error:
                assert file == statement_path(path)
                assert "certificate" in str(error)
        file.write_bytes(data)
    assert kc.exporting.check_certificate(path).holds


def test_files_that_came_or_went_are_found(certified, tmp_path):
    path = copied(certified[0], tmp_path)
    if not path.is_dir():
        path.unlink()
        with pytest.raises(ValueError, match="must be an exported"):
            kc.exporting.check_certificate(path)
        return
    (path / "extra.txt").write_text("more")
    (told,) = kc.exporting.check_certificate(path).differences
    assert "extra.txt is not in the certificate" in told
    (path / "extra.txt").unlink()
    (path / "fingerprint.pb").unlink()
    (told,) = kc.exporting.check_certificate(path).differences
    assert "fingerprint.pb is missing" in told


def as_log(score, correct):
    confidence = 1.0 / (1.0 + np.exp(-score.astype("float64")))
    return kc.Predictions(correct=correct, confidence=confidence)


@pytest.mark.parametrize("of", ["scores", "confidence"])
def test_every_changed_number_is_found_even_with_a_new_digest(
    certified, tmp_path, of
):
    path = copied(certified[0], tmp_path)
    score, correct = records(certified[0])
    given = {"scores": score, "correct": correct}
    if of == "confidence":
        given = {"scores": as_log(score, correct)}
    file = statement_path(path)
    text = file.read_text()
    facts = json.loads(text)
    parts = ("guarantee", "selection", "data")
    fields = [(part, name) for part in parts for name in facts[part]]
    fields += [("artefact", "files"), ("score", "scale")]
    # Another method is refused, as errors have one.
    fields.remove(("guarantee", "method"))
    if of == "confidence":
        # The hash of counts stands for that of scores; a scale that is not
        # in log-odds is refused with any confidence.
        fields.remove(("data", "rows_sha256"))
        fields.remove(("score", "scale"))
    assert len(fields) > 13
    for part, name in fields:

        def change(facts, part=part, name=name):
            value = facts[part][name]
            if isinstance(value, dict):
                value = dict.fromkeys(value, {"bytes": 1, "sha256": "0"})
            elif isinstance(value, str):
                value = {"ltt": "binomial"}.get(value, value[::-1])
            else:
                value = type(value)(value * 0.9)
            facts[part][name] = value

        rewritten(path, change)
        found = kc.exporting.check_certificate(path, **given)
        assert not found.holds, (part, name)
        file.write_text(text)


@pytest.mark.parametrize(
    ("part", "name", "value"),
    [
        ("guarantee", "statement", "No prediction is ever wrong."),
        ("guarantee", "certified_risk", 0.01),
        ("guarantee", "risk", 0.01),
        ("guarantee", "delta", 0.01),
        ("selection", "num_samples", 10**6),
    ],
)
def test_a_forged_statement_is_found_without_data(
    certified, tmp_path, capsys, part, name, value
):
    path = copied(certified[0], tmp_path)
    rewritten(path, lambda facts: facts[part].update({name: value}))
    assert not kc.exporting.check_certificate(path).holds
    assert main(["verify", str(path)]) == 1
    told = "risk" if name == "risk" else "statement"
    assert f"differs: {told}: other facts" in capsys.readouterr().out
    card = {"name": "m", "intended_use": "A test."}
    with pytest.raises(ValueError, match="must be unchanged since"):
        kc.reporting.model_card(path, **card)


def test_other_data_are_refused(certified):
    path, _ = certified
    score, correct = records(path)
    for rows, told in (
        ((score[:-1], correct[:-1]), "999 rows instead of 1,000"),
        ((score, np.roll(correct, 300)), "other correctness"),
        ((score * np.float32(1.5), correct), "the scores differ"),
        ((score, 0 * correct), "does not follow from the data"),
    ):
        found = kc.exporting.check_certificate(path, *rows)
        assert told in " ".join(found.differences)
    moved = score.copy()
    moved[500] = np.nextafter(moved[500], np.float32(np.inf))
    assert not kc.exporting.check_certificate(path, moved, correct).holds


def test_confidences_stand_for_log_odds_up_to_rounding(certified):
    path, _ = certified
    score, correct = records(path)
    log = as_log(score, correct)
    assert kc.exporting.check_certificate(path, log).holds
    other = as_log(np.minimum(score, 2.0), correct)
    assert not kc.exporting.check_certificate(path, other).holds


@pytest.mark.parametrize(
    ("rows", "told"),
    [
        (([1.0, 2.0], [1]), "`scores` and `correct` must have one shape"),
        (([], []), "must not be empty"),
        (([[1.0], [2.0]], [[1], [0]]), "must have shape `.n,.`. Received: sc"),
        (([1.0, np.nan], [1, 0]), "must not be NaN.*first=.1"),
        (([1.0, 2.0], [1, 0.5]), "`correct` must be 0 or 1"),
        ((["a", "b"], [1, 0]), "must hold real numbers"),
        ((None, [1, 0]), "`scores` must be given with `correct`"),
    ],
)
def test_data_of_a_wrong_form_are_refused(certified, rows, told):
    with pytest.raises((TypeError, ValueError), match=told):
        kc.exporting.check_certificate(certified[0], *rows)


@pytest.mark.parametrize(
    ("text", "told"),
    [
        (None, "There must be a certificate"),
        ("", "complete JSON"),
        ("[]", "a form that this version knows"),
        ('{"certificate": 2}\n', "a form that this version knows"),
        ('{"certificate": 1}\n', "must have the facts of its form"),
    ],
)
def test_a_broken_certificate_is_refused(certified, tmp_path, text, told):
    path = copied(certified[0], tmp_path)
    file = statement_path(path)
    whole = file.read_text()
    file.unlink() if text is None else file.write_text(text)
    with pytest.raises(ValueError, match=told):
        kc.exporting.check_certificate(path)
    file.write_text(whole[: len(whole) // 2])
    with pytest.raises(ValueError, match="complete JSON"):
        kc.exporting.check_certificate(path)


@pytest.mark.parametrize("name", ["delta", "certified_risk"])
@pytest.mark.parametrize("value", ["0.1", None, True, -0.1, 10**400])
def test_a_guarantee_of_no_probability_is_refused(
    certified, tmp_path, name, value
):
    path = copied(certified[0], tmp_path)
    rewritten(path, lambda facts: facts["guarantee"].update({name: value}))
    with pytest.raises(ValueError, match=f"`{name}` of the certificate must"):
        kc.exporting.check_certificate(path)


def test_the_command_needs_neither_keras_nor_tensorflow(exports):
    files = []
    for path, selector in map(exports, ("savedmodel", "onnx")):
        data = path.with_name("data.csv")
        kc.exporting.save_records(selector, data)
        files.append([str(path), f"--data={data}"])
    code = (
        "import sys\n"
        "from keras_calib.reporting.command_line import main\n"
        f"codes = [main(['verify', *file]) for file in {files}]\n"
        "others = {'keras', 'tensorflow', 'jax', 'torch'} & {*sys.modules}\n"
        "print(codes, others)"
    )
    run = subprocess.run(
        [sys.executable, "-c", code],
        capture_output=True,
        text=True,
        cwd=ROOT,
        env={**os.environ, "KERAS_BACKEND": "tensorflow"},
    )
    assert run.stdout.splitlines()[-1] == "[0, 0] set()", run.stderr
    assert run.stdout.count("The certificate holds.") == 2


def test_the_command_says_what_differs(certified, tmp_path, capsys):
    path, selector = certified
    good = kc.exporting.save_records(selector, tmp_path / "data.parquet")
    assert main(["verify", str(path), f"--data={good}"]) == 0
    assert main(["verify", str(path)]) == 0
    assert "The files are unchanged." in capsys.readouterr().out
    score, correct = records(path)
    np.savez(tmp_path / "bad.npz", score=score[1:], correct=correct[1:])
    bad = f"--data={tmp_path / 'bad.npz'}"
    assert main(["verify", str(path), bad]) == 1
    shown = capsys.readouterr()
    assert "differs: data: other data than those" in shown.out
    assert shown.out.startswith("The certificate says: With probability")
    assert "does not hold" in shown.err
    assert main(["verify", str(statement_path(path)), bad]) == 1
    assert "folder or file, not its certificate" in capsys.readouterr().err
    assert main(["verify", str(path), bad, "--score=margin"]) == 1
    assert "asked for. Received: absent=['margin']" in capsys.readouterr().err
    with pytest.raises(SystemExit) as stop:
        main(["verify", str(path), "--score=margin"])
    assert stop.value.code == 2


def test_only_a_guarantee_of_data_is_certified(tmp_path):
    model, _ = trained(4)
    selector = kc.SelectiveClassifier(calibrator=temperature())
    for given in (None, selector.fit(*noisy(), risk=0.1)):
        with pytest.raises(ValueError, match="`certificate=True` needs"):
            kc.export(model, tmp_path / "m", selector=given, certificate=True)
    selector.fit(*noisy(), risk=0.1, delta=0.05)
    selector._threshold.assign(0.0)
    with pytest.raises(RuntimeError, match="must be the one that `fit`"):
        kc.export(model, tmp_path / "m", selector=selector, certificate=True)
    assert os.listdir(tmp_path) == []


def test_a_selector_of_a_file_has_its_certificate_still(tmp_path):
    selector = kc.SelectiveClassifier(calibrator=temperature())
    selector.fit(*noisy(), risk=0.1, delta=0.05)
    again = kc.SelectiveClassifier.from_config(selector.get_config())
    assert again.chosen == selector.chosen
    assert again.chosen.data_sha256
    kc.exporting.save_records(selector, tmp_path / "data.csv")
    with pytest.raises(RuntimeError, match="must have its data"):
        kc.exporting.save_records(again, tmp_path / "again.csv")


@pytest.mark.slow
def test_an_export_without_certificate_leaves_no_stale_one(tmp_path):
    pytest.importorskip("ai_edge_litert")
    model, _ = trained(4)
    selector = kc.SelectiveClassifier(calibrator=temperature())
    selector.fit(*noisy(), risk=0.1, delta=0.05)
    path, given = tmp_path / "m.tflite", {"selector": selector}
    kc.export(model, path, **given, certificate=True)
    kc.export(model, path, **given, overwrite=True, certificate=True)
    assert kc.exporting.check_certificate(path).holds
    kc.export(model, path, **given, overwrite=True)
    assert os.listdir(tmp_path) == ["m.tflite"]
