"""Bidirectional language model of ELMo (Peters et al. 2018, section 3.1): two stacks of LSTMs, one for each direction."""

from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, ClassVar, Self

import flax.linen as nn
import jax
import jax.numpy as jnp
from typing_extensions import override

from bertfam.errors import UserError
from bertfam.layers.dense import Dense
from bertfam.layers.dropout import Dropout
from bertfam.layers.embeddings import Table, embed_words
from bertfam.layers.execution import Execution
from bertfam.layers.initializers import logical, param, truncated_normal
from bertfam.layers.stack import Stack
from bertfam.models.characters import BEGIN_TEXT, END_TEXT, PADDING, CharacterCnn, CharacterWords
from bertfam.models.encoder import check_only_hidden_states
from bertfam.models.network import Kind, Words
from bertfam.models.sizes import TableSizes

_EXECUTION = Execution()


@dataclass(frozen=True)
class BilmConfig(TableSizes):
    """Configuration of a bidirectional language model; the defaults are a small one.

    The tokens may be characters (`bertfam vocab --kind=byte_bpe --size=261`), pieces or words. Both directions share the
    embeddings of the tokens and the softmax. With `filters`, as in ELMo, words are read by a convolution over their
    characters, and the softmax has a table of its own; otherwise one table is both. With `lstm_units`, as in ELMo, LSTMs are
    wider than their hidden states, to which they project (Sak et al. 2014).

    Attributes:
      vocab_size: real tokens; None takes the size of the run's vocabulary.
      table_rows: rows of the word table before padding; None: `vocab_size`.
      num_layers: LSTMs of each direction; the output of each but the first is added to its input.
      hidden_size: width of the hidden states, of which each direction has half.
      lstm_units: units of each LSTM, whose output is projected to half of `hidden_size`; None: LSTMs have as many units as that,
        and no projection. ELMo's have 4,096 units for 512.
      clip: limit of the absolute values of the cell states and the projected outputs of LSTMs with `lstm_units`; None: no limit.
        ELMo's is 3.
      dropout_rate: on the input of each LSTM, and on the output of the last.
      initializer_range: deviation of the truncated normal that the word table starts from; LSTMs start as Flax's do.
      filters: width in characters and number of the filters of each convolution that reads the characters of words; None: words
        have a table. ELMo's are ((1, 32), (2, 32), (3, 64), (4, 128), (5, 256), (6, 512), (7, 1024)).
      character_size: width of the table of characters.
      highways: number of highway layers, as wide as all filters together.
      longest_word: characters of a word that are read, with the ids of its beginning and its end.
      spelling: characters of the vocabulary's words, of `CharacterCnn.spell`, which `fitted` sets; nobody configures it.
    """

    objective_file: ClassVar[str] = "objectives/bilm.gin"
    kind: ClassVar[Kind] = "encoder"
    max_length: ClassVar[int | None] = None
    attention_dropout_rate: ClassVar[float] = 0.0
    head_dim: ClassVar[int] = 0
    without_parameters: ClassVar[frozenset[str]] = frozenset({"spelling"})

    num_layers: int = 2
    hidden_size: int = 256
    lstm_units: int | None = None
    clip: float | None = None
    dropout_rate: float = 0.1
    initializer_range: float = 0.1
    filters: tuple[tuple[int, int], ...] | None = None
    character_size: int = 16
    highways: int = 2
    longest_word: int = 50
    spelling: bytes | None = field(default=None, repr=False)

    def __post_init__(self) -> None:
        super().__post_init__()
        self._check_at_least(num_layers=1, hidden_size=2, character_size=1, highways=0, longest_word=3)
        self._check_rates("dropout_rate")
        self._check_above_zero("initializer_range")
        if self.lstm_units is not None:
            self._check_at_least(lstm_units=1)
        if self.clip is not None:
            self._check_above_zero("clip")
            if self.lstm_units is None:
                raise self._error("clip", "is of LSTMs with lstm_units: set those, or set clip to None")
        if self.hidden_size % 2:
            raise self._error("hidden_size", "is odd, and each direction has half of it: change it")
        for width, count in self.filters or ():
            if not 1 <= width <= self.longest_word or count < 1:
                raise self._error("filters", f"must have widths from 1 to longest_word, {self.longest_word}, and numbers above 0")
        if self.filters == ():
            raise self._error("filters", "has no filter: give pairs of a width and a number, or None")

    @property
    def characters(self) -> CharacterCnn | None:
        """Sizes of the network that reads the characters of words; None: words have a table."""
        if self.filters is None:
            return None
        return CharacterCnn(self.filters, self.character_size, self.highways, self.longest_word)

    @override
    def fitted(self, vocabulary: Words) -> Self:
        sized = super().fitted(vocabulary)
        if self.characters is None:
            return sized
        ids = vocabulary.token_ids
        controls = {ids.eos: END_TEXT, ids.sep: END_TEXT, ids.cls: BEGIN_TEXT, ids.pad: PADDING}
        spelling = self.characters.spell(vocabulary.pieces(range(vocabulary.size)), controls)
        return replace(sized, spelling=spelling)

    @property
    def require_spelling(self) -> bytes:
        """`spelling`, which must have been set."""
        if self.spelling is None:
            raise UserError("BilmConfig.filters reads the characters of a vocabulary's words: name it by --vocab=DIR")
        return self.spelling

    @property
    def units(self) -> int:
        """Width of one direction, and of the word table."""
        return self.hidden_size // 2

    def encoder(self, execution: Execution = _EXECUTION) -> "Bilm":
        """Return the embeddings and the LSTMs."""
        return Bilm(self, execution)

    def softmax(self) -> "Softmax":
        """Return the parameters of the softmax over the tokens."""
        return Softmax(self)

    def flops(self, length: int, predictions: int) -> int:
        """Return the matrix-product FLOPs of one row of one training step: 3 [2 L s 16 u^2 + 2 P 2uV], with s tokens, u units.

        LSTMs of n units that are projected to u have 18 n u in the place of 16 u^2. Those of the characters are added for s
        distinct words.
        """
        own = 16 * self.units**2 if self.lstm_units is None else 18 * self.lstm_units * self.units
        lstms = self.num_layers * length * own
        words = 0 if self.characters is None else length * self.characters.flops(self.units)
        return 3 * (2 * (lstms + predictions * 2 * self.units * self.require_vocab_size) + words)


