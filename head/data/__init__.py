"""Labelled pairs, their vectors, and splits that do not leak.

Row order never matters: pairs are ordered by their keys.
"""
