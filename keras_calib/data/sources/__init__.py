"""Where examples come from: TFDS, TFRecord files, folders, VOC XML.

Lives here: readers that give images, boxes, masks and labels. Not here: what
changes an example (`data.transforms`) or forms batches (`data.batches`).
"""

__all__ = []
