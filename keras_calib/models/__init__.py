"""Models that train in more than one pass, or with more than one batch."""

__all__ = []
