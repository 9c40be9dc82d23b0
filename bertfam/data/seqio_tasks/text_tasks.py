"""Output features of text tasks, and corpora as seqio sources."""

from collections.abc import Iterator
from typing import Any

import seqio
import tensorflow as tf

from bertfam.data.corpora.splits import SPLITS
from bertfam.data.corpora.text_files import Corpus

_TEXT = seqio.PassThroughVocabulary(size=0)
# Output features of tasks that give text.
SENTENCES = {"sentences": seqio.Feature(_TEXT, add_eos=False, dtype=tf.string, rank=1)}
PAIRS = {name: seqio.Feature(_TEXT, add_eos=False, dtype=tf.string, rank=0) for name in ("inputs", "targets")}
DOCUMENTS = {"text": seqio.Feature(_TEXT, add_eos=False, dtype=tf.string, rank=0)}


class CorpusSource(seqio.DataSource):
    """A `Corpus` as a source: an element is {"sentences": string[n]}, a document.

    Splits are "train" and "validation". Documents come in the corpus' order; shard i of n has documents i, i + n, ...,
    however many files there are, and reads all of them.
    """

    def __init__(self, corpus: Corpus) -> None:
        super().__init__(splits=SPLITS)
        self.corpus = corpus

    @property
    def supports_arbitrary_sharding(self) -> bool:
        return True

    def list_shards(self, split: str) -> list[str]:
        return [split]

    def get_dataset(
        self,
        split: str = "train",
        shuffle: bool = True,
        seed: int | None = None,
        shard_info: seqio.ShardInfo | None = None,
        **unused: Any,
    ) -> tf.data.Dataset:
        """Return the documents of a split; shuffling is left to the task's buffer."""
        shard, shards = shard_of(shard_info)

        def documents() -> Iterator[dict[str, list[str]]]:
            for number, sentences in enumerate(self.corpus.documents(split)):
                if number % shards == shard:
                    yield {"sentences": sentences}

        return tf.data.Dataset.from_generator(documents, output_signature={"sentences": tf.TensorSpec([None], tf.string)})


def join_sentences(dataset: tf.data.Dataset) -> tf.data.Dataset:
    """A preprocessor: {"sentences": string[n]} to {"text": string}, a sentence a line."""
    return dataset.map(lambda document: {"text": tf.strings.reduce_join(document["sentences"], separator="\n")})


def shard_of(info: seqio.ShardInfo | None) -> tuple[int, int]:
    """Return the index of a shard and the number of shards."""
    return (0, 1) if info is None else (info.index, info.num_shards)
