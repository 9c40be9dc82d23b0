"""Seqio task of finished pretraining rows. Imports TensorFlow."""

import hashlib
import json
import threading
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import numpy as np
import seqio
import tensorflow as tf
from typing_extensions import override

from bertfam.data import vocabularies
from bertfam.data.corpora.corpus import SPLITS, Corpus
from bertfam.data.rows.batches import CorruptedRows
from bertfam.data.seqio_tasks.text_tasks import shard_of
from bertfam.data.text_data import TextData
from bertfam.data.token_cache import builder
from bertfam.data.token_cache.cache import TokenCache, check_fingerprint
from bertfam.data.vocabularies import Vocabulary
from bertfam.data.vocabularies.layouts import DEFAULT_LAYOUTS, LAYOUTS
from bertfam.data.vocabularies.wordpiece import WordPiece
from bertfam.errors import UserError
from bertfam.storage.files import is_used
from bertfam.storage.paths import cache_root, to_path

_ROWS_AT_ONCE = 256
_ENDLESS = 2**62


class RowTask(seqio.Task):
    """Task whose source makes finished rows; it passes the row length and the epochs to the source."""

    @override
    def get_dataset(  # type: ignore[override]
        self,
        sequence_length: Mapping[str, int] | None = None,
        split: str = "train",
        use_cached: bool = False,
        shuffle: bool = True,
        shuffle_buffer_size: int | None = None,
        seed: int | None = None,
        shard_info: seqio.ShardInfo | None = None,
        num_epochs: int | None = 1,
        trim_output_features: bool = True,
        try_in_mem_cache: bool = True,
    ) -> tf.data.Dataset:
        # The order is a complete permutation, so there is no shuffle buffer; and there is no cache.
        dataset = self.source.get_dataset(
            split, shuffle, seed, shard_info, sequence_length=sequence_length, num_epochs=num_epochs
        )
        return dataset.prefetch(tf.data.AUTOTUNE)


