"""Statistics of attention heads on text (Clark et al. 2019, section 3; Voita et al. 2019, section 5)."""

import unicodedata
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import jax
import jax.numpy as jnp
import numpy as np

from bertfam.analysis.subject import Subject, TokenRow, row_features
from bertfam.data.vocabularies import Vocabulary

OFFSETS = range(-8, 9)  # of the most attended token from the query; heads that look further are not positional here
POSITIONAL = 0.9  # share of the queries whose most attended token is at one offset, by which a head is positional (Voita)
MAJORITY = 0.5  # share of the attention by which a head is named after the tokens that it attends to

_KEYS = ("cls", "sep", "punctuation")  # tokens whose weights are summed
_CATEGORIES = ("previous", "next", "same", *_KEYS)
_NAMES = {"cls": "[CLS]", "sep": "[SEP]"}


@dataclass(frozen=True)
class HeadStatistics:
    """Means of one head, over the tokens of the text as queries; control tokens and padding are no queries.

    Attributes:
      layer, head: numbers from 1, as the papers write them: 8-10 is head 10 of layer 8.
      confidence: greatest weight of a query.
      entropy: entropy of a query's weights, in nats.
      cls_entropy: entropy of the weights of [CLS] as a query.
      previous, next, same: weight of the token before, after, and of the query itself.
      cls, sep, punctuation: weight of all such tokens; of a vocabulary without [SEP], `sep` is the end of a text.
      sep_to_sep: weight of all [SEP] with a [SEP] as the query.
      offset: commonest offset of the most attended token among `OFFSETS`.
      offset_share: share of the queries whose most attended token is at this offset.
      rare: share of the queries whose most attended token is (one of) the least frequent of the text.
    """

    layer: int
    head: int
    confidence: float
    entropy: float
    cls_entropy: float
    previous: float
    next: float
    same: float
    cls: float
    sep: float
    punctuation: float
    sep_to_sep: float
    offset: int
    offset_share: float
    rare: float

    @property
    def name(self) -> str:
        """Layer and head, such as 8-10."""
        return f"{self.layer}-{self.head}"

    @property
    def roles(self) -> list[str]:
        """Names of what the head does, by the thresholds `POSITIONAL` and `MAJORITY`."""
        roles = [f"positional {self.offset:+d}"] if self.offset_share >= POSITIONAL else []
        roles += [_NAMES.get(name, name) for name in _CATEGORIES if getattr(self, name) >= MAJORITY]
        return roles + (["rare tokens"] if self.rare >= MAJORITY else [])


def statistic_features(subject: Subject, rows: Sequence[TokenRow]) -> dict[str, np.ndarray]:
    """Return the features of rows for `head_sums`: those of `row_features`, `cls`, `sep`, `punctuation` and `rare`.

    `rare` marks the tokens of a row's text that are the least frequent there, by their counts in all rows.
    """
    vocabulary = subject.vocabulary
    features = row_features(rows, vocabulary.token_ids.pad)
    tokens, is_text = features["encoder_input_tokens"], features["texts"] >= 0
    is_real = features["encoder_segment_ids"] > 0
    counts = np.bincount(tokens[is_text], minlength=vocabulary.size)[tokens]
    counts = np.where(is_text, counts, np.iinfo(counts.dtype).max)
    ids = vocabulary.token_ids
    end = ids.eos if ids.sep is None else ids.sep  # T5 has no [SEP]
    marks = {
        "cls": np.equal(tokens, -1 if ids.cls is None else ids.cls) & is_real,
        "sep": np.equal(tokens, -1 if end is None else end) & is_real,
        "punctuation": _punctuation(vocabulary, tokens[is_text])[tokens] & is_text,
        "rare": is_text & (counts == counts.min(axis=1, keepdims=True)),
    }
    return features | {name: mark.astype(np.int32) for name, mark in marks.items()}


def _punctuation(vocabulary: Vocabulary, used: np.ndarray) -> np.ndarray:
    """Return whether each id is one of punctuation marks alone, bool[size], for the ids that are used."""
    marks = np.zeros(vocabulary.size, bool)
    for id in np.unique(used).tolist():
        text = vocabulary.decode([id]).strip()
        marks[id] = bool(text) and all(unicodedata.category(char).startswith("P") for char in text)
    return marks


