"""Baselines: scores of predictors that use only token counts, on a model's targets."""

from collections.abc import Iterable

import numpy as np

from bertfam.corruption.skip_grams import SkipGrams
from bertfam.corruption.token_ids import TokenIds
from bertfam.data.rows.batches import BatchSource
from bertfam.data.text_data import TextData
from bertfam.data.token_cache.cache import TokenCache
from bertfam.data.token_cache.documents import StoredDocuments
from bertfam.features import SENTENCES

_CHUNK = 1 << 24
_BATCHES = 64


def unigram_counts(texts: Iterable[StoredDocuments], size: int) -> np.ndarray:
    """Count the occurrences of each token: int64[size]."""
    counts = np.zeros(size, np.int64)
    for documents in texts:
        for start in range(0, len(documents.tokens), _CHUNK):
            counts += np.bincount(documents.tokens[start : start + _CHUNK], minlength=size)
    return counts


def training_counts(data: TextData, cache: TokenCache, tokens: TokenIds, length: int, batch_size: int) -> np.ndarray:
    """Count how often each token is a training target: int64[vocabulary].

    Of masked tokens, and of a causal language model, that is how often it is in the text, and an end-of-text token as often as
    there are documents. Targets with tokens of their own, as sentinels, are counted in the first 64 training batches.
    """
    continued = data.corruption.form.continued
    if data.shape(length).targets and not continued:
        counts = np.zeros(tokens.size, np.int64)
        source = data.training(cache, tokens, length, batch_size, 0)
        for step in range(_BATCHES):
            rows = source.rows(step, 0, batch_size)
            counts += np.bincount(rows["decoder_target_tokens"][rows["decoder_loss_weights"] > 0], minlength=tokens.size)
        return counts
    counts = unigram_counts((cache.stored_documents("train", name, tokens.size) for name in cache.corpora), tokens.size)
    if continued:
        counts[tokens.end_of_text("a row of text")] += cache.counts("train")["documents"]
    return counts


def word_scores(data: TextData, counts: np.ndarray, tokens: TokenIds) -> np.ndarray | None:
    """Return the best scores of words without their centres, by their counts in training; None for rows without negatives."""
    return data.corruption.fit(lambda: counts).word_scores(tokens) if isinstance(data.corruption, SkipGrams) else None


def baselines(
    source: BatchSource, steps: int, batch_size: int, counts: np.ndarray, scores_of_words: np.ndarray | None = None
) -> dict[str, float]:
    """Score predictors that see no context, on the masks of the first `steps` batches.

    Args:
      source: the batches that the model was evaluated on.
      steps: how many.
      batch_size: rows a batch.
      counts: int64[vocabulary], the targets of training.
      scores_of_words: those of `word_scores`; required if rows have negatives.

    Returns:
      `unigram_loss`, nats a target token of the training frequencies with one added to each count; `most_frequent_accuracy`, of
      always predicting the commonest token, both at masked tokens or a decoder's targets; the same with `sbo_` before it at the
      tokens of spans that have text on both sides, and with `shuffled_` at shuffled tokens, where rows have such;
      `shuffled_unmoved_accuracy`, of predicting each of these where it stands; where rows have labels of sentence pairs, such as
      `nsp_majority_accuracy`, of always predicting the commonest; and where rows have negatives, `skip_gram_unigram_loss`, of the
      scores of words without their centres.
    """
    log_probability = np.log((counts + 1) / (counts.sum() + len(counts)))
    best = int(np.argmax(counts))
    # By what stands before the names: the sums of losses, hits and weights.
    of_tokens = {prefix: np.zeros(3) for prefix in ("", "sbo_", "shuffled_")}
    unmoved = 0.0
    of_pairs = np.zeros(2)  # loss and weight
    labels = {sentences: np.zeros(len(sentences.classes)) for sentences in SENTENCES.values()}
    for step in range(steps):
        rows = source.rows(step, 0, batch_size)
        kind = "masked" if "masked_target_tokens" in rows else "decoder"
        targets = rows[f"{kind}_target_tokens"]
        shuffled = rows.get("shuffled_loss_weights", np.zeros(targets.shape))
        weights = {"": rows[f"{kind}_loss_weights"] - shuffled, "shuffled_": shuffled}
        weights |= {"sbo_": rows["span_loss_weights"]} if "span_loss_weights" in rows else {}
        for prefix, weight in weights.items():
            values = np.stack([-log_probability[targets], targets == best, np.ones(targets.shape)])
            of_tokens[prefix] += np.sum(values * weight.astype(np.float64), axis=(1, 2))
        if "noise_tokens" in rows:
            assert scores_of_words is not None, "rows have negatives"
            used = rows["masked_loss_weights"] > 0
            losses = np.logaddexp(0, -scores_of_words[targets[used]]).sum()
            losses += np.logaddexp(0, scores_of_words[rows["noise_tokens"][used]]).sum()
            of_pairs += losses, used.sum()
        if shuffled.any():
            seen = np.take_along_axis(rows["encoder_input_tokens"], rows["masked_positions"], axis=1)
            unmoved += float(np.sum((seen == targets) * shuffled))
        for sentences, sums in labels.items():
            if sentences.labels in rows:
                sums += np.bincount(rows[sentences.labels].ravel(), rows[sentences.weights].ravel(), minlength=len(sums))
    scores: dict[str, float] = {}
    for prefix, (loss, hits, weight) in of_tokens.items():
        if weight or not prefix:
            scores |= {f"{prefix}unigram_loss": float(loss / weight), f"{prefix}most_frequent_accuracy": float(hits / weight)}
    if of_shuffled := of_tokens["shuffled_"][2]:
        scores["shuffled_unmoved_accuracy"] = unmoved / float(of_shuffled)
    if of_pairs[1]:
        scores["skip_gram_unigram_loss"] = float(of_pairs[0] / of_pairs[1])
    given = {sentences.term: sums for sentences, sums in labels.items() if sums.any()}
    return scores | {f"{term}_majority_accuracy": float(sums.max() / sums.sum()) for term, sums in given.items()}
