"""Runs are measured, repaired and rejected from what they predicted."""

from functools import partial

import calibrate
import check_claims
import keras
import numpy as np
import pytest
from recipe_cases import ROOT, fake_runs
from results import mixtures, pairs, pixels, selections
from results import runs as run_results
from runs import regularizers
from scipy.special import log_softmax, softmax

import keras_calib


def test_measures_are_those_of_the_predictions(tmp_path):
    folder = fake_runs(tmp_path, {"a": 2.0})[0]
    row = run_results.read_row(folder)
    labels, logits = run_results.read_predictions(folder, "test")
    expected = -log_softmax(logits.astype(float), axis=-1)
    expected = expected[np.arange(300), labels].mean()
    assert row["nll"] == pytest.approx(expected, rel=1e-6)
    right = logits.argmax(-1) == labels
    assert row["accuracy"] == np.mean(right)
    confidence = np.exp(log_softmax(logits.astype(float), axis=-1)).max(-1)
    bins = [np.ceil(confidence * 100) == place for place in range(101)]
    gaps = [abs((confidence - right)[own].sum()) for own in bins]
    found = {
        "overconfidence": confidence[~right].mean(),
        "underconfidence": 1 - confidence[right].mean(),
        "confidence": confidence.mean(),
        "ece100": sum(gaps) / len(labels),
        "mce100": max(
            gap / own.sum()
            for gap, own in zip(gaps, bins, strict=True)
            if own.any()
        ),
    }
    assert {name: row[name] for name in found} == pytest.approx(found, rel=1e-5)
    assert row["diverged"] is False


def test_repairs_are_chosen_on_validation_data(tmp_path):
    folder = fake_runs(tmp_path, {"a": 2.0})[0]
    labels, logits = run_results.read_predictions(folder, "test")
    # Scales that say nothing, which a norm takes off, and a shift, which the
    # softmax does not see.
    random = np.random.default_rng(1)
    logits = np.exp(2 * random.normal(size=(300, 1))) * logits
    logits = logits + 0.2 * random.normal(size=(300, 1))
    validation = labels[:200], 2 * logits[:200]
    row = run_results.repaired(validation, (labels, logits))
    grid = [0.25, 0.5, 3.0]
    chosen = run_results.repaired(validation, (labels, logits), grid)
    assert chosen.pop("grid_ts_ece") == "0.25 0.5 3" and set(chosen) == set(row)
    errors = [
        keras_calib.ece(labels[:200], 2 * logits[:200] / t, from_logits=True)
        for t in grid
    ]
    best = grid[np.argmin(errors)]
    assert chosen["temperature_ts_ece"] == best != row["temperature_ts_ece"]
    assert chosen["ece_ts_ece"] == pytest.approx(
        keras_calib.ece(labels, logits / best, from_logits=True), rel=1e-5
    )
    assert chosen["temperature_ts"] == row["temperature_ts"]
    for suffix, center in (("_norm", True), ("_norm_raw", False)):
        shift = center * logits.mean(-1, keepdims=True)
        p = row[f"p{suffix}"]
        score = logits.max(-1) - shift[:, 0] if center else logits.max(-1)
        if p == "msp":
            score = keras_calib.functional.msp(logits)
        elif p:
            score = score / (np.abs(logits - shift) ** p).sum(-1) ** (1 / p)
        score = np.asarray(score)
        assert row[f"aurc{suffix}"] == pytest.approx(
            keras_calib.aurc(
                labels, logits, score=lambda _, x=score: x, from_logits=True
            ),
            rel=1e-4,
        )
    assert "msp" not in (row["p_norm"], row["p_norm_raw"])
    assert row["aurc_norm"] != row["aurc_norm_raw"]


def test_pixels_of_a_diverged_network_are_not_counted():
    meter = pixels.PixelMeter(3, 255)
    logits = np.zeros((1, 2, 2, 3), "float32")
    meter.update(np.zeros((1, 2, 2), "int32"), logits)
    assert meter.finite
    logits[0, 0, 0, 0] = np.nan
    meter.update(np.zeros((1, 2, 2), "int32"), logits)
    assert not meter.finite


