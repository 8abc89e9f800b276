"""Sums that stream and merge: what a metric remembers of its batches.

Lives here: the layout of each state, its update and its readings. Not here:
Keras metrics (`metrics`) and formulas (`formulas`).
"""

__all__ = []
