"""Changes of one example: image, boxes and mask alike.

Lives here: crops, flips, painting, decoding, class maps and their checks. Not
here: batches (`data.batches`).
"""

__all__ = []
