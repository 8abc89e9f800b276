"""The hierarchical model beside other integrals, known effects and no seeds."""

import importlib.util
import re
import subprocess
import sys

import numpy as np
import pytest
from absl import app
from recipe_cases import PAPERS, ROOT
from results import hierarchical
from scipy.stats import norm

pytestmark = pytest.mark.slow
needs_tfp = pytest.mark.skipif(
    importlib.util.find_spec("tensorflow_probability") is None,
    reason="needs the extra bayes",
)


def by_importance(rows, num=1_000_000):
    """Mean, further effect, first effect and weights of draws of the prior.

    The likelihood is of each difference by itself: nothing is integrated out.
    """
    rng = np.random.default_rng(1)
    several = len(rows) > 1
    mean = rng.normal(0.0, 2.0, num)
    spread = several * rng.exponential(1.0, num)
    sigma = rng.exponential(1.0, num)
    log_weights, effects = np.zeros(num), []
    for row in rows:
        effect = mean + spread * rng.standard_normal(num)
        own = sigma * np.exp(several * rng.standard_normal(num))
        own = np.hypot(own, 1e-3)
        for value in row:
            log_weights += norm.logpdf(value, effect, own)
        effects.append(effect)
    weights = np.exp(log_weights - log_weights.max())
    weights /= weights.sum()
    assert 1 / np.sum(weights**2) > 3000
    further = mean + spread * rng.standard_normal(num)
    return mean, further, effects[0], weights


@needs_tfp
def test_posterior_is_that_of_weighted_draws_of_the_prior():
    problems = [
        [[-0.9, -1.2, -0.7], [-0.4, -1.3], []],
        [[], [0.6, 1.1, 0.4], []],
        [[-1.0, -0.5], [0.7, 0.1], [0.1, -0.4]],
    ]
    found = hierarchical.posterior(problems, units=np.ones(3))
    assert found.rhat.max() < 1.02
    assert found.ess.min() > 1000
    for at, rows in enumerate(problems):
        known = [place for place, row in enumerate(rows) if row]
        *expected, weights = by_importance([rows[place] for place in known])
        drawn = (
            found.mean[:, at],
            found.further[:, at],
            found.effects[:, at, known[0]],
        )
        for values, draws in zip(expected, drawn, strict=True):
            for cut in (-1.0, -0.5, 0.0, 0.5):
                p = np.sum(weights * (values < cut))
                # Three standard errors of 1000 draws at the least.
                assert np.mean(draws < cut) == pytest.approx(p, abs=0.045)


@needs_tfp
def test_intervals_cover_known_effects_as_often_as_they_say():
    """Parameters drawn from the priors: then 90 % is exact, in the long run."""
    rng = np.random.default_rng(2)
    num, setups, seeds = 80, 3, 3
    mean = rng.normal(0.0, 2.0, num)
    spread, sigma = rng.exponential(1.0, (2, num))
    effects = mean + spread * rng.standard_normal((setups, num))
    own = sigma * np.exp(rng.standard_normal((setups, num)))
    gaps = effects + own * rng.standard_normal((seeds, setups, num))
    found = hierarchical.posterior(
        list(gaps.T), units=np.ones(num), draws=300, warm_up=300
    )
    further = mean + spread * rng.standard_normal(num)
    for truth, draws in (
        (mean, found.mean),
        (further, found.further),
        (effects[0], found.effects[..., 0]),
    ):
        low, high = np.quantile(draws, [0.05, 0.95], axis=0)
        # Three standard errors of 80 simulations.
        covered = np.mean((low < truth) & (truth < high))
        assert covered == pytest.approx(0.9, abs=0.1)


def rows(setups, methods):
    """A run of each seed: ECE and accuracy shifted from those of the first."""
    rng = np.random.default_rng(3)
    return {
        setup: {
            method: {
                seed: {
                    "ece": 0.1 + shift + 1e-3 * rng.standard_normal(),
                    "accuracy": 0.9 + shift + 1e-3 * rng.standard_normal(),
                    "diverged": seed == 3,
                }
                for seed in range(4)
            }
            for method, shift in methods.items()
        }
        for setup in setups
    }


@needs_tfp
def test_report_says_which_methods_are_better_equal_and_worse():
    setups = rows("abc", {"base": 0.0, "low": -0.03, "same": 0.0})
    # Nothing can be said of a set-up with one seed.
    setups["d"] = {name: {0: own[0]} for name, own in setups["a"].items()}
    setups["b"]["single"] = {0: setups["b"]["low"][0]}
    ropes = hierarchical.read_ropes(["ece=0.01"], ["ece", "accuracy"])
    assert ropes == {"ece": 0.01, "accuracy": 0.005}
    text = hierarchical.report(setups, ropes, "base", draws=500)
    cells = {}
    for line in text.splitlines():
        if line.startswith("### "):
            measure = line[4:]
        if line.startswith(("| low", "| same")):
            cells[measure, line[2:5]] = line.split(" | ")[2:-1]
    # A lower ECE is better, a lower accuracy worse.
    for key, place in {
        ("ece", "low"): 0,
        ("ece", "sam"): 1,
        ("accuracy", "low"): 2,
        ("accuracy", "sam"): 1,
    }.items():
        assert len(cells[key]) == 4
        for cell in cells[key]:
            assert float(cell.split(" / ")[place]) > 0.95
    assert text.endswith("with one seed: low on d, same on d, single on b.")
    assert "R-hat at most" in text
    interval = r"\| low \| -0\.03\d\d \[-0\.03\d\d, -0\.0[23]\d\d\] \|"
    assert re.search(interval, text)


@needs_tfp
def test_one_set_up_has_effects_and_no_further_one(tmp_path):
    """The command; of one set-up the mean is its effect."""
    table = ROOT / "benchmarks" / "results" / "runs" / "camvid.csv"
    done = subprocess.run(
        [sys.executable, PAPERS / "compare.py", table, f"--out={tmp_path}"]
        + ["--model=hierarchical", "--measures=ece", "--draws=200"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=True,
    )
    text = (tmp_path / "hierarchical.md").read_text(encoding="utf-8")
    assert text in done.stdout
    rows = [x.split(" | ") for x in text.splitlines() if x.startswith("| ")]
    assert [row[0] for row in rows[1:]] == [
        "| acls",
        "| focal",
        "| label_smoothing",
        "| mbls",
    ]
    for row in rows[1:]:
        assert row[2] == row[3] and row[4] == "- |"
    # All seeds of ACLS are 0.011 to 0.015 worse.
    assert float(rows[1][2].rpartition(" / ")[2]) > 0.95


def test_one_seed_is_refused():
    setups = rows("a", {"base": 0.0, "low": -0.03})
    for method in setups["a"].values():
        del method[1], method[2]
    with pytest.raises(app.UsageError, match="low on a with one seed"):
        hierarchical.report(setups, {"ece": 0.005}, "base")


@pytest.mark.parametrize("text", ["-1", "x", "nll=0.1", "ece=", "inf"])
def test_ropes_are_numbers_of_known_measures(text):
    with pytest.raises(app.UsageError, match="--rope must hold numbers"):
        hierarchical.read_ropes([text], ["ece"])


def test_absent_package_is_named(monkeypatch):
    monkeypatch.setitem(sys.modules, "tensorflow_probability", None)
    with pytest.raises(ImportError, match=r"pip install -e \"\.\[bayes\]\""):
        hierarchical.check_installed()
