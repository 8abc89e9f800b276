"""`keras-calib report --votes`: files whose labels are votes."""

import re

import numpy as np
import pyarrow as pa
import pyarrow.csv
import pyarrow.parquet
import pytest
from noisy_predictions import noisy_predictions, softmax
from report_pages import results_alone

import keras_calib as kc
from keras_calib.predictions import Predictions
from keras_calib.reporting.command_line import main
from keras_calib.reporting.commands import file_reports


def _voted(n, seed=0):
    labels, logits = noisy_predictions(n, 3, seed=seed)
    rng = np.random.default_rng(seed)
    share = 0.6 * np.eye(3)[labels] + 0.4 / 3
    counts = [rng.multinomial(rng.integers(1, 10), p) for p in share]
    return np.array(counts), logits


def _write(path, votes, logits):
    """The same votes in each format."""
    names = ("ant", "bee", "cat")
    if path.suffix == ".npz":
        np.savez(path, votes=votes, logits=logits)
    elif path.name.startswith("lists"):
        table = pa.table({"label": list(votes), "logits": list(logits)})
        pa.parquet.write_table(table, path)
    else:
        columns = {
            f"{name}_{names[k]}": values[:, k]
            for name, values in (("logit", logits), ("votes", votes))
            for k in (2, 0, 1)
        }
        pa.csv.write_csv(pa.table(columns), path)
    return path


@pytest.mark.parametrize("name", ["a.npz", "a.csv", "lists.parquet"])
def test_votes_of_every_format_are_read_alike(tmp_path, name):
    counts, logits = _voted(30)
    shares = counts / counts.sum(axis=-1, keepdims=True)
    for votes in (counts, shares):
        path = _write(tmp_path / name, votes, logits)
        names = ["ant", "bee", "cat"]
        rows = Predictions.read(path, votes=True, class_names=names)
        np.testing.assert_allclose(rows.labels, votes, rtol=1e-6)
        np.testing.assert_allclose(rows.outputs, logits, rtol=1e-6)
        # What is called votes is votes. Other counts are no labels.
        if name == "lists.parquet" and votes is counts:
            with pytest.raises(ValueError, match="or given with `votes=`; sev"):
                Predictions.read(path)
        elif name != "lists.parquet":
            assert Predictions.read(path).votes


def test_one_column_is_the_share_of_the_second_class(tmp_path):
    (tmp_path / "a.csv").write_text("votes,prob\n0.25,0.5\n1,0.75\n")
    rows = Predictions.read(tmp_path / "a.csv", votes=True)
    assert rows.labels.tolist() == [[0.25], [1.0]]


def test_the_command_fits_on_shares_and_reports_votes(tmp_path, monkeypatch):
    results_alone(monkeypatch)
    made, report = [], file_reports.report

    def kept(*args, **kwargs):
        page = report(*args, **kwargs)
        made.append((page, kwargs["calibrator"]))
        return page

    monkeypatch.setattr(file_reports, "report", kept)
    (counts, logits), (more, others) = _voted(400), _voted(400, seed=1)
    # A sample without votes does not count.
    weight = np.ones(400)
    weight[:10] = more[:10] = 0
    files = []
    for name, votes, outputs in (("t", counts, logits), ("c", more, others)):
        files.append(tmp_path / f"{name}.npz")
        probs = softmax(outputs.astype("float64"))
        np.savez(files[-1], n=votes, probs=probs, sample_weight=weight)
    arguments = [
        "report",
        f"--predictions={files[0]}",
        f"--calibration={files[1]}",
        "--calibrator=temperature",
        "--labels=n",
        "--votes",
        f"--out={tmp_path / 'r.html'}",
        "--quiet",
    ]
    assert main(arguments) == 0
    ((page, calibrator),) = made
    shares = more[10:] / more[10:].sum(axis=-1, keepdims=True)
    wanted = kc.TemperatureScaling().fit(shares, others[10:])
    assert float(calibrator.temperature) == pytest.approx(
        float(wanted.temperature), rel=1e-4
    )
    found = page.results["t"]
    options = {"votes": True, "sample_weight": weight}
    exact = kc.ece(counts, softmax(logits), **options)
    assert found["metrics"]["ece"]["value"] == pytest.approx(exact, abs=1e-5)
    exact = kc.nll(
        counts, np.asarray(wanted(logits)), from_logits=True, **options
    )
    after = found["calibrated_metrics"]["nll"]["value"]
    assert after == pytest.approx(exact, rel=1e-3)
    assert found["annotators"]["num_votes"] == counts[10:].sum()


def test_votes_that_cannot_be_are_refused(tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    counts, logits = _voted(20)
    odd, empty = counts.astype("float64"), counts.copy()
    odd[3, 0], empty[4] = 0.5, 0
    for name, votes in (
        ("good", counts),
        ("other", counts[::-1]),
        ("ids", counts.argmax(axis=-1)),
        ("two", counts[:, :2]),
        ("odd", odd),
        ("empty", empty),
    ):
        np.savez(f"{name}.npz", labels=votes, logits=logits)
    np.savez("none.npz", counts=counts, logits=logits)
    (tmp_path / "top.csv").write_text("confidence,correct\n0.9,1\n")
    few = "prob_0,prob_1,prob_2,votes_0,votes_1\n0.2,0.3,0.5,1,2\n"
    (tmp_path / "few.csv").write_text(few)
    select = "--selection=other.npz", "--risk=0.1"
    for code, file, more, words in (
        (
            1,
            "ids.npz",
            [],
            "must be rows of votes that fit.*class ids need no --votes",
        ),
        (1, "two.npz", [], "must be rows of votes that fit `logits`"),
        (1, "few.csv", [], "`votes_0` to `votes_1` must be rows of votes"),
        (1, "odd.npz", [], "rows of votes, and each must be counts.*row=4"),
        (1, "empty.npz", [], "a weight of 0. Received: row=5"),
        (1, "none.npz", [], "must have the labels that --votes reads"),
        (1, "top.csv", [], "must have `label` or `labels`"),
        (2, "good.npz", ["--ignore-class=1"], "--ignore-class exclude each"),
        (2, "good.npz", ["--predicted=logits"], "--predicted exclude each"),
        (2, "good.npz", [*select], "--votes and --selection exclude"),
    ):
        given = ["report", f"--predictions={file}", "--votes", "--quiet"]
        try:
            found = main([*given, *more, "--out=o.html"])
        except SystemExit as exit:
            found = exit.code
        line = capsys.readouterr().err.strip().splitlines()[-1]
        assert found == code, (file, line)
        assert re.search(words, line), (file, line)