def test_curves_of_equal_names_are_all_drawn(tmp_path):
    folders = fake_runs(tmp_path, {"acls": 2.0, "crl": 2.0})
    write_row = run_results.write_row
    row = run_results.read_row(folders[0])
    labels, _ = run_results.read_predictions(folders[0], "test")
    for folder, setup in zip(
        folders[1:], ("fake", "wide", "wide"), strict=True
    ):
        write_row(folder, row | {"setup": setup})
        run_results.save_predictions(
            folder, "test", labels, np.zeros((300, 4), "float32")
        )
    _, found = selections.curves_of([folders[0], folders[2]])
    assert list(found) == ["fake acls", "wide acls"]
    _, found = selections.curves_of(folders)
    assert len(found) == 4


def test_votes_of_other_images_are_refused(tmp_path):
    path = tmp_path / "votes.npz"
    counts = np.array([[9, 1], [2, 6]])
    np.savez(path, counts=counts, labels=np.array([0, 1]))
    read_votes = selections.read_votes
    shares = read_votes(path, np.array([0, 1]))
    np.testing.assert_allclose(shares, [[0.9, 0.1], [0.25, 0.75]])
    with pytest.raises(ValueError, match="`--votes` must be on the images"):
        read_votes(path, np.array([1, 0]))


def test_rejection_is_measured_on_what_was_predicted(tmp_path, capsys):
    folder = fake_runs(tmp_path, {"a": 2.0})[0]
    labels, logits = run_results.read_predictions(folder, "test")
    row = selections.selection_row(folder)
    assert row["aurc_msp"] == keras_calib.aurc(labels, logits, from_logits=True)
    delta, coverage, risk = selections.guarantee(folder, 0.1, 0.05)
    assert delta == 0.05 and 0 < coverage < 1 and 0 <= risk < 0.1
    # Pixels are not independent: more are accepted, with no guarantee.
    found = run_results.read_row(folder)
    run_results.write_row(folder, found | {"miou": 0.5})
    delta, more, _ = selections.guarantee(folder, 0.1, 0.05)
    assert delta is None and more > coverage
    run_results.write_row(folder, found)
    # Nor where the epoch was chosen on these data.
    (folder / "flags.json").write_text('{"keep": "best"}')
    assert selections.guarantee(folder, 0.1, 0.05)[:2] == (None, more)
    (folder / "flags.json").unlink()
    assert selections.guarantee(folder, 1e-4, 0.05) == (0.05, 0.0, None)
    assert "No threshold is certified" in capsys.readouterr().out
    # Others that are all wrong, and surer than any of the test data.
    foreign = np.zeros((300, 4), "float32")
    foreign[:30, 0] = 100.0
    run_results.save_predictions(folder, "other", np.full(300, -1), foreign)
    found, curves = mixtures.mixed(folder, "other", 0.1)
    # Half of the 60 surest are those 30.
    assert found["foreign"]
    wrong = logits.argmax(-1) != labels
    for name in ("msp", "norm", "norm_raw"):
        assert found[f"errors_other_{name}"] == 0.5
        assert found[f"errors_own_{name}"] <= 0.1
        # Each of the first 30 is wrong; at the end all 300 others are.
        assert curves[name][[19, 24, -1]] == pytest.approx(
            [24 / 24, 30 / 30, (300 + wrong.sum()) / 600]
        )
    picture = tmp_path / "mixture.png"
    mixtures.draw_mixtures({"a": [(found, curves)] * 2}, picture)
    assert picture.stat().st_size > 10_000
    # Others of the same classes, answered alike: the risks are those of one.
    run_results.save_predictions(folder, "twin", labels, logits)
    found, curves = mixtures.mixed(folder, "twin")
    assert not found["foreign"]
    for name, values in selections.selection_row(folder).items():
        if name.startswith("aurc_"):
            mixed = found[name.replace("aurc_", "aurc_mixed_")]
            assert mixed == pytest.approx(values, abs=0.01)
    assert curves["msp"][-1] == pytest.approx(wrong.mean())
    assert found["errors_own_msp"] == found["errors_other_msp"]


