"""Sequences to packed batches of tokens, and token vectors back to one vector per sequence.

Pure: no files and no weights. A pooling is a weighted sum over tokens, and only residues count.
"""
