"""Checks of the machine, the encoders and the disks, before a long run."""
