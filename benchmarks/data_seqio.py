"""Job of seqio: packing of the same rows through tf.data; the function returns figures."""

import time

import numpy as np
import tensorflow as tf
from seqio.utils import trim_and_pack_dataset

from benchmarks.throughput import measure_throughput
from bertfam.data import vocabularies
from bertfam.data.rows.running_text import TextExamples, WholeDocuments
from bertfam.data.token_cache.cache import TokenCache


def packed_documents(cache: str, length: int, batch_size: int, seconds: float) -> dict[str, float]:
    """Pack documents, each [CLS] text [SEP] and cut to the length of a row, in their order."""
    opened = TokenCache(cache)
    tokens = vocabularies.load(opened.vocabulary_directory).token_ids
    examples = WholeDocuments().examples(opened.documents("train", "text"), length, 0, tokens)
    inputs, lengths = _flat(examples, length)
    tf.constant(0)  # start TensorFlow before timing
    begin = time.perf_counter()
    ragged = tf.RaggedTensor.from_row_lengths(tf.constant(inputs), tf.constant(lengths))
    pieces = tf.data.Dataset.from_tensor_slices({"inputs": ragged}).shuffle(10_000, seed=1).repeat()
    dataset = trim_and_pack_dataset(pieces.map(lambda piece: {"inputs": piece["inputs"]}), {"inputs": length}).batch(batch_size)
    options = tf.data.Options()
    options.threading.private_threadpool_size = 1
    options.threading.max_intra_op_parallelism = 1
    batches = dataset.with_options(options).as_numpy_iterator()
    prepared = time.perf_counter() - begin
    figures = measure_throughput(batches, lambda batch: len(batch["inputs"]), _tokens, seconds)
    return figures | {"prepare_seconds": prepared, "rows": round(lengths.sum() / figures["tokens_per_row"])}


def _flat(examples: TextExamples, length: int) -> tuple[np.ndarray, np.ndarray]:
    """Return the concatenated tokens of all rows without padding, and the lengths of the rows."""
    parts = []
    for first in range(0, len(examples), 1024):
        rows = examples.rows(np.arange(first, min(first + 1024, len(examples))), np.zeros(0, np.uint64))
        parts.append(rows["encoder_input_tokens"][rows["encoder_segment_ids"] > 0])
    # The packer treats 0 as padding, whatever the vocabulary's padding id is.
    return np.concatenate(parts) + 1, examples.lengths


def _tokens(batch: dict[str, np.ndarray]) -> int:
    return int(np.count_nonzero(batch["inputs_segment_ids"]))
