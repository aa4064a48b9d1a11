"""Checks of the machine, the weights and the disk that find failures before a long run does."""
