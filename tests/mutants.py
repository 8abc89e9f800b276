"""Small faults that tests must see: `python tests/mutants.py [NAME ...]`.

Each mutant changes one line of the package in a copy of the checkout and runs
the tests that must fail then. A mutant that survives, or whose line is no
longer there, is told and makes the exit code 1.
"""

import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).resolve().parents[1]


class Mutant(NamedTuple):
    """One change of one line.

    Attributes:
        file: Path below `keras_calib`.
        line: Text that occurs once in it.
        change: What takes its place.
        test: Node that must fail, below `tests`.
    """

    file: str
    line: str
    change: str
    test: str


MUTANTS = {
    "accept_above": Mutant(
        "selection/classifier.py",
        '"accept": score >= self._threshold',
        '"accept": score > self._threshold',
        "test_selection.py::test_a_score_of_exactly_the_threshold_is_accepted",
    ),
    "flsd_above": Mutant(
        "losses/adaptive_gamma.py",
        "ops.cast(p >= threshold",
        "ops.cast(p > threshold",
        "test_losses.py::"
        "test_a_probability_on_a_threshold_of_flsd_is_not_below_it",
    ),
    "record_with_gradient": Mutant(
        "losses/crl.py",
        "record = ops.stop_gradient(\n",
        "record = (\n",
        "test_losses.py::"
        "test_the_record_of_a_ranking_is_no_variable_of_the_loss",
    ),
    "name_without_fsync": Mutant(
        "backend/files.py",
        "    sync_folder(path.parent)\n",
        "    pass\n",
        "test_files.py::test_a_name_is_safe_before_what_it_names",
    ),
    "slope_unclipped": Mutant(
        "metrics/states/histogram.py",
        "slope = xp.clip(slope, -1 / 3, 1 / 3)",
        "slope = xp.clip(slope, -1, 1)",
        "test_selective.py::"
        "test_the_slope_of_a_cell_is_no_steeper_than_a_linear_risk_allows",
    ),
    "offset_beyond_the_last_cell": Mutant(
        "metrics/states/histogram.py",
        "ops.where(above, ops.full_like(offset, 1 - _QUANTUM), offset)",
        "ops.where(above, offset, offset)",
        "test_selective.py::test_scores_beyond_the_last_cell_are_tied",
    ),
    "edge_by_product": Mutant(
        "formulas/bins.py",
        "past = confidence > edge if",
        "past = confidence * num_bins > nearest if",
        "test_calibration_errors.py::"
        "test_decimal_confidences_on_an_edge_are_in_their_bin",
    ),
    "updates_without_a_turn": Mutant(
        "metrics/base.py",
        "        return _LOCK\n",
        "        return contextlib.nullcontext()\n",
        "test_metric_state.py::test_threads_that_share_a_metric_lose_no_sample",
    ),
    "verdict_at_twice_the_level": Mutant(
        "metrics/mean_gap.py",
        "poisson_binomial_tails(errors, shifted, groups)[side] - tail",
        "poisson_binomial_tails(errors, shifted, groups)[side] - 2 * tail",
        "test_intervals.py::"
        "test_calibrated_networks_are_rarely_called_over_or_underconfident",
    ),
}


def lines_of(mutant: Mutant) -> int:
    """How often the file has the line, which must be once."""
    source = (ROOT / "keras_calib" / mutant.file).read_text(encoding="utf-8")
    return source.count(mutant.line)


def survives(mutant: Mutant) -> str | None:
    """What is wrong if the tests do not see the mutant."""
    if (lines := lines_of(mutant)) != 1:
        return f"{lines} such lines in {mutant.file}"
    with tempfile.TemporaryDirectory() as folder:
        for name in ("keras_calib", "tests"):
            shutil.copytree(ROOT / name, Path(folder, name))
        for name in ("pyproject.toml", "setup.cfg"):
            shutil.copy(ROOT / name, folder)
        path = Path(folder, "keras_calib", mutant.file)
        source = path.read_text(encoding="utf-8")
        changed = source.replace(mutant.line, mutant.change)
        path.write_text(changed, encoding="utf-8")
        done = subprocess.run(
            [
                sys.executable,
                "-m",
                "pytest",
                "-q",
                "-x",
                "-p",
                "no:cacheprovider",
            ]
            + [f"tests/{mutant.test}"],
            cwd=folder,
            env={**os.environ, "PYTHONPATH": folder},
            capture_output=True,
            text=True,
            check=False,
        )
    # 1 says that tests ran and failed; others that they did not run.
    return None if done.returncode == 1 else done.stdout[-300:]


def main() -> int:
    names = sys.argv[1:] or list(MUTANTS)
    alive = 0
    for name in names:
        wrong = survives(MUTANTS[name])
        print(name, "is seen" if wrong is None else f"SURVIVES: {wrong}")
        alive += wrong is not None
    return int(alive > 0)


if __name__ == "__main__":
    sys.exit(main())
