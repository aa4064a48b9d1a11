"""Predictors for others: written in the layout of the hub, sent there, and read from there."""
