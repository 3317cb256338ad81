"""The noise of calibration errors: variances and draws of a calibrated model."""
