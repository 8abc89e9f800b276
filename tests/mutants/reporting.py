"""Faults of prediction readers, plots, exports, reports and monitoring."""

from mutants.mutant import Mutant

MUTANTS = {
    "last_batch_not_counted": Mutant(
        "predictions/batches.py",
        "count = -(-_length(arrays) // batch_size)",
        "count = _length(arrays) // batch_size",
        "predictions/test_batches.py::"
        "test_batches_are_counted_where_that_is_possible",
    ),
    "last_rows_not_read": Mutant(
        "predictions/batches.py",
        "for start in range(0, _length(arrays), batch_size):",
        "for start in range(0, _length(arrays) - batch_size + 1, batch_size):",
        "predictions/test_batches.py::"
        "test_every_form_of_data_is_read_as_its_arrays",
    ),
    "rows_without_weight_judged": Mutant(
        "predictions/collect.py",
        "return weight.reshape(lead) > 0",
        "return weight.reshape(lead) >= 0",
        "predictions/test_consumers.py::"
        "test_rows_that_are_no_distribution_are_not_fitted_on",
    ),
    "one_channel_not_centred": Mutant(
        "predictions/outputs.py",
        "return logits - logits[..., :1] if one_channel else logits",
        "return logits",
        "predictions/test_outputs.py::"
        "test_outputs_become_logits_of_every_class",
    ),
    "rank_counts_the_pixel_itself": Mutant(
        "plots/segmentation.py",
        "rankdata(score[counted])",
        "rankdata(score[counted], 'ordinal')",
        "plots/test_segmentation.py::test_ties_share_the_mean_rank",
    ),
    "band_of_weighted_samples": Mutant(
        "plots/risk_coverage.py",
        "if count == sums.squared_weight.sum():",
        "if count > 0:",
        "plots/test_risk_coverage.py::"
        "test_band_is_the_exact_interval_of_the_accepted",
    ),
    "ignored_samples_selected": Mutant(
        "reporting/evaluation.py",
        "weight = weight * batch.mask",
        "weight = weight * 1.0",
        "reporting/test_report.py::test_what_is_ignored_is_not_selected",
    ),
    "mistakes_numbered_in_their_batch": Mutant(
        "reporting/evaluation.py",
        "self.num_examples + first, *inside",
        "first, *inside",
        "reporting/test_page.py::test_surest_mistakes_are_the_surest",
    ),
    "slider_below_its_risk": Mutant(
        "reporting/sections.py",
        "met = np.flatnonzero(curve.risk <= risk + 1e-12)",
        "met = np.flatnonzero(curve.risk <= 0.9 * risk)",
        "reporting/test_page.py::test_slider_rows_are_points_of_the_curve",
    ),
    "verdict_of_the_wrong_end": Mutant(
        "reporting/verdict.py",
        "if gap.low > 0.0:",
        "if gap.high > 0.0:",
        "reporting/test_report.py::test_verdict_names_the_side",
    ),
    "sizes_of_arrays_are_believed": Mutant(
        "backend/files.py",
        "size != entry.file_size - file.tell():",
        "size < 0:",
        "backend/test_npz.py::test_a_damaged_file_is_one_error_that_names_it",
    ),
    "copies_are_let_through": Mutant(
        "reporting/commands/repeated_samples.py",
        "share = _shared_share(first, second)",
        "share = 0.0",
        "reporting/commands/test_report.py::test_command_refuses_and_says_why",
    ),
    "files_named_beside_notes": Mutant(
        "reporting/commands/file_reports.py",
        "notes=given.notes or notes,",
        "notes={**notes, **(given.notes or {})},",
        "reporting/commands/test_report.py::"
        "test_a_report_of_top1_records_leaves_out_what_they_do_not_tell",
    ),
    "small_and_large_exchanged": Mutant(
        "reporting/measures.py",
        '"min": "lower is better"',
        '"min": "higher is better"',
        "reporting/test_measures.py::"
        "test_each_row_says_which_values_are_better",
    ),
    "digits_as_for_a_wider_interval": Mutant(
        "numerics/results.py",
        "width / 7.1",
        "width / 2.0",
        "reporting/test_measures.py::"
        "test_rounding_hides_less_than_a_seventh_of_half_an_interval",
    ),
    "a_legend_over_the_data": Mutant(
        "plots/display.py",
        "{*figure.axes} <= {*self.axes_}",
        "{*figure.axes} < {*self.axes_}",
        "plots/test_displays.py::"
        "test_several_models_are_drawn_together_as_the_caller_wants",
    ),
    "nan_where_nothing_counts": Mutant(
        "monitoring/evaluation.py",
        ".all(axis=axis)[valid].all():",
        ".all(axis=axis).all():",
        "monitoring/test_flips.py::"
        "test_nan_where_the_label_is_ignored_is_no_harm",
    ),
    "flips_in_the_order_read": Mutant(
        "monitoring/evaluation.py",
        "Predicted(classes[order], index if distinct else None)",
        "Predicted(classes, index if distinct else None)",
        "monitoring/test_flips.py::"
        "test_flips_are_counted_between_logged_epochs",
    ),
    "row_of_an_epoch_kept_twice": Mutant(
        "monitoring/files.py",
        'int(x["epoch"]) < epoch',
        'int(x["epoch"]) <= epoch',
        "monitoring/test_files.py::"
        "test_a_run_that_is_taken_up_replaces_the_rows_it_trains_anew",
    ),
    "log1p_of_small_values": Mutant(
        "exporting/formats.py",
        '[lost, x, make("Mul", [scaled, x])]',
        '[lost, zero, make("Mul", [scaled, x])]',
        "exporting/test_answers.py::"
        "test_small_values_of_log1p_are_not_rounded_away",
    ),
    "select_by_a_sum": Mutant(
        "exporting/formats.py",
        '"SelectV2": (_select, ["Where"]), ',
        "",
        "exporting/test_answers.py::"
        "test_a_value_that_is_not_taken_may_be_no_number",
    ),
    "accept_is_not_compared": Mutant(
        "exporting/verification.py",
        'apart & (given["accept"] != wanted["accept"])',
        "apart & ~apart",
        "exporting/test_verification.py::"
        "test_each_output_that_is_wrong_is_named",
    ),
    "decisions_on_the_threshold_compared": Mutant(
        "exporting/verification.py",
        'apart = ~close(wanted["score"], threshold)',
        'apart = wanted["score"] < np.inf',
        "exporting/test_verification.py::"
        "test_rounding_of_another_runtime_is_no_error",
    ),
    "masked_class_sets_the_scale": Mutant(
        "exporting/verification.py",
        "np.median(sizes)",
        "np.max(sizes)",
        "exporting/test_verification.py::"
        "test_a_masked_class_hides_no_error_in_the_others",
    ),
    "tensor_float_32_not_restored": Mutant(
        "exporting/formats.py",
        "settings.enable_tensor_float_32_execution(before)",
        "settings.enable_tensor_float_32_execution(False)",
        "exporting/test_answers.py::"
        "test_small_values_of_log1p_are_not_rounded_away",
    ),
    "tokens_beyond_a_table": Mutant(
        "exporting/verification.py",
        'rng.integers(256 if dtype == "uint8" else 2, size=shape)',
        'rng.integers(256 if dtype == "uint8" else 99, size=shape)',
        "exporting/test_inputs.py::"
        "test_random_inputs_are_what_every_layer_takes",
    ),
    "slider_before_calibration": Mutant(
        "reporting/evaluation.py",
        "return self.stages[-1]",
        "return self.stages[0]",
        "reporting/test_page.py::test_the_slider_is_of_calibrated_confidences",
    ),
}
