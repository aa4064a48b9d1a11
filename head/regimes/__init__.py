"""What is new about a pair: near-duplicates, regimes and their folds."""
