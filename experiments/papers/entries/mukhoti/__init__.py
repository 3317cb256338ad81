"""Claims of Mukhoti et al. 2020."""
