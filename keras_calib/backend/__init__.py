"""What depends on the machinery below: private Keras, files and locks."""

__all__ = []
