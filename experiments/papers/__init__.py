"""Claims of five papers: trainings, comparisons with their noise, verdicts as data, the page."""
