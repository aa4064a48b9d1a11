"""Sequences to packed batches of tokens, and token vectors to one vector per sequence.

A pooling is a weighted sum over tokens, in which only residues count.
"""
