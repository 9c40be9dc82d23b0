"""Model of a Hugging Face folder with the run that would train it further."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bertfam.config import Config, Override, load
from bertfam.config.paths import shipped
from bertfam.config.values import bindings_of
from bertfam.data import vocabularies
from bertfam.data.vocabularies import Vocabulary
from bertfam.interop import huggingface
from bertfam.training.run import Run

_LENGTH = 128  # tokens of a row, where the model allows as many


@dataclass(frozen=True)
class ImportedModel:
    """Model of a Hugging Face folder.

    Attributes:
      config: configuration of a run with its family's objective and the default settings; `vocab_size` is left to the vocabulary.
      run: that run.
      vocabulary: vocabulary of the model.
      params: parameters of the parts that the folder has, as the objective arranges them.
      parts: names of the parts that the folder has.
      ignored: tensors of the folder that have no place in the model.
    """

    config: Config
    run: Run
    vocabulary: Vocabulary
    params: dict[str, Any]
    parts: Sequence[str]
    ignored: Sequence[str]


def read_model(folder: str | Path, origin: str, module_imports: Sequence[str] = ()) -> ImportedModel:
    """Read the model of a Hugging Face folder.

    Args:
      folder: the folder.
      origin: the flag that names it, for messages.
      module_imports: modules that are imported first, which register families of your own.

    Raises:
      UserError: if the folder is incomplete, or its model is not supported.
    """
    model, params, ignored = huggingface.read(folder)
    vocabulary = vocabularies.load(folder)
    model = huggingface.with_vocabulary(model, vocabulary, folder)
    config = load(
        [*map(shipped, (huggingface.family_of(model).objective_of(params), "runs/defaults.gin"))],
        run_bindings(model, origin),
        module_imports,
    )
    run = config.build("Run")
    joined = run.objective.joined({next(iter(run.objective.networks)): params})
    return ImportedModel(config, run, vocabulary, joined, sorted(params), ignored)


def run_bindings(model: Any, origin: str) -> list[Override]:
    """Return the bindings of a model's config, of the macro MODEL to it, and of a length of rows; `vocab_size` is left out."""
    reference = Override(f"MODEL = @{type(model).__name__}()", origin)
    length = Override(f"Stage.length = {min(_LENGTH, model.max_length or _LENGTH)}", origin)
    return [reference, *bindings_of(model, origin, without=("vocab_size",)), length]
