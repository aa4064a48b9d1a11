"""The training loop, its compiled step, and checkpoints that resume bit for bit."""
