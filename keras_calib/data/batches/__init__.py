"""From examples to batches: pipelines, order, mixing, labelling.

Lives here: functions of several examples. Not here: functions of a single one
(`data.transforms`).
"""

__all__ = []
