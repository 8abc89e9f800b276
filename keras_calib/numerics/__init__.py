"""Arrays and numbers, on NumPy and on tensors of every backend.

Lives here: pieces that know nothing of calibration, among them sums that stay
exact and a hash. Not here: reading of input (`inputs`).
Floor: the lowest, beside `backend`.
"""

__all__ = []
