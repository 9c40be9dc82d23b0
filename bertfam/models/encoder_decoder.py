"""Encoder-decoder: the base of T5, mT5 and BART, and its encoder used alone."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, ClassVar, NamedTuple, Self

import flax.linen as nn
import jax
from typing_extensions import override

from bertfam.layers.embeddings import Table
from bertfam.layers.execution import Execution
from bertfam.models.language_model import EncoderDecoderConfig
from bertfam.models.network import Kind, Words
from bertfam.models.sizes import TableSizes

_EXECUTION = Execution()
_WORDS = "words"  # part of the parameters that is the word table, after the attribute of `EncoderOnly`


class StackSizes(NamedTuple):
    """Sizes of an encoder or a decoder.

    Attributes:
      layers: number of layers.
      inner: width of all heads of an attention together.
      feed_forward: width of the hidden layer of the feed-forward networks.
    """

    layers: int
    inner: int
    feed_forward: int


class EncoderDecoderSizes(TableSizes):
    """Members that all configs of encoder-decoders have in common; see the families' configs."""

    kind: ClassVar[Kind] = "encoder_decoder"

    hidden_size: int
    num_heads: int

    @property
    def encoder_sizes(self) -> StackSizes:
        """Sizes of the encoder."""
        raise NotImplementedError

    @property
    def decoder_sizes(self) -> StackSizes:
        """Sizes of the decoder."""
        raise NotImplementedError

    @property
    def feed_forward_matrices(self) -> int:
        """Number of matrices of a feed-forward network."""
        return 2

    @property
    def num_kv_heads(self) -> int:
        """Number of key and value heads of the decoder's self-attention."""
        return self.num_heads

    @property
    def table_width(self) -> int:
        """Width of the word table."""
        return self.hidden_size

    def encoder(self, execution: Execution = _EXECUTION) -> nn.Module:
        """Return the encoder."""
        raise NotImplementedError

    def decoder(self, execution: Execution = _EXECUTION) -> nn.Module:
        """Return the decoder."""
        raise NotImplementedError

    def stacks(self, execution: Execution = _EXECUTION) -> dict[str, nn.Module]:
        """Return encoder and decoder."""
        return {"encoder": self.encoder(execution), "decoder": self.decoder(execution)}

    def flops(self, length: int, targets: int) -> int:
        """Return the matrix-product FLOPs of one row of one training step.

        3 [L s (8hi + 2mhf + 4si) + L' (4shi + t (12hi + 2mhf + 2ti + 4si)) + 2thV], with L layers of the encoder on s tokens and
        L' of the decoder on t, attentions i wide and feed-forward networks of m matrices f wide in each, and V real tokens.
        """
        h, sizes = self.hidden_size, self.decoder_sizes
        layer = 12 * h * sizes.inner + 2 * self.feed_forward_matrices * h * sizes.feed_forward
        layer += 4 * length * sizes.inner + 2 * targets * sizes.inner
        decoder = sizes.layers * (4 * length * h * sizes.inner + targets * layer)
        return self.encoder_flops(length) + 3 * (decoder + 2 * targets * h * self.require_vocab_size)

    def encoder_flops(self, length: int) -> int:
        """Return those of the encoder alone: 3 L s (8hi + 2mhf + 4si)."""
        h, sizes = self.hidden_size, self.encoder_sizes
        layer = 8 * h * sizes.inner + 2 * self.feed_forward_matrices * h * sizes.feed_forward + 4 * length * sizes.inner
        return 3 * sizes.layers * length * layer


@dataclass(frozen=True)
class EncoderOnlyConfig:
    """Configuration of the encoder of an encoder-decoder, used alone as an encoder, such as T5's.

    Its parameters are those of the encoder, and "words", the word table.

    Attributes:
      model: the encoder-decoder.
    """

    kind: ClassVar[Kind] = "encoder"

    model: EncoderDecoderConfig

    @property
    def vocab_size(self) -> int | None:
        """Number of real tokens."""
        return self.model.vocab_size

    @property
    def max_length(self) -> int | None:
        """Longest row in tokens; None: no limit."""
        return self.model.max_length

    @property
    def hidden_size(self) -> int:
        """Width of the output."""
        return self.model.hidden_size

    @property
    def num_layers(self) -> int:
        """Number of layers."""
        return self.model.encoder_layers

    @property
    def head_dim(self) -> int:
        """Width of one attention head."""
        return self.model.head_dim

    @property
    def attention_dropout_rate(self) -> float:
        """Dropout rate of the attention probabilities."""
        return self.model.attention_dropout_rate

    @property
    def initializer_range(self) -> float:
        """Standard deviation that the kernels of heads start from."""
        return self.model.initializer_range

    @property
    def padding_id(self) -> int | None:
        """Padding id that positions are counted from."""
        return self.model.padding_id

    @property
    def require_vocab_size(self) -> int:
        """`vocab_size`, which must have been set."""
        return self.model.require_vocab_size

    @property
    def require_table_rows(self) -> int:
        """Rows of the word table in files."""
        return self.model.require_table_rows

    @property
    def padded_vocab_size(self) -> int:
        """Rows of the word table in memory."""
        return self.model.padded_vocab_size

    def sized(self, vocabulary_size: int) -> Self:
        """Return the config with its `vocab_size` set."""
        return replace(self, model=self.model.sized(vocabulary_size))

    def fitted(self, vocabulary: Words) -> Self:
        """Return the config of the model fitted to a vocabulary."""
        return replace(self, model=self.model.fitted(vocabulary))

    def encoder(self, execution: Execution = _EXECUTION) -> nn.Module:
        """Return the encoder, called as `bertfam.models.bert.Encoder` is; it has no sentence types."""
        return EncoderOnly(self.model.encoder(execution), self.model.embeddings())

    def flops(self, length: int, predictions: int) -> int:
        """Return the matrix-product FLOPs of one row of one training step; there is no vocabulary head."""
        return self.model.encoder_flops(length)

    def params_of(self, params: Mapping[str, Any]) -> dict[str, Any]:
        """Return the parameters {"encoder": ...} among those of the encoder-decoder."""
        return {"encoder": {**params["encoder"], _WORDS: params["embeddings"]}}

    def shared_params(self, params: Mapping[str, Any]) -> dict[str, Any]:
        """Return the parameters by their names in the encoder-decoder; the inverse of `params_of`."""
        encoder = dict(params["encoder"])
        return {"embeddings": encoder.pop(_WORDS), "encoder": encoder}


class EncoderOnly(nn.Module):
    """Encoder of an encoder-decoder, with a word table of its own."""

    network: nn.Module
    words: Table

    @override
    def setup(self) -> None:
        nn.share_scope(self, self.network)

    def __call__(
        self,
        tokens: jax.Array,
        *,
        segment_ids: jax.Array,
        positions: jax.Array | None = None,
        token_type_ids: jax.Array,
        train: bool,
        collect: frozenset[str] = frozenset(),
    ) -> tuple[jax.Array, dict[str, Any]]:
        """Run the encoder; see `bertfam.models.bert.Encoder` for arguments and results. `token_type_ids` are not used."""
        network: Any = self.network
        row = {"segment_ids": segment_ids, "positions": positions, "train": train, "collect": collect}
        found: tuple[jax.Array, dict[str, Any]] = network(self.words(), tokens, **row)
        return found
