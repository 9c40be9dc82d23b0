"""Vectors of words in their contexts: neighbours, word similarity, and the geometry of layers."""
