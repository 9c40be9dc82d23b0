"""word2vec (Mikolov et al. 2013a, b): one vector for each word, whatever its context."""

from dataclasses import dataclass
from typing import ClassVar

import flax.linen as nn
import jax

from bertfam.layers.embeddings import Table, embed_words
from bertfam.layers.execution import Execution
from bertfam.models.encoder import check_only_hidden_states
from bertfam.models.network import Kind
from bertfam.models.sizes import TableSizes

_EXECUTION = Execution()


@dataclass(frozen=True)
class Word2VecConfig(TableSizes):
    """Configuration of word vectors.

    As an encoder it has no layers: the hidden state of a token is the vector of its word.

    Attributes:
      vocab_size: real tokens; None takes the size of the run's vocabulary.
      table_rows: rows of the tables in memory before padding; None: `vocab_size`.
      hidden_size: width of the vectors.
      initializer_range: deviation that the kernels of heads start from.
    """

    objective_file: ClassVar[str] = "objectives/skip_gram.gin"
    kind: ClassVar[Kind] = "encoder"
    max_length: ClassVar[int | None] = None
    num_layers: ClassVar[int] = 0
    head_dim: ClassVar[int] = 0
    attention_dropout_rate: ClassVar[float] = 0.0

    hidden_size: int = 100
    initializer_range: float = 0.02

    def __post_init__(self) -> None:
        super().__post_init__()
        self._check_at_least(hidden_size=1)
        self._check_above_zero("initializer_range")

    def encoder(self, execution: Execution = _EXECUTION) -> "WordVectors":
        """Return the lookup of the vectors."""
        return WordVectors(self, execution)

    def context_table(self) -> Table:
        """Return the vectors of words as contexts, which start from 0 as in the published code."""
        return Table(self.padded_vocab_size, self.hidden_size, "vocab", nn.initializers.zeros_init())

    def flops(self, length: int, predictions: int) -> int:
        """Return the matrix-product FLOPs of one row of one training step: 3 x a product of two vectors for each prediction."""
        return 3 * 2 * predictions * self.hidden_size


class Embeddings(nn.Module):
    """Table of the words' vectors, which start uniform in [-1 / 2h, 1 / 2h) as in the published code."""

    config: Word2VecConfig

    @nn.compact
    def __call__(self) -> jax.Array:
        """Return the table float32[padded vocabulary, embed]."""
        width = self.config.hidden_size
        uniform = nn.initializers.variance_scaling(1 / (12 * width), "fan_out", "uniform")  # limits sqrt(3 / (12 width^2))
        return Table(self.config.padded_vocab_size, width, "vocab", uniform, name="word")()


class WordVectors(nn.Module):
    """Vectors of words; called as `bertfam.models.bert.Encoder` is, it returns them as the only hidden states."""

    config: Word2VecConfig
    execution: Execution = Execution()

    @nn.compact
    def __call__(
        self,
        tokens: jax.Array,
        *,
        segment_ids: jax.Array | None = None,
        positions: jax.Array | None = None,
        token_type_ids: jax.Array | None = None,
        train: bool,
        collect: frozenset[str] = frozenset(),
    ) -> tuple[jax.Array, dict[str, jax.Array]]:
        """Look up int32[batch, length]: dtype[batch, length, embed]."""
        check_only_hidden_states(self.config, collect)
        vectors = embed_words(Embeddings(self.config, name="embeddings")(), tokens, self.execution.compute_dtype)
        return vectors, {"hidden_states": vectors[None]} if "hidden_states" in collect else {}
