"""Vectors of words from their characters: convolutions, highway layers and a projection (Kim et al. 2016).

The ids are those of ELMo (Peters et al. 2018, section 3.4, and its published code), as of Jozefowicz et al. 2016.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np

from bertfam.layers.dense import Dense
from bertfam.layers.embeddings import Table, embed_words
from bertfam.layers.execution import Execution
from bertfam.layers.initializers import truncated_normal

# Ids of characters: the 256 bytes, then these.
BEGIN_TEXT, END_TEXT, BEGIN_WORD, END_WORD, PADDING = range(256, 261)
_CHARACTERS = 261
_CLOSED = 2.0  # a highway layer begins as little more than the identity
_INTEGERS = np.dtype("<i2")


@dataclass(frozen=True)
class CharacterCnn:
    """Sizes of the network that reads words by their characters.

    Attributes:
      filters: width in characters and number of the filters of each convolution.
      character_size: width of the table of characters.
      highways: number of highway layers, as wide as all filters together.
      longest: characters of a word, with the ids of its beginning and its end; further ones are left out.
    """

    filters: tuple[tuple[int, int], ...]
    character_size: int
    highways: int
    longest: int

    @property
    def size(self) -> int:
        """Number of all filters, the width of the highway layers."""
        return sum(count for _, count in self.filters)

    def flops(self, features: int) -> int:
        """Return the matrix-product FLOPs of a forward pass for a word, projected to `features` numbers."""
        windows = sum((self.longest - width + 1) * width * self.character_size * count for width, count in self.filters)
        return 2 * (windows + self.highways * 2 * self.size**2 + self.size * features)

    def spell(self, words: Sequence[str], controls: Mapping[int, int]) -> bytes:
        """Return the ids of the characters of words, which `read_spelling` reads.

        A word is its UTF-8 bytes between the ids of its beginning and its end, and padding.

        Args:
          words: the words of a vocabulary, in the order of their ids.
          controls: id of the only character of a control token, by the token's id.
        """
        table = np.full((len(words), self.longest), PADDING, _INTEGERS)
        for row, word in enumerate(words):
            letters = [controls[row]] if row in controls else [*word.encode()[: self.longest - 2]]
            spelt = [BEGIN_WORD, *letters, END_WORD]
            table[row, : len(spelt)] = spelt
        return table.tobytes()

    def read_spelling(self, spelling: bytes) -> np.ndarray:
        """Return the ids of the characters of each word, int32[words, longest]."""
        return np.frombuffer(spelling, _INTEGERS).reshape(-1, self.longest).astype(np.int32)


class CharacterWords(nn.Module):
    """Vectors of tokens from the characters of their words.

    The network runs once for each distinct token of a batch, or for each word of a vocabulary that is smaller than the batch.

    Attributes:
      config: sizes.
      spelling: the characters of the vocabulary's words, of `CharacterCnn.spell`.
      features: width of the vectors.
      execution: dtype of the computation.
    """

    config: CharacterCnn
    spelling: bytes
    features: int
    execution: Execution = Execution()

    @nn.compact
    def __call__(self, tokens: jax.Array) -> jax.Array:
        """Return the vectors of int32[batch, length]: dtype[batch, length, features]; NaN for an id outside the vocabulary."""
        table = jnp.asarray(self.config.read_spelling(self.spelling))
        if tokens.size < len(table):
            distinct, places = jnp.unique(tokens, return_inverse=True, size=tokens.size, fill_value=0)
            # An id outside the table has characters that no table has.
            table, tokens = jnp.take(table, distinct, axis=0, mode="fill", fill_value=_CHARACTERS), places.reshape(tokens.shape)
        return embed_words(self._vectors(table), tokens, self.execution.compute_dtype)

    def _vectors(self, characters: jax.Array) -> jax.Array:
        """Return the vectors of words by their characters, int32[words, longest]: dtype[words, features]."""
        config, dtype = self.config, self.execution.compute_dtype
        table = Table(_CHARACTERS, config.character_size, "characters", truncated_normal(1.0), name="character")
        # [words, longest, character_size]
        letters = embed_words(table(), characters, dtype)
        found = []
        for width, count in config.filters:
            places = config.longest - width + 1
            # [words, places, width, character_size] -> [words, places, count]
            windows = jnp.stack([letters[:, begin : begin + places] for begin in range(width)], axis=2)
            init = truncated_normal((width * config.character_size) ** -0.5)
            filters = Dense((count,), (None, None, None), dtype, kernel_init=init, name=f"width_{width}")
            found.append(jnp.max(filters(windows), axis=1))
        # [words, size]
        words = nn.relu(jnp.concatenate(found, axis=-1))
        init = truncated_normal(config.size**-0.5)
        for layer in range(config.highways):
            both = Dense((2, config.size), (None, None, None), dtype, kernel_init=init, name=f"highway_{layer}")(words)
            gate = nn.sigmoid(both[:, 0] - _CLOSED)
            words = gate * nn.relu(both[:, 1]) + (1 - gate) * words
        return Dense((self.features,), (None, None), dtype, kernel_init=init, name="projection")(words)
