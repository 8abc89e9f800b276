"""Tables of many runs: means, pairs, ranks, and what they leave out."""

import numpy as np
import pytest
from absl import app
from recipe_cases import ROOT, fake_runs
from results import comparisons, other_data, pairs
from results import runs as run_results


def test_tables_hold_means_ranks_and_published_numbers(tmp_path):
    fake_runs(tmp_path, {"cross_entropy": 1.0, "acls_released": 3.0})
    published = tmp_path / "published.csv"
    published.write_text(
        "setup,loss,on,tuned,measure,value,std,source\n"
        "fake,acls,V2,,ece,0.5,,x\n"
        "fake,acls,test,,ece,0.0112,,x\n"
        "fake,cross_entropy,test,,ece,0.05,0.01,x\n"
        "other,acls,test,,ece,0.9,,x\n"
        "fake,cross_entropy+temperature,test,ece,ece,0.003,,x\n"
        "fake+other,acls,test,ece,rank_ece,1.5,,x\n"
    )
    # Ranks are of set-ups together, in any order.
    found = comparisons.read_published(published, "other+fake")
    assert found["acls (ece)", "rank_ece"] == "1.5" and len(found) == 2
    setups = comparisons.grouped([tmp_path])
    found = comparisons.read_published(published, "fake")
    assert found["cross_entropy held out", "ece_ts_ece"] == "0.003"
    text = comparisons.markdown(setups["fake"], ["accuracy", "ece"], found)
    lines = text.splitlines()
    assert "[0.0112]" in lines[2] and lines[2].startswith("| acls_released")
    assert "[0.05 ± 0.01]" in lines[3]
    rows = setups["fake"]["cross_entropy"]
    mean = np.mean([row["ece"] for row in rows.values()])
    assert f"| **{mean:.3f} ±" in lines[3]
    ranks = comparisons.ranks(setups, ["accuracy", "aurc"])
    assert ranks == {"acls_released": [1.0, 1.0], "cross_entropy": [2.0, 2.0]}
    values = comparisons.paired_values(setups["fake"], "cross_entropy")
    assert list(values) == ["cross_entropy", "acls_released"]
    assert np.shape(values["acls_released"]) == (2, 5)
    lines = comparisons.differences(
        setups["fake"], ["ece", "missing"], "cross_entropy"
    ).splitlines()
    first, second = (
        np.array([setups["fake"][name][seed]["ece"] for seed in range(2)])
        for name in ("acls_released", "cross_entropy")
    )
    # Student's distribution with one degree of freedom is Cauchy's.
    gaps = first - second
    t = gaps.mean() / (np.ptp(gaps) / 2)
    p = 1 - 2 / np.pi * np.arctan(abs(t))
    stars = "* holds" if p < 0.05 else ""
    cell = f"{gaps.mean():+.4f} (p = {p:.3f}){stars}"
    assert lines[2] == f"| acls_released | 2 | {cell} | - |"
    assert "after Holm's correction for the table's 1 differences" in lines[-1]


def test_tables_are_of_other_data_that_runs_were_tried_on(tmp_path):
    folders = fake_runs(tmp_path, {"cross_entropy": 1.0, "focal": 3.0})
    fake_runs(tmp_path / "untried", {"crl": 1.0})
    values = {}
    for place, folder in enumerate(folders):
        row = run_results.read_row(folder)
        values[row["method"], row["seed"]] = 0.1 + 0.01 * place**2
        other = {"ece": 0.1 + 0.01 * place**2, "confidence": 0.5}
        run_results.write_row(folder, other, "evaluation_V2.csv")
    lost = {"setup": "fake", "method": "mbls", "options": "", "seed": 0}
    (tmp_path / "mbls").mkdir()
    run_results.write_row(tmp_path / "mbls", {**lost, "diverged": True})
    published = tmp_path / "published.csv"
    published.write_text(
        "setup,loss,on,tuned,measure,value,std,source\n"
        "fake,focal,V1,,ece,0.1,,x\n"
        "fake,focal,V2,,ece,0.2,,x\n"
        "fake,focal,V2,,mean_confidence,0.4,,x\n"
    )
    setups = comparisons.grouped([tmp_path])
    # A file of the rows says as much as the folders.
    comparisons.write_rows(setups, tmp_path / "runs.csv")
    for found in (setups, comparisons.grouped([tmp_path / "runs.csv"])):
        own, elsewhere = other_data.measured_on(found, ["V1", "V2"])
        assert own[:2] == ("fake", "V1") and own[2] == found["fake"]
        setup, place, methods = elsewhere
        assert (setup, place) == ("fake", "V2")
        assert set(methods) == {"cross_entropy", "focal", "mbls"}
        assert methods["focal"][1]["ece"] == values["focal", 1]
        assert "accuracy" not in methods["focal"][1]
    texts = comparisons.read_published(published, "fake", "V2")
    assert texts == {("focal", "ece"): "0.2", ("focal", "confidence"): "0.4"}
    assert (
        comparisons.read_published(published, "fake")["focal", "ece"] == "0.1"
    )
    lines = comparisons.markdown(methods, ["ece"], texts).splitlines()[2:]
    assert any("[0.2]" in line for line in lines)
    assert "| mbls | 1 | - (0 of 1) |" in lines
    gaps = [
        values["focal", seed] - values["cross_entropy", seed] for seed in (0, 1)
    ]
    text = comparisons.differences(methods, ["ece"], "cross_entropy")
    assert f"| focal | 2 | {np.mean(gaps):+.4f} (p =" in text
    # Pictures are of runs with all measures.
    assert comparisons.paired_values(methods, "cross_entropy") == {}
    assert other_data.measured_on(setups, [])[0][1:] == ("", setups["fake"])
    with pytest.raises(app.UsageError, match=r"\['V2'\].*--on=V3"):
        other_data.measured_on(setups, ["V2", "V3"])


