"""The commands of `keras-calib`, a module of its name for each.

Lives here: arguments, what a command does with them, and what it shows on the
terminal. Not here: the choice of the command, exit codes and errors
(`reporting.command_line`).

Read in this order: `arguments` has the form of a command and the flags that
all share, `terminal` what is shown. A module of a command has its `COMMAND`,
whose arguments are read and checked without Keras, so that help comes at once.
What needs Keras or NumPy is imported by the functions that do the work:
`file_reports` and `watched_logs`. Both use `answer_log`, the answers of a model
in use with the labels that came later, or `repeated_samples`, whether two files
hold the same samples.
"""
