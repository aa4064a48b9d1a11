"""Immutable shard files: laid out, read, verified and found by key.

Nothing read from a file is trusted before its digest has been checked.
"""