def head_sums(weights: jax.Array, batch: Mapping[str, jax.Array]) -> dict[str, jax.Array]:
    """Sum the statistics of each head over the queries of a batch.

    Args:
      weights: float32[layers, batch, heads, length, length].
      batch: features of `statistic_features`, and `valid`.

    Returns:
      float32[layers, heads] of each statistic, float32[layers, heads, offsets] as "offsets", the numbers of queries, and
      float32[layers] as "uniform_entropy", that of uniform attention within the pattern of a layer.
    """
    valid = batch["valid"][:, None]
    text, sep, cls = ((mark > 0) * valid for mark in (batch["texts"] >= 0, batch["sep"], batch["cls"]))
    length = weights.shape[-1]
    entropy = -jax.scipy.special.xlogy(weights, weights).sum(axis=-1)
    best = jnp.argmax(weights, axis=-1)  # [layers, batch, heads, queries]
    offsets = best - jnp.arange(length)
    is_at = offsets[..., None] == jnp.array(OFFSETS)
    keys = jnp.stack([batch[name] for name in _KEYS], axis=-1).astype(jnp.float32)
    to_keys = jnp.einsum("lbhqk,bkn->lbhqn", weights, keys)
    rare = jnp.broadcast_to(batch["rare"][None, :, None], best.shape)
    # Pairs that the pattern of a layer allows; a masked key has a weight of exactly 0 in all heads.
    allowed = (weights > 0).any(axis=2).astype(jnp.float32)  # [layers, batch, queries, keys]
    seen = jnp.maximum(allowed.sum(axis=-1), 1)
    seen_rare = jnp.einsum("lbqk,bk->lbq", allowed, batch["rare"].astype(jnp.float32))

    def over(values: jax.Array, queries: jax.Array) -> jax.Array:
        return jnp.einsum("lbhq,bq->lh", values, queries)

    def at(offset: int) -> jax.Array:
        """Sum the weights of the tokens at an offset from the queries."""
        diagonal = jnp.diagonal(weights, offset, axis1=-2, axis2=-1)  # [layers, batch, heads, length - |offset|]
        first = max(-offset, 0)
        return over(diagonal, text[:, first : first + diagonal.shape[-1]])

    return {
        "confidence": over(weights.max(axis=-1), text),
        "entropy": over(entropy, text),
        "cls_entropy": over(entropy, cls),
        "previous": at(-1),
        "next": at(1),
        "same": at(0),
        **{name: over(to_keys[..., place], text) for place, name in enumerate(_KEYS)},
        "sep_to_sep": over(to_keys[..., _KEYS.index("sep")], sep),
        "offsets": jnp.einsum("lbhqo,bq->lho", is_at.astype(jnp.float32), text),
        "rare": over(jnp.take_along_axis(rare, best, axis=-1).astype(jnp.float32), text),
        "rare_by_chance": (seen_rare / seen * text).sum() / len(weights),
        "uniform_entropy": (jnp.log(seen) * text).sum(axis=(1, 2)),
        "queries": text.sum(),
        "cls_queries": cls.sum(),
        "sep_queries": sep.sum(),
    }


def head_statistics(sums: Mapping[str, np.ndarray]) -> list[HeadStatistics]:
    """Return the statistics of each head, given the sums of `head_sums` over all batches."""
    divisors = {"cls_entropy": sums["cls_queries"], "sep_to_sep": sums["sep_queries"]}
    names = ("confidence", "entropy", *divisors, *_CATEGORIES, "rare")
    means = {name: sums[name] / np.maximum(divisors.get(name, sums["queries"]), 1) for name in names}
    found = []
    for layer, head in np.ndindex(sums["confidence"].shape):
        hits = sums["offsets"][layer, head]
        place = int(np.argmax(hits))
        own = {name: float(values[layer, head]) for name, values in means.items()}
        share = float(hits[place] / sums["queries"])
        found.append(HeadStatistics(layer + 1, head + 1, **own, offset=OFFSETS[place], offset_share=share))
    return found