class RowSource(seqio.DataSource):
    """Data source of finished rows of a `TextData`, see `tasks.add_pretraining_task`."""

    def __init__(self, name: str, data: TextData, length: int, vocabulary_size: int, layout: str) -> None:
        super().__init__(splits=SPLITS, caching_permitted=False, performs_internal_shuffling=True)
        self._name, self.data, self._length = name, data, length
        self._vocabulary_size, self._layout = vocabulary_size, layout
        self._lock = threading.Lock()
        self._opened: tuple[TokenCache, Vocabulary] | None = None

    @property
    @override
    def supports_arbitrary_sharding(self) -> bool:
        return True

    @property
    def vocabulary(self) -> Vocabulary:
        """The vocabulary of the cache."""
        return self._open()[1]

    @override
    def list_shards(self, split: str) -> list[str]:
        return [split]

    @override
    def num_input_examples(self, split: str) -> int:
        # Rows of an epoch at the task's own length with seed 0; other seeds give other chunks.
        return len(self._batches(split, self._length, 0).examples)

    @override
    def get_dataset(
        self,
        split: str = "train",
        shuffle: bool = True,
        seed: int | None = None,
        shard_info: seqio.ShardInfo | None = None,
        *,
        sequence_length: Mapping[str, int] | None = None,
        use_cached: bool = False,
        num_epochs: int | None = 1,
    ) -> tf.data.Dataset:
        length = self._row_length(sequence_length)
        specs = self.data.features(length)
        signature = {name: tf.TensorSpec(spec.shape, spec.dtype) for name, spec in specs.items()}
        if not self._open()[0].counts(split)["documents"]:
            return tf.data.Dataset.from_generator(lambda: iter(()), output_signature=signature)
        batches = self._batches(split, length, 0 if seed is None else int(seed))
        size = len(batches.examples)
        shard, shards = shard_of(shard_info)
        own = len(range(shard, size, shards))  # number of rows of an epoch in this shard

        def rows(numbers: np.ndarray) -> list[np.ndarray]:
            epochs, places = np.divmod(numbers, max(own, 1))
            places = places * shards + shard
            # Place p of epoch e is row e * size + p.
            found = batches.at(epochs * size + places) if shuffle else batches.rows_of(epochs, places)
            return [found[name].astype(spec.dtype, copy=False) for name, spec in specs.items()]

        def features(numbers: tf.Tensor) -> dict[str, tf.Tensor]:
            arrays = tf.numpy_function(rows, [numbers], [spec.dtype for spec in specs.values()], stateful=False)
            return {name: tf.ensure_shape(array, (None, *specs[name].shape)) for name, array in zip(specs, arrays, strict=True)}

        total = min(_ENDLESS if num_epochs is None else own * num_epochs, own * _ENDLESS)
        numbers = tf.data.Dataset.range(total).batch(_ROWS_AT_ONCE)
        return numbers.map(features, num_parallel_calls=tf.data.AUTOTUNE).unbatch()

    def _row_length(self, sequence_length: Mapping[str, int] | None) -> int:
        given, rows = sequence_length or {}, self.data.features(self._length)
        # Without an encoder, the features of the decoder have the length of the row.
        prefix = "encoder_" if "encoder_input_tokens" in rows else "decoder_"
        lengths = {given[name] for name in rows if name.startswith(prefix) and given.get(name) is not None}
        if len(lengths) > 1:
            raise ValueError(f"task {self._name}: sequence_length has several lengths, {sorted(lengths)}, for one row")
        return lengths.pop() if lengths else self._length

    def _batches(self, split: str, length: int, seed: int) -> CorruptedRows:
        cache, vocabulary = self._open()
        # Readers of seqio count on each row once, in the order of the text if they do not shuffle.
        data = replace(self.data, blocks=None)
        rows = data.training(cache, vocabulary.token_ids, length, 1, seed, split=split).sequence
        if not isinstance(rows, CorruptedRows):
            raise UserError(
                f"task {self._name} has several corpora ({', '.join(cache.corpora)}): register a task for each, and mix them "
                "in a seqio mixture"
            )
        return rows

    def _open(self) -> tuple[TokenCache, Vocabulary]:
        with self._lock:
            if self._opened is None:
                cache = self._built()
                self._opened = cache, vocabularies.load(cache.vocabulary_directory)
            return self._opened

    def _built(self) -> TokenCache:
        corpora, given = self.data.corpora, self.data.vocabulary
        if not corpora:
            assert self.data.cache_dir is not None
            return TokenCache(self.data.cache_dir)
        vocabulary = None if given is None else vocabularies.load(given)
        directory = to_path(self.data.cache_dir) if self.data.cache_dir else self._default_directory(corpora, vocabulary)
        if is_used(directory):
            cache = TokenCache(directory)
            expected = builder.fingerprint(corpora, vocabulary or vocabularies.load(cache.vocabulary_directory))
            check_fingerprint(cache, expected)
            return cache
        if vocabulary is None:
            documents = (document for corpus in corpora.values() for document in corpus.documents("train"))
            sentences = (sentence for document in documents for sentence in document)
            vocabulary = WordPiece.train(sentences, size=self._vocabulary_size, layout=LAYOUTS[self._layout])
        return builder.build(corpora, vocabulary, directory)

    def _default_directory(self, corpora: Mapping[str, Corpus], vocabulary: Vocabulary | None) -> Path:
        fingerprints = {name: corpus.fingerprint() for name, corpus in corpora.items()}
        decisive = [fingerprints, vocabulary.fingerprint if vocabulary else self._vocabulary_size]
        decisive += [] if vocabulary or self._layout == DEFAULT_LAYOUTS["wordpiece"] else [self._layout]
        digest = hashlib.sha256(json.dumps(decisive, sort_keys=True).encode()).hexdigest()[:16]
        return cache_root() / "tasks" / digest
