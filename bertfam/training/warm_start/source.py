"""Folder that a new run starts from: what the run's configuration has from it."""

import dataclasses
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import jax
from flax import linen as nn

from bertfam.config import Config, Defaults, file_binds
from bertfam.config.objects import Replaced, described_object, replace_object
from bertfam.data import vocabularies
from bertfam.interop import huggingface
from bertfam.interop.folders import check_is_model, is_huggingface
from bertfam.models.conversion import adopted
from bertfam.models.growth import SIZES
from bertfam.plurals import plural
from bertfam.storage.paths import to_path
from bertfam.training.checkpoints import selection
from bertfam.training.model_dir import read_run
from bertfam.training.run import FREE_OF_NETWORKS, Run
from bertfam.training.trained_networks import vocabulary_folder
from bertfam.training.warm_start.imported_model import run_bindings

_MODEL = ("Run", "objective", "model")
_SIZES = ("hidden_size", "num_heads", "feed_forward_size", "max_length")


@dataclass(frozen=True)
class Used:
    """Parts of a run's configuration that come from the folder that it starts from.

    Attributes:
      folder: the folder.
      model: its model, if the run has anything of that; None if the configuration describes the same one.
      objective: gin file of the objective of its family; None if the configuration has an objective.
      replaced: values of gin files that the model's have replaced.
      vocabulary: True if its vocabulary is that of the run.
    """

    folder: str
    model: Any | None
    objective: str | None
    replaced: Sequence[Replaced]
    vocabulary: bool

    def describe(self, vocabulary_size: int) -> str | None:
        """Return a line that says what is used; None if that is nothing."""
        parts = []
        if self.model is not None:
            sizes = [f"{name} {getattr(self.model, name)}" for name in _SIZES if getattr(self.model, name, None) is not None]
            parts.append(f"{type(self.model).__name__} with {plural(self.model.num_layers, 'layer')} ({', '.join(sizes)})")
        if self.objective:
            parts.append(f"the objective of its family ({self.objective})")
        if self.vocabulary:
            parts.append(f"its vocabulary of {vocabulary_size:,} pieces")
        if not parts:
            return None
        instead = f"; instead of {', '.join(map(str, self.replaced))}" if self.replaced else ""
        return f"taken from {self.folder}: {', '.join(parts)}{instead}"


@dataclass(frozen=True)
class Source:
    """Model of the folder that a run starts from.

    Attributes:
      folder: MODEL_DIR or Hugging Face folder.
      origin: the flag that names it.
      model: its model, or the first one of several; the vocabulary's size is left out.
      parts: parts of its parameters; None for a MODEL_DIR, where they are those of `run`.
      run: its run; None for a Hugging Face folder.
    """

    folder: str
    origin: str
    model: Any
    parts: Collection[str] | None
    run: Run | None

    @property
    def vocabulary_folder(self) -> Path:
        """Folder of its vocabulary."""
        return vocabulary_folder(self.folder).absolute()

    @cached_property
    def objective_file(self) -> str:
        """Gin file of the objective of its family."""
        family = huggingface.find_family(self.model)
        if family is None:
            return str(self.model.objective_file)
        parts = self.parts
        if self.run is not None:
            run = self.run.fitted(vocabularies.load(self.vocabulary_folder))
            networks = jax.eval_shape(run.objective.split, nn.meta.unbox(run.boxed_params))
            parts = next(iter(networks.values())).keys()
        return family.objective_of(parts or ())

    def defaults(self, gin_files: Sequence[str]) -> Defaults:
        """Return what the gin files of a run may leave out: the objective, the model and the settings of a run."""
        has_objective = file_binds(gin_files, "Run.objective")
        if has_objective and file_binds(gin_files, "Run.stages"):
            return Defaults()
        files = [] if has_objective else [self.objective_file]
        return Defaults([*files, "runs/defaults.gin"], run_bindings(self.model, self.origin))

    def use_model(self, config: Config, defaults: Defaults, *, grow: bool = False) -> tuple[Config, Used]:
        """Describe its model in a configuration, except where flags do or a field is free; `check_same_network` refuses those.

        A model of the configuration that can start from its parameters stays, with its sizes, or with those of the
        configuration if it is to `grow`.

        Raises:
          UserError: if the objective of the configuration cannot train the model.
        """
        described = described_object(config, _MODEL)
        model = described and adopted(described[0], self.model, described[1], SIZES if grow else ()) or self.model
        replacement = replace_object(config, _MODEL, model, self.origin, FREE_OF_NETWORKS)
        used = self.model if replacement.changed or defaults.bindings else None
        objective = next((name for name in defaults.files if name.startswith("objectives/")), None)
        return replacement.config, Used(self.folder, used, objective, replacement.replaced, vocabulary=False)


def open_source(folder: str, model_dir: Path) -> Source:
    """Read the configuration of the model that the run in MODEL_DIR starts from; reads no parameters.

    A run that has a checkpoint has all of that already, and needs the folder no more.

    Raises:
      UserError: if there is no such model.
    """
    origin = f"--init_from={folder}"
    if (model_dir / "config.gin").is_file() and selection.newest(model_dir) is not None:
        folder = str(model_dir)
    check_is_model(folder)
    parts, run = None, None
    if is_huggingface(folder):
        model, parts = huggingface.inspect(folder)
        model = huggingface.with_vocabulary(model, vocabularies.load(to_path(folder)), folder)
    else:
        run = read_run(folder)
        model = next(iter(run.objective.networks.values()))
    return Source(folder, origin, dataclasses.replace(model, vocab_size=None, table_rows=None), parts, run)
