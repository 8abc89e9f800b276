"""The frozen results: what the package gives for some thirty small data sets.

Each module named in `SUBJECTS` computes the quantities of one subject, under
keys that name a quantity and a data set, never a class or a field. Whatever
is stored of them stands beside it, as `.npz` and `.json`. A change that means
to change no number passes `test_frozen.py` as it is; names of the package
stand on the right-hand sides of these modules alone.

CONTRIBUTING.md says when the files may be made anew, by `make frozen`.
"""

__all__ = ["SUBJECTS"]

SUBJECTS = (
    "exact_functions",
    "scores_and_targets",
    "metrics",
    "losses",
    "calibrators",
    "thresholds",
    "selectors",
    "labels",
    "boxes",
    "tables",
    "reports",
    "files",
    "errors",
)
