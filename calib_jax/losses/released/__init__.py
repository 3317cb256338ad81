"""Losses that only a paper's released code defines, to reproduce its published numbers."""
