"""What touches the machinery below: private Keras, in one room."""
