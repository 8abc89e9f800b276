"""The door: labels, predictions and weights come in here.

Lives here: what reads and checks them, and the one wording of errors. Not
here: what is computed of them (`formulas`).
Floor: above `backend` and `numerics`.
"""

__all__ = []
