"""Families of encoders: one module per family, and the table of their checkpoints."""
