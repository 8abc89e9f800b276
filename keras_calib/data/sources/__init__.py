"""Readers of examples: TFDS, TFRecord files, folders, VOC XML.

Lives here: readers of images, boxes, masks and labels. Not here: changes of an
example (`data.transforms`) and batches (`data.batches`).
"""

__all__ = []
