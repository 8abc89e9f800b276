"""Training of one kind of data each, and what a run leaves."""
