"""Read tables of antibodies and antigens into unique, checked and keyed sequences.

The same chains get the same key in any row, file and order. Nothing is cut, dropped or merged
without being refused or counted.
"""
