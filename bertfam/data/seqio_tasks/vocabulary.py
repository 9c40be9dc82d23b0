"""Seqio vocabulary that wraps a bertfam vocabulary. Imports TensorFlow."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
import seqio
import tensorflow as tf
from typing_extensions import override

from bertfam.data import vocabularies
from bertfam.data.vocabularies import Vocabulary


class PieceVocabulary(seqio.Vocabulary):
    """Seqio vocabulary that wraps any `Vocabulary`, loaded at first use; it adds no control tokens to a text.

    For a SentencePiece model it gives the ids and text of `seqio.SentencePieceVocabulary(spiece.model, extra_ids=100)`.
    """

    def __init__(self, load: Callable[[], Vocabulary] | str, *, prompts: bool = False) -> None:
        """Create a vocabulary.

        Args:
          load: function that returns the vocabulary, or the folder that contains it.
          prompts: True to encode a typed control piece or sentinel as the token that it names, as seqio does with sentinels.
            By default typed ones are ordinary text, since text from the web contains them too.
        """
        super().__init__()
        self._load, self._prompts = load, prompts
        self._loaded: Vocabulary | None = None

    @property
    def vocabulary(self) -> Vocabulary:
        """Wrapped vocabulary."""
        if self._loaded is None:
            self._loaded = vocabularies.load(self._load) if isinstance(self._load, str) else self._load()
        return self._loaded

    def __getstate__(self) -> dict[str, object]:
        # The loaded vocabulary cannot be pickled.
        return {**self.__dict__, "_loaded": None}

    @property
    @override
    def bos_id(self) -> int | None:
        return None

    @property
    @override
    def eos_id(self) -> int | None:
        return self.vocabulary.token_ids.eos

    @property
    @override
    def unk_id(self) -> int:
        return self.vocabulary.token_ids.unk

    @property
    @override
    def pad_id(self) -> int:
        return self.vocabulary.token_ids.pad

    @property
    @override
    def extra_ids(self) -> int:
        # Sentinels are among the ids of `vocab_size`.
        return len(self.vocabulary.token_ids.sentinels)

    @property
    @override
    def vocab_size(self) -> int:
        return self.vocabulary.size

    @property
    @override
    def _base_vocab_size(self) -> int:
        return self.vocabulary.size

    def _encode(self, s: str) -> list[int]:
        return self._encode_array(s.encode()).tolist()

    def _encode_array(self, text: bytes) -> np.ndarray:
        if self._prompts:
            return self.vocabulary.encode_prompt(text.decode(), frame=False).ids
        return self.vocabulary.encode_batch([text.decode()])[0]

    def _decode(self, ids: Sequence[int]) -> str:
        # Control tokens are dropped; sentinels and unknown tokens are shown.
        tokens = self.vocabulary.token_ids
        hidden = {*tokens.special} - {tokens.unk}
        return self.vocabulary.decode([id for id in ids if id not in hidden])

    def _encode_tf(self, s: tf.Tensor) -> tf.Tensor:
        # Graphs hand over bytes, eager calls an array.
        ids = tf.numpy_function(lambda text: self._encode_array(np.asarray(text).item()), [s], tf.int32, stateful=False)
        return tf.ensure_shape(ids, [None])

    def _decode_tf(self, ids: tf.Tensor) -> tf.Tensor:
        shape = ids.shape[:-1]

        def decode(found: np.ndarray) -> np.ndarray:
            texts = [self._decode(row) for row in found.reshape(-1, found.shape[-1]).tolist()]
            return np.array([text.encode() for text in texts], object).reshape(found.shape[:-1])

        return tf.ensure_shape(tf.numpy_function(decode, [ids], tf.string, stateful=False), shape)

    def __eq__(self, other: object) -> bool:
        return (
            isinstance(other, PieceVocabulary)
            and self._prompts == other._prompts
            and self.vocabulary.fingerprint == other.vocabulary.fingerprint
        )

    def __hash__(self) -> int:
        return id(PieceVocabulary)
