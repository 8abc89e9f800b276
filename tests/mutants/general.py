"""Faults that lie in no one package."""

from mutants.mutant import Mutant

MUTANTS = {
    "name_without_fsync": Mutant(
        "backend/files.py",
        "    sync_folder(path.parent)\n",
        "    pass\n",
        "test_files.py::test_a_name_is_safe_before_what_it_names",
    ),
}
