"""Metrics, closed-form baselines and paired comparisons with intervals."""
