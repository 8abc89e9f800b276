"""Faults of the door."""

from mutants.mutant import Mutant

_DATA = "inputs/test_bad_data.py::test_bad_data_is_refused"
_COMPILED = "inputs/test_values_in_compiled_code.py::"
MUTANTS = {
    "ids_up_to_the_number_of_classes": Mutant(
        "inputs/labels.py",
        "right = xp.logical_and(ids >= 0, ids < limit)",
        "right = xp.logical_and(ids >= 0, ids <= limit)",
        _DATA,
    ),
    "ids_that_are_not_whole": Mutant(
        "inputs/labels.py",
        "return xp.logical_and(right, xp.equal(ids, xp.round(ids)))",
        "return right",
        _DATA,
    ),
    "negative_weights": Mutant(
        "inputs/weights.py",
        'right = ops.logical_and(weight >= 0, weight < float("inf"))',
        'right = ops.logical_and(weight >= -1, weight < float("inf"))',
        _DATA,
    ),
    "rules_not_looked_at": Mutant(
        "inputs/values.py",
        "    if known is None or np.all(known):\n",
        "    if known is None or np.any(known):\n",
        _DATA,
    ),
    "a_transfer_for_each_rule": Mutant(
        "inputs/values.py",
        "enforce([found]) if rules is None else rules.append(found)",
        "enforce([found])",
        "inputs/test_door.py::test_values_are_looked_at_in_one_transfer",
    ),
    "checks_that_stay_on": Mutant(
        "inputs/config.py",
        "    _VALIDATES = bool(enabled)\n",
        "    _VALIDATES = True\n",
        "inputs/test_door.py::test_nothing_waits_for_the_device_without_checks",
    ),
    "ignored_class_counts": Mutant(
        "inputs/batch.py",
        "        both(valid, mask),\n",
        "        mask,\n",
        "laws/test_losses.py::test_an_ignored_label_is_a_dropped_row",
    ),
    "weightless_samples_are_judged": Mutant(
        "inputs/batch.py",
        "        counts = both(counts, weight != 0)\n",
        "",
        _COMPILED + "test_what_does_not_count_is_not_judged",
    ),
    "compiled_rows_of_any_sum": Mutant(
        "inputs/batch.py",
        "ops.logical_and(label_mask, rows.sums_to_1(logits))",
        "label_mask",
        _COMPILED + "test_rows_that_are_no_distribution_are_not_read_as_one",
    ),
    "impossible_labels_are_no_nan": Mutant(
        "losses/base.py",
        'nan = ops.full_like(losses, float("nan"))',
        "nan = ops.zeros_like(losses)",
        _COMPILED + "test_an_impossible_label_makes_a_compiled_loss_nan",
    ),
    "padding_counts": Mutant(
        "predictions/batches.py",
        "mask = mask_of_output(model, name, self._chosen, inputs)",
        "mask = None",
        "laws/test_what_counts.py::"
        "test_fits_read_the_rows_that_evaluate_counts[Embedding]",
    ),
    "the_mask_of_an_array_is_lost": Mutant(
        "inputs/weights.py",
        "return array, masked_weight(sample_weight, mask, array.shape[:rank])",
        "return array, sample_weight",
        "laws/test_what_counts.py::"
        "test_arrays_with_a_mask_are_read_as_metrics_read_them",
    ),
    "ids_are_cast_first": Mutant(
        "inputs/labels.py",
        "    return xp.where(right, ids, -xp.ones_like(ids))\n",
        "    return ids\n",
        "inputs/test_values_in_compiled_code.py::"
        "test_an_impossible_label_makes_a_compiled_loss_nan[three]",
    ),
    "groups_take_any_order": Mutant(
        "predictions/batches.py",
        "_digest(batch) != before[count - 1]",
        "False",
        "predictions/test_row_order.py::"
        "test_groups_given_for_all_rows_need_one_order[selects]",
    ),
    "rows_of_weight_0_choose": Mutant(
        "selection/ladder.py",
        "counts = weight > 0",
        "counts = weight >= 0",
        "laws/test_what_counts.py::"
        "test_batches_of_sequences_of_several_lengths_are_one_data_set",
    ),
    "what_overflows_is_accepted": Mutant(
        "selection/rules.py",
        'total < float("inf")',
        'total <= float("inf")',
        "laws/test_accept.py::test_no_score_lets_a_row_without_confidence_pass",
    ),
}
