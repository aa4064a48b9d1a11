"""Clusters of similar sequences, by the built-in exact method or by MMseqs2."""
