"""Models over seeds in one table: values, tests, marks, forms, refusals."""

import csv
import io
import json
import re
import sys
import types

import numpy as np
import pytest
from scipy.stats import binom, t, ttest_ind, ttest_rel

import keras_calib as kc
from keras_calib.functional.comparison import p_over_seeds
from keras_calib.reporting import Runs

NUM_DRAWS = 30


def trained(counts, rng, rows=200, scales=(1.5, 3.0, 1.0), **facts):
    """Predictions of the seeds of models, some of which are sharper."""
    labels = rng.integers(0, 3, rows)
    evidence = np.eye(3)[labels] + rng.normal(size=(rows, 3))
    return {
        name: [
            kc.Predictions(
                labels,
                scale * (evidence + 0.5 * rng.normal(size=(rows, 3))),
                from_logits=True,
                **facts,
            )
            for _ in range(count)
        ]
        for name, count, scale in zip("abc", counts, scales, strict=False)
    }


@pytest.fixture(scope="module")
def models():
    return trained((3, 3, 4), np.random.default_rng(0))


@pytest.fixture(scope="module")
def runs(models):
    return Runs(models, num_draws=NUM_DRAWS)


def row_of(runs, metric, model):
    table = runs.table
    (k,) = np.flatnonzero(
        (table["metric"] == metric) & (table["model"] == model)
    )
    return {name: column[k] for name, column in table.items()}


def losses_of(p):
    logits = p.outputs.astype("float64")
    chosen = logits[np.arange(len(p)), p.labels]
    return np.log(np.exp(logits).sum(axis=1)) - chosen


def test_values_are_those_of_the_functions(models, runs):
    functions = {"accuracy": kc.functional.accuracy, "ece": kc.ece}
    functions |= {"nll": kc.nll, "aurc": kc.aurc}
    assert runs.values.keys() == functions.keys()
    for name, function in functions.items():
        for model, own in models.items():
            values = [function(p) for p in own]
            np.testing.assert_allclose(runs.values[name][model], values)
            row = row_of(runs, name, model)
            assert row["mean"] == pytest.approx(np.mean(values))
            assert row["sd"] == pytest.approx(np.std(values, ddof=1))
    modes = {"accuracy": "max", "ece": "min", "nll": "min", "aurc": "min"}
    assert runs.modes == modes
    for name, mode in modes.items():
        means = {x: row_of(runs, name, x)["mean"] for x in models}
        best = (max if mode == "max" else min)(means, key=means.get)
        assert [row_of(runs, name, x)["best"] for x in models] == [
            x == best for x in models
        ]


@pytest.mark.parametrize("paired", [False, True])
def test_p_values_count_seeds_and_rows(paired):
    """By the variance as it is derived, in float64."""
    models = trained((3, 3), np.random.default_rng(1))
    runs = Runs(models, ["nll"], paired=paired, num_draws=NUM_DRAWS)
    losses = np.array([losses_of(p) for own in models.values() for p in own])
    rng, draws = np.random.default_rng(0), []
    for _ in range(NUM_DRAWS):
        counts = rng.poisson(size=losses.shape[1])
        draws.append(losses @ counts / counts.sum())
    c = np.cov(np.transpose(draws))
    rows = np.mean([c[i, j] for i in range(3) for j in range(3) if i != j])
    rows += np.mean(
        [c[3 + i, 3 + j] for i in range(3) for j in range(3) if i != j]
    )
    pairs = [(i, j) for i in range(3) for j in range(3) if i != j or not paired]
    rows = max(0.0, rows - 2 * np.mean([c[i, 3 + j] for i, j in pairs]))
    a, b = losses.mean(axis=1).reshape(2, 3)
    seeds = (np.var(a, ddof=1) + np.var(b, ddof=1)) / 3
    freedom = (
        2 * (9 * seeds**2) / (np.var(a, ddof=1) ** 2 + np.var(b, ddof=1) ** 2)
    )
    if paired:
        seeds, freedom = np.var(a - b, ddof=1) / 3, 2
    ratio = abs(a.mean() - b.mean()) / np.sqrt(seeds + rows)
    tails = seeds * t.sf(ratio, freedom) + rows * t.sf(ratio, 199)
    expected = 2 * tails / (seeds + rows)
    worse = max("ab", key=lambda x: row_of(runs, "nll", x)["mean"])
    row = row_of(runs, "nll", worse)
    assert row["p_value"] == pytest.approx(expected, rel=1e-6)
    assert row["p_holm"] == row["p_value"]
    assert row["difference"] == pytest.approx(abs(a.mean() - b.mean()))
    told = "a t-test of pairs over seeds and rows" if paired else "Welch's"
    assert told in runs.legend and "3 seeds, 200 test rows" in runs.legend


