"""Encoders by name: found, identified by a fingerprint, and loaded."""
