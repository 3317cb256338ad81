"""Properties of random cases: what the laws promise, tried on inputs that nobody chose."""
