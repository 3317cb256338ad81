"""Texts: words, subwords, trees, pairs of sentences."""