def test_holm_counts_all_pairs_of_models(runs, models):
    """Their p-values are those of two models alone."""
    for metric in runs.values:
        found = []
        for x, y in ("ab", "ac", "bc"):
            two = {k: models[k] for k in (x, y)}
            pair = Runs(two, [metric], num_draws=NUM_DRAWS)
            found.append(np.nanmax(pair.table["p_value"]))
        order, told = np.argsort(found), {}
        running = 0.0
        for rank, k in enumerate(order):
            running = max(running, min(1.0, (3 - rank) * found[k]))
            told[("ab", "ac", "bc")[k]] = running
        (best,) = [x for x in models if row_of(runs, metric, x)["best"]]
        for x in models.keys() - {best}:
            row = row_of(runs, metric, x)
            assert row["p_holm"] == pytest.approx(
                told["".join(sorted(best + x))]
            )
            assert row["marked"] == (row["p_holm"] > 0.05)
        assert not row_of(runs, metric, best)["marked"]


@pytest.mark.parametrize("metric", ["nll", "brier_score", "ece", "aurc"])
def test_a_function_of_yours_gives_the_same_as_a_key(metric):
    """Which is read once for all replicates, also with masks and weights."""
    rng = np.random.default_rng(2)
    weight = rng.integers(0, 3, 120).astype("float32")
    models = trained((2, 2), rng, 120, sample_weight=weight, ignore_class=2)
    function = getattr(kc, metric)

    def mine(labels, outputs, **options):
        return function(labels, outputs, **options)

    options = {"num_draws": 10, "modes": {"mine": "min"}}
    found = Runs(models, [metric, mine], **options)
    for column in ("mean", "sd", "p_value"):
        own = found.table[column]
        np.testing.assert_allclose(own[:2], own[2:], rtol=1e-9)


def test_pixels_are_repeated_by_image():
    rng = np.random.default_rng(3)
    labels = rng.integers(0, 2, (12, 4, 4))
    hard = rng.normal(size=(12, 1, 1, 1))
    a, b = (
        kc.Predictions(
            labels,
            np.eye(2)[labels] + hard * rng.normal(size=(1, 1, 1, 2)),
            from_logits=True,
        )
        for _ in range(2)
    )
    found = Runs({"a": [a], "b": [b]}, ["nll", "ece"], num_draws=NUM_DRAWS)
    for metric in found.values:
        told = kc.compare(a, b, metric, num_draws=NUM_DRAWS)
        rows = [row_of(found, metric, x) for x in "ab"]
        error = (told.high - told.low) / (2 * 1.959964)
        p = 2 * t.sf(abs(told.value) / error, 11)
        assert np.nanmax([x["p_value"] for x in rows]) == pytest.approx(p)
        assert [x["mean"] for x in rows] == pytest.approx([told.a, told.b])
    assert "without the differences of seeds" in found.legend


