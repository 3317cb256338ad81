"""Images: decoding, windows, augmentation, label maps."""
