"""Probes of hidden states: classifiers of words and spans by the hidden states of each layer."""
