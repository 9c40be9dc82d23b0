"""Sentence scores: a decoder's log-probability, or a pseudo-log-likelihood."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple, cast

import jax
import jax.numpy as jnp
import numpy as np
from tqdm import tqdm

from bertfam.api import LanguageModel, Model
from bertfam.call_arguments import describe
from bertfam.data.vocabularies import Vocabulary
from bertfam.decoding.hidden_tokens import (
    CausalPredictor,
    DenoisingPredictor,
    HiddenTokens,
    MaskedPredictor,
    TokenPredictor,
    predict,
)
from bertfam.errors import UserError
from bertfam.evaluation.minimal_pairs import Score
from bertfam.kernels.chunked_cross_entropy import VocabularyLoss, token_scores
from bertfam.layers.execution import Execution
from bertfam.models.language_model import head_weights, word_embeddings
from bertfam.models.network import Kind

# Rows are padded to a multiple of this, and batches to so many of them, so that few shapes are compiled.
_MULTIPLE = 16
_ROWS = 256
_PROGRESS: Mapping[str, Any] = {"desc": "sentences", "unit": " batches", "disable": None, "leave": False}


class Scorer(NamedTuple):
    """Function that scores sentences, with a description."""

    score: Score
    description: str


def scorer(networks: Mapping[str, Model | LanguageModel], *, within_word: bool = False) -> Scorer:
    """Create the scorer of the first network that supports it: a causal LM, an encoder-decoder, or an encoder with an MLM head.

    Args:
      networks: the networks of `bertfam.api.load_networks`.
      within_word: see `pseudo`.

    Raises:
      UserError: none can, or one model is given in place of the networks by name.
    """
    predictor = token_predictor(networks)
    if predictor.sees_behind:
        return pseudo(predictor, within_word=within_word)
    if within_word:
        raise UserError("--within_word is of pseudo-log-likelihoods, and a causal LM has a log-probability: leave it out")
    return causal(next(model for model in networks.values() if isinstance(model, LanguageModel)))


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
        sums = np.zeros(len(encoded))
        with jax.default_matmul_precision("highest"):
            for chosen, length in tqdm(list(_batches([len(tokens) for tokens in encoded], most)), **_PROGRESS):
                tokens, lengths = np.zeros((_ROWS, length), np.int32), np.ones(_ROWS, np.int32)
                for row, number in enumerate(chosen):
                    lengths[row] = len(encoded[number])
                    tokens[row, : lengths[row]] = encoded[number]
                sums[chosen] = np.asarray(scores(model.params, tokens, lengths), np.float64)[: len(chosen)]
        if np.isnan(sums).any():
            raise UserError("the model's logits are not numbers, so it scores no sentence: did its training diverge?")
        return sums

    return Scorer(score, f"log-probability after {model.vocabulary.pieces([start])[0]}")


def pseudo(predictor: TokenPredictor, *, within_word: bool = False) -> Scorer:
    """Create a scorer by pseudo-log-likelihood (Salazar et al. 2020, equation 1).

    It is the sum over tokens of log p(token | all others), with the token hidden.

    Args:
      predictor: a model that sees what is behind a hidden token.
      within_word: hide with each token those behind it in the same word too, so that rare words of several pieces have no
        inflated scores (Kauf and Ivanova 2023, PLL-word-l2r).

    Raises:
      UserError: with `within_word`, the vocabulary does not mark the pieces that begin a word.
    """
    starts = predictor.vocabulary.token_ids.starts_word
    if within_word and len(starts) != predictor.vocabulary.size:
        raise UserError("the vocabulary does not mark the pieces that begin a word; leave --within_word out")

    def score(sentences: Sequence[str], where: Sequence[str]) -> np.ndarray:
        encoded = encoded_rows(predictor, sentences, where)
        owners, rows = list[int](), list[HiddenTokens]()
        for number, tokens in enumerate(encoded):
            first, end = len(predictor.before), len(tokens) - len(predictor.behind)
            is_start = np.append(starts[tokens[first:end]] if within_word else np.ones(end - first, bool), True)
            ends = first + np.flatnonzero(is_start)
            for place in range(first, end):
                hidden = np.arange(place, ends[np.searchsorted(ends, place, side="right")])
                rows.append(HiddenTokens(tokens, hidden, 1))
                owners.append(number)
        return summed(predictor, rows, owners, len(encoded))

    hidden = "with the later pieces of its word" if within_word else "in turn"
    return Scorer(score, f"pseudo-log-likelihood, each token {predictor.description} {hidden}")


def summed(predictor: TokenPredictor, rows: Sequence[HiddenTokens], owners: Sequence[int], count: int) -> np.ndarray:
    """Sum the log-probabilities of the predicted tokens of each owner's rows: float64[count]."""
    found = predict(predictor, rows, batch_size=_ROWS, progress="hidden tokens").log_probabilities.sum(axis=1)
    if np.isnan(found).any():
        raise UserError("the model's logits are not numbers, so it scores no sentence: did its training diverge?")
    return np.bincount(owners, found, count)


def token_predictor(networks: Mapping[str, Model | LanguageModel]) -> TokenPredictor:
    """Create the predictor of hidden tokens by the first network that supports it, as `scorer` does.

    Raises:
      UserError: none can, or one model is given in place of the networks by name.
    """
    if not isinstance(networks, Mapping):
        raise UserError(f"networks must be models by name, as of load_networks, not {describe(networks)}")
    for model in networks.values():
        if isinstance(model, LanguageModel):
            return _PREDICTORS[model.config.kind](model)
        if isinstance(model, Model) and "mlm_head" in model.params:
            return MaskedPredictor(cast(Any, model))
    raise UserError("the model has no masked-language-model head, so it gives sentences no score; give one that has")


_PREDICTORS: Mapping[Kind, Callable[[LanguageModel], TokenPredictor]] = {
    "decoder": CausalPredictor,
    "encoder_decoder": DenoisingPredictor,
}


def encoded_rows(predictor: TokenPredictor, sentences: Sequence[str], where: Sequence[str]) -> list[np.ndarray]:
    """Encode sentences with the control tokens around them: int32[length] each.

    Raises:
      UserError: a sentence has no token, or more than the model reads; it names the place of the sentence in `where`.
    """
    return _encoded(predictor.vocabulary, sentences, where, predictor.before, predictor.behind, predictor.max_length)


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


def _batches(lengths: Sequence[int], most: int | None) -> Iterator[tuple[np.ndarray, int]]:
    """Yield rows of about the same length, at most `_ROWS` of them, and the length to pad them to."""
    padded = np.minimum(-(-np.array(lengths) // _MULTIPLE) * _MULTIPLE, most or max(lengths) + _MULTIPLE)
    for length in np.unique(padded):
        those = np.flatnonzero(padded == length)
        for begin in range(0, len(those), _ROWS):
            yield those[begin : begin + _ROWS], int(length)
