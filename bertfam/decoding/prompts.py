"""Prompts of causal LMs and of encoder-decoders: their tokens, their rows in a batch, and the texts that answer them."""

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar, NamedTuple, Protocol

import jax.numpy as jnp
import numpy as np
from typing_extensions import override

from bertfam.call_arguments import check_text, check_token_ids, describe
from bertfam.corruption.token_ids import TokenIds
from bertfam.data.vocabularies import Vocabulary
from bertfam.decoding.decode import Source
from bertfam.decoding.stepper import Ends, Prompts
from bertfam.decoding.strategies import Limits
from bertfam.errors import UserError
from bertfam.features import Start
from bertfam.models.language_model import LanguageModelConfig
from bertfam.models.network import Kind

# Prompts are padded to this, or twice, four times ... as much, so that few lengths are compiled.
_SHORTEST = 32


class TrainedModel(Protocol):
    """Causal LM or encoder-decoder with its parameters and vocabulary, as `bertfam.api.LanguageModel` is."""

    @property
    def config(self) -> LanguageModelConfig:
        """Config of the family."""
        ...

    @property
    def params(self) -> dict[str, Any]:
        """Parameters, see `bertfam.models.language_model`."""
        ...

    @property
    def vocabulary(self) -> Vocabulary:
        """Vocabulary that prompts are encoded with."""
        ...

    @property
    def ends(self) -> Ends:
        """Tokens that begin and end texts."""
        ...


class PromptLengths(NamedTuple):
    """Lengths of a prompt in tokens.

    Attributes:
      prompt: tokens of the decoder before the new ones.
      source: tokens of the encoder; None without an encoder.
      new: new tokens.
    """

    prompt: int
    source: int | None
    new: int


class PromptFormat(ABC):
    """Base class of the two formats of prompts and of the texts that follow them.

    Attributes:
      ends_inputs: True if the end of a text stands behind an input too.
      start_name: name of the start token in the files of transformers.
      first_name: name of the token that is forced to follow it there; None: there is none.
    """

    ends_inputs: ClassVar[bool]
    start_name: ClassVar[str]
    first_name: ClassVar[str | None]

    @abstractmethod
    def encode(self, model: TrainedModel, prompt: str | np.ndarray, limits: Limits) -> np.ndarray:
        """Encode a prompt as int32[length]; raise UserError if it and the new tokens do not fit the model."""

    @abstractmethod
    def batch(self, model: TrainedModel, encoded: Sequence[np.ndarray], rows: int) -> tuple[Prompts, Source | None]:
        """Collect prompts into `rows` rows; rows beyond the prompts are padding."""

    @abstractmethod
    def spell(self, model: TrainedModel, prompt: str | np.ndarray, encoded: np.ndarray, tokens: list[int]) -> str:
        """Spell the text of a prompt and its new tokens."""

    @abstractmethod
    def split(self, inputs: Sequence[np.ndarray], start: int) -> tuple[list[np.ndarray], Sequence[np.ndarray] | None]:
        """Return what precedes each target in the decoder, and what the encoder reads, for inputs int32[length] each."""

    @abstractmethod
    def lengths(self, length: int, targets: int) -> PromptLengths:
        """Return the lengths of a prompt, and of the text that follows it, for rows of these lengths."""

    @abstractmethod
    def frame_start(self, config: LanguageModelConfig) -> Start | None:
        """Return the start token that inputs and targets begin with in training; None: neither has one."""

    @abstractmethod
    def special_ids(self, tokens: TokenIds, start: int | None) -> dict[str, int | None]:
        """Return the ids that begin texts, by their names in config.json; `start` begins those of the decoder."""

    @abstractmethod
    def pieces_before(self, config: LanguageModelConfig, vocabulary: Vocabulary, start: int | None) -> list[str] | None:
        """Return the pieces that a tokenizer of transformers adds before a prompt; None: those of the vocabulary's layout."""


