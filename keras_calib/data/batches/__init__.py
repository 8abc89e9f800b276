"""From examples to batches: pipelines, order, mixing, labelling.

Lives here: what needs more than one example. Not here: what changes a single
one (`data.transforms`).
"""

__all__ = []
