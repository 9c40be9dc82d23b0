"""Jobs of bertfam in the data benchmark; each function is a job and returns figures."""

import itertools
import time
from pathlib import Path

import numpy as np
from typing_extensions import override

from benchmarks.throughput import drop_from_page_cache, measure_throughput
from bertfam.corruption.corruption import Corruption
from bertfam.corruption.masked_lm.masking import BertMasking
from bertfam.corruption.token_ids import TokenIds
from bertfam.data import vocabularies
from bertfam.data.corpora.formats import InputFormat
from bertfam.data.corpora.text_files import TextFiles
from bertfam.data.rows.batches import Batches, CorruptedRows
from bertfam.data.rows.order import Shuffled
from bertfam.data.rows.packing import Packed
from bertfam.data.rows.running_text import Chunks, FullSentences, WholeDocuments
from bertfam.data.rows.sentence_pairs import SentencePairs
from bertfam.data.token_cache.builder import build as build_cache
from bertfam.data.token_cache.cache import TokenCache

_PLAN, _ORDER, _NOISE = 1, 2, 3  # seeds
ROWS: dict[str, SentencePairs | FullSentences | WholeDocuments | Chunks | Packed] = {
    "sentence pairs": SentencePairs(),
    "full sentences": FullSentences(),
    "a document a row": WholeDocuments(),
    "concatenate and cut": Chunks(),
    "packed documents": Packed(WholeDocuments()),
    "packed sentence pairs": Packed(SentencePairs()),
}


class _Clean(Corruption):
    """Corruption without noise."""

    @override
    def corrupt(self, rows: dict[str, np.ndarray], row_keys: np.ndarray, tokens: TokenIds) -> dict[str, np.ndarray]:
        return rows


def build(files: list[str], input_format: InputFormat, vocabulary: str, processes: int, output: str) -> dict[str, float]:
    """Build a token cache from text; with 1 process, this one does all the work."""
    corpus = TextFiles(train=tuple(files), input_format=input_format, validation_fraction=0.0)
    loaded = vocabularies.load(vocabulary)
    begin = time.perf_counter()
    cache = build_cache({"text": corpus}, loaded, output, processes=processes if processes > 1 else 0)
    seconds = time.perf_counter() - begin
    counts = cache.counts("train")
    return {
        "seconds": seconds,
        "tokens": counts["tokens"],
        "documents": counts["documents"],
        "tokens_per_second": counts["tokens"] / seconds,
        "disk_bytes": sum(path.stat().st_size for path in Path(output).rglob("*") if path.is_file()),
    }


def rows(cache: str, kind: str, length: int, batch_size: int, noise: bool, seconds: float) -> dict[str, float]:
    """Make finished batches from a token cache."""
    tokens = vocabularies.load(Path(cache) / "vocab").token_ids
    begin = time.perf_counter()
    batches, documents, examples = _open(cache, kind, length, batch_size, tokens, BertMasking() if noise else _Clean())
    planned = time.perf_counter() - begin
    endless = (batches.rows(step, 0, batch_size) for step in itertools.count())
    figures = measure_throughput(endless, _rows, _tokens, seconds)
    return figures | {"prepare_seconds": planned, "rows": examples, "documents": documents}


def seek(cache: str, kind: str, length: int, batch_size: int, step: int) -> dict[str, float]:
    """Open a token cache and make the batch of a step."""
    tokens = vocabularies.load(Path(cache) / "vocab").token_ids
    drop_from_page_cache(cache)
    begin = time.perf_counter()
    batches, _, _ = _open(cache, kind, length, batch_size, tokens, BertMasking())
    opened = time.perf_counter()
    batches.rows(step, 0, batch_size)
    first = time.perf_counter()
    batches.rows(step // 2, 0, batch_size)
    return {"seconds": first - begin, "prepare_seconds": opened - begin, "next_seconds": time.perf_counter() - first}


def _open(
    cache: str, kind: str, length: int, batch_size: int, tokens: TokenIds, corruption: Corruption
) -> tuple[Batches, int, int]:
    """Return the batches, and the number of documents and rows of an epoch."""
    documents = TokenCache(cache).documents("train", "text")
    examples = ROWS[kind].examples(documents, length, _PLAN, tokens)
    batches = Batches(CorruptedRows(Shuffled(len(examples), _ORDER), examples, corruption, tokens, _NOISE), batch_size)
    return batches, len(documents), len(examples)


def _rows(batch: dict[str, np.ndarray]) -> int:
    return len(batch["encoder_input_tokens"])


def _tokens(batch: dict[str, np.ndarray]) -> int:
    return int(np.count_nonzero(batch["encoder_segment_ids"]))
