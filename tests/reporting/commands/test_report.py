"""`keras-calib report`: what it writes, and what it refuses and why."""

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from noisy_predictions import noisy_predictions, softmax
from paths import ROOT
from report_pages import Page, few_replicates, results_alone, write_file

import keras_calib as kc
from keras_calib.reporting.command_line import main
from keras_calib.reporting.commands.terminal import Found, printed


def test_command_writes_what_the_function_makes(tmp_path, capsys, monkeypatch):
    few_replicates(monkeypatch)
    parts = {
        name: noisy_predictions(1000, seed=i) for i, name in enumerate("tcs")
    }
    files = {
        name: write_file(tmp_path / f"{name}<b>&.npz", labels, logits=logits)
        for name, (labels, logits) in parts.items()
    }
    out = tmp_path / "report.html"
    code = main(
        [
            "report",
            f"--predictions={files['t']}",
            f"--calibration={files['c']}",
            f"--selection={files['s']}",
            "--risk=0.2",
            f"--out={out}",
            "--quiet",
        ]
    )
    assert code == 0
    path, verdict, _, *table = capsys.readouterr().out.splitlines()
    assert path == str(out)
    text = Page(out.read_text(encoding="utf-8")).text
    ece = kc.ece(*parts["t"], from_logits=True)
    assert f"ECE {ece:.4f}" in text
    assert "certified for a risk of at most 20.00 %" in text
    assert "After calibration" in text
    # The terminal says the same.
    assert verdict.partition(". ")[0] in text
    assert f"{ece:.4f} (" in table[3] and table[3].startswith("ece")
    # What was measured on what.
    assert "Data filet<b>&.npz, last changed 20" in text
    assert "Calibration filec<b>&.npz, 1,000 samples, last" in text
    assert "Selection files<b>&.npz" in text and "not named" not in text
    # Of several calibrators.
    assert "How the calibrator was chosen" in text


@pytest.mark.slow
def test_command_compares_files_of_the_same_labels(tmp_path, capsys):
    labels, logits = noisy_predictions(50)
    one = write_file(tmp_path / "one.parquet", labels, logits=logits)
    two = write_file(tmp_path / "two.csv", labels, logits=logits / 2)
    again = write_file(tmp_path / "one.csv", labels, logits=logits)
    out = tmp_path / "report.html"
    given = ["report", f"--out={out}", "--quiet", f"--predictions={one}"]
    more = [f"--predictions={two}", f"--predictions={again}"]
    assert main([*given, *more]) == 0
    html = out.read_text(encoding="utf-8")
    # Models have the names of their files, or their paths if these are alike.
    for name in ("two", one, again):
        assert f">{name}</h2>" in html
    text = Page(html).text
    for scale in (1, 2):
        ece = kc.ece(labels, logits / scale, from_logits=True)
        assert f"ECE {ece:.4f}" in text
    capsys.readouterr()
    for count in (49, 50):
        others = np.roll(labels, 1)[:count]
        other = write_file(tmp_path / "o.npz", others, logits=logits[:count])
        assert main([*given, f"--predictions={other}"]) == 1
        words = "of the same rows" if count == 49 else "the same labels"
        assert words in capsys.readouterr().err


def refused(capsys, *arguments):
    """The code and the last line of a command that must not succeed."""
    try:
        code = main(["report", "--quiet", *arguments])
    except SystemExit as stop:
        code = stop.code
    captured = capsys.readouterr()
    assert not captured.out
    return code, captured.err.strip().splitlines()[-1]


