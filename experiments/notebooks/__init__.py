"""Notebooks, and the program that executes them."""
