"""Predictions of hidden tokens of texts, in batches, by the families that can predict them."""

import functools
import sys
from collections import defaultdict
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple, Protocol

import jax
import jax.numpy as jnp
import numpy as np
from tqdm import tqdm
from typing_extensions import override

from bertfam.data.rows.length_batches import row_count, row_length
from bertfam.data.vocabularies import Vocabulary
from bertfam.decoding.prompts import TrainedModel
from bertfam.errors import UserError
from bertfam.layers.lookup import gather_positions
from bertfam.models.encoder import MaskedLmConfig
from bertfam.models.language_model import LanguageModelConfig, encode, logits, word_embeddings


class TrainedEncoder(Protocol):
    """Encoder with its parameters and vocabulary, as `bertfam.api.Model` is."""

    @property
    def config(self) -> MaskedLmConfig:
        """Config of the family."""
        ...

    @property
    def params(self) -> dict[str, Any]:
        """Parameters of the encoder and its heads."""
        ...

    @property
    def vocabulary(self) -> Vocabulary:
        """Vocabulary that texts are encoded with."""
        ...

    def apply(
        self, tokens: np.ndarray, *, segment_ids: np.ndarray | None = None, masked_positions: np.ndarray | None = None
    ) -> dict[str, jax.Array]:
        """Run the model, see `bertfam.api.Model.apply`."""
        ...


class HiddenTokens(NamedTuple):
    """Row of which some tokens are hidden, and the first of these are predicted.

    Attributes:
      tokens: int32[length], the true tokens, with the control tokens `TokenPredictor.before` and `behind` around them.
      hidden: int[n], the hidden places, ascending.
      predicted: number of the first hidden places whose tokens are predicted, at least 1.
    """

    tokens: np.ndarray
    hidden: np.ndarray
    predicted: int

    def places(self, size: int) -> np.ndarray:
        """Return the predicted places, the last of them repeated: int[size]."""
        return np.pad(self.hidden[: self.predicted], (0, size - self.predicted), mode="edge")


class Predictions(NamedTuple):
    """Predictions of the tokens of rows; what a row has less than `most` predicted tokens is filled with 0.

    Attributes:
      log_probabilities: float64[rows, most], of the true tokens.
      ranks: int64[rows, most], 1 plus the number of tokens that are likelier than the true one.
      best: int64[rows, most, top_k], the likeliest tokens, in order.
      best_log_probabilities: float64[rows, most, top_k].
      choices: float64[rows, choices], log-probabilities of given tokens at the first predicted place.
    """

    log_probabilities: np.ndarray
    ranks: np.ndarray
    best: np.ndarray
    best_log_probabilities: np.ndarray
    choices: np.ndarray


class TokenPredictor(Protocol):
    """Model of some family as a predictor of hidden tokens.

    Attributes:
      vocabulary: vocabulary of the tokens.
      before, behind: control tokens around a text.
      max_length: greatest number of tokens of a row with its control tokens; None: any.
      sees_behind: True if the tokens behind a hidden one are seen.
      description: how a token is hidden, as in "each token masked".
    """

    vocabulary: Vocabulary
    before: tuple[int, ...]
    behind: tuple[int, ...]
    max_length: int | None
    sees_behind: bool
    description: str

    def logits(self, rows: Sequence[HiddenTokens], places: np.ndarray, length: int) -> jax.Array:
        """Return the logits float32[rows, size, vocabulary] at the predicted places.

        Args:
          rows: the rows.
          places: int[rows, size], see `HiddenTokens.places`.
          length: length to which rows are padded.
        """
        ...


