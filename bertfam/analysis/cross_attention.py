"""Statistics of the cross-attention of an encoder-decoder, from the tokens of targets to those of texts (Voita et al. 2019)."""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from bertfam.analysis.attention_sums import AttentionSums
from bertfam.analysis.head_statistics import MAJORITY, statistic_features
from bertfam.analysis.subject import NO_TEXT, Subject, TokenRow, batches, row_features
from bertfam.api import LanguageModel
from bertfam.errors import UserError, warn
from bertfam.plurals import plural

NEAR = 0.1  # difference of two relative places, from 0 to 1, that counts as the same place

_KEYS = ("cls", "sep", "punctuation")  # tokens of the text whose weights are summed
_ROLES = {"same_place": "same place", "cls": "[CLS]", "sep": "[SEP]", "punctuation": "punctuation", "rare": "rare tokens"}
_FILL = {"texts": NO_TEXT, "place": -1.0}  # of features at padding and where a text has no such feature; of others 0


@dataclass(frozen=True)
class CrossAttentionStatistics:
    """Means of one head, over the tokens of the targets as queries; control tokens and padding are no queries.

    Attributes:
      layer, head: numbers from 1.
      confidence: greatest weight of a query.
      entropy: entropy of a query's weights, in nats.
      cls, sep, punctuation: weight of all such tokens of the text; of a vocabulary without [SEP], `sep` is the end of a text.
      same_place: share of the queries whose most attended token is at the same relative place in the text as the query in the
        target: the difference is at most `NEAR`.
      rare: share of the queries whose most attended token is (one of) the least frequent of the text.
    """

    layer: int
    head: int
    confidence: float
    entropy: float
    cls: float
    sep: float
    punctuation: float
    same_place: float
    rare: float

    @property
    def roles(self) -> list[str]:
        """Names of what the head does, by the threshold `MAJORITY`."""
        return [role for name, role in _ROLES.items() if getattr(self, name) >= MAJORITY]


def measure_cross_attention(
    subject: Subject, params: Mapping[str, Any], pairs: Sequence[tuple[str, str]], batch_size: int
) -> dict[str, Any]:
    """Measure the statistics of all heads of the cross-attention on pairs of a text and its target, as JSON values.

    Args:
      subject: the encoder of an encoder-decoder.
      params: parameters of the whole model, by the name of their column.
      pairs: the texts of the encoder, each with the target that the decoder reads.
      batch_size: pairs at a time.

    Raises:
      UserError: no pair has a text and a target, or the vocabulary has no start token for the decoder.
    """
    assert subject.whole is not None
    if subject.whole.ends.start is None:
        raise UserError("the vocabulary has no start token for the decoder: choose another vocabulary")
    decoder = Subject(subject.whole, subject.length)
    rows = [(subject.row(text), decoder.row(target)) for text, target in pairs]
    rows = [own for own in rows if all((row.texts >= 0).any() for row in own)]
    if not rows:
        raise UserError("--input has no text with a target")
    if cut := sum(source.is_cut or target.is_cut for source, target in rows):
        warn([f"{plural(cut, 'pair')} of {len(rows):,} cut after {subject.length} tokens"])
    features = pair_features(subject, *map(list, zip(*rows, strict=True)))
    sums = AttentionSums(decoder, cross_sums, _weights)
    by_params = {
        name: sums.total(own, batches(features, batch_size, parts=2), f"cross-attention, {name}") for name, own in params.items()
    }
    first = next(iter(by_params.values()))
    means = {name: float(first[name] / first["queries"]) for name in ("uniform_entropy", "place_by_chance", "rare_by_chance")}
    heads = {name: [asdict(one) | {"roles": one.roles} for one in cross_statistics(own)] for name, own in by_params.items()}
    return {"pairs": len(rows), "tokens": int(first["queries"])} | means | {"heads": heads}


def pair_features(subject: Subject, sources: Sequence[TokenRow], targets: Sequence[TokenRow]) -> dict[str, np.ndarray]:
    """Return the features of pairs for `cross_sums`: those of the source and, in the second half of each row, of the target.

    They are those of `statistic_features`, of the target those of `row_features`, and `place` float32: the relative place of each
    token of a text in it, from 0 to 1.
    """
    pad = subject.vocabulary.token_ids.pad
    width = max(len(row.ids) for row in (*sources, *targets))
    halves = [
        half | {"place": _places(half["texts"])} for half in (statistic_features(subject, sources), row_features(targets, pad))
    ]
    fills = {**_FILL, "encoder_input_tokens": pad}

    def widened(half: Mapping[str, np.ndarray], name: str) -> np.ndarray:
        own = half.get(name, np.zeros((len(sources), 0), halves[0][name].dtype))
        return np.pad(own, [(0, 0), (0, width - own.shape[1])], constant_values=fills.get(name, 0))

    return {name: np.concatenate([widened(half, name) for half in halves], axis=1) for name in halves[0]}


