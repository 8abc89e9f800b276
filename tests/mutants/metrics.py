"""Faults of metrics, of their states, formulas and exact functions."""

from mutants.mutant import Mutant

MUTANTS = {
    "copies_are_empty": Mutant(
        "metrics/state_dicts.py",
        "    made.load_state_dict(state)\n",
        "",
        "metrics/test_copies.py::test_copies_and_pickles_have_the_state",
    ),
    "slope_unclipped": Mutant(
        "metrics/states/histogram.py",
        "slope = xp.clip(slope, -1 / 3, 1 / 3)",
        "slope = xp.clip(slope, -1, 1)",
        "metrics/test_bounds.py::"
        "test_the_slope_of_a_cell_is_no_steeper_than_a_linear_risk_allows",
    ),
    "offset_beyond_the_last_cell": Mutant(
        "metrics/states/histogram.py",
        "xp.where(above, xp.full_like(offset, 1 - _QUANTUM), offset)",
        "xp.where(above, offset, offset)",
        "metrics/test_bounds.py::test_scores_beyond_the_last_cell_are_tied",
    ),
    "votes_without_their_disagreement": Mutant(
        "formulas/proper.py",
        "return losses + (1.0 - squares)",
        "return losses",
        "metrics/test_votes.py::"
        "test_a_value_of_votes_is_that_of_the_votes_one_by_one",
    ),
    "votes_with_the_noise_of_classes": Mutant(
        "formulas/binned_errors.py",
        "if sums.squared_residual is not None:",
        "if False:",
        "metrics/test_votes.py::"
        "test_debiasing_subtracts_the_variance_between_samples",
    ),
    "votes_as_if_independent": Mutant(
        "functional/hypothesis_tests.py",
        "null = DrawnLabels(confidence, votes, rho)",
        "null = DrawnLabels(confidence, votes, 0.0)",
        "functional/test_tests_of_votes.py::"
        "test_p_values_of_votes_are_uniform_and_find_gaps",
    ),
    "edge_by_product": Mutant(
        "formulas/bins.py",
        "past = confidence > edge if",
        "past = confidence * num_bins > nearest if",
        "functional/test_binned.py::"
        "test_decimal_confidences_on_an_edge_are_in_their_bin",
    ),
    "updates_without_a_turn": Mutant(
        "metrics/reading.py",
        "contextlib.nullcontext() if alone else STATES:",
        "contextlib.nullcontext():",
        "metrics/test_states.py::"
        "test_threads_that_share_a_metric_lose_no_sample",
    ),
    "verdict_at_twice_the_level": Mutant(
        "metrics/gap_estimates.py",
        "poisson_binomial_tails(errors, shifted, groups)[side] - tail",
        "poisson_binomial_tails(errors, shifted, groups)[side] - 2 * tail",
        "formulas/test_intervals.py::"
        "test_calibrated_networks_are_rarely_called_over_or_underconfident",
    ),
    "carry_lost": Mutant(
        "numerics/exact_sums.py",
        "    middle = middle + xp.right_shift(low, _LIMB_BITS)\n",
        "",
        "numerics/test_exact_sums.py::"
        "test_carries_go_up_and_stop_at_the_largest_sum",
    ),
    "sums_beyond_their_range_wrap": Mutant(
        "numerics/exact_sums.py",
        "    high = xp.minimum(high, _SATURATED)\n",
        "",
        "numerics/test_exact_sums.py::"
        "test_carries_go_up_and_stop_at_the_largest_sum",
    ),
    "squares_of_weights_are_weights": Mutant(
        "metrics/states/records.py",
        "    if squared:\n",
        "    if False:\n",
        "metrics/test_table.py::test_bins_of_weighted_predictions_are_those_of_ece",
    ),
    "walk_without_its_start": Mutant(
        "formulas/cumulative.py",
        "below = at_least(-xp.min(difference), 0.0)",
        "below = -xp.min(difference)",
        "functional/test_cumulative.py::test_error_is_that_of_every_threshold",
    ),
    "walk_through_ties": Mutant(
        "formulas/cumulative.py",
        "np.r_[True, score[1:] != score[:-1]]",
        "np.r_[True, score[1:] == score[1:]]",
        "functional/test_cumulative.py::test_error_is_that_of_every_threshold",
    ),
    "rise_inside_a_cell_ignored": Mutant(
        "metrics/states/cells.py",
        "rise = highest - np.minimum(least, start)",
        "rise = end - np.minimum(least, start)",
        "metrics/test_bounds.py::"
        "test_any_order_inside_the_cells_is_within_the_bounds",
    ),
    "noise_of_the_last_place_alone": Mutant(
        "formulas/cumulative.py",
        "reach = _NEAR * np.sqrt(time[-1])",
        "reach = 0.0",
        "formulas/test_cumulative_intervals.py::"
        "test_a_calibrated_model_has_the_quantile_of_brownian_motion",
    ),
    "errors_that_were_not_seen_ignored": Mutant(
        "formulas/cumulative.py",
        "unseen = 0.5 * z * z / num_samples**2",
        "unseen = 1e-9 / num_samples**2",
        "formulas/test_cumulative_intervals.py::"
        "test_no_error_at_all_leaves_a_rate_of_errors_possible",
    ),
    "shares_with_the_variance_of_repeats": Mutant(
        "formulas/cumulative.py",
        "weight if are_frequency_weights(weight) else np.square(weight)",
        "weight",
        "functional/test_cumulative.py::test_deviation_is_that_of_drawn_labels",
    ),
    "variance_between_bins_within_them": Mutant(
        "formulas/proper.py",
        "variance = max(squares - between, 0.0)",
        "variance = squares",
        "functional/test_proper.py::"
        "test_parts_of_the_brier_score_are_those_of_a_loop",
    ),
    "refinement_at_the_given_temperature": Mutant(
        "calibrators/temperature.py",
        '_scores(samples, [1.0, 1.0 / beta, _ENDLESS], "nll")',
        '_scores(samples, [1.0, 1.0, _ENDLESS], "nll")',
        "calibrators/test_refinement.py::"
        "test_refinement_is_the_least_nll_of_all_temperatures",
    ),
    "bounds_swapped": Mutant(
        "formulas/risk_coverage.py",
        'return 0.5 if order == "best" else -0.5',
        'return -0.5 if order == "best" else 0.5',
        "formulas/test_risk_coverage.py::"
        "test_bounds_hold_for_every_order_and_are_attained",
    ),
    "mass_read_as_counts": Mutant(
        "functional/ranking.py",
        "counts = are_frequency_weights(top.weight)",
        "counts = True",
        "functional/test_risk_coverage.py::"
        "test_mass_is_the_limit_of_many_repeats",
    ),
    "table_reads_mass_as_counts": Mutant(
        "metrics/states/composite.py",
        "self.histogram.ranked(self._limbs, self.frequency_weights)",
        "self.histogram.ranked(self._limbs, True)",
        "metrics/test_laws.py::"
        "test_importance_weights_follow_the_exact_function",
    ),
    "risk_reached_but_not_allowed": Mutant(
        "formulas/risk_coverage.py",
        "    return wrong <= _limit(",
        "    return wrong < _limit(",
        "functional/test_risk_coverage.py::"
        "test_operating_points_equal_a_loop_over_thresholds",
    ),
    "debiased_by_the_count": Mutant(
        "formulas/binned_errors.py",
        "xp.where(enough, count - 1.0, xp.ones_like(count))",
        "xp.where(enough, count, xp.ones_like(count))",
        "functional/test_binned.py::test_errors_of_bins_equal_a_loop",
    ),
    "images_count_alike": Mutant(
        "metrics/segmentation.py",
        "        weight=counts / num_pixels,\n",
        "        weight=1.0 * (counts > 0),\n",
        "metrics/test_segmentation.py::test_images_follow_the_exact_function",
    ),
    "invalid_rows_of_logs_count": Mutant(
        "beam.py",
        "        usable &= (weight >= 0) & (weight <= _LARGEST_WEIGHT)\n",
        "        usable &= weight >= 0\n",
        "beam/test_combine_fn.py::test_what_cannot_count_is_left_out_and_counted",
    ),
    "wrong_residual_of_classes": Mutant(
        "metrics/states/classwise.py",
        "by_class[..., 0] = columns - by_class.sum(axis=-1)",
        "by_class[..., 0] = columns",
        "metrics/test_classwise.py::"
        "test_more_classes_than_bins_are_summed_as_the_exact_function_does",
    ),
    "wrong_residual_of_compiled_classes": Mutant(
        "metrics/states/classwise.py",
        "first = columns - ops.sum(beyond, axis=-1)",
        "first = columns",
        "metrics/test_classwise.py::"
        "test_more_classes_than_bins_are_summed_as_the_exact_function_does",
    ),
    "step_waits_for_values": Mutant(
        "metrics/base.py",
        "self._step & (self._step - 1) == 0",
        "True",
        "metrics/test_table.py::"
        "test_the_progress_bar_may_show_values_of_earlier_steps",
    ),
    "config_forgets_the_operating_point": Mutant(
        "metrics/risk_coverage.py",
        "        self._keep(risk=risk)\n",
        "        self.risk = risk\n",
        "metrics/test_laws.py::test_configuration_round_trips",
    ),
}