class Softmax(nn.Module):
    """Softmax: a `bias` float32[padded vocabulary], and a `word` table where words are read by their characters."""

    config: BilmConfig

    @nn.compact
    def __call__(self, words: jax.Array | None) -> tuple[jax.Array, jax.Array]:
        """Return the table [padded vocabulary, units] and the bias; `words` is the table of the embeddings, if they have one."""
        config = self.config
        bias = param(self, "bias", logical(nn.initializers.zeros_init(), ("vocab",)), (config.padded_vocab_size,))
        return _table(config)() if words is None else words, bias


def _table(config: BilmConfig) -> Table:
    """Return the table of the words."""
    return Table(config.padded_vocab_size, config.units, "vocab", truncated_normal(config.initializer_range), name="word")


class Embeddings(nn.Module):
    """Vectors of the tokens, as wide as one direction: of a table, or of the characters of their words."""

    config: BilmConfig
    execution: Execution = Execution()

    @nn.compact
    def __call__(self, tokens: jax.Array) -> jax.Array:
        """Look up int32[batch, length]: dtype[batch, length, units]."""
        config = self.config
        if config.characters is not None:
            return CharacterWords(config.characters, config.require_spelling, config.units, self.execution, name="words")(tokens)
        return embed_words(_table(config)(), tokens, self.execution.compute_dtype)


class Bilm(nn.Module):
    """LSTMs of both directions, called as `bertfam.models.bert.Encoder` is.

    The first half of the hidden state of a token comes from it and those before it, the second half from it and those after it,
    in its own segment.
    """

    config: BilmConfig
    execution: Execution = Execution()

    @nn.compact
    def __call__(
        self,
        tokens: jax.Array,
        *,
        segment_ids: jax.Array,
        positions: jax.Array | None = None,
        token_type_ids: jax.Array | None = None,
        train: bool,
        collect: frozenset[str] = frozenset(),
    ) -> tuple[jax.Array, dict[str, jax.Array]]:
        """Encode int32[batch, length]: dtype[batch, length, embed]. The first hidden states are the embeddings, twice."""
        check_only_hidden_states(self.config, collect)
        embedded = Embeddings(self.config, self.execution, name="embeddings")(tokens)
        embedded = jnp.concatenate([embedded, embedded], axis=-1)
        layers = Stack(
            partial(Layer, self.config, self.execution), self.config.num_layers, execution=self.execution, name="layers"
        )
        residual = (jnp.arange(self.config.num_layers) > 0).astype(embedded.dtype)
        hidden, collected = layers(embedded, {"segment_ids": segment_ids}, {"residual": residual}, train=train, collect=collect)
        if "hidden_states" in collected:
            # [batch, length, embed], [layers, batch, length, embed] -> [layers + 1, batch, length, embed]
            collected["hidden_states"] = jnp.concatenate([embedded[None], collected["hidden_states"]])
        return Dropout(self.config.dropout_rate)(hidden, train=train), collected