TABLE = {
    "model": ["a"] * 3 + ["b"] * 3 + ["c"] * 4,
    "seed": [0, 1, 2, 0, 1, 2, 0, 1, 2, 3],
    "ece": [0.031, 0.035, 0.033, 0.02, 0.024, 0.028, 0.025, 0.03, 0.02, 0.04],
}


def test_finished_results_are_tested_over_seeds(tmp_path):
    path = tmp_path / "runs.csv"
    with path.open("w", newline="") as file:
        csv.writer(file).writerows([TABLE, *zip(*TABLE.values(), strict=True)])
    found = Runs.of_table(path)
    a, b, c = (
        np.array(TABLE["ece"])[x] for x in (range(3), range(3, 6), range(6, 10))
    )
    p = ttest_ind(a, b, equal_var=False).pvalue
    assert row_of(found, "ece", "a")["p_value"] == pytest.approx(p)
    p = ttest_ind(c, b, equal_var=False).pvalue
    assert row_of(found, "ece", "c")["p_value"] == pytest.approx(p)
    assert repr(Runs.of_table(TABLE)) == repr(found)
    assert "over 3 to 4 seeds. Bold" in found.legend
    pairs = Runs.of_table(TABLE, paired=True, baseline="a")
    for model, own in (("b", b), ("c", c[:3])):
        row = row_of(pairs, "ece", model)
        assert row["p_value"] == pytest.approx(ttest_rel(own, a).pvalue)
        assert row["difference"] == pytest.approx(np.mean(own - a))
    both = Runs.of_table({**TABLE, "set": ["x"] * 10}, model=["set", "model"])
    assert [*both.values["ece"]] == ["x, a", "x, b", "x, c"]
    part = Runs.of_table({**TABLE, "of": TABLE["seed"]}, where={"of": "1"})
    assert part.values["ece"]["b"].tolist() == [0.024]
    assert part.legend == "One seed each. Bold: best."


def test_a_data_frame_goes_in_and_comes_out(monkeypatch):
    pandas = types.SimpleNamespace(DataFrame=dict)
    monkeypatch.setitem(sys.modules, "pandas", pandas)
    frame = types.SimpleNamespace(to_dict={"list": TABLE}.get)
    found = Runs.of_table(frame)
    assert repr(found) == repr(Runs.of_table(TABLE))
    columns = found.to_frame()
    assert [*columns["mean"]] == [*found.table["mean"]]
    assert [*columns["best"]] == [False, True, False]


def test_tables_of_papers_parse_back(runs, tmp_path):
    odd = {"model": ["a|b_1"] * 2 + ["=c&"] * 2, "seed": [0, 1] * 2}
    odd["ece"] = [0.0312, 0.0334, 0.0312, 0.0316]
    found = Runs.of_table(odd)
    beside = {("=c&", "ece"): "0.02"}
    head, line, *body, _, legend = found.to_markdown(beside).splitlines()
    assert (head, line) == ("| model | seeds | ece ↓ |", "|---|---|---|")
    cells = [re.split(r"(?<!\\) \| ", x.strip("| ")) for x in body]
    assert cells[0] == [r"a\|b_1", "2", "0.03230 ± 0.00156 †"]
    assert cells[1] == ["=c&", "2", "**0.03140 ± 0.00028** [0.02]"]
    assert legend == found.legend
    lines = found.to_latex().splitlines()
    rows = [x.removesuffix(r" \\").split(" & ") for x in lines if " & " in x]
    assert rows == [
        ["model", "seeds", r"ece $\downarrow$"],
        [r"a|b\_1", "2", r"0.03230 $\pm$ 0.00156 $^\dagger$"],
        [r"=c\&", "2", r"\textbf{0.03140 $\pm$ 0.00028}"],
    ]
    assert lines[0] == r"\begin{tabular}{lrr}" and r"p $>$ 0.05" in lines[-1]
    text = found.to_csv(tmp_path / "table.csv")
    assert (tmp_path / "table.csv").read_text(encoding="utf-8") == text
    first, second = csv.DictReader(io.StringIO(text))
    assert (first["model"], second["model"]) == ("a|b_1", "'=c&")
    assert float(first["mean"]) == pytest.approx(0.0323)
    assert second["p_value"] == "" and second["best"] == "True"
    assert "0.03140 ± 0.00028 *" in repr(found)
    assert "<td>a|b_1</td>" in found._repr_html_()
    stored = json.loads(json.dumps(runs.to_dict()))
    assert stored["table"]["mean"] == runs.table["mean"].tolist()
    assert "predictions" not in stored


