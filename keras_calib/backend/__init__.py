"""What touches the machinery below: private Keras, in one room."""

__all__ = []
