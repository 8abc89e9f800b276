"""Faults in losses, in their targets, and in what is read off them."""

from mutants.mutant import Mutant

_GOLDENS = "losses/test_goldens.py::"
_AUTHORS = _GOLDENS + "test_values_and_gradients_are_the_authors"
_SUM = "laws/test_losses.py::test_gradients_sum_to_zero_over_the_classes"
_REPEATS = "laws/test_losses.py::test_whole_weights_are_repeats"
_TARGETS = "formulas/test_targets.py::"
_REGULARIZERS = "losses/test_regularizers.py::"

MUTANTS = {
    "flsd_above": Mutant(
        "losses/focal.py",
        "ops.cast(p >= threshold",
        "ops.cast(p > threshold",
        "losses/test_single_losses.py::"
        "test_a_probability_on_a_threshold_of_flsd_is_not_below_it",
    ),
    "record_with_gradient": Mutant(
        "losses/crl.py",
        "record = ops.stop_gradient(\n",
        "record = (\n",
        "losses/test_single_losses.py::"
        "test_the_record_of_a_ranking_is_no_variable_of_the_loss",
    ),
    "ranking_with_the_one_before": Mutant(
        "losses/crl.py",
        "gap = kappa - ops.roll(kappa, -1, axis=0)",
        "gap = kappa - ops.roll(kappa, 1, axis=0)",
        _AUTHORS,
    ),
    "mbls_without_its_pull_on_the_largest": Mutant(
        "losses/margin.py",
        "return slope + mark_first(top, total.dtype) * total",
        "return slope",
        _SUM,
    ),
    "acls_mean_over_all_classes": Mutant(
        "losses/margin.py",
        "share = lambda2 / at_least(parts.num_allowed - 1.0, 1.0)",
        "share = lambda2 / at_least(parts.num_allowed, 1.0)",
        _AUTHORS,
    ),
    "tied_logits_all_pulled": Mutant(
        "losses/closed_forms.py",
        "ops.one_hot(first, mask.shape[-1], dtype=dtype)",
        "ops.cast(mask, dtype)",
        _SUM,
    ),
    "focal_gradient_without_the_power": Mutant(
        "losses/focal.py",
        "slope = gamma * (p * part) - weight * q",
        "slope = p * part - weight * q",
        _AUTHORS,
    ),
    "inverse_focal_fades": Mutant(
        "losses/focal.py",
        "ops.where(gamma < 0.0, 1.0 + p",
        "ops.where(gamma > 0.0, 1.0 + p",
        _AUTHORS,
    ),
    "relaxation_beyond_its_boundary": Mutant(
        "losses/entropy.py",
        "bound = math.log1p(-alpha)",
        "bound = -alpha",
        "losses/test_single_losses.py::"
        "test_label_relaxation_is_smooth_at_its_boundary",
    ),
    "threshold_of_a_sum_for_a_mean": Mutant(
        "losses/entropy.py",
        "penalty = ops.relu(threshold * scale - entropy)",
        "penalty = ops.relu(threshold - entropy)",
        "losses/test_single_losses.py::"
        "test_a_threshold_is_in_the_units_of_its_entropy",
    ),
    "mmce_without_weights": Mutant(
        "losses/batch_terms.py",
        "groups = ops.stack([weight * right, weight * (1.0 - right)]",
        "groups = ops.stack([right, 1.0 - right]",
        _REPEATS,
    ),
    "mmce_with_one_tie_too_many": Mutant(
        "losses/batch_terms.py",
        "return ops.take(first_place, runs), last + 1",
        "return ops.take(first_place, runs), last",
        "laws/test_losses.py::test_gradients_are_finite_differences",
    ),
    "mmce_of_the_root_alone": Mutant(
        "losses/batch_terms.py",
        'if variant.startswith("unweighted"):\n        counts',
        'if variant == "unweighted":\n        counts',
        "losses/test_mmce.py::test_mmce_equals_the_sum_over_all_pairs",
    ),
    "mdca_divides_by_the_count": Mutant(
        "losses/batch_terms.py",
        "ops.expand_dims(safe_divide(weight, ops.sum(weight)), -1)",
        "ops.expand_dims(weight / ops.sum(ops.sign(weight + 1)), -1)",
        _REPEATS,
    ),
    "huber_of_twice_the_square": Mutant(
        "losses/batch_terms.py",
        "0.5 * ops.square(size), linear",
        "ops.square(size), linear",
        _AUTHORS,
    ),
    "cpc_counts_half_way_pairs_twice": Mutant(
        "losses/pairwise.py",
        "ops.where(ops.equal(2 * shift, count), 0.5, 1.0)",
        "ops.where(ops.equal(2 * shift, count), 1.0, 1.0)",
        _AUTHORS,
    ),
    "fidelity_of_soft_labels": Mutant(
        "losses/base.py",
        "if fidelity is not None and fidelity.needs_hard_labels:",
        "if False:",
        "losses/test_bad_labels.py::"
        "test_soft_labels_without_a_meaning_are_refused",
    ),
    "near_classes_pull_too": Mutant(
        "losses/crl.py",
        'if condition == "each":',
        'if condition == "none":',
        "losses/test_gradient_formulas.py::"
        "test_a_loss_has_the_value_and_the_gradient_of_the_page",
    ),
    "cape_swapped": Mutant(
        "losses/smoothing.py",
        "ops.stack([1.0 - labels, labels], -1)",
        "ops.stack([labels, 1.0 - labels], -1)",
        _AUTHORS,
    ),
    "smoothing_over_one_class_too_many": Mutant(
        "formulas/targets.py",
        'alpha * num_classes / others if spread == "others" else alpha',
        "alpha",
        _TARGETS + "test_smoothing_moves_a_share_of_each_label",
    ),
    "no_floor": Mutant(
        "formulas/targets.py",
        "least = xp.zeros_like(share) + 1.0 / num_classes",
        "least = xp.zeros_like(share)",
        _TARGETS + "test_a_floor_stops_at_the_uniform_target",
    ),
    "context_less_than_uniform": Mutant(
        "formulas/targets.py",
        "moved = xp.where(context, xp.ones_like(moved), moved)",
        "moved = xp.where(context, beta * xp.ones_like(moved), moved)",
        _TARGETS + "test_context_has_exactly_the_uniform_target",
    ),
    "unequal_bins": Mutant(
        "formulas/targets.py",
        "np.arange(num_bins + 1) * n // num_bins",
        "np.append(np.arange(num_bins) * (n // num_bins), n)",
        _TARGETS + "test_bins_have_equal_counts_in_the_order_of_predictions",
    ),
    "a_neighbour_too_many": Mutant(
        "formulas/targets.py",
        "if offset < window:",
        "if offset <= window:",
        _TARGETS + "test_kernel_targets_equal_the_double_loop",
    ),
    "tied_predictions_in_any_order": Mutant(
        "formulas/targets.py",
        'np.argsort(p, kind="stable")',
        "np.argsort(-p)[::-1]",
        _TARGETS + "test_tied_predictions_keep_their_order",
    ),
    "others_with_the_predicted_class": Mutant(
        "losses/regularizers.py",
        "others = (1.0 - predicted) * added",
        "others = added",
        "losses/test_effective_labels.py::"
        "test_effective_labels_are_the_closed_form",
    ),
    "smoothing_of_an_ignored_nan": Mutant(
        "losses/regularizers.py",
        "added = ops.where(valid[..., None], added, ops.zeros_like(added))",
        "added = added * ops.cast(valid[..., None], added.dtype)",
        _REGULARIZERS
        + "test_nothing_is_smoothed_where_an_ignored_sample_is_nan",
    ),
    "inactive_up_to_a_hundredth": Mutant(
        "losses/regularizers.py",
        "_ROUNDING = 5e-7",
        "_ROUNDING = 5e-3",
        _REGULARIZERS + "test_a_regulariser_of_rounding_is_inactive",
    ),
    "histogram_without_what_lies_beyond": Mutant(
        "losses/regularizers.py",
        "clipped = np.clip(values[~np.isnan(values)], low, high)",
        "clipped = values[~np.isnan(values)]",
        _REGULARIZERS + "test_regularizer_histogram_by_hand",
    ),
}
