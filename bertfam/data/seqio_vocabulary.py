"""A vocabulary of ours as a seqio vocabulary. Imports TensorFlow."""

from collections.abc import Callable

import numpy as np
import seqio
import tensorflow as tf

from bertfam.data.vocabularies import Vocabulary


class PieceVocabulary(seqio.Vocabulary):
    """A `Vocabulary` for seqio, asked for at first use; running text."""

    def __init__(self, load: Callable[[], Vocabulary]) -> None:
        super().__init__()
        self._load = load

    @property
    def eos_id(self) -> None:
        return None

    @property
    def unk_id(self) -> int:
        return self._load().token_ids.unk

    @property
    def pad_id(self) -> int:
        return self._load().token_ids.pad

    @property
    def _base_vocab_size(self) -> int:
        return self._load().size

    def _encode(self, s: str) -> list[int]:
        return self._encode_array(s.encode()).tolist()

    def _encode_array(self, text: bytes) -> np.ndarray:
        return self._load().encode_batch([text.decode()])[0]

    def _decode(self, ids: list[int]) -> str:
        return self._load().decode(ids)

    def _encode_tf(self, s: tf.Tensor) -> tf.Tensor:
        # Graphs hand over bytes, eager calls an array.
        ids = tf.numpy_function(lambda text: self._encode_array(np.asarray(text).item()), [s], tf.int32, stateful=False)
        return tf.ensure_shape(ids, [None])

    def _decode_tf(self, ids: tf.Tensor) -> tf.Tensor:
        text = tf.numpy_function(lambda found: self._load().decode(found.tolist()), [ids], tf.string, stateful=False)
        return tf.ensure_shape(text, [])

    def __eq__(self, other: object) -> bool:
        return isinstance(other, PieceVocabulary) and self._load().fingerprint == other._load().fingerprint

    def __hash__(self) -> int:
        return id(PieceVocabulary)
