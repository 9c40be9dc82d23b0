"""Merged parameters of several checkpoints."""
