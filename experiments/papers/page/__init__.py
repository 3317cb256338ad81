"""Show claims: their states as a list, the page of verdicts, the tables of trained networks."""
