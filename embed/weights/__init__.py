"""Encoder weights on disk: named tensors, the digest that identifies them, and adapters."""
