"""Claims of Guo et al. 2017."""
