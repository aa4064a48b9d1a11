"""Attention and fused operations on the device.

Every fast kernel has a plain implementation beside it, and a test that the two agree.
"""
