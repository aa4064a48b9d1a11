"""Heads that are fitted in closed form: ridge, kernel ridge and Gaussian process."""
