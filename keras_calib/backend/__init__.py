"""What depends on the backend, on `tf.distribute` or on the machine below.

Lives here: gradients, replicas, traced operations, optional packages, files
and locks, and all that is private to Keras (`keras_internals`). Not here:
arithmetic (`numerics`) and anything that knows of calibration.
Floor: the lowest, beside `numerics`.
"""

__all__ = []
