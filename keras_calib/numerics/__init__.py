"""Arithmetic on NumPy arrays and on tensors of every backend.

Lives here: functions without reference to calibration, such as exact sums and
a hash. Not here: reading of input (`inputs`).
Floor: the lowest, beside `backend`.
"""
