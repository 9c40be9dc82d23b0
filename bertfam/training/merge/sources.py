"""Checkpoints that are merged: opened, and checked to be of one architecture and one vocabulary."""

from collections.abc import Collection, Sequence
from dataclasses import dataclass, field
from typing import Any

from bertfam.data import vocabularies
from bertfam.data.vocabularies import Vocabulary
from bertfam.errors import UserError
from bertfam.objectives.fine_tuning.objective import FineTuning
from bertfam.storage.paths import to_path
from bertfam.training.checkpoints import selection
from bertfam.training.checkpoints.saved_params import SavedParams
from bertfam.training.checkpoints.shapes import check_shapes
from bertfam.training.model_dir import check_floats, check_own_vocabulary, read_run
from bertfam.training.run import FREE_OF_NETWORKS, Run


@dataclass(frozen=True)
class Source:
    """Checkpoint that is merged.

    Attributes:
      folder: its MODEL_DIR.
      step: its step.
      run: configuration, with the vocabulary's size.
      vocabulary: vocabulary of the model.
      params: its parameters, which are not read yet.
    """

    folder: str
    step: int
    run: Run = field(repr=False)
    vocabulary: Vocabulary = field(repr=False)
    params: SavedParams = field(repr=False)

    @property
    def name(self) -> str:
        """DIR@STEP, as the command line names it."""
        return f"{self.folder}@{self.step}"


def open_source(folder: str, step: int | None) -> Source:
    """Open a checkpoint, the newest undamaged one if `step` is None; raise UserError if it is missing or damaged."""
    run, vocabulary = read_run(folder), vocabularies.load(to_path(folder) / "vocab")
    check_floats(run, folder, "to merge it")
    step = selection.find(folder, step)
    check_own_vocabulary(to_path(folder), vocabulary, step)
    run = run.fitted(vocabulary)
    check_shapes(to_path(folder), selection.folder(folder) / str(step), "params", run.boxed_params)
    return Source(folder, step, run, vocabulary, SavedParams(folder, step))


def check_alike(sources: Sequence[Source]) -> None:
    """Raise UserError if a checkpoint is given twice, or cannot be merged with the first one."""
    first = sources[0]
    for place, source in enumerate(sources):
        if any(source.name == other.name for other in sources[:place]):
            raise UserError(f"{source.name} is given twice: give each checkpoint once (--weights gives one more weight)")
        if why := _other_network(first, source) or _other_shapes(first, source) or _other_labels(first, source):
            raise UserError(f"{source.name} cannot be merged with {first.name}: {why}; leave one of them out")


def check_base(base: Source, first: Source) -> None:
    """Raise UserError if the checkpoints cannot have been trained from the base, which may have other heads."""
    parts = {path.partition("/")[0] for path in base.params.shapes} & {path.partition("/")[0] for path in first.params.shapes}
    if why := _other_network(first, base) or _other_shapes(first, base, parts):
        raise UserError(f"--base={base.name} is no base of {first.name}: {why}; name the checkpoint that it was trained from")


def _other_network(first: Source, other: Source) -> str | None:
    """Say in what a checkpoint differs from the first in vocabulary or architecture; None if in nothing."""
    if other.vocabulary.fingerprint != first.vocabulary.fingerprint:
        return "it has another vocabulary"
    ours, theirs = first.run.objective.networks, other.run.objective.networks
    if ours.keys() != theirs.keys():
        return f"it has the networks {', '.join(theirs)}, not {', '.join(ours)}"
    for name, config in ours.items():
        if why := _other_config(config, theirs[name]):
            return why
    return None


def _other_shapes(first: Source, other: Source, parts: Collection[str] | None = None) -> str | None:
    """Say in what parameter a checkpoint differs from the first; `parts` are those that are compared, all by default."""
    ours, theirs = (
        {path: shape for path, shape in source.params.shapes.items() if parts is None or path.partition("/")[0] in parts}
        for source in (first, other)
    )
    for path in sorted(ours.keys() ^ theirs.keys()):
        return f"{'it has' if path in theirs else 'it lacks'} the parameter {path}"
    for path, shape in ours.items():
        if (own := theirs[path]) != shape:
            return f"{path} is {own.dtype}{list(own.shape)}, not {shape.dtype}{list(shape.shape)}"
    return None


def _other_config(config: Any, other: Any) -> str | None:
    if type(other) is not type(config):
        return f"it is a {type(other).__name__}, not a {type(config).__name__}"
    for name, before in vars(config).items():
        if name not in FREE_OF_NETWORKS and (now := getattr(other, name)) != before:
            return f"its {type(config).__name__}.{name} is {now!r}, not {before!r}"
    return None


def _other_labels(first: Source, other: Source) -> str | None:
    ours, theirs = first.run.objective, other.run.objective
    if isinstance(ours, FineTuning) and isinstance(theirs, FineTuning) and not theirs.head.predicts_as(ours.head):
        return "it predicts other labels"
    return None
