"""Labelled pairs and their stored vectors.

Row order never matters: pairs are ordered by their keys.
"""
