"""Reports that compare groups of the data."""

import csv

import numpy as np
import pytest

import keras_calib as kc
from keras_calib.reporting.command_line import main


@pytest.fixture(scope="module")
def data():
    """Labels, probabilities and sites, of which one is overconfident."""
    rng = np.random.default_rng(0)
    confidence = 0.5 + 0.5 * rng.beta(4.0, 1.0, 1500)
    site = np.array(["Bari", "Graz", "Lyon"])[np.arange(1500) % 3]
    site[:9] = "Rome"
    share = np.where(site == "Graz", confidence - 0.3, confidence)
    labels = (rng.random(1500) > share).astype(int)
    return labels, np.stack([confidence, 1.0 - confidence], axis=-1), site


@pytest.fixture(scope="module")
def page(data):
    labels, probs, site = data
    return kc.report_of_predictions(
        labels, probs, groups={"site": site}, verbose=0
    )


def test_a_page_has_the_table_by_group_and_blames_the_right_one(data, page):
    labels, probs, site = data
    found = page.results["model"]["groups"]
    expected = kc.by_group(
        labels,
        probs,
        {"site": site},
        metrics=("accuracy", "gap", "ece"),
        simultaneous=True,
    )
    for row, same in zip(found["rows"], expected.rows, strict=True):
        for name, value in row.items():
            expected = same[name]
            if isinstance(value, float):
                expected = pytest.approx(expected, abs=1e-5)
            assert value == expected, name
    assert found["sentences"] == ["Overconfident: site Graz."]
    assert "Which groups are served worse?" in page.html
    assert "too few" in page.html


def test_a_file_gives_the_groups_of_the_arrays(data, page, tmp_path, capsys):
    labels, probs, site = data
    with open(tmp_path / "test.csv", "w", newline="") as file:
        rows = csv.writer(file)
        rows.writerow(["label", "prob_0", "prob_1", "site"])
        for label, pair, name in zip(labels, probs, site, strict=True):
            rows.writerow([label, *pair, name])
    out = tmp_path / "report.html"
    given = [f"--predictions={tmp_path / 'test.csv'}", f"--out={out}"]
    assert main(["report", *given, "--groups=site", "--quiet"]) == 0
    assert "Overconfident: site Graz." in out.read_text(encoding="utf-8")
    assert main(["report", *given, "--groups=place", "--quiet"]) == 1
    assert "place" in capsys.readouterr().err