def test_ties_gaps_and_infinities():
    """Equal models are all best; runs without a value are told."""
    table = {
        "model": [x for x in "abcd" for _ in range(3)],
        "seed": [0, 1, 2] * 4,
        "ece": [0.1, 0.2, 0.3, 0.3, 0.1, 0.2, 0.4, "", 0.6, "", "", ""],
        "nll": [1.0, 2.0, 1.5, "inf", 2.0, 1.0, 3.0, 3.0, 3.0, 3, 3, 3],
    }
    found = Runs.of_table(table)
    rows = {x: row_of(found, "ece", x) for x in "abcd"}
    assert [x["best"] for x in rows.values()] == [True, True, False, False]
    assert rows["b"]["p_value"] == 1.0 and rows["b"]["marked"]
    assert rows["c"]["text"] == "0.50 ± 0.14 (2 of 3)"
    assert rows["c"]["seeds"] == 2 and not np.isnan(rows["c"]["p_value"])
    assert rows["d"]["text"] == "- (0 of 3)" and not rows["d"]["marked"]
    assert np.isnan(row_of(found, "nll", "b")["p_value"])
    # Without any noise they differ.
    assert row_of(found, "nll", "c")["p_value"] < 0.05
    exact = {
        "model": [*"aabb"],
        "seed": [0, 1] * 2,
        "ece": [0.1, 0.1, 0.2, 0.2],
    }
    assert np.nanmax(Runs.of_table(exact).table["p_value"]) == 0.0
    one = {"model": [*"aab"], "seed": [0, 1, 0], "ece": [0.1, 0.2, 0.3]}
    assert np.isnan(Runs.of_table(one).table["p_value"]).all()
    # What has no best is not tested, unless there is a baseline.
    unknown = Runs.of_table(TABLE | {"x": TABLE["ece"]}, ["x"])
    assert not unknown.table["best"].any() and "x" in unknown.to_markdown()
    assert np.isnan(unknown.table["p_value"]).all()


def test_a_log_has_no_losses():
    rng = np.random.default_rng(4)
    correct = rng.random(50) < 0.7
    logs = {
        x: [kc.Predictions(correct=correct, confidence=rng.random(50))]
        for x in "ab"
    }
    found = Runs(logs, num_draws=10)
    assert [*found.values] == ["accuracy", "ece", "aurc"]
    p = trained((1, 1), rng, 50)
    point = kc.CoverageAtRisk(risk=0.2, from_logits=True)
    found = Runs(p, [point, "overconfidence"], num_draws=10)
    assert found.modes == {"coverage_at_risk": "max", "overconfidence": "min"}
    expected = kc.functional.coverage_at_risk(p["a"][0], risk=0.2)
    assert found.values["coverage_at_risk"]["a"][0] == pytest.approx(expected)