class CausalLmPrompts(PromptFormat):
    """Prompts that a causal LM continues, padded on the left."""

    ends_inputs: ClassVar[bool] = False
    start_name: ClassVar[str] = "bos_token_id"
    first_name: ClassVar[str | None] = None

    @override
    def encode(self, model: TrainedModel, prompt: str | np.ndarray, limits: Limits) -> np.ndarray:
        if isinstance(prompt, str):
            tokens, begins = model.vocabulary.encode_prompt(prompt, frame=False).ids, model.config.start is not None
        else:
            tokens, begins, prompt = prompt, False, model.vocabulary.decode(prompt)
        if (begins or not len(tokens)) and model.ends.start is not None:
            tokens = np.append(np.int32(model.ends.start), tokens)
        _check_not_empty(tokens)
        longest, new = model.config.max_length, limits.max_new_tokens
        if longest is not None and len(tokens) + new > longest:
            raise UserError(
                f"{_shown(prompt)} has {len(tokens)} tokens, which with {new} new ones are more than the model's {longest}; "
                "shorten it" + (f", or lower max_new_tokens to {longest - len(tokens)}" if len(tokens) < longest else "")
            )
        return tokens

    @override
    def batch(self, model: TrainedModel, encoded: Sequence[np.ndarray], rows: int) -> tuple[Prompts, Source | None]:
        length, lengths = _padded_length(model, encoded), _lengths(encoded, rows)
        table = np.full((rows, length), model.ends.fill, np.int32)
        table[np.arange(length) >= length - lengths[:, None]] = np.concatenate(encoded)
        return Prompts(jnp.asarray(table), jnp.asarray(length - lengths), jnp.asarray(lengths > 0)), None

    @override
    def spell(self, model: TrainedModel, prompt: str | np.ndarray, encoded: np.ndarray, tokens: list[int]) -> str:
        vocabulary = model.vocabulary
        # A vocabulary may drop the space of a first word.
        before = vocabulary.decode(encoded.tolist(), skip_special=True)
        whole = vocabulary.decode([*encoded.tolist(), *tokens], skip_special=True)
        return (prompt if isinstance(prompt, str) else before) + (
            whole[len(before) :] if whole.startswith(before) else vocabulary.decode(tokens, skip_special=True)
        )

    @override
    def split(self, inputs: Sequence[np.ndarray], start: int) -> tuple[list[np.ndarray], Sequence[np.ndarray] | None]:
        return [text if len(text) else np.array([start], np.int32) for text in inputs], None

    @override
    def lengths(self, length: int, targets: int) -> PromptLengths:
        new = max(length // 2, 1)
        return PromptLengths(length - new, None, new)

    @override
    def frame_start(self, config: LanguageModelConfig) -> Start | None:
        return None

    @override
    def special_ids(self, tokens: TokenIds, start: int | None) -> dict[str, int | None]:
        return {self.start_name: start}

    @override
    def pieces_before(self, config: LanguageModelConfig, vocabulary: Vocabulary, start: int | None) -> list[str] | None:
        return [] if config.start is None or start is None else vocabulary.pieces([start])


class EncoderDecoderPrompts(PromptFormat):
    """Prompts that an encoder reads, padded on the right, and a decoder answers."""

    ends_inputs: ClassVar[bool] = True
    start_name: ClassVar[str] = "decoder_start_token_id"
    first_name: ClassVar[str | None] = "forced_bos_token_id"

    @override
    def encode(self, model: TrainedModel, prompt: str | np.ndarray, limits: Limits) -> np.ndarray:
        if isinstance(prompt, str):
            tokens = model.vocabulary.encode_prompt(prompt, frame=True).ids
        else:
            tokens, prompt = prompt, model.vocabulary.decode(prompt)
        _check_not_empty(tokens)
        if model.ends.start is None:
            raise UserError("the vocabulary has no start token for the decoder: choose another vocabulary")
        longest, new = model.config.max_length, limits.max_new_tokens
        if longest is not None and len(tokens) > longest:
            raise UserError(f"{_shown(prompt)} has {len(tokens)} tokens and the model reads at most {longest}; shorten it")
        if longest is not None and new > longest:
            raise UserError(f"max_new_tokens {new} is more than the {longest} tokens that the model writes; lower it")
        return tokens

    @override
    def batch(self, model: TrainedModel, encoded: Sequence[np.ndarray], rows: int) -> tuple[Prompts, Source | None]:
        length, lengths = _padded_length(model, encoded), _lengths(encoded, rows)
        real = np.arange(length) < lengths[:, None]
        table = np.full((rows, length), model.ends.fill, np.int32)
        table[real] = np.concatenate(encoded)
        starts = jnp.asarray(np.full((rows, 1), model.ends.start, np.int32))
        prompts = Prompts(starts, jnp.zeros(rows, jnp.int32), jnp.asarray(lengths > 0))
        return prompts, Source(jnp.asarray(table), jnp.asarray(real.astype(np.int32)))

    @override
    def spell(self, model: TrainedModel, prompt: str | np.ndarray, encoded: np.ndarray, tokens: list[int]) -> str:
        dropped = set(model.vocabulary.token_ids.special)
        return model.vocabulary.decode([token for token in tokens if token not in dropped])

    @override
    def split(self, inputs: Sequence[np.ndarray], start: int) -> tuple[list[np.ndarray], Sequence[np.ndarray] | None]:
        return [np.array([start], np.int32)] * len(inputs), inputs

    @override
    def lengths(self, length: int, targets: int) -> PromptLengths:
        return PromptLengths(1, length, targets)

    @override
    def frame_start(self, config: LanguageModelConfig) -> Start | None:
        return config.start

    @override
    def special_ids(self, tokens: TokenIds, start: int | None) -> dict[str, int | None]:
        return {"bos_token_id": tokens.cls, self.start_name: start}

    @override
    def pieces_before(self, config: LanguageModelConfig, vocabulary: Vocabulary, start: int | None) -> list[str] | None:
        return None


_FORMATS: Mapping[Kind, PromptFormat] = {"decoder": CausalLmPrompts(), "encoder_decoder": EncoderDecoderPrompts()}


def prompt_format(config: LanguageModelConfig) -> PromptFormat:
    """Return the format of a model's prompts."""
    return _FORMATS[config.kind]


def check_prompt(prompt: Any, name: str, vocabulary: Vocabulary) -> str | np.ndarray:
    """Return a prompt, a text or tokens int32[length].

    Args:
      prompt: the prompt.
      name: its name in messages.
      vocabulary: vocabulary of the tokens.

    Raises:
      UserError: it is neither a text nor an array of ids of the vocabulary.
    """
    if isinstance(prompt, (str, bytes)):
        return check_text(prompt, name)
    if isinstance(prompt, (int, np.integer)):
        raise UserError(
            f"{name} is {prompt}, and must be a text or an array of token ids: write [[{prompt}, ...]] for one prompt"
        )
    if prompt is None or np.asarray(prompt, object).ndim == 0:
        raise UserError(f"{name} must be a text or an array of token ids, not {describe(prompt)}")
    return check_token_ids(prompt, name, vocabulary.size)


def _check_not_empty(tokens: np.ndarray) -> None:
    if not len(tokens):
        raise UserError("a prompt is empty and the vocabulary has no token to begin a text with; give a prompt")


def _shown(prompt: str) -> str:
    return repr(prompt if len(prompt) <= 60 else prompt[:57] + "...")


def _padded_length(model: TrainedModel, encoded: Sequence[np.ndarray]) -> int:
    longest, most = max(map(len, encoded)), model.config.max_length
    length = _SHORTEST << max(0, (longest - 1) // _SHORTEST).bit_length()
    return length if most is None else min(length, most)


def _lengths(encoded: Sequence[np.ndarray], rows: int) -> np.ndarray:
    return np.array([len(tokens) for tokens in encoded] + [0] * (rows - len(encoded)), np.int32)
