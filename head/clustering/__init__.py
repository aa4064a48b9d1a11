"""Sequence identity and clusters of similar sequences, with MMseqs2 or without it."""
