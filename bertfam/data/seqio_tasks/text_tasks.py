"""Output features of text tasks, and the seqio data source of a corpus."""

from collections.abc import Iterator
from typing import Any

import seqio
import tensorflow as tf
from typing_extensions import override

from bertfam.data.corpora.corpus import SPLITS, Corpus

_TEXT = seqio.PassThroughVocabulary(size=0)
# Output features of tasks that yield text.
SENTENCES = {"sentences": seqio.Feature(_TEXT, add_eos=False, dtype=tf.string, rank=1)}
PAIRS = {name: seqio.Feature(_TEXT, add_eos=False, dtype=tf.string, rank=0) for name in ("inputs", "targets")}
DOCUMENTS = {"text": seqio.Feature(_TEXT, add_eos=False, dtype=tf.string, rank=0)}


class CorpusSource(seqio.DataSource):
    """Data source of a `Corpus`, whose elements are documents {"sentences": string[n]}.

    The splits are "train" and "validation". Documents come in the order of the corpus; shard i of n has documents i, i + n, ...,
    independent of the number of files, and reads all of them.
    """

    def __init__(self, corpus: Corpus) -> None:
        super().__init__(splits=SPLITS)
        self.corpus = corpus

    @property
    @override
    def supports_arbitrary_sharding(self) -> bool:
        return True

    @override
    def list_shards(self, split: str) -> list[str]:
        return [split]

    @override
    def get_dataset(
        self,
        split: str = "train",
        shuffle: bool = True,
        seed: int | None = None,
        shard_info: seqio.ShardInfo | None = None,
        **unused: Any,
    ) -> tf.data.Dataset:
        # Shuffling is left to the task's buffer.
        shard, shards = shard_of(shard_info)

        def documents() -> Iterator[dict[str, list[str]]]:
            for number, sentences in enumerate(self.corpus.documents(split)):
                if number % shards == shard:
                    yield {"sentences": sentences}

        return tf.data.Dataset.from_generator(documents, output_signature={"sentences": tf.TensorSpec([None], tf.string)})


def join_sentences(dataset: tf.data.Dataset) -> tf.data.Dataset:
    """Preprocess {"sentences": string[n]} to {"text": string}, one sentence per line."""
    return dataset.map(lambda document: {"text": tf.strings.reduce_join(document["sentences"], separator="\n")})


def shard_of(info: seqio.ShardInfo | None) -> tuple[int, int]:
    """Return the index of a shard and the number of shards."""
    return (0, 1) if info is None else (info.index, info.num_shards)
