"""Stage one: sequences to vectors on disk. Knows no labels."""
