"""Formulas on sums per bin, ranked groups and logits, each in one place.

Lives here: formulas that exact functions, streaming metrics, losses and
calibrators share. Not here: reading of input (`inputs`), data sets
(`predictions`) and states (`metrics`).
Floor: above `inputs`, below all that users call.
"""
