"""Claims of Ghosh et al. 2022."""
