"""Find, train, measure and keep the runs that claims need."""