class MaskedPredictor(TokenPredictor):
    """Encoder with a masked-language-model head, which sees the mask token at the hidden places."""

    sees_behind, description = True, "masked"

    def __init__(self, model: TrainedEncoder) -> None:
        """Use a model; raise UserError if its vocabulary has no mask token."""
        ids = model.vocabulary.token_ids
        self._model, self._mask = model, ids.require("mask", "a prediction of hidden tokens")
        self.vocabulary, self.max_length = model.vocabulary, model.config.max_length
        self.before = () if ids.cls is None else (ids.cls,)
        self.behind = () if ids.cls is None else (ids.require("sep", "a row with [CLS]"),)

    @override
    def logits(self, rows: Sequence[HiddenTokens], places: np.ndarray, length: int) -> jax.Array:
        tokens, segments = _padded([row.tokens for row in rows], length)
        for own, row in zip(tokens, rows, strict=True):
            own[row.hidden] = self._mask
        return self._model.apply(tokens, segment_ids=segments, masked_positions=places)["mlm_logits"]


class CausalPredictor(TokenPredictor):
    """Causal LM, which sees the tokens before a predicted one, hidden or not, after its start token."""

    sees_behind, description = False, "after the text before it"

    def __init__(self, model: TrainedModel) -> None:
        """Use a model; raise UserError if no token begins its texts."""
        if model.ends.start is None:
            raise UserError("the vocabulary has no token that begins or ends a text, after which a sentence could begin")
        self._model, longest = model, model.config.max_length
        self.vocabulary, self.before, self.behind = model.vocabulary, (model.ends.start,), ()
        self.max_length = None if longest is None else longest + 1  # the last token is not read

    @override
    def logits(self, rows: Sequence[HiddenTokens], places: np.ndarray, length: int) -> jax.Array:
        read = [row.tokens[:last] for row, last in zip(rows, places[:, -1], strict=True)]
        written, segments = _padded(read, min(length, self._model.config.max_length or length))
        return _decoder_logits(self._model.params, written, segments, places - 1, None, config=self._model.config)


class DenoisingPredictor(TokenPredictor):
    """Encoder-decoder, which sees its first sentinel in place of the hidden tokens, adjacent ones, and writes them after it.

    That is how T5 is pretrained (Raffel et al. 2020, figure 2).
    """

    sees_behind, description = True, "behind a sentinel"

    def __init__(self, model: TrainedModel) -> None:
        """Use a model; raise UserError if its vocabulary has no sentinel."""
        ids = model.vocabulary.token_ids
        if not ids.sentinels or model.ends.start is None:
            raise UserError(
                "the model writes one text in answer to another, and its vocabulary has no sentinel, such as T5's, that could "
                "hide a token of a sentence: give one that has, a decoder, or a masked language model"
            )
        self._model, self._start, self._sentinel = model, model.ends.start, ids.sentinels[0]
        self.vocabulary, self.max_length = model.vocabulary, model.config.max_length
        self.before, self.behind = (), (ids.end_of_text("a pseudo-log-likelihood"),)

    @override
    def logits(self, rows: Sequence[HiddenTokens], places: np.ndarray, length: int) -> jax.Array:
        read = [np.concatenate([row.tokens[: row.hidden[0]], [self._sentinel], row.tokens[row.hidden[-1] + 1 :]]) for row in rows]
        written = np.stack(
            [[self._start, self._sentinel, *row.tokens[own[:-1]]] for row, own in zip(rows, places, strict=True)]
        ).astype(np.int32)
        answers = np.broadcast_to(np.arange(1, written.shape[1]), places.shape)
        source, config = _padded(read, length), self._model.config
        return _decoder_logits(self._model.params, written, np.ones_like(written), answers, source, config=config)


@functools.partial(jax.jit, static_argnames="config")
def _decoder_logits(
    params: Any,
    written: jax.Array,
    segments: jax.Array,
    places: jax.Array,
    source: tuple[jax.Array, jax.Array] | None,
    *,
    config: LanguageModelConfig,
) -> jax.Array:
    row: dict[str, Any] = {"segment_ids": segments, "positions": None, "train": False}
    if source is not None:
        row |= {"encoded": encode(config, params, *source)[0], "encoded_segment_ids": source[1]}
    decoder: Any = config.decoder()
    hidden, _ = decoder.apply({"params": params["decoder"]}, word_embeddings(params), written, **row)
    return logits(config, params, gather_positions(hidden, places))[..., : config.require_vocab_size]


