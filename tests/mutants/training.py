"""Faults of `training`, `ensembles` and `backend`."""

from mutants.mutant import Mutant

MUTANTS = {
    "schedule_starts_late": Mutant(
        "training/focal.py",
        "for first, gamma in self.schedule if first <= epoch",
        "for first, gamma in self.schedule if first < max(epoch, 1)",
        "training/test_epochs.py::test_a_schedule_sets_the_gamma_of_each_epoch",
    ),
    "gammas_follow_one_way": Mutant(
        "training/focal.py",
        "np.where(positive, rate, -rate)",
        "np.where(positive, rate, rate)",
        "training/test_reference_values.py::"
        "test_gammas_follow_the_gaps_as_released",
    ),
    "cape_asks_of_the_first_class": Mutant(
        "training/cape.py",
        "classes[index] = outputs.argmax(axis=-1)",
        "classes[index] = 0",
        "training/test_epochs.py::"
        "test_cape_of_ten_classes_trains_on_the_class_that_was_predicted",
    ),
    "cape_counts_from_epoch_0": Mutant(
        "training/cape.py",
        "since % self.every == 0",
        "epoch % self.every == 0",
        "training/test_epochs.py::test_cape_can_begin_late",
    ),
    "pair_weighs_as_its_first": Mutant(
        "training/crl.py",
        "pair = ops.minimum(weight, ops.roll(weight, -1, axis=0))",
        "pair = weight",
        "training/test_records.py::"
        "test_samples_of_weight_0_are_not_recorded_and_rank_nobody",
    ),
    "record_of_weight_0": Mutant(
        "training/recording_model.py",
        "ops.logical_and(weight > 0, known)",
        "ops.logical_and(weight >= 0, known)",
        "training/test_records.py::"
        "test_samples_of_weight_0_are_not_recorded_and_rank_nobody",
    ),
    "index_of_the_count": Mutant(
        "training/recording_model.py",
        "narrowed_ids(given, num_samples)",
        "narrowed_ids(given, num_samples + 1)",
        "training/test_records.py::"
        "test_an_unknown_sample_is_refused_or_makes_the_loss_nan",
    ),
    "equal_numbers_add_up": Mutant(
        "training/recording_model.py",
        "chosen * change / ops.maximum(times, 1.0)",
        "chosen * change",
        "training/test_records.py::test_samples_that_come_twice_get_the_mean",
    ),
    "pruned_an_epoch_late": Mutant(
        "training/pruning.py",
        "if (epoch + 1) % self.every == 0",
        "if epoch % self.every == 0",
        "training/test_epochs.py::"
        "test_pruning_drops_the_least_confident_and_trains_as_without_them",
    ),
    "pruned_samples_in_the_mean": Mutant(
        "training/pruning.py",
        "kept = kept * safe_divide(total, count)",
        "pass",
        "training/test_epochs.py::"
        "test_pruning_drops_the_least_confident_and_trains_as_without_them",
    ),
    "sam_without_a_root": Mutant(
        "training/sharpness_aware.py",
        "norm = ops.sqrt(ops.sum(ops.stack(squares)))",
        "norm = (ops.sum(ops.stack(squares)))",
        "training/test_sharpness_aware.py::"
        "test_steps_have_the_length_rho_and_follow_the_gradient",
    ),
    "sam_moves_statistics_twice": Mutant(
        "training/sharpness_aware.py",
        "[*weights, *remembered], [*before, *kept], strict=True",
        "weights, before, strict=True",
        "training/test_sharpness_aware.py::"
        "test_the_second_pass_moves_no_statistics",
    ),
    "recorded_in_each_pass": Mutant(
        "training/recording_model.py",
        "if not self.postpones:",
        "if True:",
        "training/test_sharpness_aware.py::"
        "test_both_passes_read_the_record_as_it_was",
    ),
    "uneven_parts_weigh_the_same": Mutant(
        "training/epoch_model.py",
        "share * num_replicas()",
        "share * 0 + 1",
        "training/test_fit.py::test_the_gradient_of_a_part_weighs_as_its_rows",
    ),
    "random_numbers_are_not_set": Mutant(
        "training/backup.py",
        "    _set_random(state)\n",
        "",
        "training/test_backup_files.py::test_random_numbers_go_on",
    ),
    "backup_of_half_an_epoch": Mutant(
        "training/backup.py",
        "self._broken_off = callback_model(self).stop_training",
        "self._broken_off = False",
        "training/test_resume.py::"
        "test_an_epoch_that_was_broken_off_is_trained_again",
    ),
    "last_epoch_is_not_saved": Mutant(
        "training/backup.py",
        "% self.every == 0 or last or",
        "% self.every == 0 or",
        "training/test_resume.py::"
        "test_the_last_epoch_is_saved_whatever_the_interval",
    ),
    "renamed_variables_are_taken": Mutant(
        "training/backup.py",
        "return name, array.shape, array.dtype.name",
        "return array.shape, array.dtype.name",
        "training/test_backup_files.py::test_a_forged_backup_changes_nothing",
    ),
    "members_weigh_the_same": Mutant(
        "ensembles/base.py",
        "log_probs + ops.convert_to_tensor(log_weights)",
        "log_probs - float(np.log(len(self._log_weights)))",
        "ensembles/test_deep_ensemble.py::"
        "test_the_output_is_the_log_of_the_weighted_mean",
    ),
    "dropout_keeps_the_rate": Mutant(
        "ensembles/dropout.py",
        "_uniform(bits) >= rate",
        "_uniform(bits) < rate",
        "ensembles/test_dropout.py::test_units_are_dropped_as_in_training",
    ),
    "passes_share_a_mask": Mutant(
        "ensembles/dropout.py",
        "(seed, member), per_sample",
        "(seed, 0), per_sample",
        "ensembles/test_dropout.py::"
        "test_masks_of_passes_layers_and_units_are_independent",
    ),
    "members_are_trained": Mutant(
        "ensembles/base.py",
        "model(inputs, training=False)",
        "model(inputs)",
        "ensembles/test_dropout.py::test_all_else_is_as_at_inference",
    ),
    "threads_share_a_lock": Mutant(
        "backend/locks.py",
        "held._thread is here or not held._thread.is_alive()",
        "True",
        "backend/test_locks.py::"
        "test_an_interrupted_writer_of_a_process_gives_way",
    ),
    "name_without_fsync": Mutant(
        "backend/files.py",
        "    _sync_folder(path.parent)\n",
        "    pass\n",
        "backend/test_files.py::test_a_name_is_safe_before_what_it_names",
    ),
    "an_array_is_read_many_times": Mutant(
        "backend/files.py",
        "        self._unread.remove(name)\n",
        "",
        "training/test_backup_files.py::test_a_forged_backup_changes_nothing",
    ),
    "replicas_begin_one_row_late": Mutant(
        "backend/replicas.py",
        "before = ops.arange(context.num_replicas_in_sync) < own",
        "before = ops.arange(context.num_replicas_in_sync) <= own",
        "training/test_distribution.py::"
        "test_replicas_train_a_model_as_one_device",
    ),
}
