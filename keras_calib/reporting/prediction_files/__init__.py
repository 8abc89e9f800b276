"""Files of predictions: `.npz`, `.csv`, `.tsv` and `.parquet`.

Lives here: labels, outputs, weights and names from files, checked row by row.
Not here: what is computed from them (`reporting.evaluation`), and the
arguments of the command that names the files (`reporting.commands`).

Read in this order:

- `columns`: a file as columns with names.
- `roles`: which column holds what, by its name.
- `vote_rows`: labels that are votes of several annotators.
- `reader`: labels and outputs of these columns.
- `answer_log`: answers of a model in use, and labels that came later.
- `repeated_samples`: whether two files hold the same samples.
"""

__all__ = []
