"""Hyperparameter search on inner folds, with the test part held back until the end."""
