"""Benchmarks of speed and memory, one binary per subpackage."""
