"""Faults that lie in no one package."""

from mutants.mutant import Mutant

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
