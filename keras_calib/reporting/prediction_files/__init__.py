"""Files of predictions: `.npz`, `.csv`, `.tsv` and `.parquet`.

Lives here: labels, outputs, weights and names from files, checked row by row.
Not here: what is computed from them (`reporting.evaluation`), and the
arguments of the command that names the files (`reporting.commands`).

Read in this order: `columns` reads a file as columns with names; `roles` finds
by their names which column holds what; `reader` makes labels and outputs of
them; `repeated_samples` tells whether two files hold the same samples.
"""

__all__ = []
