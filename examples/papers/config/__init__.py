"""Flags of a recipe, and what they make: losses, optimizers, devices."""