def predict(
    predictor: TokenPredictor,
    rows: Sequence[HiddenTokens],
    *,
    top_k: int = 1,
    choices: np.ndarray | None = None,
    batch_size: int = 64,
    progress: str | None = None,
) -> Predictions:
    """Predict the hidden tokens of rows, in full float32.

    Args:
      predictor: the model.
      rows: rows that are not longer than `predictor.max_length`.
      top_k: number of the likeliest tokens, at most the vocabulary's size.
      choices: int[choices], tokens whose log-probabilities are returned.
      batch_size: rows at a time.
      progress: description of a progress bar with the time that is left; None: none.
    """
    most, count = max((row.predicted for row in rows), default=0), 0 if choices is None else len(choices)
    # A power of 2 of choices, so that few shapes are compiled.
    asked = np.zeros(1 << max(0, count - 1).bit_length(), np.int32)
    asked[:count] = [] if choices is None else choices
    found = Predictions(
        np.zeros((len(rows), most)),
        np.zeros((len(rows), most), np.int64),
        np.zeros((len(rows), most, top_k), np.int64),
        np.zeros((len(rows), most, top_k)),
        np.zeros((len(rows), count)),
    )
    # Between two updates of the bar, a batch is computed.
    bar = tqdm(total=len(rows), desc=progress, disable=True if progress is None else None, leave=False, mininterval=0.5)
    with jax.default_matmul_precision("highest"), bar:
        for numbers, length, size, fill in _batches(rows, batch_size, predictor.max_length):
            batch = [rows[number] for number in (*numbers, *numbers[-1:] * fill)]
            places = np.stack([row.places(size) for row in batch])
            targets = np.stack([row.tokens[own] for row, own in zip(batch, places, strict=True)])
            values = jax.device_get(_summary(predictor.logits(batch, places, length), targets, asked, top_k=top_k))
            for whole, part in zip(found[:4], values[:4], strict=True):
                for number, own in zip(numbers, part, strict=False):
                    whole[number, : rows[number].predicted] = own[: rows[number].predicted]
            found.choices[numbers] = values[4][: len(numbers), :count]
            bar.update(len(numbers))
    return found


def _batches(rows: Sequence[HiddenTokens], batch_size: int, longest: int | None) -> Iterator[tuple[list[int], int, int, int]]:
    """Yield the indices of rows of similar length, a length and a number of predictions for all, and the rows that are missing.

    Numbers of predictions are powers of 2, so that few shapes are compiled.
    """
    groups: defaultdict[int, list[int]] = defaultdict(list)
    for number, row in enumerate(rows):
        groups[1 << (row.predicted - 1).bit_length()].append(number)
    for size, group in groups.items():
        group.sort(key=lambda number: len(rows[number].tokens))
        count = row_count(len(group), batch_size)
        for begin in range(0, len(group), count):
            numbers = group[begin : begin + count]
            yield numbers, row_length(len(rows[numbers[-1]].tokens), longest or sys.maxsize), size, count - len(numbers)


@functools.partial(jax.jit, static_argnames="top_k")
def _summary(values: jax.Array, targets: jax.Array, choices: jax.Array, *, top_k: int) -> tuple[jax.Array, ...]:
    """Return the parts of `Predictions` for logits float32[rows, size, vocabulary] and targets int32[rows, size]."""
    log_z = jax.nn.logsumexp(values, axis=-1)
    own = jnp.take_along_axis(values, targets[..., None], axis=-1)
    best_values, best = jax.lax.top_k(values, top_k)
    ranks = 1 + jnp.sum(values > own, axis=-1)
    return own[..., 0] - log_z, ranks, best, best_values - log_z[..., None], values[:, 0, choices] - log_z[:, :1]


def _padded(texts: Sequence[np.ndarray], length: int) -> tuple[np.ndarray, np.ndarray]:
    """Return tokens and segment ids int32[texts, length]."""
    tokens, segments = np.zeros((2, len(texts), length), np.int32)
    for row, text in enumerate(texts):
        tokens[row, : len(text)], segments[row, : len(text)] = text, 1
    return tokens, segments