@pytest.fixture
def command_files(tmp_path, monkeypatch):
    """Files of one set of data in many forms, and of others."""
    monkeypatch.chdir(tmp_path)
    labels, logits = noisy_predictions(300)
    others = noisy_predictions(300, seed=1)
    twenty = np.random.default_rng(0).normal(size=(300, 20))
    order = np.random.default_rng(0).permutation(300)
    for name, own, arrays in (
        ("t", labels, {"logits": logits}),
        ("s", others[0], {"logits": others[1]}),
        ("twenty", labels, {"logits": twenty}),
        ("turned", labels[order], {"logits": logits[order]}),
        ("part", labels[order][:100], {"logits": logits[order][:100]}),
        ("named", labels, {"probs": logits}),
        ("odd", labels, {"logits": softmax(logits)}),
        ("sigmoid", others[0], {"probs": 1 / (1 + np.exp(-others[1]))}),
        ("nan", labels, {"logits": np.where(logits > 5, np.nan, logits)}),
        ("ids", labels + 4, {"logits": logits}),
        ("flat", labels, {"logits": logits[:, 0]}),
        ("letters", labels.astype("U1"), {"logits": logits}),
        ("dense", labels.reshape(3, -1), {"logits": logits.reshape(3, -1, 4)}),
    ):
        np.savez(f"{name}.npz", labels=own, **arrays)
    write_file(tmp_path / "t.csv", labels, logits=logits)
    whole = (tmp_path / "t.npz").read_bytes()
    (tmp_path / "cut.npz").write_bytes(whole[:-60])
    flipped = bytearray(whole)
    flipped[len(whole) // 2] ^= 255
    (tmp_path / "flipped.npz").write_bytes(flipped)
    np.save("array.npy", logits)
    (tmp_path / "array.npy").rename("array.npz")
    (tmp_path / "folder.html").mkdir()
    (tmp_path / "t.pkl").touch()
    (tmp_path / "link.npz").symlink_to("t.npz")
    (tmp_path / "latin.csv").write_bytes(b"label,prob_0,prob_1,\xe9\n0,1,0,1\n")
    (tmp_path / "twice.csv").write_text("label,prob_0,prob_0\n0,1,0\n")
    return tmp_path


@pytest.mark.parametrize("code", [1, 2])
def test_command_refuses_and_says_why(command_files, capsys, code):
    select = ["--selection=s.npz", "--risk=0.1"]
    choose = ["--risk=0.1", "--selection"]
    cases = {
        1: [
            # The same data, in other files, orders and formats, or a part.
            (["--calibration=turned.npz"], "different data"),
            (["--calibration=t.csv"], "different data"),
            (["--calibration=part.npz"], "% of the smaller one"),
            (["--calibration=twenty.npz"], "num_classes=4 .*=20 in --calib"),
            (["--calibration=twenty.npz", *select], "=20 in --calib"),
            (["--predictions=twenty.npz"], "twenty.npz"),
            (["--probs=a*b*"], r"a pattern with one \* in place"),
            # What the file holds is not what it says.
            (["--calibration=odd.npz"], "odd.npz: .* must be logits, not prob"),
            (["--calibration=named.npz"], "named.npz: .* must be prob"),
            (
                ["--calibration=sigmoid.npz"],
                "sigmoid.npz: .* must sum to 1 .*the array `logit",
            ),
            ([f"{choose[1]}=sigmoid.npz", choose[0]], "npz: .* must sum to 1"),
            (["--calibration=nan.npz"], "nan.npz: .* must not contain NaN"),
            (["--calibration=ids.npz"], r"class ids in \[0, 4\)"),
            (["--calibration=flat.npz"], r"of shape \(n, 1\)"),
            (["--calibration=letters.npz"], "`labels` must hold numbers"),
            (["--calibration=latin.csv"], "must be UTF-8 text"),
            (["--calibration=twice.csv"], r"once. Received: twice=\['prob_0'"),
            (["--calibration=cut.npz"], "cut.npz must be a readable"),
            (["--calibration=flipped.npz"], "flipped.npz must be a readable"),
            (["--calibration=array.npz"], "array.npz must be a readable"),
            (["--calibration=t.pkl"], "must end in .npz, .csv, .tsv, "),
            (["--calibration=absent.npz"], "No such file"),
            (
                ["--class-names=absent.txt"],
                "--class-names=absent.txt: .*No such file",
            ),
            ([f"{choose[1]}=dense.npz", choose[0]], "needs independent rows"),
            # Words of the library name what is a flag here.
            (
                ["--selection=s.npz", "--risk=0.001"],
                "s.npz: No threshold .* this --risk, .* ask for --risk=0.*"
                "Received: --risk=0.001, --delta=0.05, ",
            ),
        ],
        2: [
            (["--logits=logits", "--confidence=labels"], "--confidence excl"),
            (["--correct=a", "--predicted=b"], "--predicted exclude"),
            (["--votes", "--multi-label"], "--multi-label exclude each"),
            (["--risk=0.1"], "--selection.* and --risk"),
            (["--selection=s.npz"], "--selection.* and --risk"),
            (["--calibrator=temperature"], "--calibrator needs --calibration"),
            ([*select, "--predictions=named.npz"], "one file of --predictions"),
            ([*select, "--calibration=s.npz"], "must be different data"),
            (["--calibration=link.npz"], "must be different data"),
            (["--calibration=./t.npz"], "must be different data"),
            (
                ["--num-bins=100000"],
                "--num-bins must be <= 1000.*: --num-bins=100000",
            ),
            (["--num-bins=0"], "--num-bins must be >= 1"),
            (["--num-bins=many"], "--num-bins: invalid int value"),
            ([*select, "--delta=0"], "--delta: must be a number between"),
            (["--risk=nan", "--selection=s.npz"], "--risk: must be a number"),
            (["--out=o.pdf"], "--out must be a file"),
            (["--out=o"], "--out must be a file"),
            (["--out=folder.html"], "--out must be a file"),
            (["--notes=CIFAR"], "--notes must be NAME=TEXT"),
            (["--notes=a=b", "--notes=a=c"], "each name once"),
            (["--separator=,,"], "--separator: must be one sign"),
            (["--separator=,", "--decimal=,"], "not that of --decimal"),
            (["--class-names=a"], "--class-names must be names, at least two"),
        ],
    }
    for arguments, words in cases[code]:
        given = ["--predictions=t.npz", *arguments]
        if not arguments[0].startswith("--out"):
            given.append("--out=o.html")
        if arguments[0].startswith("--calibration"):
            # The least work before the data are compared.
            given.append("--calibrator=temperature")
        found, line = refused(capsys, *given)
        assert found == code, (arguments, line)
        assert re.search(words, line), (arguments, line)
    assert not (command_files / "o.html").exists()
    assert not list(command_files.glob("*.pdf"))


@pytest.mark.usefixtures("words_alone")
def test_command_writes_to_standard_output(command_files, capfdbinary):
    given = ["--calibration=s.npz", "--calibrator=temperature", "--out=-"]
    assert main(["report", "--predictions=t.npz", *given]) == 0
    page = capfdbinary.readouterr().out.decode("utf-8")
    assert page.startswith("<!DOCTYPE html>") and page.endswith("</html>")
    # A temperature alone has nothing to compare with.
    text = Page(page).text
    assert "After calibration" in text
    assert "TemperatureScaling, temperature" in text
    assert "How the calibrator was chosen" not in text
    assert not (command_files / "-").exists()


@pytest.mark.slow
def test_command_lets_few_digits_be_alike_by_chance(
    tmp_path, monkeypatch, capsys
):
    results_alone(monkeypatch)
    monkeypatch.chdir(tmp_path)
    random = np.random.default_rng(0)
    given = ["--predictions=t.npz", "--calibration=c.npz", "--out=o.html"]

    def save(name, second):
        labels = (random.random(len(second)) < second).astype(int)
        np.savez(name, labels=labels, probs=second[:, None])

    def four(x):
        return x.round(4)

    for coarse, of_test, of_calibration, shape in (
        (four, 10_000, 1000, (0.5, 0.5)),
        (four, 1000, 1000, (2.0, 1.0)),
        (np.float16, 2000, 200, (0.5, 0.5)),
    ):
        save("t.npz", coarse(random.beta(0.5, 0.5, of_test)))
        save("c.npz", coarse(random.beta(*shape, of_calibration)))
        assert main(["report", "--quiet", *given]) == 0, (of_test, shape)
    # What was copied is seen all the same.
    test = random.beta(0.5, 0.5, 1000).round(4)
    save("t.npz", test)
    save("c.npz", random.permutation(test)[:100])
    capsys.readouterr()
    code, line = refused(capsys, *given)
    assert code == 1 and "must be different data" in line


@pytest.mark.usefixtures("words_alone")
def test_a_report_of_top1_records_leaves_out_what_they_do_not_tell(
    command_files, capsys
):
    labels, logits = noisy_predictions(300)
    probs = softmax(logits)
    top = {"confidence": probs.max(-1), "predicted": probs.argmax(-1)}
    np.savez("top1.npz", label=labels, **top)
    given = ["--predictions=top1.npz", "--out=o.html", "--quiet"]
    assert main(["report", *given, "--notes=Data set=a <1> = b"]) == 0
    text = Page(Path("o.html").read_text(encoding="utf-8")).text
    ece = kc.ece(labels, logits, from_logits=True)
    assert f"ECE {ece:.4f}" in text
    assert "NLL" not in text and "Brier" not in text
    # Notes stand in the place of names of files.
    assert "a <1> = b" in text and "top1.npz" not in text
    known = "300 answers, of which confidence and correctness are known"
    assert known in text
    capsys.readouterr()
    code, line = refused(capsys, *given, "--calibration=top1.npz")
    assert (code, "must be different data" in line) == (2, True)
    # Copies are refused in whatever order.
    turned = {k: v[::-1] for k, v in top.items()}
    np.savez("more.npz", label=labels[::-1], **turned)
    code, line = refused(capsys, *given, "--calibration=more.npz")
    assert (code, "must be different data" in line) == (1, True)


_PEAK = """
import resource, sys
from keras_calib.reporting.commands import file_reports
from keras_calib.reporting.command_line import main
from keras_calib.reporting.commands.terminal import Found, printed
peak = lambda: resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
before = peak()
given = f"--predictions={sys.argv[1]}", f"--out={sys.argv[2]}", "--quiet"
print(main(["report", *given]), (peak() - before) // 1024)
"""


@pytest.mark.slow
def test_a_log_is_two_columns_whatever_they_hold(tmp_path):
    random = np.random.default_rng(0)
    confidence = random.uniform(0.5, 1.0, 3000).round(6)
    correct = (random.random(3000) < confidence).astype(int)
    correct[0], texts = 0, {}
    names = [f"name {k}" for k in range(20_000)]
    for name, least, count in (("a", 0.5, 2), ("b", 1e-5, 2), ("c", 0.5, 2e4)):
        columns = {"confidence": np.append(least, confidence[1:])}
        if count == 2:
            columns["correct"] = correct
        else:
            label = random.integers(20_000, size=3000)
            predicted = np.where(correct, label, (label + 1) % 20_000)
            columns["label"] = [names[k] for k in label]
            columns["predicted"] = [names[k] for k in predicted]
        log, page = tmp_path / f"{name}.csv", tmp_path / f"{name}.html"
        rows = zip(*columns.values(), strict=True)
        lines = [",".join(columns), *(",".join(map(str, x)) for x in rows)]
        log.write_text("\n".join(lines))
        run = subprocess.run(
            [sys.executable, "-c", _PEAK, log, page],
            capture_output=True,
            text=True,
            env={**os.environ, "PYTHONPATH": str(ROOT)},
        )
        code, megabytes = map(int, run.stdout.split()[-2:])
        assert code == 0 and megabytes < 300, run.stderr
        text = Page(page.read_text(encoding="utf-8")).text
        texts[name] = re.sub(r"\S+\.csv|\d{4}-\d\d-\d\d \d\d:\d\d", "", text)
    assert texts["a"] == texts["c"]
    # A confidence that is as low as can be changes the means a little.
    assert len(texts["a"].split()) == len(texts["b"].split())


def ece_of(confidence, correct):
    """ECE of 15 bins of the confidence of answers."""
    bins = np.ceil(confidence * 15).astype(int)
    gaps = np.bincount(bins, confidence - correct, minlength=16)
    return np.abs(gaps).sum() / len(correct)


@pytest.mark.slow
def test_a_calibrator_of_the_confidence_alone_is_that_of_threshold(
    command_files, capsys
):
    random, columns = np.random.default_rng(0), {}
    for name in ("log", "first"):
        confidence = random.beta(4.0, 1.0, 3000)
        correct = random.random(3000) < 0.8 * confidence**2
        columns[name] = confidence, correct
        np.savez(f"{name}.npz", confidence=confidence, correct=correct)
    given = ["--calibration=first.npz", "--quiet"]
    for kind in ("affine", "beta", "temperature"):
        report = ["--predictions=log.npz", "--out=o.html", *given]
        assert main(["report", *report, f"--calibrator={kind}"]) == 0
        threshold = ["--log=log.npz", "--risk=0.5", "--out=o.json", *given]
        assert main(["threshold", *threshold, f"--calibrator={kind}"]) == 0
        text = Page(Path("o.html").read_text(encoding="utf-8")).text
        confidence, correct = columns["log"]
        q = kc.exporting.load_threshold("o.json")(confidence)["confidence"]
        before, after = (ece_of(p, correct) for p in (confidence, q))
        assert f"from {before:.4f} to {after:.4f}" in text
        assert after < 0.1 < before
        told = capsys.readouterr().out.partition("Calibrated on")[2]
        assert told.partition(", of the")[0] in text
    code, line = refused(capsys, *report, "--calibrator=choose")
    assert (code, "must be affine, beta or temperature" in line) == (1, True)


@pytest.mark.usefixtures("words_alone")
def test_ids_name_mistakes_and_are_in_one_file_only(command_files, capsys):
    for name, seed in (("a", 0), ("b", 1)):
        labels, logits = noisy_predictions(300, seed=seed)
        ids = [f"scan-{seed}-{k}" for k in range(299)] + ["scan-twice"]
        np.savez(f"{name}.npz", labels=labels, logits=logits, key=ids)
    given = ["--predictions=a.npz", "--ids=key", "--out=o.html"]
    assert main(["report", "--quiet", *given]) == 0
    assert "scan-0-" in Page(Path("o.html").read_text(encoding="utf-8")).text
    capsys.readouterr()
    code, line = refused(capsys, *given, "--calibration=b.npz")
    assert code == 1 and "in_both=1, first='scan-twice'" in line


@pytest.mark.parametrize(
    ("kind", "ending"),
    [
        ("classes", ".csv"),
        ("labels", ".jsonl"),
        ("votes", ".parquet"),
        ("records", ".npz"),
        ("records", ".tsv"),
    ],
)
def test_a_file_is_reported_as_its_predictions(
    tmp_path, monkeypatch, capsys, kind, ending
):
    results_alone(monkeypatch)
    labels, logits = noisy_predictions(200, 3)
    facts = {
        "from_logits": True,
        "sample_weight": np.arange(200) % 3,
        "groups": {"site": labels % 2},
        "class_names": ["ant", "bee", "cat"],
    }
    if kind == "labels":
        labels = np.eye(3, dtype=int)[labels]
        facts |= {"multi_label": True, "groups": None}
    elif kind == "votes":
        labels = np.eye(3, dtype=int)[labels] + (logits > 0)
        facts |= {"votes": True}
    p = kc.Predictions(labels, logits, **facts)
    if kind == "records":
        log = {"correct": p.correct, "confidence": p.confidence}
        more = {k: facts[k] for k in ("sample_weight", "groups")}
        p = kc.Predictions(**log, **more)
    path, out = tmp_path / f"model{ending}", tmp_path / "o.html"
    p.write(path)
    assert main(["report", str(path), f"--out={out}", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    facts = {"out": str(out), "models": kc.report(p).results, "failed": []}
    wanted = Found("", facts)
    assert_close(found, json.loads(printed(wanted, as_json=True)))
    if kind == "labels":
        other = tmp_path / f"other{ending}"
        p.write(other)
        more = f"--calibration={other}", f"--out={out}"
        code, line = refused(capsys, f"--predictions={path}", *more)
        assert code == 1 and f"leave out --calibration={other}" in line


def assert_close(found, wanted):
    """Numbers may differ in rounding, as files give float64."""
    if isinstance(wanted, dict):
        assert found.keys() == wanted.keys()
        for name, value in wanted.items():
            assert_close(found[name], value)
    elif isinstance(wanted, list):
        for one, other in zip(found, wanted, strict=True):
            assert_close(one, other)
    elif isinstance(wanted, float):
        assert found == pytest.approx(wanted, abs=1e-4)
    else:
        assert found == wanted
