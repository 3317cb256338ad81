"""Translation: trained networks, BLEU and calibration of tokens."""