def test_rows_of_older_runs_have_no_number_for_newer_measures():
    table = ROOT / "benchmarks" / "results" / "runs" / "cifar10.csv"
    (methods, *_) = comparisons.grouped([table]).values()
    measures = ["accuracy", "overconfidence", "ece100"]
    lines = comparisons.markdown(methods, measures, {}).splitlines()[2:-2]
    assert lines and all(
        line.endswith("| - (0 of 1) | - (0 of 1) |") for line in lines
    )
    baseline = next(iter(methods))
    text = comparisons.differences(methods, measures, baseline)
    assert text.splitlines()[2].endswith("| - | - |")


def test_a_table_of_rows_stands_for_its_runs(tmp_path):
    folder = tmp_path / "runs"
    fake_runs(folder, {"cross_entropy": 3.0, "acls": 1.5})
    several = fake_runs(tmp_path / "several", {"mbls": 2.0})
    row = run_results.read_row(several[1])
    run_results.write_row(several[1], row | {"options": "strength=0.2"})
    both = [folder, tmp_path / "several"]
    setups = comparisons.grouped(both)
    table = tmp_path / "runs.csv"
    comparisons.write_rows(setups, table)
    again = comparisons.grouped([str(table)])

    def filled(setups):
        return {
            (setup, name, seed): {k: v for k, v in row.items() if v != ""}
            for setup, methods in setups.items()
            for name, rows in methods.items()
            for seed, row in rows.items()
        }

    assert filled(again) == filled(setups)
    assert {"mbls []", "mbls [strength=0.2]"} < set(again["fake"])
    # With other runs beside it, but not with its own.
    part = tmp_path / "part.csv"
    comparisons.write_rows(comparisons.grouped([folder]), part)
    beside = comparisons.grouped([part, tmp_path / "several"])
    assert filled(beside) == filled(setups)
    with pytest.raises(app.UsageError, match="must differ in method"):
        comparisons.grouped([part, folder])


def test_runs_of_one_name_are_told_apart_or_refused(tmp_path):
    grouped = comparisons.grouped
    folders = fake_runs(tmp_path / "a", {"acls": 2.0})
    others = fake_runs(tmp_path / "b", {"acls": 3.0})
    with pytest.raises(app.UsageError, match="must differ in method"):
        grouped([tmp_path])
    for folder in others:
        row = run_results.read_row(folder)
        run_results.write_row(folder, row | {"options": "lambda1=0.0"})
    found = grouped([tmp_path])["fake"]
    assert {name: len(rows) for name, rows in found.items()} == {
        "acls []": 2,
        "acls [lambda1=0.0]": 2,
    }
    row = run_results.read_row(folders[0])
    run_results.write_row(folders[0], row | {"resampled": True})
    with pytest.raises(app.UsageError, match="resampled data, or none"):
        grouped([tmp_path / "a"])
    # Cells of grids and runs that diverged are no networks to use.
    run_results.write_row(folders[0], row | {"tuned": "grid"})
    assert run_results.repairable_runs([tmp_path / "a"]) == folders[1:]
    run_results.write_row(folders[1], row | {"diverged": True})
    with pytest.raises(app.UsageError, match="with validation_pred"):
        run_results.repairable_runs([tmp_path / "a"])


def test_ranks_are_of_what_was_tuned_by_one_measure():

    def rows(ece, scaled=0.0):
        return {0: {"ece": ece, "ece_ts_ece": scaled}}

    methods = {
        "cross_entropy": rows(0.1),
        "cross_entropy held out": rows(0.3, 0.02),
        "focal (accuracy)": rows(0.1004),
        "focal (ece)": rows(0.03),
        "crl (accuracy)": rows(0.2),
        "crl (ece)": rows(0.04),
    }
    setups = {"a": methods, "b": methods}
    found = comparisons.blocks(setups)
    assert list(found) == ["accuracy", "ece"]
    options = {"ties": "min", "digits": 3}
    assert comparisons.ranks(found["accuracy"], ["ece"], **options) == {
        "cross_entropy": [1.0],
        "focal": [1.0],
        "crl": [3.0],
    }
    assert comparisons.ranks(found["ece"], ["ece"]) == {
        "focal": [2.0],
        "crl": [3.0],
        "cross_entropy+temperature": [1.0],
    }


