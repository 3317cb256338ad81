"""Read files of predictions and of answers, without executing their content."""
