"""Training, validation and test parts that do not leak into each other."""
