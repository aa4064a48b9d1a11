"""Trained heads that score new pairs, and the bundle that carries them."""
