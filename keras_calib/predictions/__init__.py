"""Predictions of a model on a data set, or in a file, for the whole package.

Lives here: the pass over a data set or arrays, in which each example is
predicted once, in order, on one device or several; tables of what was logged.
Not here: values computed from predictions.
Floor: above `inputs`, beside `formulas`.
"""

__all__ = []