def _places(texts: np.ndarray) -> np.ndarray:
    """Return the relative place of each token of a text, and -1 of others: float32[rows, length]."""
    is_text = texts >= 0
    number = np.cumsum(is_text, axis=1) - 0.5
    places = number / np.maximum(is_text.sum(axis=1, keepdims=True), 1)
    return np.where(is_text, places, np.float32(-1)).astype(np.float32)


def _halves(batch: Mapping[str, jax.Array]) -> tuple[dict[str, jax.Array], dict[str, jax.Array]]:
    """Return the features of the sources and of the targets of a batch."""
    features = {name: value for name, value in batch.items() if name != "valid"}
    half = features["texts"].shape[1] // 2
    return {name: value[:, :half] for name, value in features.items()}, {
        name: value[:, half:] for name, value in features.items()
    }


def _weights(subject: Subject, params: Any, batch: Mapping[str, jax.Array]) -> jax.Array:
    """Return the weights of the cross-attention: float32[layers, batch, heads, target length, source length]."""
    assert isinstance(subject.model, LanguageModel)
    model = LanguageModel(subject.model.config, params, subject.vocabulary, subject.model.ends)
    source, target = _halves(batch)
    found = model.apply(
        target["encoder_input_tokens"],
        segment_ids=target["encoder_segment_ids"],
        encoder_tokens=source["encoder_input_tokens"],
        encoder_segment_ids=source["encoder_segment_ids"],
        collect=("cross_attention_probs",),
    )
    return found["cross_attention_probs"]


def cross_sums(weights: jax.Array, batch: Mapping[str, jax.Array]) -> dict[str, jax.Array]:
    """Sum the statistics of each head over the queries of a batch.

    Args:
      weights: float32[layers, batch, heads, target length, source length].
      batch: features of `pair_features`, and `valid`.

    Returns:
      float32[layers, heads] of each statistic, the number of queries, and sums over the queries of what uniform attention has.
    """
    source, target = _halves(batch)
    queries = ((target["texts"] >= 0) * batch["valid"][:, None]).astype(jnp.float32)
    is_text = source["texts"] >= 0
    near = (jnp.abs(target["place"][:, :, None] - source["place"][:, None]) <= NEAR) & is_text[:, None]
    best = jnp.argmax(weights, axis=-1)  # [layers, batch, heads, queries]
    keys = jnp.stack([source[name] for name in _KEYS], axis=-1).astype(jnp.float32)
    to_keys = jnp.einsum("lbhqk,bkn->lbhqn", weights, keys)
    count = jnp.maximum(source["encoder_segment_ids"].sum(axis=1, keepdims=True), 1).astype(jnp.float32)  # keys of each query

    def over(values: jax.Array) -> jax.Array:
        return jnp.einsum("lbhq,bq->lh", values.astype(jnp.float32), queries)

    def at_best(marks: jax.Array) -> jax.Array:
        """Return the marks [batch, queries, keys] of the most attended tokens."""
        return jnp.take_along_axis(jnp.broadcast_to(marks[None, :, None], weights.shape), best[..., None], axis=-1)[..., 0]

    rare = jnp.broadcast_to(source["rare"][:, None], near.shape)
    return {
        "confidence": over(weights.max(axis=-1)),
        "entropy": over(-jax.scipy.special.xlogy(weights, weights).sum(axis=-1)),
        **{name: over(to_keys[..., place]) for place, name in enumerate(_KEYS)},
        "same_place": over(at_best(near)),
        "rare": over(at_best(rare)),
        "place_by_chance": (near.sum(axis=-1) / count * queries).sum(),
        "rare_by_chance": (source["rare"].sum(axis=1, keepdims=True) / count * queries).sum(),
        "uniform_entropy": (jnp.log(count) * queries).sum(),
        "queries": queries.sum(),
    }


def cross_statistics(sums: Mapping[str, np.ndarray]) -> list[CrossAttentionStatistics]:
    """Return the statistics of each head, given the sums of `cross_sums` over all batches."""
    names = ("confidence", "entropy", *_KEYS, "same_place", "rare")
    means = {name: sums[name] / np.maximum(sums["queries"], 1) for name in names}
    return [
        CrossAttentionStatistics(layer + 1, head + 1, **{name: float(values[layer, head]) for name, values in means.items()})
        for layer, head in np.ndindex(sums["confidence"].shape)
    ]
