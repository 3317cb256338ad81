"""Comparisons of two models on the same examples."""
