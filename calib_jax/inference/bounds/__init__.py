"""The noise of binned calibration errors: variances and draws of a calibrated model."""
