"""Training: configuration, state, step, loop, checkpoints and logs of a run."""