def test_what_does_not_go_together_is_refused(models):
    (a, *_), (b, *_) = models["a"], models["b"]
    with pytest.raises(ValueError, match=r"`b\[0\]` must have as many rows as"):
        Runs({"a": [a], "b": [b[:9]]})
    with pytest.raises(ValueError, match="must have the same `labels`"):
        Runs({"a": [a], "b": [kc.Predictions(a.labels[::-1], a.outputs)]})
    # The parts of one model are no seeds.
    with pytest.raises(TypeError, match="must be a dict of lists"):
        Runs({"a": a})
    with pytest.raises(TypeError, match=r"`a\[1\]` must be `Predictions"):
        Runs({"a": [a, 3]})
    for empty in ({}, {"a": []}):
        with pytest.raises(ValueError, match="must have models with a run"):
            Runs(empty)
    with pytest.raises(ValueError, match="must have different names"):
        Runs({"a": [a]}, ["ece", kc.ece])
    with pytest.raises(ValueError, match="`baseline` must be one of"):
        Runs.of_table(TABLE, baseline="x")
    with pytest.raises(ValueError, match="`modes` must be one of"):
        Runs.of_table(TABLE, modes={"ece": "low"})
    with pytest.raises(ValueError, match="`table` must be one of"):
        Runs.of_table(TABLE, ["nll"])
    twice = {**TABLE, "seed": [0] * 10}
    with pytest.raises(ValueError, match="one row of each model and seed"):
        Runs.of_table(twice)
    words = {**TABLE, "ece": ["low"] * 10}
    with pytest.raises(ValueError, match="must be columns of numbers"):
        Runs.of_table(words)
    with pytest.raises(ValueError, match="`where` must leave a row"):
        Runs.of_table(TABLE, where={"seed": 9})


@pytest.mark.parametrize("deviation", [0.0, 0.05, 0.5])
def test_equal_models_differ_in_at_most_a_twentieth(deviation):
    """The means of three seeds on 300 rows, each model good at its own."""
    rng, hits, experiments = np.random.default_rng(5), 0, 400
    for _ in range(experiments):
        shared, parts = rng.normal(size=300), []
        for _ in range(2):
            own = shared + 0.7 * rng.normal(size=300)
            shift = deviation * rng.normal(size=(3, 1))
            parts.append(own + shift + 0.5 * rng.normal(size=(3, 300)))
        values = np.concatenate(parts)
        a, b = np.split(values.mean(axis=1), 2)
        hits += p_over_seeds(a, b, np.cov(values) / 300, 300) <= 0.05
    assert hits <= binom.ppf(0.999, experiments, 0.05)
    # Three seeds alone would not do: their rows are the same.
    assert p_over_seeds(a, b) != p_over_seeds(a, b, np.cov(values) / 300, 300)


def test_displays_draw_means_of_seeds_with_bands(models):
    shown = kc.ReliabilityDisplay(models, num_bins=5)
    for name, own in models.items():
        assert shown.values[name] == pytest.approx(
            np.mean([kc.ece(p, num_bins=5) for p in own])
        )
    pytest.importorskip("matplotlib").use("Agg")
    ax = shown.plot().ax_
    filled = np.all([x.weight > 0 for x in shown.models["a"]], axis=0)
    rates = np.array([x.accuracy[filled] for x in shown.models["a"]])
    np.testing.assert_allclose(ax.lines[1].get_ydata(), rates.mean(axis=0))
    ends = ax.collections[0].get_paths()[0].vertices[:, 1]
    top = (rates.mean(axis=0) + rates.std(axis=0, ddof=1)).max()
    assert ends.max() == pytest.approx(top)
    assert len(ax.collections) == 3
    one = kc.ReliabilityDisplay({"a": models["a"]}, num_bins=5).plot()
    assert len(one.ax_.collections) == 1
    curves = kc.RiskCoverageDisplay({**models, "one": models["a"][0]})
    for name, own in models.items():
        assert curves.values[name] == pytest.approx(
            np.mean([kc.aurc(p) for p in own])
        )
        risks = [1 - kc.functional.accuracy(p) for p in own]
        low, high = curves.bands[name]
        assert curves.curves[name].risk[-1] == pytest.approx(np.mean(risks))
        spread = np.std(risks, ddof=1)
        assert high[-1] - low[-1] == pytest.approx(2 * spread)
    assert "one" not in curves.bands
    assert len(curves.plot().ax_.collections) == 3
