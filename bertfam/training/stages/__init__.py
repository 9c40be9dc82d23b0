"""Stages of a run: their shapes, settings, batches and phases."""

from bertfam.training.stages.stage import (
    Ramp,
    Stage,
    StagedBatches,
    expanded,
    locate,
    seen,
    stage_batches,
    total_steps,
)

__all__ = ["Ramp", "Stage", "StagedBatches", "expanded", "locate", "seen", "stage_batches", "total_steps"]
