"""Faults that lie in no one package."""

from mutants.mutant import Mutant

MUTANTS = {
    "accept_above": Mutant(
        "selection/classifier.py",
        '"accept": score >= self._threshold',
        '"accept": score > self._threshold',
        "test_selection.py::test_a_score_of_exactly_the_threshold_is_accepted",
    ),
    "name_without_fsync": Mutant(
        "backend/files.py",
        "    sync_folder(path.parent)\n",
        "    pass\n",
        "test_files.py::test_a_name_is_safe_before_what_it_names",
    ),
}
