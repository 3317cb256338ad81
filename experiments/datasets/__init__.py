"""Inspect data sets, locate their files, and compute vectors of their texts."""
