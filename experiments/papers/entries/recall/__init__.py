"""Claims of Tian et al. 2021."""
