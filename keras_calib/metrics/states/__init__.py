"""States of the metrics: sums that stream and merge.

Lives here: the layout of each state, its update, and what is computed from it.
Not here: Keras metrics (`metrics`) and formulas (`formulas`).
"""
