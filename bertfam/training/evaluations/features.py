"""Features of texts by the encoder of a run, on its mesh."""

from collections.abc import Sequence
from functools import partial
from typing import Any

import jax
import numpy as np
from jax.sharding import NamedSharding, PartitionSpec

from bertfam.corruption import keys
from bertfam.data.corpora.labelled.labelled_files import UNKNOWN
from bertfam.data.rows.labelled.labelled_texts import LabelledTexts
from bertfam.data.token_cache.documents import Documents
from bertfam.data.token_cache.tokenize import tokenise_labelled
from bertfam.data.vocabularies import Vocabulary
from bertfam.errors import UserError
from bertfam.objectives.fine_tuning.objective import mean_of_tokens
from bertfam.training.trainer import Trainer

_ROWS, _LENGTH = 64, 128  # of a batch, and its longest rows
_READ = ("encoder_input_tokens", "encoder_segment_ids", "encoder_token_type_ids")


class TextFeatures:
    """Mean over tokens of the last hidden states of the first network's encoder.

    Its program is compiled once, beside that of the step. Texts are cut at 128 tokens, or at the rows of the run if these are
    shorter.
    """

    def __init__(self, trainer: Trainer, vocabulary: Vocabulary) -> None:
        """Prepare the program; raise UserError if the network is no encoder."""
        name, config = next(iter(trainer.run.objective.networks.items()))
        if not hasattr(config, "encoder") or vocabulary.token_ids.cls is None or vocabulary.token_ids.frame is None:
            raise UserError(
                f"Run.evaluations measure encoders of texts with [CLS], and {type(config).__name__} with its vocabulary is none; "
                "leave them out"
            )
        self._trainer, self._vocabulary = trainer, vocabulary
        self._length = min(_LENGTH, *(stage.length for stage in trainer.run.stages))
        self._batch_size = -(-_ROWS // trainer.mesh.size) * trainer.mesh.size
        self._sharding = trainer.stages[0].shardings["encoder_input_tokens"]
        objective = trainer.run.objective
        encoder: Any = config.encoder(objective.execution)

        def features(params: Any, tokens: jax.Array, segment_ids: jax.Array, token_type_ids: jax.Array) -> jax.Array:
            own = {"params": objective.split(params)[name]["encoder"]}
            options = {"segment_ids": segment_ids, "token_type_ids": token_type_ids}
            hidden, _ = encoder.apply(own, tokens, **options, train=False)
            return mean_of_tokens(hidden, segment_ids).astype("float32")

        # Each process needs all of them.
        self._compute = jax.jit(features, out_shardings=NamedSharding(trainer.mesh, PartitionSpec()))

    def __call__(self, params: Any, texts: Sequence[Sequence[str]]) -> np.ndarray:
        """Compute the features of texts, of one string or two each: float32[texts, embed]."""
        block = tokenise_labelled(self._vocabulary, [[*parts, UNKNOWN] for parts in texts])
        starts = np.concatenate([[0], np.cumsum(block.sentences)])
        bounds = np.concatenate([[0], np.cumsum(block.documents)])
        documents = Documents("the evaluation", block.tokens, starts, bounds, labels=block.labels, label_count=1)
        examples = LabelledTexts().examples(documents, self._length, 0, self._vocabulary.token_ids)
        found = list[np.ndarray]()
        for begin in range(0, len(texts), self._batch_size):
            count = min(self._batch_size, len(texts) - begin)
            # Every batch has as many rows, so that there is one program.
            indices = begin + np.minimum(np.arange(self._batch_size), count - 1)
            rows = examples.rows(indices, keys.fold(0, indices))
            batch = [self._placed(rows[name]) for name in _READ]
            with self._trainer.on_mesh():
                found.append(np.asarray(self._compute(params, *batch))[:count])
        return np.concatenate(found)

    def _placed(self, rows: np.ndarray) -> jax.Array:
        return jax.make_array_from_callback(rows.shape, self._sharding, partial(np.ndarray.__getitem__, rows))
