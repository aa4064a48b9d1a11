"""Encoders by name: found, identified by a fingerprint, and loaded.

The reference runs transformers' own modules; every faster path is compared with it.
"""
