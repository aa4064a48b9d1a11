"""Encoder families: packed token ids to one vector per token.

`registry` loads an encoder by name and computes its fingerprint. Each family has its packed
implementation, and transformers' own module as the reference.
"""
