"""The commands of `keras-calib`, a module of its name for each.

Lives here: arguments, what a command does with them, and what it shows on the
terminal. Not here: the choice of the command, exit codes and errors
(`reporting.command_line`).

A module's arguments are read and checked without Keras, so that help comes at
once. What needs Keras is imported by the functions that do the work.
"""

__all__ = []
