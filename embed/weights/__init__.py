"""Encoder names to checkpoints, and checkpoints to named tensors.

Promises that no tensor is read unchecked and none is overlooked, and that the digest of the
weights identifies them.
"""
