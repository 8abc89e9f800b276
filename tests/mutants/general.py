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
    "name_without_fsync": Mutant(
        "backend/files.py",
        "    sync_folder(path.parent)\n",
        "    pass\n",
        "test_files.py::test_a_name_is_safe_before_what_it_names",
    ),
}
