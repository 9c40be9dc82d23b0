"""Interface that the config of every family has; encoders and language models extend it."""

from collections.abc import Iterable, Mapping
from typing import Any, Literal, Protocol, Self

# Kinds of networks, by the names that networks have in the folder of a model.
Kind = Literal["encoder", "decoder", "encoder_decoder"]
DESCRIPTIONS: Mapping[Kind, str] = {"encoder": "an encoder", "decoder": "a causal LM", "encoder_decoder": "an encoder-decoder"}


class Words(Protocol):
    """Vocabulary as a model sees it: `bertfam.data.vocabularies.Vocabulary` has more."""

    @property
    def size(self) -> int:
        """Number of pieces."""
        ...

    @property
    def token_ids(self) -> Any:
        """Ids of the control tokens, a `bertfam.corruption.token_ids.TokenIds`."""
        ...

    def pieces(self, ids: Iterable[int]) -> list[str]:
        """Return the piece of each id."""
        ...


class NetworkConfig(Protocol):
    """A family's frozen config, which constructs its networks.

    `bertfam.models.encoder` extends it for encoders and masked language models, `bertfam.models.language_model` for causal
    LMs and encoder-decoders.
    """

    @property
    def kind(self) -> Kind:
        """Kind of network: an encoder, a decoder (a causal LM) or an encoder-decoder."""
        ...

    @property
    def vocab_size(self) -> int | None:
        """Number of real tokens; None takes the size of the run's vocabulary."""
        ...

    @property
    def max_length(self) -> int | None:
        """Longest row in tokens, of encoder and decoder each; None: no limit."""
        ...

    @property
    def hidden_size(self) -> int:
        """Width of the residual stream, and of the output."""
        ...

    @property
    def num_layers(self) -> int:
        """Number of layers; of the decoder where there is one."""
        ...

    @property
    def head_dim(self) -> int:
        """Width of one attention head."""
        ...

    @property
    def attention_dropout_rate(self) -> float:
        """Dropout rate of the attention probabilities, applied by backends that can."""
        ...

    @property
    def padding_id(self) -> int | None:
        """Padding id that `position_offset` belongs to, where transformers counts positions from that id; None: it does not."""
        ...

    @property
    def require_vocab_size(self) -> int:
        """`vocab_size`, which must have been set."""
        ...

    @property
    def require_table_rows(self) -> int:
        """Rows of the word table in files."""
        ...

    @property
    def padded_vocab_size(self) -> int:
        """Rows of the word table in memory."""
        ...

    def sized(self, vocabulary_size: int) -> Self:
        """Return the config with its `vocab_size` set; raise UserError where it asks for another size."""
        ...

    def fitted(self, vocabulary: Words) -> Self:
        """Return the config with its `vocab_size` set, and what else it has of a vocabulary."""
        ...

    def flops(self, length: int, predicted: int, /) -> int:
        """Return the matrix-product FLOPs of one row of one training step: 3 x forward.

        `length` tokens of the encoder. In an encoder, `predicted` of them are given to the vocabulary head; otherwise these are
        the tokens of the decoder, whose self-attention counts half, as it is causal, and all of them are given to the head.
        """
        ...
