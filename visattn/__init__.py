"""Attention for computer vision."""
