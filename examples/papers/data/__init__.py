"""What the papers train and test on, from files or TFDS."""
