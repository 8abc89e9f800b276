"""Reports that compare groups of the data."""

import csv

import numpy as np
import pytest
from report_pages import report_of

import keras_calib as kc
from keras_calib.predictions.tables import Table
from keras_calib.reporting.command_line import main
from keras_calib.reporting.groups import AttributeGroups, worst_first


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
    return report_of(labels, probs, groups={"site": site}, verbose=0)


def test_a_page_has_the_table_by_group_and_blames_the_right_one(data, page):
    labels, probs, site = data
    found = page.results["model"]["groups"]
    expected = kc.by_group(
        labels,
        probs,
        groups={"site": site},
        metrics=("accuracy", "confidence_gap", "ece"),
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
    order = [x["group"] for x in worst_first(found["rows"])]
    assert order[0] == "Graz" and order[-1] == "Rome"
    table = page.html.split("Which groups are served worse?")[1]
    places = [table.index(f">site {x}<") for x in order]
    assert places == sorted(places)
    assert "left out" not in page.html


def test_word_interval_and_p_of_a_group_agree():
    rng, named, again = np.random.default_rng(0), 0, 0
    for _ in range(20):
        confidence = 0.5 + 0.5 * rng.beta(1.0, 0.6, 1200)
        site = np.arange(1200) % 4
        share = np.minimum(confidence + 0.075 * (site == 1), 1.0)
        right = (rng.random(1200) < share).astype(int)
        one = np.ones(1200)
        groups = AttributeGroups(15, votes=False)
        names = ["a", "b", "c", "d"], site
        groups.add(
            {"site": names}, 1200, np.arange(1200), confidence, right, one, None
        )
        found = groups.results(None)
        for row in found["rows"]:
            ends = row["confidence_gap_low"], row["confidence_gap_high"]
            excludes = not ends[0] <= 0.0 <= ends[1]
            told = f"site {row['group']}" in " ".join(found["sentences"])
            assert excludes == (row["p_holm"] <= 0.05) == told
            named += told
            # Holm's p-value of the exact test is smaller.
            again += row["p_holm"] > 4.0 * row["p_value"] + 1e-9
    assert named and again


@pytest.mark.usefixtures("words_alone")
def test_a_page_with_a_selector_blames_the_risk_of_a_group():
    rng = np.random.default_rng(0)
    confidence = rng.uniform(0.8, 1.0, 1600)
    probs = np.stack([confidence, 1.0 - confidence], axis=-1)
    labels = (rng.random(1600) > confidence).astype(int)
    selector = kc.SelectiveClassifier().fit(
        labels, np.log(probs).astype("float32"), risk=0.1, delta=0.05
    )
    # One site is always right and the other always wrong: the p-value is 0.
    site = np.array(["Bari", "Graz"])[np.arange(1600) % 2]
    page = report_of(
        (site == "Graz").astype(int),
        np.log(probs),
        from_logits=True,
        selector=selector,
        groups={"site": site},
        verbose=0,
    )
    found = page.results["model"]["groups"]
    bari, graz = found["rows"]
    assert (bari["risk"], graz["risk"]) == (0.0, 1.0)
    assert (bari["risk_p_holm"], graz["risk_p_holm"]) == (1.0, 0.0)
    assert found["sentences"][-2:] == [
        "More errors among the accepted than in the other groups: site Graz.",
        "A risk above the 10 % that is certified for all predictions "
        "together, but for no group: site Graz.",
    ]
    table = page.html.split("Which groups are served worse?")[1]
    assert all(text in table for text in found["sentences"])
    for name in ("coverage", "risk"):
        assert f">{name}" in table.lower()
    selector.fit(labels, np.log(probs), coverage=0.5, groups=site)
    with pytest.raises(ValueError, match="must have one threshold for all"):
        report_of(labels, np.log(probs), from_logits=True, selector=selector)


@pytest.mark.usefixtures("words_alone")
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


@pytest.mark.usefixtures("words_alone")
def test_a_page_of_many_groups_counts_those_left_out(data):
    labels, probs, _ = data
    groups = {"ward": np.arange(1500) % 103}
    page = report_of(labels, probs, groups=groups, verbose=0)
    assert "3 further groups are left out" in page.html
    # 14 or 15 predictions each.
    (sentence,) = page.results["model"]["groups"]["sentences"]
    assert sentence.startswith("Every group has fewer than 30 predictions")


@pytest.mark.parametrize("ending", ["npz", "parquet"])
def test_a_missing_group_is_no_group(data, tmp_path, ending):
    labels, probs, _ = data
    site = np.where(np.arange(1500) == 7, np.nan, 1.0)
    path = tmp_path / f"test.{ending}"
    if ending == "npz":
        np.savez(path, labels=labels, probs=probs, site=site)
    else:
        pa = pytest.importorskip("pyarrow")
        pq = pytest.importorskip("pyarrow.parquet")
        found = {"label": labels, "probs": [*probs], "site": site}
        pq.write_table(pa.table(found), path)
    file = Table(path, None, ".")
    with pytest.raises(ValueError, match="`site` must have a value.*row=8"):
        list(file.parts(["site"], [], []))