class Layer(nn.Module):
    """One LSTM of each direction, over its half of the hidden states."""

    config: BilmConfig
    execution: Execution

    @nn.compact
    def __call__(
        self, hidden: jax.Array, *, segment_ids: jax.Array, residual: jax.Array, train: bool, collect: frozenset[str]
    ) -> tuple[jax.Array, dict[str, jax.Array]]:
        """Run the LSTMs on [batch, length, embed], and add `residual` [] times their input."""
        inputs = Dropout(self.config.dropout_rate)(hidden, train=train)
        forward, backward = jnp.split(inputs, 2, axis=-1)
        changes = segment_ids[:, 1:] != segment_ids[:, :-1]
        lstm = partial(Lstm, self.execution, self.config.lstm_units, self.config.clip)
        outputs = [
            lstm(name="forward")(forward, jnp.pad(changes, [(0, 0), (1, 0)])),
            lstm(reverse=True, name="backward")(backward, jnp.pad(changes, [(0, 0), (0, 1)])),
        ]
        hidden = jnp.concatenate(outputs, axis=-1) + residual * hidden
        hidden = nn.with_logical_constraint(hidden, ("batch", None, None))
        return hidden, {"hidden_states": hidden} if "hidden_states" in collect else {}


class ProjectedCell(nn.Module):
    """LSTM cell whose output is projected before it is fed back (Sak et al. 2014, equations 1 to 6, without peepholes).

    The LSTM cells of Flax (0.12.8) have no projection. Initial values are those of `flax.linen.OptimizedLSTMCell`.

    Attributes:
      units: units of the cell.
      outputs: width of the projected output.
      clip: limit of the absolute values of the cell state and of the output; None: there is none.
      dtype: dtype of the computation.
    """

    units: int
    outputs: int
    clip: float | None
    dtype: Any

    @nn.compact
    def __call__(self, carry: tuple[jax.Array, jax.Array], inputs: jax.Array) -> tuple[Any, jax.Array]:
        """Make a step from dtype[batch, inputs] and the carry: cell state [batch, units], output [batch, outputs]."""
        state, output = carry
        dense = partial(Dense, dtype=self.dtype, use_bias=False)
        gates = dense((4 * self.units,), ("embed", "mlp"), kernel_init=nn.initializers.lecun_normal(), name="input")(inputs)
        gates += Dense(
            (4 * self.units,), ("embed", "mlp"), self.dtype, kernel_init=nn.initializers.orthogonal(), name="recurrent"
        )(output)
        into, forget, candidate, out = jnp.split(gates, 4, axis=-1)
        state = nn.sigmoid(forget) * state + nn.sigmoid(into) * jnp.tanh(candidate)
        state = self._clipped(state)
        projection = dense((self.outputs,), ("mlp", "embed"), kernel_init=nn.initializers.lecun_normal(), name="projection")
        output = self._clipped(projection(nn.sigmoid(out) * jnp.tanh(state)))
        return (state, output), output

    def _clipped(self, values: jax.Array) -> jax.Array:
        return values if self.clip is None else jnp.clip(values, -self.clip, self.clip)


class Lstm(nn.Module):
    """LSTM cell along a row, from a state of zeros at the start of each segment.

    The cell is Flax's, or with `units` a `ProjectedCell`. `flax.linen.RNN` (flax 0.12.8) was considered. It resets the state at
    the ends of rows alone, and rows may be packed.

    Attributes:
      execution: dtype of the computation.
      units: units of the cell, whose output is projected to the width of its input; None: as many as that, without a projection.
      clip: see `ProjectedCell`.
      reverse: True if it runs from the end of a row to its beginning.
    """

    execution: Execution = Execution()
    units: int | None = None
    clip: float | None = None
    reverse: bool = False

    @nn.compact
    def __call__(self, inputs: jax.Array, starts: jax.Array) -> jax.Array:
        """Run on dtype[batch, length, width]; `starts` bool[batch, length] is True where a segment begins in its direction."""
        size, width = len(inputs), inputs.shape[-1]
        cell = self._cell(width)

        def step(cell: Any, carry: Any, inputs: tuple[jax.Array, jax.Array]) -> Any:
            features, starts = inputs
            return cell(jax.tree.map(lambda state: jnp.where(starts[:, None], 0, state), carry), features)

        scan = nn.scan(
            step, variable_broadcast="params", split_rngs={"params": False}, in_axes=1, out_axes=1, reverse=self.reverse
        )
        zeros = [jnp.zeros((size, units), inputs.dtype) for units in (self.units or width, width)]
        outputs: jax.Array = scan(cell, tuple(zeros), (inputs, starts))[1]
        return outputs

    def _cell(self, width: int) -> nn.Module:
        if self.units is not None:
            return ProjectedCell(self.units, width, self.clip, self.execution.compute_dtype, name="cell")
        return nn.OptimizedLSTMCell(
            width,
            dtype=self.execution.compute_dtype,
            kernel_init=logical(nn.initializers.lecun_normal(), ("embed", "mlp")),
            recurrent_kernel_init=logical(nn.initializers.orthogonal(), ("embed", "mlp")),
            bias_init=logical(nn.initializers.zeros_init(), ("mlp",)),
            name="cell",
        )
