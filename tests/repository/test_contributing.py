"""CONTRIBUTING.md: its code runs, its table is that of the tests."""

import ast
import os
import re
import subprocess
import sys

import additions
import keras
import numpy as np
import pytest
from paths import ROOT
from scipy.special import softmax
from walks import page_with_walks

# Those of all cases, and those that name a case.
LAWS = (
    "tests/laws",
    "tests/calibrators/test_laws.py",
    "tests/metrics/test_laws.py",
)
ROWS = "test_losses", "calibrators"


@pytest.fixture(scope="module")
def added():
    return additions.defined()


@pytest.fixture(scope="module")
def rows():
    rng = np.random.default_rng(0)
    logits = rng.normal(size=(80, 4)).astype("float32")
    labels = np.where(np.arange(80) % 3, logits.argmax(-1), np.arange(80) % 4)
    return labels, 4 * logits


def test_the_table_of_floors_is_that_of_the_tests():
    path = ROOT / "tests/repository/test_packages.py"
    tree = ast.parse(path.read_text(encoding="utf-8"))
    floors = next(
        ast.literal_eval(x.value)
        for x in tree.body
        if isinstance(x, ast.Assign) and x.targets[0].id == "FLOORS"
    )
    page = (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8")
    table = re.findall(r"^\| (\d+) \| ([^|]+) \|", page, re.MULTILINE)
    told = {
        x: int(n) for n, names in table for x in re.findall(r"`(\w+)`", names)
    }
    assert told == floors


def test_the_loss_is_cross_entropy_and_its_penalty(added, rows):
    labels, logits = rows
    loss = added["PurityPenalty"](0.3, from_logits=True, reduction="none")
    probs = softmax(logits.astype("float64"), axis=-1)
    expected = -np.log(probs[np.arange(80), labels]) + 0.3 * (probs**2).sum(-1)
    np.testing.assert_allclose(loss(labels, logits), expected, rtol=1e-5)


def test_the_metric_streams_the_mean_of_its_oracle(added, rows):
    labels, logits = rows
    case = next(x for x in additions.cases(added) if hasattr(x, "exact"))
    metric = case.make(from_logits=True)
    for part in (slice(0, 7), slice(7, 80)):
        metric.update_state(labels[part], logits[part])
    expected = case.exact(labels, logits, from_logits=True)
    assert float(metric.result()) == pytest.approx(expected, rel=1e-6)


def test_the_calibrator_finds_the_share_that_was_mixed_in(added):
    rng = np.random.default_rng(1)
    logits = rng.normal(size=(20_000, 4)) * 3
    probs = 0.8 * softmax(logits, axis=-1) + 0.2 / 4
    labels = (rng.uniform(size=(20_000, 1)) > probs.cumsum(-1)).sum(-1)
    calibrator = added["UniformMixing"]().fit(labels, logits)
    # Three standard errors.
    assert float(calibrator.share) == pytest.approx(0.2, abs=0.02)
    found = softmax(np.asarray(calibrator(logits)), axis=-1)
    mixed = (1 - calibrator.share) * softmax(logits, axis=-1)
    np.testing.assert_allclose(found, mixed + calibrator.share / 4, atol=1e-6)


def test_the_promise_fails_as_often_as_it_may(added):
    rng = np.random.default_rng(2)
    choose, false = added["choose_threshold_by_errors"], 0
    for _ in range(300):
        scores = rng.uniform(size=300)
        correct = rng.uniform(size=300) >= 0.1
        # Of all samples 0.1 times the coverage get a wrong answer.
        chosen = choose(scores, correct, errors=0.05, delta=0.2)
        false += 1.0 - max(chosen.threshold, 0.0) > 0.5
    # Three standard errors.
    assert 0.1 < false / 300 < 0.27
    with pytest.raises(ValueError, match="certified to have this `errors`"):
        choose(scores, correct, errors=0.001, delta=0.2)


@pytest.mark.skipif(
    keras.backend.backend() != "tensorflow", reason="of TensorFlow"
)
def test_the_walks_are_those_that_a_trace_finds():
    page = (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8")
    assert page == page_with_walks(page), (
        "run `python docs/generator/walks.py --write`"
    )


@pytest.mark.slow
def test_battery_and_laws_accept_what_the_page_adds(added, tmp_path):
    cases = [str(case) for case in additions.cases(added)]
    command = [
        *(sys.executable, "-m", "pytest", "-v", "-p", "additions"),
        *("-m", "not slow", *LAWS, "-k"),
        " or ".join([*ROWS, *cases, *added]),
    ]
    done = subprocess.run(
        command,
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": "tests"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout[-3000:]
    passed = re.findall(r"::(\S+) PASSED", done.stdout)
    for name in (*added, "margin"):
        assert any(f"[{name}" in x for x in passed), name
