"""Families of encoders: one module per family, and the table of their checkpoints.

A description loads no torch; it imports its implementation when an encoder is built.
"""
