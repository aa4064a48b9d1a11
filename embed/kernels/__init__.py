"""Attention and fused operations; each fast kernel is tested against a plain implementation."""
