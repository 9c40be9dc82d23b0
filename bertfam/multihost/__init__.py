"""Coordination of the processes of a run, outside of JAX."""
