"""Measurements of speed and memory, one binary for each room."""
