"""Sentence scores: a decoder's log-probability, or a pseudo-log-likelihood."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from bertfam.api import LanguageModel, Model
from bertfam.call_arguments import describe
from bertfam.data.vocabularies import Vocabulary
from bertfam.errors import UserError
from bertfam.evaluation.minimal_pairs import Score
from bertfam.kernels.chunked_cross_entropy import VocabularyLoss, token_scores
from bertfam.layers.execution import Execution
from bertfam.models.language_model import encode, head_weights, word_embeddings
from bertfam.models.network import Kind

# Rows are padded to a multiple of this, and batches to so many of them, so that few shapes are compiled.
_MULTIPLE = 16
_ROWS = 256


class Scorer(NamedTuple):
    """Function that scores sentences, with a description."""

    score: Score
    description: str


class _Rows(NamedTuple):
    """Rows of one sentence each, or of one sentence with one token hidden.

    Attributes:
      sentence: index of the sentence of each row.
      tokens: tokens of each row.
      place: place of the hidden token; 0 if none is hidden.
    """

    sentence: list[int]
    tokens: list[np.ndarray]
    place: list[int]


def scorer(networks: Mapping[str, Model | LanguageModel]) -> Scorer:
    """Create the scorer of the first network that supports it: a causal LM, an encoder-decoder, or an encoder with an MLM head.

    Raises:
      UserError: none can, or one model is given in place of the networks by name.
    """
    if not isinstance(networks, Mapping):
        raise UserError(f"networks must be models by name, as of load_networks, not {describe(networks)}")
    for model in networks.values():
        if isinstance(model, LanguageModel):
            return _SCORERS[model.config.kind](model)
        if isinstance(model, Model) and "mlm_head" in model.params:
            return masked(model)
    raise UserError("the model has no masked-language-model head, so it gives sentences no score; give one that has")


def causal(model: LanguageModel) -> Scorer:
    """Create a scorer by log p(sentence) = sum over its tokens of log p(token | start, previous tokens); no end is scored.

    The start is the token that texts of the model begin with, such as <|endoftext|>.

    Raises:
      UserError: there is none.
    """
    start, config = model.ends.start, model.config
    if start is None:
        raise UserError("the vocabulary has no token that begins or ends a text, after which a sentence could begin")
    settings = VocabularyLoss(config.require_vocab_size)
    decoder: Any = config.decoder(Execution())
    most = None if config.max_length is None else config.max_length + 1  # the last token is not read

    @jax.jit
    def scores(params: Any, tokens: jax.Array, lengths: jax.Array) -> jax.Array:
        # [rows, length]: the start and all tokens but the last are read, and those behind the start are predicted.
        segments = (jnp.arange(tokens.shape[1] - 1) < lengths[:, None] - 1).astype(jnp.int32)
        row = {"segment_ids": segments, "positions": None, "train": False}
        hidden, _ = decoder.apply({"params": params["decoder"]}, word_embeddings(params), tokens[:, :-1], **row)
        head = head_weights(config, params)
        found = token_scores(hidden * head.scale, head.kernel, head.bias, tokens[:, 1:], settings)
        return jnp.sum(found.log_probabilities * segments, axis=1)

    def score(sentences: Sequence[str], where: Sequence[str]) -> np.ndarray:
        encoded = _encoded(model.vocabulary, sentences, where, (start,), (), most)
        rows = _Rows(list(range(len(encoded))), encoded, [0] * len(encoded))
        return _summed(rows, len(encoded), most, lambda tokens, lengths, _: scores(model.params, tokens, lengths))

    return Scorer(score, f"log-probability after {model.vocabulary.pieces([start])[0]}")


def masked(model: Model) -> Scorer:
    """Create a scorer by pseudo-log-likelihood (Salazar et al. 2020, equation 1).

    It is the sum over tokens of log p(token | all others), with the token masked.

    Raises:
      UserError: the vocabulary has no mask token.
    """
    ids = model.vocabulary.token_ids
    mask = ids.require("mask", "a pseudo-log-likelihood")
    before, behind = ((), ()) if ids.cls is None else ((ids.cls,), (ids.require("sep", "a row with [CLS]"),))

    @jax.jit
    def of_targets(logits: jax.Array, targets: jax.Array) -> jax.Array:
        return jnp.take_along_axis(jax.nn.log_softmax(logits[:, 0]), targets[:, None], axis=1)[:, 0]

    def scores(tokens: np.ndarray, lengths: np.ndarray, place: np.ndarray) -> jax.Array:
        row = np.arange(len(tokens))
        hidden = tokens.copy()
        hidden[row, place] = mask
        segments = (np.arange(tokens.shape[1]) < lengths[:, None]).astype(np.int32)
        found = model.apply(hidden, segment_ids=segments, masked_positions=place[:, None])
        return of_targets(found["mlm_logits"], tokens[row, place])

    def score(sentences: Sequence[str], where: Sequence[str]) -> np.ndarray:
        encoded = _encoded(model.vocabulary, sentences, where, before, behind, model.config.max_length)
        rows = _hidden_one_by_one(encoded, len(before), len(behind))
        return _summed(rows, len(encoded), model.config.max_length, scores)

    return Scorer(score, "pseudo-log-likelihood, each token masked in turn")


def denoised(model: LanguageModel) -> Scorer:
    """Create a scorer by the pseudo-log-likelihood of an encoder-decoder (Salazar et al. 2020, equation 1).

    It is the sum over tokens of log p(token | all others). The first sentinel replaces the token in the input, and the decoder,
    whose input ends with that sentinel, predicts the token (Raffel et al. 2020, figure 2).

    Raises:
      UserError: the vocabulary has no sentinels.
    """
    config, ids = model.config, model.vocabulary.token_ids
    if not ids.sentinels or model.ends.start is None:
        raise UserError(
            "the model writes one text in answer to another, and its vocabulary has no sentinel, such as T5's, that could hide a "
            "token of a sentence: give one that has, a decoder, or a masked language model"
        )
    sentinel, start, end = ids.sentinels[0], model.ends.start, ids.end_of_text("a pseudo-log-likelihood")
    settings = VocabularyLoss(config.require_vocab_size)
    decoder: Any = config.decoder(Execution())

    @jax.jit
    def of_targets(params: Any, tokens: jax.Array, lengths: jax.Array, place: jax.Array) -> jax.Array:
        places = jnp.arange(tokens.shape[1])
        segments = (places < lengths[:, None]).astype(jnp.int32)
        is_target = places == place[:, None]
        encoded, _ = encode(config, params, jnp.where(is_target, sentinel, tokens), segments)
        written = jnp.broadcast_to(jnp.array([start, sentinel]), (len(tokens), 2))
        row: dict[str, Any] = {"segment_ids": jnp.ones_like(written), "positions": None, "train": False}
        row |= {"encoded": encoded, "encoded_segment_ids": segments}
        hidden, _ = decoder.apply({"params": params["decoder"]}, word_embeddings(params), written, **row)
        head = head_weights(config, params)
        targets = jnp.sum(jnp.where(is_target, tokens, 0), axis=1, keepdims=True)
        found = token_scores(hidden[:, 1:] * head.scale, head.kernel, head.bias, targets, settings)
        return found.log_probabilities[:, 0]

    def score(sentences: Sequence[str], where: Sequence[str]) -> np.ndarray:
        encoded = _encoded(model.vocabulary, sentences, where, (), (end,), config.max_length)
        rows = _hidden_one_by_one(encoded, 0, 1)
        return _summed(rows, len(encoded), config.max_length, lambda *batch: of_targets(model.params, *batch))

    return Scorer(score, "pseudo-log-likelihood, each token behind a sentinel in turn")


_SCORERS: Mapping[Kind, Callable[[LanguageModel], Scorer]] = {"decoder": causal, "encoder_decoder": denoised}


def _hidden_one_by_one(encoded: Sequence[np.ndarray], before: int, behind: int) -> _Rows:
    """Create a row for each token of each sentence, except the frame of `before` and `behind` tokens."""
    hidden = [(number, tokens, place) for number, tokens in enumerate(encoded) for place in range(before, len(tokens) - behind)]
    return _Rows(*map(list, zip(*hidden, strict=True)))


def _encoded(
    vocabulary: Vocabulary,
    sentences: Sequence[str],
    where: Sequence[str],
    before: tuple[int, ...],
    behind: tuple[int, ...],
    most: int | None,
) -> list[np.ndarray]:
    """Encode each sentence with the tokens before and behind it: int32[length], at most `most`."""
    found = []
    for ids, sentence, place in zip(vocabulary.encode_batch(sentences), sentences, where, strict=True):
        tokens = np.array([*before, *ids, *behind], np.int32)
        if not len(ids):
            raise UserError(f"{place}: {sentence!r} has no token in the model's vocabulary")
        if most is not None and len(tokens) > most:
            raise UserError(f"{place}: a sentence has {len(tokens)} tokens and the model reads at most {most}; take it out")
        found.append(tokens)
    return found


def _summed(
    rows: _Rows, count: int, most: int | None, scores: Callable[[np.ndarray, np.ndarray, np.ndarray], jax.Array]
) -> np.ndarray:
    """Sum the scores of each sentence's rows of at most `most` tokens: float64[count].

    `scores`: (tokens int32[rows, length], their lengths int32[rows], place int32[rows]) -> float32[rows].
    """
    sums = np.zeros(count)
    with jax.default_matmul_precision("highest"):
        for picked, length in _batches([len(tokens) for tokens in rows.tokens], most):
            tokens, lengths, place = np.zeros((_ROWS, length), np.int32), np.ones(_ROWS, np.int32), np.zeros(_ROWS, np.int32)
            for row, number in enumerate(picked):
                lengths[row], place[row] = len(rows.tokens[number]), rows.place[number]
                tokens[row, : lengths[row]] = rows.tokens[number]
            found = np.asarray(scores(tokens, lengths, place), np.float64)[: len(picked)]
            if np.isnan(found).any():
                raise UserError("the model's logits are not numbers, so it scores no sentence: did its training diverge?")
            np.add.at(sums, [rows.sentence[number] for number in picked], found)
    return sums


def _batches(lengths: Sequence[int], most: int | None) -> Iterator[tuple[np.ndarray, int]]:
    """Yield rows of about the same length, at most `_ROWS` of them, and the length to pad them to."""
    padded = np.minimum(-(-np.array(lengths) // _MULTIPLE) * _MULTIPLE, most or max(lengths) + _MULTIPLE)
    for length in np.unique(padded):
        those = np.flatnonzero(padded == length)
        for begin in range(0, len(those), _ROWS):
            yield those[begin : begin + _ROWS], int(length)
