"""The bootstrap: resampled values of metrics, and their intervals."""
