"""Evaluate trained networks: their predictions, and the weights that made them."""
