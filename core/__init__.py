"""Foundations of both stages: devices, files, options and messages.

Knows no sequences, encoders or heads. Everything else may import it; it imports nothing of abag
but the root package.
"""
