"""Code that depends on the backend, on `tf.distribute` or on the machine.

Lives here: gradients, replicas, traced operations, optional packages, files
and locks, and private parts of Keras (`keras_internals`). Not here: arithmetic
(`numerics`), and anything about calibration.
Floor: the lowest, beside `numerics`.
"""
