"""Judge claims: statistics of predictions, intervals, rules and verdicts."""