def test_the_pull_of_label_smoothing_is_equation_16(tmp_path):
    folder = fake_runs(tmp_path, {"a": 2.0})[0]
    _, logits = run_results.read_predictions(folder, "test")
    votes = np.zeros((300, 4))
    predicted = logits.argmax(-1)
    votes[np.arange(300), predicted] = np.where(np.arange(300) % 2, 0.9, 0.2)
    votes[np.arange(300), (predicted + 1) % 4] = 1 - votes.max(-1)
    rows = selections.imbalance(folder, votes, 0.1, num_bins=3)
    assert sum(row["shared_count"] for row in rows) == 150
    for row in rows:
        assert row["shared_pull"] == pytest.approx(0.1 * 0.9 - 0.1 / 4)
        assert row["other_pull"] == pytest.approx(0.1 * 0.2 - 0.1 / 4)
    confidences = [row["confidence"] for row in rows]
    assert confidences == sorted(confidences)


def test_claims_are_those_that_many_tests_at_once_leave():
    claims = check_claims
    # Holm's own rule by hand: times 3, 2, 1 in order, never falling.
    np.testing.assert_allclose(
        pairs.holm([0.03, 0.01, 0.02]), [0.04, 0.03, 0.04]
    )
    np.testing.assert_allclose(pairs.holm([0.9, 0.8]), [1.0, 1.0])
    found = claims.checked(ROOT / "benchmarks/results/runs/claims.csv")
    page = (ROOT / "docs/results.md").read_text(encoding="utf-8")
    verdicts = {}
    for rows in found.values():
        # What the page says is what the runs say.
        assert claims.table(rows) in page
        for row in rows:
            verdicts[row["claim"]] = row["verdict"]
            holds = row["corrected"] < 0.05
            assert holds == (row["verdict"] != "not shown")
    by = "MNIST, by accuracy: label"
    assert verdicts[f"{by} relaxation has a lower ECE than cross entropy"] == (
        "holds"
    )
    assert (
        verdicts[
            f"{by} smoothing has a higher accuracy than confidence penalty"
        ]
        == "not shown"
    )
    assert "the reverse holds" in verdicts.values()


def test_calibrators_are_fitted_on_validation_predictions(tmp_path):
    folder = fake_runs(tmp_path, {"a": 2.0})[0]
    labels, logits = run_results.read_predictions(folder, "test")
    # One refuses: it has more bins than there are samples.
    few = 10
    run_results.save_predictions(
        folder, "validation", labels[:few], 2 * logits[:few]
    )
    names = ["HistogramBinning", "TemperatureScaling"]
    rows, refused = calibrate.repair(folder, names, "test")
    assert [row["calibrator"] for row in rows] == ["none", names[1]]
    assert "as many samples as parameters" in refused.pop(names[0])
    assert not refused
    # Twice too sure where it is measured.
    run_results.save_predictions(folder, "validation", labels, 2 * logits)
    rows, _ = calibrate.repair(folder, names[1:], "test", [0.5, 4.0])
    expected = keras_calib.ece(labels, logits / 0.5, from_logits=True)
    assert rows[1]["ece"] == pytest.approx(expected, rel=1e-5)
    rows, refused = calibrate.repair(folder, names[1:], "test")
    assert not refused
    scaling = keras_calib.TemperatureScaling().fit(labels, 2 * logits)
    expected = keras_calib.nll(
        labels, logits / scaling.temperature, from_logits=True
    )
    assert [row["calibrator"] for row in rows] == ["none", "TemperatureScaling"]
    assert rows[1]["nll"] == pytest.approx(expected, rel=1e-5)


class FixedSegmenter:
    """Answers with the logits that its images hold."""

    def predict_on_batch(self, x):
        return np.asarray(x)


