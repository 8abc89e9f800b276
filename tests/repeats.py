"""Cases that repeat a claim of others on other data, kinds or formats.

They run in the slow tier: `conftest.py` marks them. Each test keeps a case
among the fast ones.
"""

# Patterns to which no case was collected; of other backends there are fewer.
NO_CASES: list[str] = []

# Patterns of the cases' names, by file and test.
REPEATS: dict[str, dict[str, list[str]]] = {
    "calibrators/test_compact_logits.py": {
        "test_hard_rows_are_as_exact_as_others": [
            "heavy tails",
            "one class above the others",
            "three groups",
        ],
    },
    "calibrators/test_hard_fits.py": {
        "test_classes_that_are_ruled_out_spoil_no_fit": [
            "-1e9",
            "-65504",
            "some",
        ],
        "test_matrices_of_correlated_classes_converge": ["many"],
    },
    "data_pipelines/test_tfds.py": {
        "test_boxes_and_their_labels_are_found_by_type": ["voc/2012"],
    },
    "exporting/test_answers.py": {
        "test_it_answers_as_the_model_for_any_batch_size": ["litert"],
    },
    "exporting/test_certificate_kinds.py": {
        "test_every_changed_fact_is_found_even_with_a_new_digest": [
            "hoeffding",
            "names",
        ],
        "test_no_fact_of_another_type_is_certified": ["hoeffding", "names"],
    },
    "exporting/test_certificates.py": {
        "test_a_copy_is_confirmed_by_the_data_in_any_order": ["savedmodel"],
    },
    # What was recorded is compared alike, whatever the format of the file.
    "exporting/test_file_model.py": {
        "test_a_change_of_what_was_attached_is_found": [
            "savedmodel-change[1-9]*",
            "savedmodel-<lambda>*",
        ],
    },
    "exporting/test_multi_label.py": {
        "test_files_answer_as_the_selector_does": ["onnx-part1-example"],
    },
    "formulas/test_bounded_means.py": {
        "test_p_values_are_valid": ["300-0.05-*"],
    },
    "formulas/test_multiplicity.py": {
        "test_the_largest_difference_is_covered": ["shares1", "shares2"],
    },
    "formulas/test_vote_intervals.py": {
        "test_intervals_cover_and_know_how_many_votes_there_are": [
            "False-50",
            "True-1",
        ],
    },
    "functional/test_prior.py": {
        "test_draws_are_those_of_refits": ["30-0.001"],
    },
    "laws/test_battery.py": {
        "test_rows_of_weight_0_are_as_if_they_were_not_there": [
            "GaussianProcessCalibration"
        ],
    },
    "losses/test_ends_of_models.py": {
        "test_a_compiled_loss_tells_by_the_end_of_the_model": ["None"],
    },
    "losses/test_in_fit.py": {
        "test_a_masked_step_trains_as_a_deleted_one": ["2"],
        "test_fit_begins_at_the_eager_loss_and_lowers_it": [
            "AdaptiveLabelSmoothing-False"
        ],
    },
    "losses/test_mmce.py": {
        "test_mmce_equals_the_sum_over_all_pairs": [
            "unweighted_sqrt",
            "weighted_released",
        ],
    },
    "losses/test_spatial.py": {
        "test_a_segmenter_trains_and_is_saved": ["L1ACE"],
        "test_graphs_of_unknown_shapes_agree_with_eager_code": [
            "SVLS",
            "NACL-background",
        ],
    },
    "metrics/test_bounds.py": {
        "test_any_order_inside_the_cells_is_within_the_bounds": [
            "all_in_one_cell",
            "right_ones_last",
        ],
    },
    "metrics/test_invalid.py": {
        "test_weights_that_exact_sums_cannot_hold_are_refused": [
            "CalibrationMetrics"
        ],
    },
    "metrics/test_laws.py": {
        "test_an_update_may_be_compiled_by_itself": ["ClasswiseECE-sizes1"],
        "test_compiled_metrics_agree_with_eager_ones": [
            "AURC-max_logit",
            "ECE-left",
        ],
    },
    "metrics/test_pixels.py": {
        "test_some_pixels_do_not_depend_on_the_order_of_images": ["ECE"],
    },
    "metrics/test_votes.py": {
        "test_streamed_votes_follow_the_exact_function": [
            "False-CalibrationMetrics"
        ],
        "test_votes_count_alike_compiled_merged_and_as_shares": [
            "ClasswiseECE"
        ],
    },
    "metrics/test_wide_rows.py": {
        "test_blocks_of_rows_have_the_values_of_all": ["True"],
    },
    "monitoring/test_values.py": {
        "test_the_regularizer_of_the_compiled_loss_is_followed": ["CPC"],
    },
    "plots/test_segmentation.py": {
        "test_edge_cases_are_drawn": ["all right"],
    },
    "reporting/commands/test_monitor.py": {
        "test_a_picture_is_drawn": ["png"],
    },
    "reporting/test_labels.py": {
        "test_the_loss_of_a_model_tells_its_labels": ["loss1"],
    },
    # What these examples say is tested elsewhere, with other numbers.
    "repository/test_doctests.py": {
        "test_example_prints_what_it_says": [
            "keras_calib.calibrators.local.LocalTemperatureScaling",
            "keras_calib.data.epochs.array_pipeline",
            "keras_calib.exporting.file_model.FileModel",
            "keras_calib.functional.comparison.compare",
            "keras_calib.plots.choices.PlanDisplay",
            "keras_calib.selection.planning.plan",
        ],
    },
    "selection/test_adaptive_walks.py": {
        "test_no_bad_group_is_certified_more_often_than_delta": [
            "few",
            "one after the other",
        ],
    },
    "detection/test_class_thresholds.py": {
        "test_a_class_that_misses_its_precision_is_seldom_certified": [
            "False-boxes",
            "True-images",
        ],
    },
    "selection/test_forms.py": {
        "test_layers_take_probabilities_and_warn_of_them_as_logits": ["1"],
    },
    "selection/test_group_thresholds.py": {
        "test_the_guarantee_holds_for_all_groups_at_once": ["11-1"],
    },
    "selection/test_planning.py": {
        "test_the_power_is_the_frequency_of_certificates": ["0"],
    },
    "selection/test_risks.py": {
        "test_all_true_values_keep_their_targets": [
            "limits2-0",
            "limits3-0",
            "limits4-0",
        ],
    },
    "training/test_epoch_batches.py": {
        "test_epoch_batches_count_epochs_told_or_not": ["True"],
    },
    "training/test_fit.py": {
        "test_a_model_trains_remembers_and_is_saved": ["crl", "sam"],
    },
    "training/test_resume.py": {
        "test_a_run_that_ended_ends_again_with_its_best_weights": ["sam-1-2"],
    },
}
