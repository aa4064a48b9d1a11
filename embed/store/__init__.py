"""Vectors on disk: immutable shards that survive a kill at any instant.

Committed means renamed: a file under its final name is whole. Knows keys, names and arrays, and
nothing of the encoders that made them.
"""
