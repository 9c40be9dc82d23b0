"""Scores of models on the held-out text of a token cache, for the commands that print them."""

import dataclasses
from dataclasses import dataclass
from typing import Any, cast

import jax
from jax.sharding import NamedSharding, PartitionSpec

from bertfam.data import vocabularies
from bertfam.data.text_data import HeldOut
from bertfam.data.token_cache.cache import TokenCache
from bertfam.data.vocabularies import Vocabulary
from bertfam.errors import UserError, warn
from bertfam.planning.choices import choose_execution, with_choices
from bertfam.sharding.mesh import MeshShape
from bertfam.training.run import Run
from bertfam.training.stages import Stage
from bertfam.training.teachers import read_teachers
from bertfam.training.trainer import Scores, Trainer


@dataclass(frozen=True)
class HeldOutText:
    """Held-out text to measure models on.

    Attributes:
      run: the run whose text settings hold.
      cache: the token cache.
      mesh: all devices that are here, whatever mesh the run was trained on.
      stage: the shape of a batch.
      held_out: the batches.
    """

    run: Run
    cache: TokenCache
    mesh: jax.sharding.Mesh
    stage: Stage
    held_out: HeldOut


def open_text(
    model_dir: str, run: Run, vocabulary: Vocabulary, cache: TokenCache, split: str, at_most: int | None
) -> HeldOutText:
    """Open the batches of a split.

    Args:
      model_dir: the folder of the model, for messages.
      run: the run whose text settings hold.
      vocabulary: the vocabulary of the model.
      cache: the token cache.
      split: "validation" or "train".
      at_most: greatest number of batches; None: all.

    Raises:
      UserError: the cache has another vocabulary, or too little text.
    """
    if vocabularies.load(cache.vocabulary_directory).fingerprint != vocabulary.fingerprint:
        raise UserError(f"{cache.directory} was built with another vocabulary than {model_dir}; build one with its vocab/")
    mesh, last = MeshShape().build(), run.stages[-1]
    # Rows fill the devices; they are the same in batches of any size.
    stage = dataclasses.replace(last, batch_size=-(-last.batch_size // mesh.size) * mesh.size)
    sizes = (cache, vocabulary.token_ids, stage.length, stage.batch_size)
    held_out = run.data.held_out(*sizes, split=split, at_most=at_most)
    if held_out is None:
        raise UserError(
            f"the {split} split of {cache.directory} has too few documents; build a cache of other text by `bertfam cache "
            f"--vocab={model_dir}/vocab` and give it with --cache_dir"
        )
    return HeldOutText(run, cache, mesh, stage, held_out)


class Scorer:
    """Scores of models of one architecture on held-out text; it is compiled once."""

    def __init__(self, run: Run, vocabulary: Vocabulary, text: HeldOutText) -> None:
        """Lay the model of a sized run out on the devices of the text."""
        self._text, self._objective = text, run.objective
        # The backend that the run names may not exist on these devices.
        execution = dataclasses.replace(run.objective.execution, attention="auto")
        objective: Any = dataclasses.replace(cast(Any, run.objective), execution=execution)
        aux = _read_aux(run, vocabulary)
        run = dataclasses.replace(run, objective=objective, stages=(text.stage,), microbatches=1)
        # An imported model has not been trained, and its run leaves the choice to the devices.
        run = with_choices(run, choose_execution(objective, text.mesh.devices.flat[0].platform))
        self._trainer = Trainer(run, text.mesh)
        self._aux = aux and self._trainer.placed_aux(aux)
        self._shardings: Any = self._trainer.shardings.params
        if run.quantization is not None:  # their tree is another; every device has them all
            self._shardings = NamedSharding(text.mesh, PartitionSpec())

    def scores(self, model_dir: str, params: Any) -> Scores:
        """Score parameters; raise UserError if the model in `model_dir` lacks some that the objective needs."""
        missing = sorted(self._trainer.shardings.params.keys() - params.keys())
        if missing:
            raise UserError(f"{model_dir} was imported without {', '.join(missing)}; train them with `bertfam pretrain` first")
        placed = jax.device_put(params, self._shardings)
        scores = self._trainer.scores(placed, self._text.held_out, 0, aux=self._aux)
        assert scores is not None  # No request to stop can cut it short.
        if self._objective.teachers and not self._aux:
            for values in (scores.values, *scores.corpora.values()):
                del values["loss"]  # The teacher's terms are a part of it.
        return scores


def _read_aux(run: Run, vocabulary: Vocabulary) -> dict[str, Any]:
    """Read what the objective reads and does not train, without a teacher that is missing: a model has scores without it too."""
    try:
        teachers = read_teachers(run, vocabulary)
    except UserError as error:
        warn([f"scores without the teacher are those of the model alone: {error}"])
        teachers = {}
    return teachers | run.objective.read_aux(vocabulary)
