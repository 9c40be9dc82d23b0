"""Features of texts by the encoder of a run, on its mesh."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from flax import linen as nn
from jax.sharding import NamedSharding, PartitionSpec

from bertfam.corruption import keys
from bertfam.data.corpora.labelled.labelled_corpus import UNKNOWN
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
    """Hidden states of the first network's encoder.

    Programs are compiled once, beside that of the step. Texts are cut at 128 tokens, or at the rows of the run if these are
    shorter. The attributes are those of `bertfam.training.evaluations.base.Encoder`.
    """

    def __init__(self, trainer: Trainer, vocabulary: Vocabulary) -> None:
        """Prepare the program; raise UserError if the network is no encoder."""
        name, config = next(iter(trainer.run.objective.networks.items()))
        if not hasattr(config, "encoder") or vocabulary.token_ids.cls is None or vocabulary.token_ids.frame is None:
            raise UserError(
                f"Run.evaluations measure encoders of texts with [CLS], and {type(config).__name__} with its vocabulary is none; "
                "leave them out"
            )
        self._trainer, self.vocabulary = trainer, vocabulary
        self.length = min(_LENGTH, *(stage.length for stage in trainer.run.stages))
        self.batch_size = -(-_ROWS // trainer.mesh.size) * trainer.mesh.size
        self._sharding = trainer.stages[0].shardings["encoder_input_tokens"]
        objective = trainer.run.objective
        encoder: Any = config.encoder(objective.execution)

        def encoded(
            params: Any, tokens: jax.Array, segment_ids: jax.Array, types: jax.Array, collect: frozenset[str] = frozenset()
        ) -> Any:
            own = {"params": objective.split(params)[name]["encoder"]}
            return encoder.apply(own, tokens, segment_ids=segment_ids, token_type_ids=types, train=False, collect=collect)

        def features(params: Any, tokens: jax.Array, segment_ids: jax.Array, types: jax.Array) -> jax.Array:
            return mean_of_tokens(encoded(params, tokens, segment_ids, types)[0], segment_ids).astype("float32")

        def states(params: Any, tokens: jax.Array, segment_ids: jax.Array, types: jax.Array) -> jax.Array:
            found = encoded(params, tokens, segment_ids, types, frozenset({"hidden_states"}))[1]["hidden_states"]
            return jnp.moveaxis(found, 0, 2).astype("float32")  # [batch, length, layers + 1, embed]

        # Each process needs all of them.
        everywhere = NamedSharding(trainer.mesh, PartitionSpec())
        self._features, self._states = (jax.jit(each, out_shardings=everywhere) for each in (features, states))
        row = jax.ShapeDtypeStruct((1, self.length), jnp.int32)
        found = jax.eval_shape(states, nn.meta.unbox(trainer.run.boxed_params), row, row, row)
        self.shape: tuple[int, int] = found.shape[2:]

    def __call__(self, params: Any, texts: Sequence[Sequence[str]]) -> np.ndarray:
        """Compute the features of texts, of one string or two each: float32[texts, embed]."""
        block = tokenise_labelled(self.vocabulary, [[*parts, UNKNOWN] for parts in texts])
        starts = np.concatenate([[0], np.cumsum(block.sentences)])
        bounds = np.concatenate([[0], np.cumsum(block.documents)])
        documents = Documents("the evaluation", block.tokens, starts, bounds, labels=block.labels, label_count=1)
        examples = LabelledTexts().examples(documents, self.length, 0, self.vocabulary.token_ids)
        found = list[np.ndarray]()
        for begin in range(0, len(texts), self.batch_size):
            indices = np.arange(begin, min(begin + self.batch_size, len(texts)))
            found.append(self._computed(self._features, params, examples.rows(indices, keys.fold(0, indices))))
        return np.concatenate(found)

    def hidden_states(self, params: Any, rows: Mapping[str, np.ndarray]) -> np.ndarray:
        """Compute the hidden states of rows; see `bertfam.training.evaluations.base.Features`."""
        return self._computed(self._states, params, rows)

    def _computed(self, program: Any, params: Any, rows: Mapping[str, np.ndarray]) -> np.ndarray:
        """Run a program on rows; every batch has as many, so that it is compiled once."""
        count = len(rows[_READ[0]])
        indices = np.minimum(np.arange(self.batch_size), count - 1)
        batch = [self._placed(rows[name][indices]) for name in _READ]
        with self._trainer.on_mesh():
            return np.asarray(program(params, *batch))[:count]

    def _placed(self, rows: np.ndarray) -> jax.Array:
        return jax.make_array_from_callback(rows.shape, self._sharding, partial(np.ndarray.__getitem__, rows))


@dataclass(frozen=True)
class ModelFeatures:
    """Features of texts by some parameters; see `bertfam.training.evaluations.base.Features`."""

    encoder: TextFeatures
    params: Any

    def __call__(self, texts: Sequence[Sequence[str]]) -> np.ndarray:
        """Return features of texts, or of pairs of texts: float32[texts, embed]."""
        return self.encoder(self.params, texts)

    def hidden_states(self, rows: Mapping[str, np.ndarray]) -> np.ndarray:
        """Return the hidden states of rows."""
        return self.encoder.hidden_states(self.params, rows)