def test_all_pixels_are_measured_and_some_are_kept():
    random = np.random.default_rng(0)
    logits = random.normal(size=(5, 8, 9, 4)).astype("float32")
    labels = random.integers(4, size=(5, 8, 9))
    labels[:, :2] = 255
    logits[labels == 1, 1] += 2.0
    data = [(logits[:3], labels[:3]), (logits[3:], labels[3:])]
    meter = pixels.PixelMeter(4, 255)
    kept = run_results.predict(
        FixedSegmenter(),
        data,
        pixels_per_image=20,
        ignore_class=255,
        meter=meter,
    )
    assert len(kept[0]) == 5 * 20 and kept[1].shape == (100, 4)
    assert set(kept[0]) == {0, 1, 2, 3}
    # Labels and logits of the same pixels.
    rows = {
        tuple(row): label
        for row, label in zip(
            logits.reshape(-1, 4), labels.ravel(), strict=True
        )
    }
    assert [rows[tuple(row)] for row in kept[1]] == kept[0].tolist()
    again = run_results.predict(
        FixedSegmenter(), data, pixels_per_image=20, ignore_class=255
    )
    np.testing.assert_array_equal(again[1], kept[1])
    row = meter.row()
    valid = labels != 255
    exact = {"from_logits": True}
    assert row["ece"] == pytest.approx(
        keras_calib.ece(labels[valid], logits[valid], **exact), rel=1e-5
    )
    assert row["nll"] == pytest.approx(
        keras_calib.nll(labels[valid], logits[valid], **exact), rel=1e-5
    )
    predicted, truth = logits.argmax(-1)[valid], labels[valid]
    shares = [
        np.sum((predicted == k) & (truth == k))
        / np.sum((predicted == k) | (truth == k))
        for k in range(4)
    ]
    assert row["miou"] == pytest.approx(np.mean(shares))
    assert row["accuracy"] == pytest.approx(np.mean(predicted == truth))
    for per, size in (("image", 1), ("batch", 2)):
        meter = pixels.PixelMeter(4, 255, background=0, per=per, batch_size=2)
        run_results.predict(FixedSegmenter(), data, meter=meter)
        sums, count = np.zeros(2), 0
        for start in range(0, 5, size):
            part = labels[start : start + size], logits[start : start + size]
            own = (part[0] != 255) & (part[0] != 0)
            counted = part[0][own], part[1][own]
            values = (
                keras_calib.ece(*counted, **exact),
                keras_calib.functional.aece(*counted, edges="interp", **exact),
            )
            sums, count = sums + own.sum() * np.array(values), count + own.sum()
        found = meter.row()
        names = [f"{name}_foreground_per_{per}" for name in ("ece", "aece")]
        values = [found.pop(name) for name in names]
        assert values == pytest.approx(list(sums / count))
        assert found == row
        if per == "image":
            library = keras_calib.PerImage(
                keras_calib.ECE(ignore_class=255, **exact), background=0
            )
            library.update_state(labels, logits)
            assert sums[0] / count == pytest.approx(
                float(library.result()), rel=1e-5
            )
    meter = pixels.PixelMeter(4, 255, background=0)
    run_results.predict(FixedSegmenter(), data, meter=meter)
    own = valid & (labels != 0)
    assert meter.row()["ece_foreground"] == pytest.approx(
        keras_calib.ece(labels[own], logits[own], **exact), rel=1e-5
    )
    every = run_results.predict(FixedSegmenter(), data, ignore_class=255)
    assert len(every[0]) == valid.sum()


@pytest.mark.parametrize("condition", ["margin", "ranking"])
def test_a_regularizer_that_does_nothing_is_told(condition):
    """Of ranking: where a neighbour that was right less often is as sure."""
    random = np.random.default_rng(0)
    images = random.normal(size=(40, 3)).astype("float32")
    labels = random.integers(0, 3, 40)
    inputs = keras.Input((3,))
    kind = {"margin": keras_calib.training.EpochModel}.get(
        condition,
        partial(
            keras_calib.CorrectnessRankingModel,
            num_samples=40,
            role="condition",
        ),
    )
    model = kind(inputs, keras.layers.Identity()(inputs))
    loss = keras_calib.ACLS(margin=2.0, condition=condition, from_logits=True)
    model.compile(loss=loss)
    active = np.ptp(images, axis=1) > 2.0
    if condition == "ranking":
        counts = random.integers(0, 3, 40)
        model.right_counts.assign(counts)
        model.finished_epochs.assign(5.0)
        order = np.random.default_rng((1, 3)).permutation(40)
        sure = softmax(images, axis=1).max(axis=1)[order]
        record = counts[order]
        wrong_way = (record - np.roll(record, -1)) * (sure - np.roll(sure, -1))
        active = wrong_way < 0
    batches = keras_calib.data.EpochBatches(
        images, labels, batch_size=16, seed=None
    )
    found = regularizers.training_inactive_share(model, batches, 1)
    assert 0.1 < found < 0.9
    assert found == pytest.approx(np.mean(~active))