def test_all_files_of_runs_are_read_or_refused_with_the_reason():
    """Whatever measures they have, and whether their methods have names."""
    refused, tables = [], 0
    for path in sorted(
        (ROOT / "benchmarks" / "results" / "runs").glob("*.csv")
    ):
        try:
            setups = comparisons.grouped([path])
        except app.UsageError as error:
            assert "must have a run in each row, with the columns" in str(error)
            refused.append(path.name)
            continue
        tables += 1
        for methods in setups.values():
            names = {k for m in methods.values() for x in m.values() for k in x}
            measures = sorted(names & {"accuracy", "ece", "ap", "alpha"})
            text = comparisons.markdown(methods, measures, {})
            assert len(text.splitlines()) == len(methods) + 4
    assert refused == ["cifar10h_imbalance.csv", "claims.csv"]
    assert tables == 20


def test_diverged_runs_are_counted_and_left_out(tmp_path):
    shifts = {"cross_entropy": 1.0, "acls": 2.0, "crl": 2.0}
    fake_runs(tmp_path, shifts)
    for method, seed in (("acls", 1), ("crl", 0), ("crl", 1)):
        folder = tmp_path / "fake" / method / f"seed{seed}"
        row = run_results.read_row(folder)
        kept = ("setup", "method", "options", "seed", "tuned")
        row = {name: row[name] for name in kept}
        run_results.write_row(folder, {**row, "diverged": True})
    setups = comparisons.grouped([tmp_path])
    text = comparisons.markdown(setups["fake"], ["ece"], {})
    assert (
        f"| acls | 2 | {setups['fake']['acls'][0]['ece']:.3f} (1 of 2) |"
        in text
    )
    assert "| crl | 2 | - (0 of 2) |" in text
    text = comparisons.differences(setups["fake"], ["ece"], "cross_entropy")
    rows = [
        setups["fake"][name][0]["ece"] for name in ("acls", "cross_entropy")
    ]
    assert f"| acls | 1 | {rows[0] - rows[1]:+.4f} |" in text
    assert "| crl | 0 | - |" in text
    values = comparisons.paired_values(setups["fake"], "cross_entropy")
    # A hole of one method takes nothing from the others.
    rows = pairs.summarize({"fake": values})
    assert {row.method: len(row.values) for row in rows} == {
        "cross_entropy": 2,
        "acls": 1,
    }
    by_name = {row.method: row for row in rows}
    kept = setups["fake"]
    lead = kept["acls"][0]["accuracy"] - kept["cross_entropy"][0]["accuracy"]
    np.testing.assert_allclose(by_name["acls"].leads, [lead])
    pairs.draw(rows, tmp_path / "ece.png")
    ranks = comparisons.ranks({**setups, "other": setups["fake"]}, ["ece"])
    assert list(ranks) == ["cross_entropy"]


def test_what_methods_do_beside_the_first_is_said_by_pairs():
    first = np.array([[0.8, 1, 0.10, 1, 1], [0.7, 1, 0.20, 1, 1]])
    better, worse = first.copy(), first.copy()
    better[:, 2] -= [0.0500, 0.0502]
    worse[:, 0] -= [0.0300, 0.0301]
    worse[:, 2] -= [0.0500, 0.0502]
    # p = 0.024, which eight tests at once do not bear out.
    noise = first + [[0, 0, 0.050, 0, 0], [0, 0, 0.054, 0, 0]]
    methods = {
        "first": first,
        "beats": better,
        "trades": worse,
        "equals": noise,
        "fails": 2 * first - better,
    }
    rows = pairs.summarize({"task": methods})
    assert [row.verdict for row in rows] == ["-", *list(methods)[1:]]
    assert rows[1].gap == pytest.approx(-0.0501)
    assert rows[1].error == pytest.approx(0.0001)


def test_differences_hold_after_the_correction_for_all_of_a_table():
    """With one degree of freedom p is 1 - 2 / pi atan(t), t = mean / error."""

    def rows(*shifts):
        return {
            seed: {"ece": 0.1 * seed + shift, "aurc": 0.0, "diverged": False}
            for seed, shift in enumerate(shifts)
        }

    methods = {
        "cross_entropy": rows(0.0, 0.0),
        # t = 5001, 101 and 21: p = 0.0001, 0.0063 and 0.030.
        "sure": rows(0.0500, 0.05002),
        "likely": rows(0.0500, 0.0510),
        "perhaps": rows(0.0500, 0.0550),
        "single": rows(0.0500),
    }
    methods["equal"] = methods["cross_entropy"]
    table = comparisons.differences(methods, ["ece", "aurc"], "cross_entropy")
    # Eight tests, of which five compare equal numbers.
    cells = [line.split(" | ")[2] for line in table.splitlines()[2:7]]
    assert cells == [
        "+0.0500 (p < 0.001)* holds",
        "+0.0505 (p = 0.006)* holds",
        "+0.0525 (p = 0.030)*",
        "+0.0500",
        "+0.0000 (p = 1.000)",
    ]
    assert "the table's 8 differences" in table
