"""Networks that the examples train."""
