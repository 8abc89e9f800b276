"""Reading and checking of labels, predictions and weights.

Lives here: the readers of user input, and the wording of its errors. Not here:
what is computed from it (`formulas`).
Floor: above `backend` and `numerics`.
"""

__all__ = []
