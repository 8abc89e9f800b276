"""Faults of calibrators and of selection."""

from mutants.mutant import Mutant

MUTANTS = {
    "accept_above": Mutant(
        "selection/rules.py",
        "score >= threshold, has_confidence",
        "score > threshold, has_confidence",
        "selection/test_classifier.py::test_a_score_of_exactly_the_threshold_is_accepted",
    ),
    "slope_without_weights": Mutant(
        "calibrators/temperature.py",
        "return weight @ (mean - target), weight @ variance",
        "return np.sum(mean - target), weight @ variance",
        "calibrators/test_laws.py::test_forms_of_the_same_data_agree",
    ),
    "grid_takes_the_worst": Mutant(
        "calibrators/temperature.py",
        "value = grid[int(np.argmin(values))]",
        "value = grid[int(np.argmax(values))]",
        "calibrators/test_values.py::test_a_grid_gives_its_best_temperature",
    ),
    "edge_in_the_bin_above": Mutant(
        "calibrators/binning.py",
        "more = ops.logical_and(probe <= size, edge < values)",
        "more = ops.logical_and(probe <= size, edge <= values)",
        "calibrators/test_values.py::test_locate_counts_the_edges_below",
    ),
    "fitted_bins_open_above": Mutant(
        "calibrators/binning.py",
        'side="left"',
        'side="right"',
        "calibrators/test_values.py::test_a_bin_holds_its_upper_edge",
    ),
    "ties_that_are_not_pooled": Mutant(
        "calibrators/binning.py",
        "x, index = np.unique(probs, return_inverse=True)",
        "x, index = np.sort(probs), np.argsort(np.argsort(probs))",
        "calibrators/test_values.py::"
        "test_isotonic_calibration_is_that_of_scikit_learn",
    ),
    "negatives_of_a_tie_first": Mutant(
        "calibrators/binning.py",
        'probs.view("uint32") << 1 | ~labels',
        'probs.view("uint32") << 1 | labels',
        "calibrators/test_values.py::"
        "test_isotonic_calibration_is_that_of_scikit_learn",
    ),
    "beta_without_bounds": Mutant(
        "calibrators/logistic.py",
        "if point[:2].min() >= 0.0 and loss < least:",
        "if loss < least:",
        "calibrators/test_values.py::"
        "test_beta_calibration_never_decreases_with_the_probability",
    ),
    "penalty_of_the_slope": Mutant(
        "calibrators/logistic.py",
        "penalty = np.array([0.0, ridge, ridge])",
        "penalty = np.array([ridge, ridge, ridge])",
        "calibrators/test_two_classes.py::"
        "test_a_small_sample_with_soft_labels_is_penalised_by_its_weight",
    ),
    "parabola_without_end": Mutant(
        "calibrators/logistic.py",
        "return parabola + slope * (log_odds - inside)",
        "return (a + c * log_odds) * log_odds + b",
        "calibrators/test_two_classes.py::"
        "test_a_parabola_goes_on_along_its_tangent",
    ),
    "new_score_that_joins_the_next": Mutant(
        "calibrators/venn_abers.py",
        "edges[:-1:2], edges[-1] = points, _before(points), _LARGEST",
        "edges[:-1:2], edges[-1] = points, points, _LARGEST",
        "calibrators/test_venn_abers.py::"
        "test_every_score_gets_what_two_new_regressions_give",
    ),
    "prior_before_the_calibrator": Mutant(
        "calibrators/prior.py",
        "logits = of_logits(self.calibrator, logits)",
        "logits = of_logits(self.calibrator, logits + self._shift)"
        " - self._shift",
        "calibrators/test_prior.py::"
        "test_a_calibrator_comes_first_and_is_fitted_inside",
    ),
    "draws_of_the_bootstrap_alike": Mutant(
        "functional/prior.py",
        "rng.integers(count, size=count), None, count",
        "np.arange(count), None, count",
        "functional/test_prior.py::test_draws_are_those_of_refits",
    ),
    "penalty_of_all_weights": Mutant(
        "calibrators/affine.py",
        "(given[0] or 0.0) / (count * (count - 1))",
        "(given[0] or 0.0) / count**2",
        "calibrators/test_values.py::test_the_penalty_is_that_of_the_paper",
    ),
    "folds_that_help_are_told": Mutant(
        "calibrators/folds.py",
        "return bool(change > (0.0 if",
        "return bool(change < (0.0 if",
        "calibrators/test_rules.py::test_a_map_that_helps_no_other_sample_says_so",
    ),
    "another_rule_of_succession": Mutant(
        "calibrators/separation.py",
        "share = 1.0 / (samples.effective_count() + 2.0)",
        "share = 1.0 / (samples.effective_count() + 1.0)",
        "calibrators/test_few_samples.py::"
        "test_labels_without_an_error_follow_the_rule_of_succession",
    ),
    "compiled_functions_with_old_fits": Mutant(
        "backend/traced.py",
        "return bool(_GRAPHS[holder])",
        "return False",
        "calibrators/test_refits.py::"
        "test_a_function_of_tensorflow_holds_the_size_of_an_interval",
    ),
    "ridge_of_one_strength": Mutant(
        "calibrators/affine.py",
        "strength[anchor == 0.0] *= count - 1",
        "strength[anchor == 0.0] *= count",
        "calibrators/test_structured.py::test_slopes_of_nll_and_ridge_cancel",
    ),
    "ridge_of_another_count": Mutant(
        "calibrators/fitting_data.py",
        "return max(total, whole**2 / float(np.square(shares).sum()))",
        "return total",
        "calibrators/test_structured.py::"
        "test_weights_of_any_scale_keep_the_ridge",
    ),
    "mixture_swapped": Mutant(
        "calibrators/temperature.py",
        "mixed = shares[0] * scaled + shares[1] * ops.softmax",
        "mixed = shares[1] * scaled + shares[0] * ops.softmax",
        "calibrators/test_values.py::"
        "test_ensemble_temperature_scaling_is_the_golden",
    ),
    "one_output_of_the_first_class": Mutant(
        "calibrators/base.py",
        "return found[..., 1:] - found[..., :1]",
        "return found[..., :1] - found[..., 1:]",
        "calibrators/test_laws.py::test_one_output_is_the_second_of_two_classes",
    ),
    "as_many_samples_as_parameters": Mutant(
        "calibrators/base.py",
        "if count < needed:",
        "if count <= needed:",
        "calibrators/test_rules.py::test_fewer_samples_than_parameters_are_refused",
    ),
    "ignored_samples_weigh": Mutant(
        "calibrators/fitting_data.py",
        "for part in (self.valid, self.weight):",
        "for part in (self.weight,):",
        "calibrators/test_few_samples.py::test_ignored_samples_are_no_samples",
    ),
    "tuned_parts_stay_fitted": Mutant(
        "selection/tuning.py",
        "            part._fitted = False\n",
        "            pass\n",
        "selection/test_tuning.py::test_a_failed_fit_leaves_the_parts_unfitted",
    ),
    "every_start_has_half": Mutant(
        "selection/claims.py",
        "level / 2.0 / num_more)",
        "level / 2.0)",
        "selection/test_guarantees.py::"
        "test_the_starts_share_delta_and_the_first_can_pass",
    ),
    "a_failure_ends_no_walk": Mutant(
        "selection/families.py",
        "level = np.where(passed.all(axis=-1), level, 0.0)",
        "level = level + 0.0",
        "selection/test_guarantees.py::test_the_walk_is_the_loop_over_thresholds",
    ),
    "threshold_on_the_lower_of_two_floats": Mutant(
        "selection/ladder.py",
        "np.where(middle > lower,",
        "np.where(middle >= lower,",
        "selection/test_thresholds.py::test_neighbouring_floats_are_told_apart",
    ),
    "wrong_without_weights": Mutant(
        "selection/ladder.py",
        "[weight, weight * loss]",
        "[weight, loss]",
        "selection/test_thresholds.py::"
        "test_fractional_weights_reach_their_targets_as_counts_do",
    ),
    "cost_of_the_other_orientation": Mutant(
        "selection/rules.py",
        "self.costs[truth, answer]",
        "self.costs[answer, truth]",
        "selection/test_costs.py::"
        "test_the_cheapest_answer_is_given_and_accepted_up_to_its_price",
    ),
    "coverage_without_rounding": Mutant(
        "selection/ladder.py",
        "self.coverage >= coverage - 1e-12",
        "self.coverage > coverage",
        "selection/test_classifier.py::test_a_target_coverage_is_reached_and_not_exceeded",
    ),
    "norm_of_what_is_not_centred": Mutant(
        "selection/normalization.py",
        "score = p_norm(outputs, p=p, center=self.center)",
        "score = p_norm(outputs, p=p)",
        "selection/test_normalization.py::"
        "test_no_other_p_of_the_grid_and_no_softmax_score_is_better",
    ),
}
