"""The report and the model card of a run, and what they are drawn from."""
