"""Pages of methods: each has one, its code runs, its numbers are the runs'."""

import csv
import re
from pathlib import Path

import keras
import measurements
import method_files
import numpy as np
import pytest
from paths import ROOT
from public_names import PUBLIC
from scipy.stats import ttest_1samp

import keras_calib


def all_methods():
    return [
        (kind, method)
        for kind, found in method_files.methods().items()
        for method in found
    ]


def test_every_loss_model_and_calibrator_has_a_page():
    named = {name for _, method in all_methods() for name in method["names"]}
    assert method_files.exported_methods() <= named <= {*PUBLIC}


@pytest.mark.slow
def test_code_of_pages_runs():
    rng = np.random.default_rng(0)
    logits, maps = rng.normal(size=(60, 3)), rng.normal(size=(3, 15, 15, 3))
    inputs = keras.Input((4,))
    hidden = keras.layers.Dropout(0.5)(keras.layers.Dense(4)(inputs))
    network = keras.Model(inputs, keras.layers.Dense(3)(hidden))
    places = 20.0 * np.arange(5)[:, None] + [0.0, 0.0, 9.0, 9.0]
    boxes = [{"boxes": places, "labels": np.arange(5) % 2}] * 20
    # Every second image is wrong, and less confident.
    found = [
        {
            **one,
            "boxes": places + 5 * (i % 2),
            "confidence": rng.uniform(0.0, 0.5 + 0.5 * (i % 2 == 0), 5),
        }
        for i, one in enumerate(boxes)
    ]
    for kind, method in all_methods():
        space = {
            "keras": keras,
            "keras_calib": keras_calib,
            "labels": np.where(np.arange(60) % 3, logits.argmax(-1), 0),
            "logits": logits,
            "label_maps": (maps + rng.gumbel(size=maps.shape)).argmax(-1),
            "logit_maps": maps,
            "label_rows": (logits > rng.logistic(size=(60, 3))) * 1,
            "true_boxes": boxes,
            "found_boxes": found,
            "inputs": inputs,
            "outputs": network.output,
            "model": network,
            "network": network,
            "other_network": keras.models.clone_model(network),
        }
        exec(method_files.code_of(method, kind), space)


def test_changes_have_the_interval_of_a_t_test():
    gaps = np.array([0.01, 0.02, 0.06])
    pairs = [({"ece": "0.1"}, {"ece": str(0.1 + gap)}) for gap in gaps]
    found = measurements._change(pairs, "ece", "ece")
    ends = ttest_1samp(gaps, 0.0).confidence_interval(0.95)
    half = (ends.high - ends.low) / 2
    assert found == f"+{gaps.mean():.4f} ± {half:.4f}"
    flat = [({"ece": "0.3"}, {"ece": "0.2"}), ({"ece": "0.4"}, {"ece": "0.3"})]
    assert measurements._change(flat, "ece", "ece").startswith("**−0.1000 ± ")
    assert measurements._change(pairs[:1], "ece", "ece") == "+0.0100"


@pytest.mark.parametrize(
    "file, method, base, row",
    [
        ("newsgroups20", "mbls", "cross_entropy", "| 20 Newsgroups<br>str"),
        ("noisy_digits", "AdaFocal", "cross entropy", "| [Noisy digits]"),
        ("digits_ensembles", "deep ensemble", "network", "| [Digits]"),
    ],
)
def test_tables_pair_runs_of_the_same_seed(file, method, base, row):
    path = ROOT / "benchmarks" / "results" / "runs" / f"{file}.csv"
    with open(path, newline="", encoding="utf-8") as opened:
        runs = list(csv.DictReader(opened))
    setup = next(run["setup"] for run in runs if run["method"] == method)
    ece = {
        (run["method"], run["seed"]): float(run["ece"])
        for run in runs
        if run["setup"] == setup
    }
    seeds = {seed for _, seed in ece}
    gap = np.mean([ece[method, s] - ece[base, s] for s in seeds])
    shown = next(
        line
        for line in measurements.effects_of_loss({method: ""})
        if line.startswith(row)
    )
    assert f"{gap:+.4f}".replace("-", "−") in shown.split(" | ")[1]
    assert shown.endswith(f"| {len(seeds)} |")


def test_every_method_has_an_effect_with_an_interval():
    for kind, method in all_methods():
        if "effect" in method:
            # In words, beside the table.
            assert "/benchmarks/results/" in method["effect"]
            continue
        if kind == "calibrators":
            columns = method["columns"]
            lines = measurements.effects_of_calibrator(columns, [])
        else:
            lines = measurements.effects_of_loss(method["runs"])
        assert any(" ± " in line for line in lines), method["page"]


def test_names_of_pages_are_names_of_results():
    for kind, method in all_methods():
        for name in method.get("cost", []):
            told = measurements.costs([name], None)
            assert any(f"| {name} |" in line for line in told), name
        for run in method.get("runs", {}):
            assert measurements.effects_of_loss({run: ""}), run
        if kind == "calibrators":
            rows = method.get("rows", [])
            told = measurements.effects_of_calibrator(
                method.get("columns"), rows
            )
            for name in rows and [*rows, "as trained"]:
                assert any(line.startswith(f"| {name} |") for line in told)
        if "fits" in method:
            assert measurements.costs([], method["fits"])


@pytest.mark.parametrize(
    "address, link, becomes",
    [
        ("a.md", "../LICENSE", "repository/LICENSE"),
        (
            "a.md",
            "../benchmarks/results/runs",
            "repository/benchmarks/results/runs/index.md",
        ),
        ("more/a.md", "../../LICENSE", "../repository/LICENSE"),
        ("more/a.md", "../losses.md#here", "../losses.md#here"),
        ("a.md", "methods/index.md", "methods/index.md"),
        (
            "a.md",
            "https://example.org/../LICENSE",
            "https://example.org/../LICENSE",
        ),
    ],
)
def test_links_out_of_docs_lead_to_copies(address, link, becomes):
    import links

    text, linked = links.linked_inside(f"[x]({link})", Path(address))
    assert text == f"[x]({becomes})"
    copied = re.sub(r".*repository/|/index.md$", "", becomes)
    assert linked == ({copied} if "repository/" in becomes else set())
