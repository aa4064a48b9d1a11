"""The training loop, its compiled step, heads, and checkpoints that resume bit for bit."""
