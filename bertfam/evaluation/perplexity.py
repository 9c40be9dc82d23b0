"""Perplexities: exp of the nats that a model needs for each token, word or byte of a text."""

import math
from collections.abc import Mapping

from bertfam.data.text_data import TextData
from bertfam.data.token_cache.cache import TokenCache

# The metrics that are nats of each target token, without anything added.
_LOSSES = ("lm_loss", "mlm_loss")


def perplexities(
    scores: Mapping[str, float], data: TextData, cache: TokenCache, split: str, corpus: str | None = None
) -> dict[str, float]:
    """Compute perplexities from a model's scores on a split of one corpus, or of all.

    `perplexity` is that of a target token, exp(loss): of a masked token, of a token that a decoder writes.

    A causal language model's targets are all tokens of the text and one end-of-text token behind each document, each of them
    once (see `NextTokens`), so its nats are those of the text itself, and compare between vocabularies once they are told by
    what these have not made:

        word_perplexity = exp(N / words)    byte_perplexity = exp(N / bytes)    bits_per_byte = N / (bytes ln 2)

    where N = lm_loss (tokens + documents) of the split. The ends of texts are paid for and are neither words nor bytes. Words
    are what white space separates, bytes those of UTF-8 (see `cache_tokens.Block`). Each token costs its log-probability given
    what stands before it in its row, which for the first of a row is one token. Where only some batches are scored, their mean
    loss stands for all: words and bytes are still those of the whole split. Rows of other kinds say nothing of words and bytes.
    """
    loss = next((scores[name] for name in _LOSSES if name in scores), None)
    if loss is None:
        return {}
    found = {"perplexity": _exp(loss)}
    counts = cache.counts(split, corpus)
    if data.corruption.form.continued and counts.get("words") and counts.get("bytes"):
        nats = loss * (counts["tokens"] + counts["documents"])
        found["word_perplexity"] = _exp(nats / counts["words"])
        found["byte_perplexity"] = _exp(nats / counts["bytes"])
        found["bits_per_byte"] = nats / counts["bytes"] / math.log(2)
    return found


def lacks_words(data: TextData, cache: TokenCache, split: str) -> bool:
    """Return True if word and byte perplexities are missing because the cache has not counted words and bytes."""
    return data.corruption.form.continued and "words" not in cache.counts(split)


def _exp(nats: float) -> float:
    """Return exp(nats), or infinity on overflow."""
    return math.exp(nats) if nats < 709 else math.inf
