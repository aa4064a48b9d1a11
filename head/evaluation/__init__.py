"""Metrics of predictions, verdicts of regimes, strong binders, and tied predictions."""
