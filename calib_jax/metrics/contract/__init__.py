"""The metric contract: predictions, terms, weighted statistics and values."""
