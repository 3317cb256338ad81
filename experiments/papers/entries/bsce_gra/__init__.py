"""Claims of Lin et al. 2025."""
