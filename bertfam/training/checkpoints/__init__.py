"""Checkpoints of a run: MODEL_DIR/checkpoints/STEP, each with a manifest of digests."""

from pathlib import Path

from bertfam.storage.paths import to_path
from bertfam.training.checkpoints.selection import newest
from bertfam.training.checkpoints.store import Checkpoints, on_devices

__all__ = ["Checkpoints", "has_training_state", "newest", "on_devices"]


def has_training_state(model_dir: str | Path, step: int) -> bool:
    """Return whether a run can resume from a step; an imported model has parameters only."""
    return (to_path(model_dir) / "checkpoints" / str(step) / "rest").is_dir()
