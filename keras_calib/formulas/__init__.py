"""Each quantity, once: formulas on sums per bin, ranked groups and logits.

Lives here: what the exact functions, the streaming metrics, the losses and
the calibrators compute alike. Not here: reading of input (`inputs`), data sets
(`predictions`) and states (`metrics`).
Floor: above `inputs`, below all that users call.
"""

__all__ = []
