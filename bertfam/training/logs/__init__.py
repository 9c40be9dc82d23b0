"""Metrics, progress and timing of a run."""
