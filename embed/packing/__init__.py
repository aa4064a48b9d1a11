"""Sequences to packed batches of tokens, and token vectors to one vector per sequence."""
