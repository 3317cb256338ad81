"""Weights of networks from files of other libraries."""
