"""Files of predictions and of answers, read by what their columns hold.

Lives here: labels, outputs, weights and names from tables, checked row by row.
Not here: tables themselves (`predictions.tables`), what is computed from them
(`reporting.evaluation`), and the arguments of the command that names the files
(`reporting.commands`).

Read in this order:

- `roles`: what a column may hold, its names and flag, and which column does.
- `reader`: labels and outputs of all classes, or top-1 records.
- `answer_log`: answers of a model in use, and labels that came later.
- `threshold_file`: a threshold that was chosen on such answers.
- `repeated_samples`: whether two files hold the same samples.
"""

__all__ = []
